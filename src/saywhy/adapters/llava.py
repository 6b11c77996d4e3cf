"""LLaVA (Liu et al. 2023, https://arxiv.org/abs/2310.03744): a language model that reads the image in its prompt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from saywhy.adapters.base import adapters
from saywhy.adapters.prefix import PrefixAdapter

PROMPT = "Describe the image in one short sentence."
TEMPLATE = "USER: <image>\n{} ASSISTANT:"
"""The conversation of LLaVA 1.5, for tokenizers without a chat template."""


class _Vision(nn.Module):
    """One or several layers of the vision transformer, without or with the class token, and the projector."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.vision_tower = model.model.vision_tower
        self.projector = model.model.multi_modal_projector
        layers = model.config.vision_feature_layer
        self.layers = [layers] if isinstance(layers, int) else list(layers)
        self.unplaced = _unplaced(model)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (B, L, D) of normalised pixels."""
        states = self.vision_tower(x, output_hidden_states=True).hidden_states
        first = 1 - self.unplaced
        vectors = [states[layer][:, first:] for layer in self.layers]
        return self.projector(vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1))


@adapters.register("llava")
class Llava(PrefixAdapter):
    """LLaVA, asked to describe the image."""

    name = "llava"
    model_class = "LlavaForConditionalGeneration"
    example = "llava-hf/llava-1.5-7b-hf"

    @classmethod
    def vision(cls, model: Any) -> nn.Module:
        """The vision transformer, with its projector."""
        return _Vision(model)

    @classmethod
    def unplaced(cls, model: Any) -> int:
        """A class token, if the model reads it."""
        return _unplaced(model)

    @classmethod
    def prompt(cls, model: Any, tokenizer: Any, text: str | None = None) -> list[int]:
        """A conversation in which the user shows the image and asks for a caption."""
        text = PROMPT if text is None else text
        if tokenizer.chat_template:
            parts = [{"type": "image"}, {"type": "text", "text": text}]
            messages = [{"role": "user", "content": parts}]
            filled = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            return tokenizer(filled, add_special_tokens=False)["input_ids"]
        return tokenizer(TEMPLATE.format(text))["input_ids"]

    @classmethod
    def image_token(cls, model: Any) -> int:
        """The token that stands for the image in the prompt."""
        return model.config.image_token_id

    @property
    def embedding(self) -> nn.Embedding:
        """The table of the embeddings of tokens."""
        return self.model.model.language_model.get_input_embeddings()

    @property
    def attention_layer(self) -> nn.Module:
        """The last layer's."""
        return self.model.model.language_model.layers[-1].self_attn

    def embed(self, tokens: Tensor, read: int) -> Tensor:
        """Embeddings of words; positions are rotations inside the layers."""
        return self.embedding(tokens)

    def read(self, embeddings: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """The language model."""
        output = self.model.model.language_model(
            inputs_embeds=embeddings, attention_mask=mask, past_key_values=cache, use_cache=cache is not None
        )
        return self.model.lm_head(output.last_hidden_state)


def _unplaced(model: Any) -> int:
    return int(model.config.vision_feature_select_strategy == "full")
