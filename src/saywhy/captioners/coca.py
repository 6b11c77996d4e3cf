"""A contrastive captioner after CoCa (Yu et al. 2022, https://arxiv.org/abs/2205.01917).

It captions images, and it says how well a caption matches an image. With features a_1 … a_L:

    p_0 … p_Q = pooler(a)              learned queries that attend over the features; p_0 is the image's own
    u         = unimodal(words)        causal layers that see words alone
    logits    = multimodal(u, p)       further layers that also look at pooled vectors
    x, y      = W_x p_0, W_y u_end     embeddings of image and caption, made of length one
    loss      = −log p(words) − ½ log softmax_j(s x_i · y_j)_i − ½ log softmax_j(s y_i · x_j)_i

Which pooled vectors the multimodal layers look at is what Kornblith et al. (2023, https://arxiv.org/abs/2307.16686)
call the conditioning: "attention" over p_1 … p_Q, or the "bottleneck" p_0 alone, the vector that matches captions.
The paper adds the two directions of the contrastive loss with weight 1 to a captioning loss of weight 2, a sum over
words as here; the same divided by two is the loss above. Its class token is our `<end>`, and its two poolers are one
with a query more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saywhy.captioners.base import Attention, Captioner, CaptionerSettings, State, Step, TeacherForced, captioners
from saywhy.captioners.transformer import Layer, MultiHeadAttention, positions
from saywhy.data.vocabulary import END
from saywhy.encoders.base import Encoder
from saywhy.encoders.features import Features
from saywhy.errors import UserError
from saywhy.registry import Registry

SHARPEST = math.log(100)
"""Where log s ends, as in CLIP: sharper softmaxes make training unstable."""


class Conditioning(nn.Module, ABC):
    """How a multimodal layer looks at the pooled vectors."""

    def __init__(self, settings: CoCaSettings) -> None:
        super().__init__()

    @abstractmethod
    def remember(self, pooled: Tensor) -> Tensor:
        """What can be made of pooled vectors (B, P, width) before any word: (B, …)."""

    @abstractmethod
    def forward(self, x: Tensor, remembered: Tensor) -> tuple[Tensor, Tensor]:
        """What words x (B, T, width) see, (B, T, width), and their attention over pooled vectors, (B, T, P)."""


conditionings: Registry[type[Conditioning]] = Registry("conditioning")


@dataclass(frozen=True)
class CoCaSettings(CaptionerSettings):
    """Sizes and choices.

    Attributes:
        conditioning: "attention" or "bottleneck".
        width: of words, pooled vectors and embeddings.
        heads: of every attention.
        unimodal: layers that see words alone.
        multimodal: layers after them that see the image.
        queries: Q, pooled vectors for the decoder; the bottleneck has no use for them.
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
        if self.width % self.heads or self.width % 2:
            raise UserError(f"coca: width {self.width} is odd or does not divide into {self.heads} heads")
        if not 0 <= self.dropout < 1 or not 0 <= self.contrastive < math.inf:
            raise UserError("coca: dropout is below 1, and neither dropout nor contrastive is below 0")
        _ = conditionings[self.conditioning]


@dataclass(frozen=True)
class CoCaState(State):
    """What each layer keeps of the words so far and of the pooled vectors, and where those came from."""

    said: Tensor  # (B, layers, 2, heads, t, d), keys and values
    pooled: Tensor  # (B, multimodal, …), what the conditioning remembers
    pooling: Tensor  # (B, P, L), the pooler's attention


class Pooler(nn.Module):
    """Learned queries that each make one vector of the features."""

    def __init__(self, feature: int, queries: int, settings: CoCaSettings) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, settings.width))
        self.before = nn.LayerNorm(feature)
        self.attention = MultiHeadAttention(settings.width, settings.heads, feature)
        self.after = nn.LayerNorm(settings.width)

    def forward(self, features: Features) -> tuple[Tensor, Tensor]:
        """Pooled vectors (B, P, width), and their attention over the features (B, P, L), the mean of the heads."""
        hidden = None if features.mask is None else ~features.mask[:, None, None]  # (B, 1, 1, L)
        remembered = self.attention.remember(self.before(features.vectors))
        pooled, A = self.attention(self.queries.unsqueeze(0), remembered, hidden)
        return self.after(pooled), A.mean(dim=1)


@conditionings.register("attention")
class AttentionPooling(Conditioning):
    """Each word attention_modes to the pooled vectors it needs."""

    def __init__(self, settings: CoCaSettings) -> None:
        super().__init__(settings)
        self.norm = nn.LayerNorm(settings.width)
        self.attention = MultiHeadAttention(settings.width, settings.heads)

    def remember(self, pooled: Tensor) -> Tensor:
        """Keys and values, (B, 2, heads, P, d)."""
        return self.attention.remember(pooled)

    def forward(self, x: Tensor, remembered: Tensor) -> tuple[Tensor, Tensor]:
        """What x sees, (B, T, width), and the heads' mean attention (B, T, P)."""
        seen, A = self.attention(self.norm(x), remembered)
        return seen, A.mean(dim=1)


@conditionings.register("bottleneck")
class Bottleneck(Conditioning):
    """MultiHeadAttention over one vector is a linear map of it: whatever is asked, there is nowhere else to look."""

    def __init__(self, settings: CoCaSettings) -> None:
        super().__init__(settings)
        self.value = nn.Linear(settings.width, settings.width)

    def remember(self, pooled: Tensor) -> Tensor:
        """What every word will see, (B, 1, width)."""
        return self.value(pooled)

    def forward(self, x: Tensor, remembered: Tensor) -> tuple[Tensor, Tensor]:
        """The same for every word, (B, T, width), with attention 1, (B, T, 1)."""
        return remembered.expand_as(x), torch.ones_like(x[..., :1])


class MultimodalLayer(Layer):
    """A layer over words that looks at the pooled vectors between listening and thinking."""

    def __init__(self, settings: CoCaSettings) -> None:
        super().__init__(settings.width, settings.heads, settings.dropout)
        self.conditioning: Conditioning = conditionings[settings.conditioning](settings)

    def remember(self, pooled: Tensor) -> Tensor:
        """What can be made of pooled vectors (B, P, width) before any word: (B, …)."""
        return self.conditioning.remember(pooled)

    def forward(self, x: Tensor, said: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """As `Layer`, and the attention over pooled vectors, (B, T, P)."""
        x, said = self.listen(x, said)
        seen, A = self.conditioning(x, pooled)
        return self.think(x + self.dropout(seen)), said, A


class ContrastiveHead(nn.Module):
    """Images and captions as directions in one space."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_image = nn.Linear(width, width, bias=False)
        self.of_caption = nn.Linear(width, width, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(0.07)))  # s = 1 / temperature, from the paper's start

    def forward(self, images: Tensor, captions: Tensor) -> Tensor:
        """Cosine similarity (B, N) of images (B, width) and captions (N, width)."""
        x, y = self.of_image(images), self.of_caption(captions)
        with torch.autocast(x.device.type, enabled=False):  # s makes up to a hundred of what bfloat16 rounds away
            x, y = (F.normalize(each.to(self.log_scale.dtype), dim=-1) for each in (x, y))
            return x @ y.T

    @property
    def scale(self) -> Tensor:
        """s, the inverse of the temperature."""
        return self.log_scale.clamp(max=SHARPEST).exp()


@captioners.register("coca")
class CoCa(Captioner[CoCaState]):
    """The captioner; the letters are the module docstring's."""

    name = "coca"
    Settings = CoCaSettings
    propagates_through_attention = True

    def __init__(self, encoder: Encoder, words: int, settings: CoCaSettings) -> None:
        super().__init__(encoder, words, settings)
        width, alone = settings.width, settings.conditioning == "bottleneck"
        self.pooler = Pooler(encoder.width, 1 if alone else 1 + settings.queries, settings)
        self.seen = slice(0, 1) if alone else slice(1, None)  # the pooled vectors that the decoder sees
        self.E = nn.Embedding(words, width)
        self.unimodal = nn.ModuleList(Layer(width, settings.heads, settings.dropout) for _ in range(settings.unimodal))
        self.multimodal = nn.ModuleList(MultimodalLayer(settings) for _ in range(settings.multimodal))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, words)
        self.dropout = nn.Dropout(settings.dropout)
        self.contrastive = ContrastiveHead(width) if settings.contrastive else None

    def start(self, features: Features) -> CoCaState:
        """Pool the features, and let each multimodal layer prepare what it will look at."""
        pooled, pooling = (part[:, self.seen] for part in self.pooler(features))  # (B, P, width), (B, P, L)
        remembered = [layer.remember(pooled) for layer in self.multimodal]  # type: ignore[operator]
        return CoCaState(self._silence(len(features)), torch.stack(remembered, dim=1), pooling)

    def step(self, words: Tensor, state: CoCaState) -> Step[CoCaState]:
        """Read one word, with what was kept of those before it."""
        logits, state, alpha = self._read(words.unsqueeze(1), state)
        return Step(logits.squeeze(1), state, Attention(alpha.squeeze(1)))

    def forward(self, features: Features, captions: Tensor) -> tuple[Tensor, Attention]:
        """As `step`, all words at once."""
        logits, _, alpha = self._read(captions, self.start(features))
        return logits, Attention(alpha)  # (B, T, V), alpha (B, T, L)

    def auxiliary_loss(self, forced: TeacherForced) -> Tensor | None:
        """The contrastive loss, (N,), of captions that have words and were taught with their image."""
        if self.contrastive is None:
            return None
        similarity = self.match(forced.features, forced.words)  # (N, N)
        taught = forced.has_image & forced.spoken.any(dim=1)
        return self.settings.contrastive * info_nce(self.contrastive.scale * similarity, taught, forced.owner)

    def match(self, features: Features, captions: Tensor) -> Tensor:
        """Cosine similarity (B, N) of every image with every caption (N, T) from `<start>` to `<end>`, padded."""
        if self.contrastive is None:
            raise UserError("this coca was trained with contrastive = 0, and cannot match images with captions")
        pooled, _ = self.pooler(features)
        u, _ = self._listen(captions, self._silence(len(captions)))  # (N, T, width)
        end = (captions == END).int().argmax(dim=1)  # a caption of padding alone has none, and counts nowhere
        return self.contrastive(pooled[:, 0], u[torch.arange(len(u), device=u.device), end])

    def _read(self, words: Tensor, state: CoCaState) -> tuple[Tensor, CoCaState, Tensor]:
        """Logits (B, T, V) after each of the words (B, T), the state after all, and α (B, T, L)."""
        x, said = self._listen(words, state.said)
        before = state.said.unbind(1)[len(said) :]
        for layer, heard, pooled in zip(self.multimodal, before, state.pooled.unbind(1), strict=True):
            x, now, A = layer(x, heard, pooled)
            said.append(now)
        alpha = A @ state.pooling  # (B, T, P) of the last layer, (B, P, L)
        return self.out(self.norm(x)), replace(state, said=torch.stack(said, dim=1)), alpha

    def _listen(self, words: Tensor, said: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The unimodal layers: u (B, T, width), and the words so far in each, (B, 2, heads, t + T, d)."""
        u = self.dropout(self.E(words) + positions(said.shape[-2], words.shape[1], self.E.weight))
        heard = []
        for layer, before in zip(self.unimodal, said.unbind(1), strict=False):  # the multimodal layers' come after
            u, now = layer(u, before)
            heard.append(now)
        return u, heard

    def _silence(self, rows: int) -> Tensor:
        """The words so far when there are none."""
        layers, heads = len(self.unimodal) + len(self.multimodal), self.settings.heads
        return self.E.weight.new_empty(rows, layers, 2, heads, 0, self.settings.width // heads)


def info_nce(logits: Tensor, taught: Tensor, owner: Tensor) -> Tensor:
    """−½ log p(own caption | image) − ½ log p(own image | caption) of each pair, (N,), among those of a batch.

    `logits` (N, N) compare image i with caption j. Rows that are not `taught` (N,) cost nothing and tempt nobody,
    and neither do other captions of the same image, `owner` (N,): they are true of it too. Alone, a pair costs
    nothing, so that any batch has a loss, and every weight a gradient.
    """
    itself = torch.eye(len(logits), dtype=torch.bool, device=logits.device)
    rivals = taught[:, None] & taught & (owner[:, None] != owner)  # (N, N)
    logits = logits.masked_fill(~(rivals | itself), -torch.inf)
    return -(logits.log_softmax(dim=1).diagonal() + logits.log_softmax(dim=0).diagonal()) / 2
