"""The interface of every adapter: a model of transformers as a `Captioner`.

An adapter is one file and one class, registered under the `model_type` of the model's config.json. It names

    model_class       the class of transformers that reads the weights
    vision            normalised pixels (B, 3, S, S) ↦ the vectors (B, L, D) that the decoder attends to
    start, step       as every captioner, with the model's own keys and values cached
    forward           teacher forcing in one pass; explanations run it

Token ids are those of `SubwordVocabulary`: the four markers, then the tokens of the model's tokenizer except those that
end a caption, which are `<end>`. `native` maps them to the model's own.

The library's module is used as it is, with one exception: activations that transformers composes of products and tanh
(GPT-2's GELU) become the same function in one operation, because LRP's rules are rules of functions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from saywhy.adapters.vision_tower import VisionTower
from saywhy.captioners.base import Attention, Captioner, CaptionerSettings, State
from saywhy.data.subwords import native_tokens
from saywhy.data.tokenizer import END, MARKERS
from saywhy.encoders.base import Features
from saywhy.registry import Registry

adapters: Registry[type[Adapter]] = Registry(
    "adapter",
    entry_points="saywhy.adapters",
    builtin=(
        "saywhy.adapters.vision_encoder_decoder",
        "saywhy.adapters.blip",
        "saywhy.adapters.git",
        "saywhy.adapters.llava",
    ),
)
"""Adapters by the `model_type` of the models that they read."""

TANH_GELUS = ("NewGELUActivation", "FastGELUActivation", "GELUTanh")
"""Classes of transformers that compute nn.GELU(approximate="tanh") in several operations."""


@dataclass(frozen=True)
class NativeTokens:
    """What of a model's tokens an adapter needs.

    Attributes:
        tokens: the ids of all tokens but those that end a caption, in the order of the vocabulary.
        prompt: ids that come before every caption; the last of them is `<start>`.
        ends: ids that end a caption, the usual one first.
        image: the id that stands for the image in the prompt, or None.
    """

    tokens: Sequence[int]
    prompt: Sequence[int]
    ends: Sequence[int]
    image: int | None = None


@dataclass(frozen=True)
class AdapterState(State):
    """Keys and values of what was read, (B, layers, 2, heads, t, d) each; (B, 0) while there are none."""

    features: Features
    cache: Tensor  # of the tokens
    image_cache: Tensor  # of the image


S = TypeVar("S", bound=State)


class Adapter(Captioner[S], Generic[S]):
    """A captioner of transformers.

    Args:
        model: with its weights.
        encoder: around the module that `vision` returns.
        native: its tokens.

    Attributes:
        model_class: the name of its class in transformers.
        example: a model on the Hub that it reads.
    """

    Settings = CaptionerSettings
    propagates_through_attention = True
    model_class: ClassVar[str]
    example: ClassVar[str] = ""
    model: Any  # a module of transformers; which parts it has depends on its class
    native: Tensor

    def __init__(self, model: Any, encoder: VisionTower, native: NativeTokens) -> None:
        super().__init__(encoder, len(MARKERS) + len(native.tokens), CaptionerSettings())
        self.model = fuse_activations(model)
        table = torch.tensor(native_tokens(native.tokens, native.prompt[-1], native.ends[0]))
        self.register_buffer("native", table, persistent=False)
        self.ends = list(native.ends)

    @classmethod
    @abstractmethod
    def vision(cls, model: Any) -> nn.Module:
        """The part of the model from normalised pixels to the vectors that its decoder attends to."""

    @classmethod
    def unplaced(cls, model: Any) -> int:
        """How many of these vectors, the first ones, stand for no place."""
        return 1

    @classmethod
    def generator(cls, model: Any) -> Any:
        """The part whose `generate` writes captions."""
        return model

    @classmethod
    def image_token(cls, model: Any) -> int | None:
        """The token that stands for the image in the prompt; None if there is none."""
        return None

    @classmethod
    def prompt(cls, model: Any, tokenizer: Any, text: str | None = None) -> list[int]:
        """Token ids that come before every caption; the last of them is what the first word follows.

        `text` is what the user asks, for models that follow instructions.
        """
        configs = (model.generation_config, model.config)
        names = ("decoder_start_token_id", "bos_token_id")
        ids = [getattr(config, name, None) for config in configs for name in names]
        return [id for id in (*ids, tokenizer.bos_token_id, tokenizer.cls_token_id) if id is not None][:1]

    @classmethod
    def ending(cls, model: Any, tokenizer: Any) -> list[int]:
        """Token ids that end a caption."""
        configured = [getattr(part, "eos_token_id", None) for part in (model.generation_config, model.config)]
        ids = [*configured, tokenizer.eos_token_id]
        first = next((id for id in (*ids, tokenizer.sep_token_id) if id is not None), None)
        return list(first) if isinstance(first, list | tuple) else [] if first is None else [first]

    @property
    @abstractmethod
    def embedding(self) -> nn.Embedding:
        """The table of the embeddings of tokens."""

    def is_word_table(self, table: Tensor) -> bool:
        """Whether a table is that of tokens, rather than of positions or segments."""
        return table.data_ptr() == self.embedding.weight.data_ptr()

    def of_native(self, logits: Tensor) -> Tensor:
        """Logits of the model's own tokens (…, N) as those of token ids (…, V); of several ends the highest."""
        ordered = logits.index_select(-1, self.native)
        if len(self.ends) == 1:
            return ordered
        end = logits[..., self.ends].amax(dim=-1, keepdim=True)
        return torch.cat([ordered[..., :END], end, ordered[..., END + 1 :]], dim=-1)


def attention_to(features: Features, weights: Tensor) -> Attention:
    """α over the places of features, from attention weights (B, heads, [T,] L) of which unplaced ones are left out.

    It is the mean over heads, and adds up to one.
    """
    alpha = weights.detach().mean(dim=1)[..., features.unplaced :]  # (B, [T,] L)
    total = alpha.sum(dim=-1, keepdim=True)
    uniform = torch.full_like(alpha, 1 / alpha.shape[-1])
    return Attention(torch.where(total > 0, alpha / total.clamp(min=torch.finfo(alpha.dtype).tiny), uniform))


def fuse_activations(model: nn.Module) -> nn.Module:
    """Replace activations that are composed of several operations by the same function in one."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child).__name__ in TANH_GELUS:
                setattr(parent, name, nn.GELU(approximate="tanh"))
    return model
