"""From what a user asks to explanations, for a batch of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.data.vocabulary import Vocabulary
from saywhy.decoding.config import log_probabilities
from saywhy.explain.answering import explanation_of
from saywhy.explain.composites import DEFAULT, Composite, composite
from saywhy.explain.explanation import Explanation
from saywhy.explain.methods import explain, known
from saywhy.explain.request import Ask, Asked, in_question, question

if TYPE_CHECKING:
    from saywhy.hallucination.risk import Risks


def words_at_a_time(device: torch.device) -> int:
    """How many words go back at a time: a CPU's caches like one, a GPU likes many."""
    return 1 if device.type == "cpu" else 16


@dataclass
class Explaining:
    """What explains a batch of images; `Model.explanations` says what each part means."""

    captioner: Captioner
    vocabulary: Vocabulary
    ask: Ask
    methods: Sequence[str]
    rules: str | Composite = DEFAULT
    chunk: int | None = None
    risks: Risks | None = None

    def __post_init__(self) -> None:
        self.methods = known(self.methods)
        self.composite = composite(self.rules) if isinstance(self.rules, str) else self.rules

    def __call__(
        self,
        pixels: Tensor,
        boxes: Tensor | None,
        captions: Sequence[Sequence[str]],
        about: Sequence[Mapping[str, Any]],
    ) -> Iterator[Explanation]:
        """Explain what was said of each image; `about` is what else its explanation tells."""
        asked = [in_question(words, self.ask.word, self.ask.at, self.ask.instead) for words in captions]
        if None in asked:
            fitting = self._fitting(pixels, boxes, captions)
            asked = [each or best for each, best in zip(asked, fitting, strict=True)]
        these = [each for each in asked if each is not None]
        wanted = question(these, self.vocabulary, self.ask.instead, pixels.device)
        chunk = self.chunk or words_at_a_time(pixels.device)
        evidence = explain(self.captioner, pixels, boxes, wanted, self.methods, self.composite, chunk)
        rules = str(self.composite)
        is_plain = self.ask.instead is None  # a difference of two logits is no evidence of a risk
        risks = self.risks(self.captioner, evidence, wanted, these) if self.risks and is_plain else None
        for row, (each, more) in enumerate(zip(these, about, strict=True)):
            of_row = risks[row] if risks else [None] * len(each.words)
            yield explanation_of(row, each, evidence, self.ask.instead, self.methods, of_row, composite=rules, **more)

    @torch.inference_mode()
    def _fitting(self, pixels: Tensor, boxes: Tensor | None, captions: Sequence[Sequence[str]]) -> list[Asked]:
        """The word in question where each caption would most likely have had it."""
        word = self.ask.word
        assert word is not None
        whole = [Asked(tuple(words), (0,), (word,)) for words in captions]
        said = question(whole, self.vocabulary, None, pixels.device).said
        logits, _ = self.captioner(self.captioner.encode(pixels, boxes), said)
        log_p = log_probabilities(logits)[..., self.vocabulary.numbers[word]]  # (B, T)
        best = [int(row[: len(words)].argmax()) for row, words in zip(log_p, captions, strict=True)]
        return [Asked(each.tokens, (place,), each.words) for each, place in zip(whole, best, strict=True)]
