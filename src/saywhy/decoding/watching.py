"""Watching captions while they are decoded: the best unfinished caption of each image after every word.

To the decoding methods, a `WatchedCaptioner` is a captioner. Its states also hold the words that were read, so beam
search reorders them with the beams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner, State, Step
from saywhy.encoders.base import Features

Watch = Callable[[int, list[int]], None]
"""Called with the row of an image and the words that its best unfinished caption begins with, as token numbers."""


@dataclass(frozen=True)
class WatchedState(State):
    """The state of the captioner, the images of its rows (R,), and the tokens that were read, (R, t)."""

    inner: State
    images: Tensor
    tokens: Tensor


class WatchedCaptioner(Captioner[WatchedState]):
    """A captioner that reports the words it reads; rows of an image come with the best caption first."""

    name = "watched"

    def __init__(self, captioner: Captioner, watch: Watch) -> None:
        super().__init__(captioner.encoder, captioner.vocabulary_size, captioner.settings)
        self.captioner, self.watch, self.styles = captioner, watch, captioner.styles

    @property
    def device(self) -> torch.device:
        """The device of the captioner."""
        return self.captioner.device

    def start(self, features: Features) -> WatchedState:
        """The state before the first word."""
        rows, device = len(features), features.vectors.device
        no_tokens = torch.empty(rows, 0, dtype=torch.long, device=device)
        return WatchedState(self.captioner.start(features), torch.arange(rows, device=device), no_tokens)

    def step(self, tokens: Tensor, state: WatchedState) -> Step[WatchedState]:
        """The captioner's step; the words read so far are reported."""
        read = torch.cat([state.tokens, tokens[:, None]], dim=1)  # (R, t), the start token first
        self._report(state.images.tolist(), read[:, 1:].tolist())
        step = self.captioner.step(tokens, state.inner)
        return Step(step.logits, WatchedState(step.state, state.images, read), step.attention, step.scores)

    def _report(self, images: list[int], words: list[list[int]]) -> None:
        best: dict[int, list[int]] = {}
        for image, row in zip(images, words, strict=True):
            best.setdefault(image, row)
        for image, row in best.items():
            if row:
                self.watch(image, row)
