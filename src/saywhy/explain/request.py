"""From a request to explanations, for a batch of images."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.data.regions import has_area
from saywhy.data.tokenizer import Vocabulary, tokenize
from saywhy.decoding.config import log_probabilities
from saywhy.errors import UserError
from saywhy.explain.composites import DEFAULT, Composite
from saywhy.explain.composites import composite as named_composite
from saywhy.explain.explanation import Budget, Explanation, WordExplanation
from saywhy.explain.methods import FEATURE_METHODS, REPORT_METHODS, Attributions, attribute, parse_methods
from saywhy.explain.targets import Targets

EstimateRisk = Callable[[Captioner, Attributions, Targets], list[list[float | None]]]
"""Gives the hallucination risk of each target of each image, None for words that are not object words."""


@dataclass(frozen=True)
class ExplanationRequest:
    """What to explain of every image, and how; `parse` validates it.

    Attributes:
        caption: explain this caption; None for the model's own.
        word: explain this word only, at the positions where the caption has it, else at the likeliest one.
        position: explain the word at this position only, counted from 1; with `word`, as if that word stood there.
        contrast: explain the difference between the word's logit and that of this other word.
        methods: names of the methods.
        composite: the rules of LRP.
    """

    caption: tuple[str, ...] | None
    word: str | None
    position: int | None
    contrast: str | None
    methods: tuple[str, ...]
    composite: Composite

    @classmethod
    def parse(
        cls,
        vocabulary: Vocabulary,
        max_words: int,
        *,
        caption: str | None = None,
        word: str | None = None,
        position: int | None = None,
        contrast: str | None = None,
        methods: str | Iterable[str] = REPORT_METHODS,
        composite: str | Composite = DEFAULT,
    ) -> ExplanationRequest:
        """A request in the user's text, for a model with this vocabulary and longest caption; else a `UserError`."""
        tokens = None if caption is None else parse_caption(caption, vocabulary, max_words)
        word = None if word is None else known_word(word, vocabulary)
        contrast = None if contrast is None else known_word(contrast, vocabulary)
        if position is not None and not 1 <= position <= max_words:
            raise UserError(f"position {position} is out of range: captions have at most {max_words} words, from 1 on")
        composite = named_composite(composite) if isinstance(composite, str) else composite
        request = cls(tokens, word, position, contrast, parse_methods(methods), composite)
        if contrast is not None and word == contrast:
            raise _same_word(contrast)
        if tokens is not None:
            request.check(tokens)
        return request

    def check(self, caption: Sequence[str]) -> None:
        """Raise a `UserError` where this caption cannot be explained as requested."""
        self.positions(caption)

    def positions(self, caption: Sequence[str]) -> tuple[int, ...] | None:
        """The positions (from 0) of the words of a caption to explain.

        None where the word is not in the caption and no position is requested: the model then has to find the
        likeliest one. A `UserError` where the caption has no such position, or no word other than the contrast.
        """
        if self.position is not None:
            if self.position > len(caption):
                raise UserError(f"no word {self.position} in {' '.join(caption)!r}: it has {len(caption)} words")
            positions = [self.position - 1]
        elif self.word is None:
            positions = [i for i, token in enumerate(caption) if token != self.contrast]
        else:
            positions = [i for i, token in enumerate(caption) if token == self.word]
            return tuple(positions) or None
        if self.contrast is not None and all((self.word or caption[i]) == self.contrast for i in positions):
            raise _same_word(self.contrast)
        return tuple(positions)


def parse_caption(text: str, vocabulary: Vocabulary, max_words: int) -> tuple[str, ...]:
    """The words of a caption in the user's text, all of which must be in the vocabulary."""
    tokens = tuple(tokenize(text))
    if not tokens:
        raise UserError(f"the caption {text!r} has no words")
    if len(tokens) > max_words:
        raise UserError(
            f"the caption has {len(tokens)} words, and this model's captions at most {max_words}: shorten it"
        )
    return tuple(known_word(token, vocabulary) for token in tokens)


def known_word(text: str, vocabulary: Vocabulary) -> str:
    """The text as one word of the vocabulary; else a `UserError` that suggests similar words."""
    tokens = tokenize(text)
    if len(tokens) != 1:
        raise UserError(f"{text!r} is not one word: give one")
    word = tokens[0]
    if vocabulary.has(word):
        return word
    candidates = vocabulary.words[vocabulary.markers :]
    similar = difflib.get_close_matches(word, candidates, n=3, cutoff=0.6)
    hint = f"similar words are {', '.join(similar)}" if similar else "no word is similar"
    raise UserError(f"the word {word!r} is not in the model's vocabulary of {len(candidates)}: {hint}")


def _same_word(word: str) -> UserError:
    return UserError(f"the contrast of {word!r} is the same word: choose another contrast")


def explain(
    captioner: Captioner,
    vocabulary: Vocabulary,
    pixels: Tensor,
    boxes: Tensor | None,
    captions: Sequence[Sequence[str]],
    request: ExplanationRequest,
    details: Sequence[Mapping[str, Any]],
    *,
    style: str = "",
    risk: EstimateRisk | None = None,
    words_per_pass: int | None = None,
) -> list[Explanation]:
    """Explain the caption of each image.

    `details` are further fields of each `Explanation`: source, model, size, crop, input_size, image. `style` is that of
    the captions, for a model with styles.
    """
    positions = [request.positions(caption) for caption in captions]
    if None in positions:
        assert request.word is not None
        likeliest = _likeliest_positions(captioner, vocabulary, pixels, boxes, captions, request.word, style)
        positions = [row or (best,) for row, best in zip(positions, likeliest, strict=True)]
    rows = [row for row in positions if row is not None]
    targets = Targets.of_captions(captions, rows, vocabulary, pixels.device, request.word, request.contrast, style)
    methods, composite = request.methods, request.composite
    attributions = attribute(captioner, pixels, boxes, targets, methods, composite, words_per_pass)
    risks: list[list[float | None]] = [[None] * len(row) for row in rows]
    if risk is not None and request.contrast is None:
        risks = risk(captioner, attributions, targets)
    explanations = []
    for row, (caption, word_risks, fields) in enumerate(zip(captions, risks, details, strict=True)):
        words = [
            word_explanation(k, row, caption, targets, attributions, request, value)
            for k, value in enumerate(word_risks)
        ]
        explanations.append(image_explanation(row, caption, words, attributions, request, {"style": style, **fields}))
    return explanations


@torch.inference_mode()
def _likeliest_positions(
    captioner: Captioner,
    vocabulary: Vocabulary,
    pixels: Tensor,
    boxes: Tensor | None,
    captions: Sequence[Sequence[str]],
    word: str,
    style: str,
) -> list[int]:
    """Where each caption would most likely have had the word."""
    tokens = Targets.of_captions(captions, None, vocabulary, pixels.device, style=style).tokens
    logits, _ = captioner(captioner.encode(pixels, boxes), tokens)
    log_p = log_probabilities(logits, captioner.styles)
    rows = [_log_p_at_words(row, caption, vocabulary, word) for row, caption in zip(log_p, captions, strict=True)]
    return [int(torch.stack(row).argmax()) for row in rows]


def _log_p_at_words(log_p: Tensor, caption: Sequence[str], vocabulary: Vocabulary, word: str) -> list[Tensor]:
    """log p of a word, of several pieces of the first, in place of each word of a caption, from log p (T, V)."""
    starts = accumulate(map(len, vocabulary.pieces(caption)), initial=0)
    own = [vocabulary.pieces([*caption[:place], word])[place][0] for place in range(len(caption))]
    return [log_p[start, id] for start, id in zip(starts, own, strict=False)]


def image_explanation(
    row: int,
    caption: Sequence[str],
    words: Sequence[WordExplanation],
    attributions: Attributions,
    request: ExplanationRequest,
    details: Mapping[str, Any],
) -> Explanation:
    """The explanation of one image of the batch."""
    maps = {method: _numpy(values[: len(words), row]) for method, values in attributions.maps.items()}
    boxes = None
    if attributions.features.boxes is not None:
        boxes = _numpy(attributions.features.boxes[row])
        is_region = has_area(boxes)  # the others are padding
        boxes = boxes[is_region]
        over_features = [m for m, values in maps.items() if m in FEATURE_METHODS or values.ndim == 2]
        maps |= {method: maps[method][..., is_region] for method in over_features}
    return Explanation(
        tokens=tuple(caption),
        words=tuple(words),
        methods=tuple(method for method in request.methods if method in maps),
        maps=maps,
        grid=attributions.features.grid,
        boxes=boxes,
        composite=str(request.composite),
        score=request.composite.score,
        map_kind=request.composite.map,
        **details,
    )


def word_explanation(
    k: int,
    row: int,
    caption: Sequence[str],
    targets: Targets,
    attributions: Attributions,
    request: ExplanationRequest,
    risk: float | None,
) -> WordExplanation:
    """The explanation of target k of one image of the batch."""
    position, relevance = int(targets.word_positions[row, k]), attributions.relevance
    tokens, features = relevance.tokens[k, row].double(), relevance.features[k, row].double()
    unplaced = attributions.features.unplaced
    earlier = attributions.earlier_words.items()
    return WordExplanation(
        word=targets.labels[row][k],
        position=position,
        caption_word=caption[position],
        contrast=request.contrast,
        logit=float(attributions.logits[row, k]),
        score=float(attributions.scores[row, k]),
        probability=float(attributions.probabilities[row, k]),
        budget=Budget(
            image=float(features[unplaced:].sum()),
            earlier_words=float(tokens[1 : position + 1].sum()),
            initial_state=float(tokens[0] + relevance.initial_state[k, row]),
            absorbed=float(relevance.absorbed[k, row]),
            class_token=float(features[:unplaced].sum()),
            own_pieces=float(tokens[position + 1 :].sum()),
        ),
        pixel_relevance=None if relevance.pixels is None else float(relevance.pixels[k, row].double().sum()),
        absorbed_by_encoder=float(relevance.absorbed_by_encoder[k, row]),
        earlier_words={method: values[k, row, 1 : position + 1].tolist() for method, values in earlier},
        beta=None if attributions.beta is None else float(attributions.beta[row, k]),
        risk=risk,
    )


def _numpy(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()
