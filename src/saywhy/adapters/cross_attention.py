"""Adapters of decoders that attend to the image by cross-attention: the shared part."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from saywhy.adapters.base import Adapter, AdapterState, attention_to
from saywhy.captioners.base import Attention, Step
from saywhy.encoders.base import Features
from saywhy.language_models.cache_tensors import packed, unpacked


class CrossAttentionAdapter(Adapter[AdapterState]):
    """A causal language model of transformers with cross-attention; a subclass names it with `decoder`."""

    @property
    @abstractmethod
    def decoder(self) -> Any:
        """The language model: token ids and vectors of the image ↦ logits."""

    @property
    def embedding(self) -> nn.Embedding:
        """The table of the embeddings of tokens."""
        return self.decoder.get_input_embeddings()

    def start(self, features: Features) -> AdapterState:
        """Nothing is read yet: the first step computes keys and values of the image."""
        empty = features.vectors.new_empty(len(features), 0)
        return AdapterState(features, empty, empty)

    def step(self, tokens: Tensor, state: AdapterState) -> Step[AdapterState]:
        """Read one token, with the keys and values of those before it and of the image."""
        from transformers import EncoderDecoderCache

        cache = EncoderDecoderCache(unpacked(state.cache), unpacked(state.image_cache))
        logits, weights = self._run(tokens[:, None], state.features, past_key_values=cache, use_cache=True)
        image_cache = state.image_cache if state.image_cache.ndim > 2 else packed(cache.cross_attention_cache)
        following = AdapterState(state.features, packed(cache.self_attention_cache), image_cache)
        return Step(logits[:, 0], following, attention_to(state.features, weights[:, :, 0]))

    def forward(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Tensor, Attention]:
        """As `step`, for all tokens at once."""
        logits, weights = self._run(captions, features, use_cache=False)
        return logits, attention_to(features, weights)

    def _run(self, tokens: Tensor, features: Features, **cache: Any) -> tuple[Tensor, Tensor]:
        """Logits (B, T, V), and the last layer's attention (B, heads, T, L), of tokens (B, T)."""
        output = self.decoder(
            input_ids=self.native[tokens].contiguous(),
            encoder_hidden_states=features.vectors.contiguous(),  # beams of one image share its vectors
            encoder_attention_mask=None if features.mask is None else features.mask.long(),
            output_attentions=True,
            return_dict=True,
            **cache,
        )
        return self.of_native(output.logits), output.cross_attentions[-1]
