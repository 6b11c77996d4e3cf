"""From what a user asks to explanations, for a batch of pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.data.vocabulary import Vocabulary
from saywhy.errors import UserError
from saywhy.explain.answering import explanation_of
from saywhy.explain.asking import Asked, caption_words, in_question, known_word, question
from saywhy.explain.composites import DEFAULT, Composite, composite
from saywhy.explain.explanation import Explanation
from saywhy.explain.methods import explain, known

ON_CPU, ON_GPU = 1, 16
"""Words that go back at a time: a CPU's caches like one, a GPU likes many."""


@dataclass
class Explaining:
    """What is asked of every picture; `Model.explanations` says what each means."""

    captioner: Captioner
    vocabulary: Vocabulary
    methods: Sequence[str]
    caption: str | None = None
    word: str | None = None
    at: int | None = None
    instead: str | None = None
    rules: str | Composite = DEFAULT
    chunk: int | None = None

    def __post_init__(self) -> None:
        self.methods = known(self.methods)
        if not self.methods:
            raise UserError("name a method to explain with")
        self.composite = composite(self.rules) if isinstance(self.rules, str) else self.rules
        self.word, self.instead = (each and known_word(each, self.vocabulary) for each in (self.word, self.instead))
        self.typed: tuple[str, ...] | None = None

    def refuse_long_captions(self, most: int) -> None:
        """Read the caption that was typed, if one was; raise a `UserError` where the model would never say it."""
        if self.caption is not None:
            self.typed = caption_words(self.caption, self.vocabulary, most)
            in_question(self.typed, self.word, self.at)

    def __call__(
        self,
        pixels: Tensor,
        boxes: Tensor | None,
        said: Sequence[Sequence[str]] | None,
        about: Sequence[Mapping[str, Any]],
    ) -> Iterator[Explanation]:
        """Explain what was said of each picture, or what was typed; `about` is what else its explanation tells."""
        captions = said if self.typed is None else [self.typed] * len(pixels)
        assert captions is not None
        asked = [in_question(words, self.word, self.at) for words in captions]
        if None in asked:
            fitting = self._fitting(pixels, boxes, captions)
            asked = [each or best for each, best in zip(asked, fitting, strict=True)]
        these = [each for each in asked if each is not None]
        wanted = question(these, self.vocabulary, self.instead, pixels.device)
        chunk = self.chunk or (ON_CPU if pixels.device.type == "cpu" else ON_GPU)
        evidence = explain(self.captioner, pixels, boxes, wanted, self.methods, self.composite, chunk)
        name = self.rules if isinstance(self.rules, str) else "custom"
        for row, (each, more) in enumerate(zip(these, about, strict=True)):
            yield explanation_of(row, each, evidence, self.instead, self.methods, composite=name, **more)

    @torch.inference_mode()
    def _fitting(self, pixels: Tensor, boxes: Tensor | None, captions: Sequence[Sequence[str]]) -> list[Asked]:
        """The word in question where each caption would most likely have had it."""
        assert self.word is not None
        whole = [Asked(tuple(words), (0,), (self.word,)) for words in captions]
        said = question(whole, self.vocabulary, None, pixels.device).said
        logits, _ = self.captioner(self.captioner.encode(pixels, boxes), said)
        log_p = logits.log_softmax(dim=-1)[..., self.vocabulary.numbers[self.word]]  # (B, T)
        best = [int(row[: len(words)].argmax()) for row, words in zip(log_p, captions, strict=True)]
        return [Asked(each.tokens, (place,), each.words) for each, place in zip(whole, best, strict=True)]
