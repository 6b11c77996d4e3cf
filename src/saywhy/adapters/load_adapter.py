"""From the place of a model of transformers to a captioner: `load_adapter`.

Weights are read from safetensors only, nothing is unpickled, and no code of a model's repository is run unless the
caller asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from saywhy.adapters.base import Adapter, NativeTokens, adapters
from saywhy.adapters.memory import check_memory
from saywhy.adapters.vision_tower import VisionTower, convention_of, preprocessing_of
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.subwords import SubwordVocabulary
from saywhy.encoders.registry import EncoderSettings
from saywhy.errors import UserError
from saywhy.language_models.word_tokens import token_texts
from saywhy.pretrained import import_transformers, load_part, load_weights, quiet, short_name, unusable

WHAT = "a captioner"


def load_adapter(
    location: str,
    device: torch.device | str = "cpu",
    prompt: str | None = None,
    trust_remote_code: bool = False,
) -> SavedModel:
    """The captioner at `location`, a folder or hf:NAME, behind the adapter of its `model_type`.

    Args:
        location: the folder, or hf: and a folder or the name of a model on the Hub.
        device: of the model.
        prompt: what a model that follows instructions is asked, in place of the adapter's own prompt.
        trust_remote_code: run code from the model's repository, if it needs some.
    """
    transformers = import_transformers("a captioner of Hugging Face")
    code = {"trust_remote_code": trust_remote_code}
    config = load_part(transformers.AutoConfig, location, WHAT, **code)
    cls = _adapter_of(location, config)
    tokenizer = load_part(transformers.AutoTokenizer, location, "a captioner with a tokenizer", **code)
    processor = load_part(transformers.AutoImageProcessor, location, "a captioner with an image processor", **code)
    try:
        if not len(tokenizer) or tokenizer("a", add_special_tokens=False)["input_ids"] == []:
            raise UserError(f"{location}: its tokenizer is missing; save it beside the model, with tokenizer.json")
        check_memory(location, device)
        model_class = getattr(transformers, cls.model_class, transformers.AutoModel)
        model = load_weights(model_class, location, WHAT, "cpu", **code)
        saved = adapt(cls, model, tokenizer, processor, short_name(location), prompt)
    except (TypeError, ValueError, AttributeError) as error:  # transformers loads values of any type
        raise unusable(location, WHAT, error) from None
    saved.captioner.to(device)
    return saved


def _adapter_of(location: str, config: Any) -> type[Adapter]:
    """The adapter of a model; a `UserError` for one that does not write captions."""
    if config.model_type not in adapters:
        known = ", ".join(adapters)
        raise UserError(
            f"{location}: a {config.model_type} model is no captioner that saywhy has an adapter for: {known}"
        )
    cls = adapters[config.model_type]
    architectures = config.architectures or [cls.model_class]
    if not isinstance(architectures, list) or cls.model_class not in architectures:
        name = architectures[0] if isinstance(architectures, list) else architectures
        raise UserError(f"{location}: a {name} writes no captions; a {cls.model_class} does")
    return cls


def adapt(
    cls: type[Adapter], model: Any, tokenizer: Any, processor: Any, name: str, prompt: str | None = None
) -> SavedModel:
    """A model of transformers with its tokenizer and its image processor as a captioner.

    `prompt` is what a model that follows instructions is asked.
    """
    with quiet():
        model.set_attn_implementation("eager")  # others do not return attention weights
    native = _native_tokens(cls, model, tokenizer, prompt)
    encoder = _vision_tower(cls, model, processor, name)
    captioner = cls(model, encoder, native).eval()
    vocabulary = _vocabulary(native, tokenizer)
    decoding = decoding_of(cls.generator(model).generation_config, len(native.prompt))
    preprocessing = preprocessing_of(processor, encoder.size)
    return SavedModel(name, captioner, vocabulary, preprocessing, decoding, conditioning_dropout=0.0)


def _native_tokens(cls: type[Adapter], model: Any, tokenizer: Any, prompt: str | None) -> NativeTokens:
    begin, ends = cls.prompt(model, tokenizer, prompt), cls.ending(model, tokenizer)
    for ids, what in ((begin, "begins"), (ends, "ends")):
        if not ids:
            raise UserError(f"neither the model nor its tokenizer says which token {what} a caption")
        if not all(type(id) is int for id in ids):
            raise UserError(f"its configuration names a token that {what} a caption by {ids[0]!r}, which is no number")
    count = cls.generator(model).get_output_embeddings().weight.shape[0]
    tokens = [token for token in range(count) if token not in set(ends)]
    return NativeTokens(tokens, begin, ends, cls.image_token(model))


def _vision_tower(cls: type[Adapter], model: Any, processor: Any, name: str) -> VisionTower:
    body, convention = cls.vision(model), convention_of(processor)
    size, unplaced = _input_size(model.config), cls.unplaced(model)
    with torch.no_grad():
        vectors = body.eval()(torch.zeros(1, 3, size, size))
    side = round((vectors.shape[1] - unplaced) ** 0.5)
    if side * side + unplaced != vectors.shape[1]:
        raise UserError(f"{name}: {vectors.shape[1]} vectors of an image are not a square grid and {unplaced} others")
    settings = EncoderSettings(f"hf:{name}", size, convention)
    return VisionTower(settings, body, vectors.shape[2], (side, side), unplaced)


def _input_size(config: Any) -> int:
    """The side of the images that the vision part reads."""
    for part in (getattr(config, "encoder", None), getattr(config, "vision_config", None), config):
        size = getattr(part, "image_size", None)
        if size is not None:
            return int(size if isinstance(size, int) else max(size))
    raise UserError("its configuration does not say which size its images have")


def _vocabulary(native: NativeTokens, tokenizer: Any) -> SubwordVocabulary:
    known = len(tokenizer)
    count = max(native.tokens) + 1
    special, all_texts = set(tokenizer.all_special_ids), token_texts(tokenizer, min(known, count))
    texts = ["" if token in special or token >= known else all_texts[token] for token in native.tokens]
    names = [tokenizer.convert_ids_to_tokens(token) if token < known else "<unused>" for token in native.tokens]

    def split(word: str, is_first: bool) -> Sequence[int]:
        return tokens_of_word(tokenizer, word, is_first)

    def join(tokens: Sequence[int]) -> str:
        return tokenizer.decode(list(tokens), skip_special_tokens=True)

    return SubwordVocabulary(native.tokens, names, texts, split, join, tokenizer.unk_token_id)


def tokens_of_word(tokenizer: Any, word: str, is_first: bool) -> list[int]:
    """The tokens of a word in a caption: after another word with a space before it, unless it is a clitic."""
    options = {"add_special_tokens": False}
    if is_first:
        return tokenizer(word, **options)["input_ids"]
    before = "the"
    space = "" if word.startswith("'") or word in {"n't", ".", ",", "!", "?", ":", ";"} else " "
    start, text = (tokenizer(part, **options)["input_ids"] for part in (before, f"{before}{space}{word}"))
    return text[len(start) :] if text[: len(start)] == start else tokenizer(f"{space}{word}", **options)["input_ids"]


def decoding_of(generation: Any, prompt: int) -> dict[str, Any]:
    """The settings of `generate` that saywhy's decoding has too; lengths count sub-words."""
    settings: dict[str, Any] = {"beam": max(generation.num_beams or 1, 1)}
    settings["length_penalty"] = 1.0 if generation.length_penalty is None else float(generation.length_penalty)
    longest = generation.max_new_tokens or ((generation.max_length or 20 + prompt) - prompt)
    shortest = generation.min_new_tokens or ((generation.min_length or 0) - prompt)
    settings["max_words"] = max(1, int(longest))
    settings["min_words"] = min(max(1, int(shortest)), settings["max_words"])
    settings["no_repeat"] = generation.no_repeat_ngram_size == 3
    return settings
