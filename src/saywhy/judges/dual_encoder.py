"""A dual encoder: an image network and a text transformer whose outputs are unit vectors of one space.

For an image with features a_1 … a_L of D numbers, and a caption with words y_1 … y_T:

    x = Σ_i α_i ⊙ W a_i        α = softmax over i of an energy per head, or 1 / L; each head weighs its part of W a_i
    y = U · mean_t text(y)_t   text: pre-norm layers in which every word attends to every other
    s(image, caption) = x · y / (‖x‖ ‖y‖)

It is trained as in CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020): with the scale e^σ, each caption of a
batch has to find its own image among all others of the batch, and the reverse (`info_nce`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saywhy.captioners.transformer import Layer, positions
from saywhy.data.tokenizer import PAD
from saywhy.encoders.base import Encoder, Features
from saywhy.errors import UserError

POOLINGS = ("attention", "mean")
LARGEST_LOG_SCALE = math.log(100)
"""Upper limit of σ, as in CLIP: sharper softmaxes make training unstable."""
MOST_LAYERS = 100


@dataclass(frozen=True)
class DualEncoderSettings:
    """Widths and options.

    Attributes:
        pooling: of the image's features: "attention" or "mean".
        embedding: length of the unit vectors.
        width: of the text transformer.
        layers: of the text transformer.
        heads: of each layer, and of the pooling.
        dropout: of word embeddings and of the output of each layer.
    """

    pooling: str = "attention"
    embedding: int = 512
    width: int = 512
    layers: int = 3
    heads: int = 8
    dropout: float = 0.1

    def __post_init__(self) -> None:
        _check_types(self)
        if self.pooling not in POOLINGS:
            raise UserError(f"judge: unknown pooling {self.pooling!r}: use {' or '.join(POOLINGS)}")
        if min(self.embedding, self.width, self.layers, self.heads) < 1 or self.layers > MOST_LAYERS:
            raise UserError(f"judge: embedding, width, layers and heads are at least 1, layers at most {MOST_LAYERS}")
        if self.width % 2 or self.width % self.heads or self.embedding % self.heads:
            raise UserError(f"judge: width is even, and {self.heads} heads divide both width and embedding")
        if not 0 <= self.dropout < 1:
            raise UserError(f"judge: dropout = {self.dropout} must be from 0 to below 1")


def _check_types(settings: DualEncoderSettings) -> None:
    """Raise a `UserError` where config.json has a value of another type."""
    types: dict[str, Callable[[object], bool]] = {
        "str": lambda value: isinstance(value, str),
        "int": lambda value: type(value) is int,
        "float": lambda value: type(value) in (int, float),
    }
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if not types[str(field.type)](value):
            raise UserError(f"judge: {field.name} must be {field.type}, not {value!r:.40}")


class ImagePooling(nn.Module):
    """Features of an image as one vector. Its attention is uniform at first: then it is a linear map of their mean."""

    def __init__(self, feature: int, settings: DualEncoderSettings) -> None:
        super().__init__()
        self.value = nn.Linear(feature, settings.embedding)
        self.energy = nn.Linear(feature, settings.heads, bias=False) if settings.pooling == "attention" else None
        if self.energy is not None:
            nn.init.zeros_(self.energy.weight)

    def forward(self, features: Features) -> Tensor:
        """Vectors (B, embedding)."""
        if self.energy is None:
            return self.value(features.mean())
        energies = self.energy(features.vectors).transpose(1, 2)  # (B, heads, L)
        alpha = features.attend(energies)
        value = self.value(features.vectors).unflatten(-1, (alpha.shape[1], -1))  # (B, L, heads, d)
        return torch.einsum("bhl,blhd->bhd", alpha.to(value.dtype), value).flatten(1)


class TextLayer(Layer):
    """A layer in which every word attends to every other; the cache of earlier words is not used."""

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:  # type: ignore[override]
        """The output for x (N, T, width); no word attends to those that are `hidden`, (N, 1, 1, T)."""
        normed = self.attention_norm(x)
        context, _ = self.attention(normed, self.attention.keys_values(normed), hidden)
        return self.feed_forward(x + self.dropout(context))


class TextTransformer(nn.Module):
    """Words as one vector: the mean of the last layer."""

    def __init__(self, words: int, settings: DualEncoderSettings) -> None:
        super().__init__()
        width = settings.width
        self.E = nn.Embedding(words, width)
        nn.init.normal_(self.E.weight, std=width**-0.5)
        self.layers = nn.ModuleList(TextLayer(width, settings.heads, settings.dropout) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, settings.embedding)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors (N, embedding) of captions (N, T) from `<start>` to `<end>`, padded; padding changes nothing."""
        is_word = tokens != PAD
        is_word = torch.cat([torch.ones_like(is_word[:, :1]), is_word[:, 1:]], dim=1)  # a row of padding is no NaN
        scaled = self.E(tokens) * math.sqrt(self.E.embedding_dim)
        x = self.dropout(scaled + positions(0, tokens.shape[1], self.E.weight))
        for layer in self.layers:
            x = layer(x, ~is_word[:, None, None])
        weights = is_word.unsqueeze(-1).to(x.dtype)  # (N, T, 1)
        return self.out((self.norm(x) * weights).sum(dim=1) / weights.sum(dim=1))


class DualEncoder(nn.Module):
    """The judge's network.

    Attributes:
        encoder: from the registry of encoders, the image network.
        log_scale: σ; `limit_scale` keeps it below `LARGEST_LOG_SCALE`.
    """

    def __init__(self, encoder: Encoder, words: int, settings: DualEncoderSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = encoder
        self.pooling = ImagePooling(encoder.width, settings)
        self.text = TextTransformer(words, settings)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(0.07)))  # CLIP's initial temperature

    def embed_images(self, pixels: Tensor) -> Tensor:
        """Unit vectors (B, embedding) of images (B, 3, S, S), RGB from 0 to 255."""
        return _unit(self.pooling(self.encoder(pixels)))

    def embed_captions(self, tokens: Tensor) -> Tensor:
        """Unit vectors (N, embedding) of captions (N, T) from `<start>` to `<end>`, padded."""
        return _unit(self.text(tokens))

    @torch.no_grad()
    def limit_scale(self) -> None:
        """Clamp the parameter, not its use in the graph: beyond the limit a clamp has no gradient."""
        self.log_scale.clamp_(max=LARGEST_LOG_SCALE)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.log_scale.device


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length one in float32: the scale multiplies the rounding of bfloat16 by up to 100."""
    with torch.autocast(vectors.device.type, enabled=False):
        return F.normalize(vectors.float(), dim=-1)
