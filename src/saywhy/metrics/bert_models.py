"""Text encoders that the user names, for BERTScore: "hf:NAME" or a folder of Hugging Face transformers.

"LOCATION@LAYER" names the layer whose outputs are compared. By default it is the one that the authors of BERTScore
chose for a model, for models in `LAYERS`, and the last one for all others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from saywhy.errors import UserError
from saywhy.metrics.bert_score import Tokens
from saywhy.metrics.retrieval import Embeddings
from saywhy.pretrained import import_transformers, load_part, load_weights, short_name, unusable

LAYERS = {
    **{"bert-base-uncased": 9, "bert-large-uncased": 18, "bert-base-multilingual-cased": 9},
    **{"roberta-base": 10, "roberta-large": 17, "distilbert-base-uncased": 5, "distilroberta-base": 5},
}
"""Layers of the authors' package bert-score 0.3.13."""
_SPACE_BEFORE_FIRST_WORD = ("roberta", "gpt2")  # types of models whose tokens of a first word depend on it
_TEXTS = 128  # per batch


class BertModel:
    """A text encoder as a `TokenEncoder`.

    Args:
        name: as scores name it.
        model: of transformers, with hidden states.
        tokenizer: its tokenizer.
        layer: whose outputs are the vectors, from 1.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any, layer: int) -> None:
        self.name, self.model, self.tokenizer, self.layer = name, model, tokenizer, layer
        self.markers = frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
        positions = getattr(model.config, "max_position_embeddings", None) or 512
        self.longest = min(tokenizer.model_max_length, positions - 2)  # RoBERTa's positions begin at 2

    def tokenize(self, text: str) -> Tokens:
        """The tokens of a text with its markers; a text that is too long is cut."""
        return tuple(self.tokenizer(text, truncation=True, max_length=self.longest)["input_ids"])

    @torch.inference_mode()
    def embed(self, texts: Sequence[Tokens]) -> list[Embeddings]:
        """The vectors (tokens, D) of each text, in their order."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors: dict[int, Embeddings] = {}
        for start in range(0, len(order), _TEXTS):
            batch = order[start : start + _TEXTS]
            vectors |= zip(batch, self._embed_batch([texts[index] for index in batch]), strict=True)
        return [vectors[index] for index in range(len(texts))]

    def _embed_batch(self, texts: Sequence[Tokens]) -> list[Embeddings]:
        device, longest = self.model.device, max(map(len, texts))
        ids = torch.full((len(texts), longest), self.tokenizer.pad_token_id or 0)  # (B, T)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(texts):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = torch.tensor(tokens), 1
        output = self.model(input_ids=ids.to(device), attention_mask=mask.to(device), output_hidden_states=True)
        hidden = output.hidden_states[self.layer].float().cpu().numpy()  # (B, T, D)
        return [hidden[row, : len(tokens)] for row, tokens in enumerate(texts)]


def load_bert(location: str | Path, device: torch.device | str = "cpu") -> BertModel:
    """The text encoder at a location (see the module)."""
    place, layer = _place_and_layer(str(location))
    what = "a text encoder"
    transformers = import_transformers("BERTScore")
    config = load_part(transformers.AutoConfig, place, what)
    layers = getattr(config, "num_hidden_layers", 0)
    if not layers:
        raise unusable(place, what, f"it is of the type {config.model_type}")
    name = short_name(place)
    if layer is None:
        layer = min(LAYERS.get(name.rsplit("/", 1)[-1], layers), layers)
    if not 1 <= layer <= layers:
        raise UserError(f"{location}: no layer {layer}; this model has {layers}, give @1 to @{layers}")
    space = {"add_prefix_space": True} if config.model_type in _SPACE_BEFORE_FIRST_WORD else {}
    tokenizer = load_part(transformers.AutoTokenizer, place, what, **space)
    return BertModel(name, load_weights(transformers.AutoModel, place, what, device), tokenizer, layer)


def _place_and_layer(location: str) -> tuple[str, int | None]:
    """
    >>> _place_and_layer("hf:roberta-large@17"), _place_and_layer("models/MiniLM")
    (('hf:roberta-large', 17), ('models/MiniLM', None))
    """
    match = re.fullmatch(r"(.+)@(\d+)", location)
    return (match[1], int(match[2])) if match and not Path(location).exists() else (location, None)
