"""A contrastive captioner after CoCa (Yu et al. 2022, https://arxiv.org/abs/2205.01917).

It captions images, and scores how well a caption matches an image. With features a_1 … a_L:

    p_0 … p_Q = pooler(a)              learned queries that attend to the features; p_0 represents the image
    u         = unimodal(words)        causal layers over words only
    logits    = multimodal(u, p)       further layers with cross-attention to the pooled vectors
    x, y      = W_x p_0, W_y u_end     embeddings of image and caption, normalised to length one
    loss      = −log p(words) − ½ log softmax_j(s x_i · y_j)_i − ½ log softmax_j(s y_i · x_j)_i

Which pooled vectors the multimodal layers attend to is what Kornblith et al. (2023, https://arxiv.org/abs/2307.16686)
call the conditioning: "attention" to p_1 … p_Q, or the "bottleneck" p_0 only, the vector that is matched with captions.
The paper adds the two directions of the contrastive loss with weight 1 to a captioning loss of weight 2, a sum over
words as here; divided by two this is the loss above. Its class token is our `<end>`, and its two poolers are one pooler
with one more query.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saywhy.captioners.base import (
    Attention,
    Captioner,
    CaptionerSettings,
    Linear,
    State,
    Step,
    TeacherForced,
    captioners,
)
from saywhy.captioners.transformer import Layer, MultiHeadAttention, positions
from saywhy.data.tokenizer import END
from saywhy.encoders.base import Encoder, Features
from saywhy.errors import UserError
from saywhy.registry import Registry

LARGEST_LOG_SCALE = math.log(100)
"""Upper limit of log s, as in CLIP: sharper softmaxes make training unstable."""
MOST_LAYERS = 100


class Conditioning(nn.Module, ABC):
    """How a multimodal layer attends to the pooled vectors."""

    def __init__(self, settings: CoCaSettings) -> None:
        super().__init__()

    @abstractmethod
    def prepare(self, pooled: Tensor) -> Tensor:
        """The part that does not depend on words, computed once per image: (B, P, width) ↦ (B, …)."""

    @abstractmethod
    def forward(self, x: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor]:
        """The context of words x (B, T, width), (B, T, width), and their attention to pooled vectors, (B, T, P)."""


conditionings: Registry[type[Conditioning]] = Registry("conditioning")


@dataclass(frozen=True)
class CoCaSettings(CaptionerSettings):
    """Widths and options.

    Attributes:
        conditioning: "attention" or "bottleneck".
        width: of words, pooled vectors and embeddings.
        heads: of every attention.
        unimodal: number of layers over words only.
        multimodal: number of layers after them with cross-attention to the image.
        queries: Q, number of pooled vectors for the decoder; not used by the bottleneck.
        dropout: of word embeddings, attention output and MLP output.
        contrastive: weight of the contrastive loss; with 0 there is no contrastive head.
    """

    conditioning: str = "attention"
    width: int = 512
    heads: int = 8
    unimodal: int = 2
    multimodal: int = 2
    queries: int = 16
    dropout: float = 0.3
    contrastive: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.width, self.heads, self.unimodal, self.multimodal, self.queries) < 1:
            raise UserError("coca: width, heads, unimodal, multimodal and queries are at least 1")
        if self.unimodal + self.multimodal > MOST_LAYERS:
            raise UserError(f"coca: unimodal and multimodal are at most {MOST_LAYERS} layers together")
        if self.width % self.heads or self.width % 2:
            raise UserError(f"coca: width {self.width} is odd or does not divide into {self.heads} heads")
        if not 0 <= self.dropout < 1 or not 0 <= self.contrastive < math.inf:
            raise UserError("coca: dropout is below 1, and neither dropout nor contrastive is below 0")
        _ = conditionings[self.conditioning]


@dataclass(frozen=True)
class CoCaState(State):
    """The cached words of each layer, the prepared pooled vectors, and the attention of the pooler."""

    cache: Tensor  # (B, layers, 2, heads, t, d), keys and values
    pooled: Tensor  # (B, multimodal, …), from `Conditioning.prepare`
    pooling: Tensor  # (B, P, L), the pooler's attention


class Pooler(nn.Module):
    """Learned queries; the attention of each to the features gives one vector."""

    def __init__(self, feature: int, queries: int, settings: CoCaSettings) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, settings.width))
        self.before = nn.LayerNorm(feature)
        self.attention = MultiHeadAttention(settings.width, settings.heads, feature)
        self.after = nn.LayerNorm(settings.width)

    def forward(self, features: Features) -> tuple[Tensor, Tensor]:
        """Pooled vectors (B, P, width), and their attention to the features (B, P, L), the mean over heads."""
        hidden = None if features.mask is None else ~features.mask[:, None, None]  # (B, 1, 1, L)
        keys_values = self.attention.keys_values(self.before(features.vectors))
        pooled, A = self.attention(self.queries.unsqueeze(0), keys_values, hidden)
        return self.after(pooled), A.mean(dim=1)


@conditionings.register("attention")
class CrossAttention(Conditioning):
    """Each word attends to the pooled vectors."""

    def __init__(self, settings: CoCaSettings) -> None:
        super().__init__(settings)
        self.norm = nn.LayerNorm(settings.width)
        self.attention = MultiHeadAttention(settings.width, settings.heads)

    def prepare(self, pooled: Tensor) -> Tensor:
        """Keys and values, (B, 2, heads, P, d)."""
        return self.attention.keys_values(pooled)

    def forward(self, x: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor]:
        """The context (B, T, width), and the attention (B, T, P), the mean over heads."""
        context, A = self.attention(self.norm(x), prepared)
        return context, A.mean(dim=1)


@conditionings.register("bottleneck")
class Bottleneck(Conditioning):
    """Attention to a single vector does not depend on the query: a linear map of the vector."""

    def __init__(self, settings: CoCaSettings) -> None:
        super().__init__(settings)
        self.value = nn.Linear(settings.width, settings.width)

    def prepare(self, pooled: Tensor) -> Tensor:
        """The context of every word, (B, 1, width)."""
        return self.value(pooled)

    def forward(self, x: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor]:
        """The same context for every word, (B, T, width), with attention 1, (B, T, 1)."""
        return prepared.expand_as(x), torch.ones_like(x[..., :1])


class MultimodalLayer(Layer):
    """Self-attention over words, then cross-attention to the pooled vectors, then the MLP."""

    def __init__(self, settings: CoCaSettings) -> None:
        super().__init__(settings.width, settings.heads, settings.dropout)
        self.conditioning: Conditioning = conditionings[settings.conditioning](settings)

    def forward(self, x: Tensor, cache: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """As `Layer`, and the attention to pooled vectors, (B, T, P)."""
        x, cache = self.self_attention(x, cache)
        context, A = self.conditioning(x, prepared)
        return self.feed_forward(x + self.dropout(context)), cache, A


class ContrastiveHead(nn.Module):
    """Images and captions as unit vectors in one space.

    Attributes:
        log_scale: log s, where 1 / s is the temperature; `limit_scale` keeps it below `LARGEST_LOG_SCALE`.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_image = nn.Linear(width, width, bias=False)
        self.of_caption = nn.Linear(width, width, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(0.07)))  # the paper's initial temperature

    def forward(self, images: Tensor, captions: Tensor) -> Tensor:
        """Cosine similarity (B, N) of images (B, width) and captions (N, width)."""
        x, y = self.of_image(images), self.of_caption(captions)
        with torch.autocast(x.device.type, enabled=False):  # s multiplies the rounding of bfloat16 by up to 100
            x, y = (F.normalize(vectors.to(self.log_scale.dtype), dim=-1) for vectors in (x, y))
            return x @ y.T

    @torch.no_grad()
    def limit_scale(self) -> None:
        """Clamp the parameter, not its use in the graph: beyond the limit a clamp has no gradient."""
        self.log_scale.clamp_(max=LARGEST_LOG_SCALE)


@captioners.register("coca")
class CoCa(Captioner[CoCaState]):
    """The captioner; the symbols are those of the module docstring."""

    name = "coca"
    Settings = CoCaSettings
    propagates_through_attention = True

    def __init__(self, encoder: Encoder, vocabulary_size: int, settings: CoCaSettings) -> None:
        super().__init__(encoder, vocabulary_size, settings)
        width, heads, dropout = settings.width, settings.heads, settings.dropout
        bottleneck = settings.conditioning == "bottleneck"
        self.pooler = Pooler(encoder.width, 1 if bottleneck else 1 + settings.queries, settings)
        self.for_decoder = slice(0, 1) if bottleneck else slice(1, None)  # of the pooled vectors
        self.E = nn.Embedding(vocabulary_size, width)
        self.unimodal = nn.ModuleList(Layer(width, heads, dropout) for _ in range(settings.unimodal))
        self.multimodal = nn.ModuleList(MultimodalLayer(settings) for _ in range(settings.multimodal))
        self.norm = nn.LayerNorm(width)
        self.out = Linear(width, vocabulary_size)
        self.dropout = nn.Dropout(dropout)
        self.contrastive = ContrastiveHead(width) if settings.contrastive else None

    def start(self, features: Features) -> CoCaState:
        """Pool the features, and prepare the pooled vectors for each multimodal layer."""
        pooled, pooling = (part[:, self.for_decoder] for part in self.pooler(features))  # (B, P, width), (B, P, L)
        prepared = [layer.conditioning.prepare(pooled) for layer in self.multimodal]  # type: ignore[operator, union-attr]
        rows = features.vectors.shape[0]  # not len(), which an export takes for fixed
        return CoCaState(self._empty_cache(rows), torch.stack(prepared, dim=1), pooling)

    def step(self, tokens: Tensor, state: CoCaState) -> Step[CoCaState]:
        """Read one word, with the cached keys and values of the words before it."""
        logits, state, alpha = self._read(tokens.unsqueeze(1), state)
        return Step(logits.squeeze(1), state, Attention(alpha.squeeze(1)))

    def forward(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Tensor, Attention]:
        """As `step`, for all words at once."""
        logits, _, alpha = self._read(captions, self.start(features))
        return logits, Attention(alpha)  # (B, T, V), alpha (B, T, L)

    def auxiliary_loss(self, forced: TeacherForced) -> Tensor | None:
        """The contrastive loss, (N,), of captions that are not empty and have their image."""
        if self.contrastive is None:
            return None
        self.contrastive.limit_scale()
        similarity = self.match(forced.features, forced.tokens)  # (N, N)
        included = forced.has_image & forced.mask.any(dim=1)
        logits = self.contrastive.log_scale.exp() * similarity
        return self.settings.contrastive * info_nce(logits, included, forced.image_index)

    def match(self, features: Features, captions: Tensor) -> Tensor:
        """Cosine similarity (B, N) of every image with every caption (N, T) from `<start>` to `<end>`, padded."""
        if self.contrastive is None:
            raise UserError("this coca was trained with contrastive = 0, and cannot match images with captions")
        pooled, _ = self.pooler(features)
        u, _ = self._unimodal(captions, self._empty_cache(len(captions)))  # (N, T, width)
        end = (captions == END).int().argmax(dim=1)  # a caption of padding only has none, and is not used
        return self.contrastive(pooled[:, 0], u[torch.arange(len(u), device=u.device), end])

    def _read(self, tokens: Tensor, state: CoCaState) -> tuple[Tensor, CoCaState, Tensor]:
        """Logits (B, T, V) after each of the words (B, T), the state after all, and α (B, T, L)."""
        x, caches = self._unimodal(tokens, state.cache)
        previous = state.cache.unbind(1)[len(caches) :]
        for layer, cache, prepared in zip(self.multimodal, previous, state.pooled.unbind(1), strict=True):
            x, cache, A = layer(x, cache, prepared)
            caches.append(cache)
        alpha = A @ state.pooling  # (B, T, P) of the last layer, (B, P, L)
        return self.out(self.norm(x)), replace(state, cache=torch.stack(caches, dim=1)), alpha

    def _unimodal(self, tokens: Tensor, cache: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The unimodal layers: u (B, T, width), and the cache of each, (B, 2, heads, t + T, d)."""
        u = self.dropout(self.E(tokens) + positions(cache.shape[-2], tokens.shape[1], self.E.weight))
        caches = []
        for layer, previous in zip(self.unimodal, cache.unbind(1), strict=False):  # multimodal layers come after
            u, current = layer(u, previous)
            caches.append(current)
        return u, caches

    def _empty_cache(self, rows: int) -> Tensor:
        layers, heads = len(self.unimodal) + len(self.multimodal), self.settings.heads
        return self.E.weight.new_empty(rows, layers, 2, heads, 0, self.settings.width // heads)


def info_nce(logits: Tensor, included: Tensor, image_index: Tensor) -> Tensor:
    """−½ log p(own caption | image) − ½ log p(own image | caption) of each pair in a batch, (N,).

    Other captions of the same image are no negatives, as they are true of it too. A pair without negatives costs
    nothing, so that any batch has a loss, and every weight a gradient.

    Args:
        logits: (N, N), image i against caption j.
        included: (N,); other pairs cost nothing and are no negatives.
        image_index: (N,), the image of each caption.
    """
    itself = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    negatives = included[:, None] & included & (image_index[:, None] != image_index)  # (N, N)
    logits = logits.masked_fill(~(negatives | itself), -torch.inf)
    return -(logits.log_softmax(dim=1).diagonal() + logits.log_softmax(dim=0).diagonal()) / 2
