"""Adapters of decoders that read the image as a prefix of the text: the shared part.

The sequence is the prompt up to the image, the L vectors of the image, the rest of the prompt, and the caption; each
token attends to what is before it. The seam between encoder and decoder are the vectors of the image, as the decoder
reads them: after the projection to the width of its embeddings.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from saywhy.adapters.base import Adapter, AdapterState, NativeTokens, attention_to
from saywhy.adapters.vision_tower import VisionTower
from saywhy.captioners.base import Attention, Step
from saywhy.encoders.base import Features
from saywhy.language_models.cache_tensors import packed, unpacked


class PrefixAdapter(Adapter[AdapterState]):
    """A decoder that reads the image before the text.

    Attributes:
        sees_whole_prefix: whether the vectors of the image attend to each other in both directions.
    """

    sees_whole_prefix: ClassVar[bool] = False
    before: Tensor
    after: Tensor

    def __init__(self, model: Any, encoder: VisionTower, native: NativeTokens) -> None:
        super().__init__(model, encoder, native)
        prompt = list(native.prompt)
        place = 0 if native.image is None else prompt.index(native.image)
        after = prompt[:-1] if native.image is None else prompt[place + 1 : -1]
        for name, ids in (("before", prompt[:place]), ("after", after)):
            self.register_buffer(name, torch.tensor(ids, dtype=torch.long), persistent=False)

    @property
    @abstractmethod
    def attention_layer(self) -> nn.Module:
        """The layer whose attention weights are shown; they are the second of its results."""

    @abstractmethod
    def embed(self, tokens: Tensor, read: int) -> Tensor:
        """Embeddings (B, T, D) of the model's own tokens (B, T), of which `read` came before, without the prompt."""

    @abstractmethod
    def read(self, embeddings: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Logits (B, T, N) of the model's own tokens after each of the embeddings (B, T, D).

        The mask (B, 1, T, t + T) is added to attention energies; `cache` is None, or holds t positions and grows.
        """

    def start(self, features: Features) -> AdapterState:
        """Read the prompt and the image."""
        prefix, seen = self._prefix(features)
        cache = unpacked(features.vectors.new_empty(len(features), 0))
        self.read(prefix, self._mask(seen, 0, prefix), cache)
        return AdapterState(features, features.vectors.new_empty(len(features), 0), packed(cache))

    def step(self, tokens: Tensor, state: AdapterState) -> Step[AdapterState]:
        """Read one token, with the keys and values of everything before it."""
        prefix, has_read = state.image_cache.shape[-2], state.cache.ndim > 2
        cached = torch.cat([state.image_cache, state.cache], dim=-2) if has_read else state.image_cache
        cache, words = unpacked(cached), cached.shape[-2] - prefix
        x = self.embed(self.native[tokens[:, None]], words)
        seen = self._seen(state.features)
        with self._attention() as weights:
            logits = self.of_native(self.read(x, self._mask(seen, words + 1, x), cache))
        following = AdapterState(state.features, packed(cache)[..., prefix:, :], state.image_cache)
        return Step(
            logits[:, 0], following, attention_to(state.features, self._to_image(weights[0], state.features)[:, :, 0])
        )

    def forward(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Tensor, Attention]:
        """As `step`, for all tokens at once."""
        prefix, seen = self._prefix(features)
        words = self.embed(self.native[captions].contiguous(), 0)
        x = torch.cat([prefix, words], dim=1)  # (B, prefix + T, D)
        with self._attention() as weights:
            logits = self.read(x, self._mask(seen, words.shape[1], x), None)
        start = prefix.shape[1]
        return self.of_native(logits[:, start:]), attention_to(
            features, self._to_image(weights[0], features)[:, :, start:]
        )

    def _prefix(self, features: Features) -> tuple[Tensor, Tensor]:
        """What comes before the caption, (B, N, D), and which of it exists, (B, N)."""
        # rows of the table, not a lookup: a prompt is no word of the caption
        before, after = (self.embedding.weight[ids].expand(len(features), -1, -1) for ids in (self.before, self.after))
        parts = [part for part in (before, features.vectors, after) if part.shape[1]]
        return torch.cat(parts, dim=1) if len(parts) > 1 else features.vectors, self._seen(features)

    def _seen(self, features: Features) -> Tensor:
        vectors = features.vectors
        exists = torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
        image = exists if features.mask is None else features.mask
        return torch.cat(
            [exists[:, :1].expand(-1, len(self.before)), image, exists[:, :1].expand(-1, len(self.after))], 1
        )

    def _mask(self, seen: Tensor, words: int, x: Tensor) -> Tensor:
        """What is added to the energies of the last T of prefix and words: (B, 1, T, prefix + words)."""
        prefix, new = seen.shape[1], x.shape[1]
        total = prefix + words
        allowed = torch.ones(new, total, dtype=torch.bool, device=x.device).tril(total - new)
        if self.sees_whole_prefix:
            allowed[:, :prefix] = True
        existing = torch.cat([seen, seen.new_ones(len(seen), words)], dim=1)  # (B, total)
        visible = allowed & existing[:, None]  # (B, T, total)
        return torch.zeros_like(visible, dtype=x.dtype).masked_fill(~visible, torch.finfo(x.dtype).min)[:, None]

    def _to_image(self, weights: Tensor, features: Features) -> Tensor:
        """Attention weights to the vectors of the image, (B, heads, T, L), of those to everything."""
        first = len(self.before)
        return weights[..., first : first + features.vectors.shape[1]]

    @contextmanager
    def _attention(self) -> Iterator[list[Tensor]]:
        """The attention weights (B, heads, T, t + T) that the layer computes in this block."""
        weights: list[Tensor] = []
        handle = self.attention_layer.register_forward_hook(lambda module, inputs, output: weights.append(output[1]))
        try:
            yield weights
        finally:
            handle.remove()
