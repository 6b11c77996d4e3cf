"""From the place of a language model to a scorer of a captioner's words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from saywhy.cache import content_key
from saywhy.data.subwords import SubwordVocabulary
from saywhy.data.tokenizer import Vocabulary
from saywhy.errors import UserError
from saywhy.files import read_text
from saywhy.language_models.language_model_folder import load
from saywhy.language_models.piece_scorer import PieceScorer
from saywhy.language_models.word_scorer import VocabularyScorer, WordScorer
from saywhy.pretrained import HUB, is_transformers_model


def load_scorer(
    location: str | Path,
    vocabulary: Vocabulary,
    device: torch.device | str = "cpu",
    prompt: Sequence[str] = (),
    candidates: int | None = 50,
    lookahead: bool = False,
) -> WordScorer:
    """The language model at `location` as a scorer of the words of `vocabulary`.

    Args:
        location: a folder that `saywhy train-lm` wrote, a folder of a Hugging Face causal model, a .gguf file, or
            "hf:NAME" for a model on the Hugging Face Hub.
        vocabulary: of the captioner.
        device: of the language model.
        prompt: example captions; for Hugging Face models only.
        candidates: words of each step that a Hugging Face model should be asked for; None for all.
        lookahead: see `saywhy.language_models.huggingface`.
    """
    if is_huggingface(location):
        from saywhy.language_models.huggingface import HuggingFaceScorer, load_huggingface

        model, tokenizer = load_huggingface(str(location), device)
        if isinstance(vocabulary, SubwordVocabulary):
            if prompt:
                raise UserError(f"{location}: a prompt is for captioners of whole words; leave it out")
            return PieceScorer(model, tokenizer, vocabulary, str(location))
        return HuggingFaceScorer(model, tokenizer, vocabulary, prompt, candidates, lookahead)
    if prompt:
        raise UserError(f"{location}: only a Hugging Face language model takes a prompt")
    if not Path(location).is_dir():
        raise UserError(
            f"{location}: no language model; give a folder that `saywhy train-lm` wrote, the folder or .gguf file of a "
            "Hugging Face model, or hf:NAME"
        )
    if isinstance(vocabulary, SubwordVocabulary):
        raise UserError(
            f"{location}: scores whole words, and this captioner writes sub-words; give hf:NAME or a folder"
        )
    return VocabularyScorer(load(location, device), vocabulary)


def lm_key(location: str, prompt: str = "") -> str:
    """What the scores of a language model depend on: the contents of its files and prompt, or its name on the Hub."""
    files = [prompt] if prompt else []
    if location and not location.startswith(HUB):
        path = Path(location)
        files += sorted(map(str, path.glob("*.*"))) if path.is_dir() else [location] if path.is_file() else []
    return " ".join([location, *map(content_key, files)])


def read_prompt(path: str | Path) -> list[str]:
    """The example captions of a file, one per line."""
    captions = [line.strip() for line in read_text(Path(path)).splitlines() if line.strip()]
    if not captions:
        raise UserError(f"{path}: no example captions; write one per line")
    return captions


def is_huggingface(location: str | Path) -> bool:
    """Whether a location names a Hugging Face model, by its form or the contents of its folder."""
    if not str(location).startswith(HUB) and str(location).endswith(".gguf"):
        if not Path(location).is_file():
            raise UserError(f"{location}: no such file; check the spelling")
        return True
    return is_transformers_model(location)
