"""BLIP (Li et al. 2022, https://arxiv.org/abs/2201.12086): a vision transformer, and a BERT with cross-attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from saywhy.adapters.base import adapters
from saywhy.adapters.cross_attention import CrossAttentionAdapter


class _Vision(nn.Module):
    """The vision transformer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_model = model.vision_model

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (B, L, D) of normalised pixels, the class token first."""
        return self.vision_model(pixel_values=x).last_hidden_state


@adapters.register("blip")
class Blip(CrossAttentionAdapter):
    """BLIP's captioner, without a prompt."""

    name = "blip"
    model_class = "BlipForConditionalGeneration"
    example = "Salesforce/blip-image-captioning-base"

    @classmethod
    def vision(cls, model: Any) -> nn.Module:
        """The vision transformer."""
        return _Vision(model)

    @classmethod
    def generator(cls, model: Any) -> Any:
        """The text decoder, whose `generate` BLIP calls."""
        return model.text_decoder

    @classmethod
    def prompt(cls, model: Any, tokenizer: Any, text: str | None = None) -> list[int]:
        """The token [DEC]; BLIP's `generate` names it like this."""
        return [model.config.text_config.bos_token_id]

    @classmethod
    def ending(cls, model: Any, tokenizer: Any) -> list[int]:
        """The token [SEP]."""
        return [model.config.text_config.sep_token_id]

    @property
    def decoder(self) -> Any:
        """The text decoder."""
        return self.model.text_decoder
