"""VisionEncoderDecoder models, such as ViT-GPT2: a vision transformer, and a language model with cross-attention.

Li et al. 2021 (TrOCR, https://arxiv.org/abs/2109.10282) give the combination its shape; captioners of this kind on the
Hub pair a ViT or Swin encoder with GPT-2, BERT or RoBERTa.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from saywhy.adapters.base import adapters
from saywhy.adapters.cross_attention import CrossAttentionAdapter
from saywhy.errors import UserError


class _Vision(nn.Module):
    """The encoder, and the projection to the width of the decoder where the model has one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.encoder
        self.projection = getattr(model, "enc_to_dec_proj", None)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (B, L, D) of normalised pixels."""
        vectors = self.encoder(pixel_values=x).last_hidden_state
        return vectors if self.projection is None else self.projection(vectors)


@adapters.register("vision-encoder-decoder")
class VisionEncoderDecoder(CrossAttentionAdapter):
    """A vision transformer and a language model with cross-attention."""

    name = "vision-encoder-decoder"
    model_class = "VisionEncoderDecoderModel"
    example = "nlpconnect/vit-gpt2-image-captioning"

    @classmethod
    def vision(cls, model: Any) -> nn.Module:
        """The encoder, with its projection."""
        if not getattr(model.decoder.config, "add_cross_attention", False):
            raise UserError("its decoder has no cross-attention, by which it would see the image")
        return _Vision(model)

    @classmethod
    def unplaced(cls, model: Any) -> int:
        """A class token, unless the encoder has none."""
        body = model.encoder
        tokens = [name for name in ("cls_token", "distillation_token") if _has_tensor(body, name)]
        return len(tokens) + int(getattr(body.config, "num_register_tokens", 0) or 0)

    @property
    def decoder(self) -> Any:
        """The language model."""
        return self.model.decoder


def _has_tensor(module: nn.Module, name: str) -> bool:
    return any(parameter.rpartition(".")[2] == name for parameter, _ in module.named_parameters())
