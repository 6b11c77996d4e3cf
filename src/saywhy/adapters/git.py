"""GIT (Wang et al. 2022, https://arxiv.org/abs/2205.14100): one transformer over the image's vectors and the text."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from saywhy.adapters.base import adapters
from saywhy.adapters.prefix import PrefixAdapter
from saywhy.errors import UserError


class _Vision(nn.Module):
    """The vision transformer and the projection to the width of the text."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.image_encoder = model.git.image_encoder
        self.visual_projection = model.git.visual_projection

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (B, L, D) of normalised pixels, the class token first."""
        return self.visual_projection(self.image_encoder(x).last_hidden_state)


@adapters.register("git")
class Git(PrefixAdapter):
    """GIT for images."""

    name = "git"
    model_class = "GitForCausalLM"
    example = "microsoft/git-base-coco"
    sees_whole_prefix = True

    @classmethod
    def vision(cls, model: Any) -> nn.Module:
        """The vision transformer, with its projection."""
        if model.config.num_image_with_embedding:
            raise UserError("this GIT model captions videos; saywhy reads those of images")
        return _Vision(model)

    @property
    def embedding(self) -> nn.Embedding:
        """The table of the embeddings of tokens."""
        return self.model.git.embeddings.word_embeddings

    @property
    def attention_layer(self) -> nn.Module:
        """The last layer's."""
        return self.model.git.encoder.layer[-1].attention.self

    def embed(self, tokens: Tensor, read: int) -> Tensor:
        """Embeddings of words and of positions, which are counted from the first token on."""
        return self.model.git.embeddings(tokens, past_key_values_length=read)

    def read(self, embeddings: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """The transformer's layers, and the output layer."""
        output = self.model.git.encoder(
            embeddings, attention_mask=mask, past_key_values=cache, use_cache=cache is not None
        )
        return self.model.output(output.last_hidden_state)
