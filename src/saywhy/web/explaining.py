"""Explanations that are computed in small units: a word at a time, then the maps of further methods.

All requests about one caption of one picture share an `Explaining` job. A `Listener` gets what it asked for as soon as
it is known; a word that somebody waits for comes before the words that nobody has tapped yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch

from saywhy.decoding.config import Decoding
from saywhy.explain.explanation import Explanation
from saywhy.explain.methods import GRADIENT_METHODS
from saywhy.explain.request import ExplanationRequest
from saywhy.explain.word_by_word import APART, WordByWord
from saywhy.inference.model import Model
from saywhy.web.answers import Event, doubts_event, maps_event, word_event
from saywhy.web.captioning import EncodedPictures, doubts_of
from saywhy.web.pictures import Picture
from saywhy.web.worker import DETAIL, TAPPED, Job

PAGE_METHODS = ("lrp", APART, "attention", *GRADIENT_METHODS)
"""The methods of the server. Occlusion takes half a minute, and is left to `saywhy explain`."""
Task = tuple[str, Any]
"""What to compute: ("word", k), ("maps", method) or `DOUBTS`."""
DOUBTS: Task = ("doubts", None)


@dataclass(eq=False)
class Listener:
    """Somebody who waits for parts of an explanation.

    Attributes:
        tasks: what to compute, in this order.
        send: called with each event, from any thread; with an exception, or None at the end.
        urgent: whether other requests should wait for it.
    """

    tasks: Sequence[Task]
    send: Callable[[Event | Exception | None], None]
    urgent: bool = False
    sent: set[Task] = field(default_factory=set)
    is_open: bool = True

    @property
    def missing(self) -> list[Task]:
        """What was not sent yet."""
        return [task for task in self.tasks if task not in self.sent] if self.is_open else []

    def receive(self, task: Task, event: Event) -> None:
        """Pass an event on, if it was asked for; the last one ends the answer."""
        if task in self.missing:
            self.sent.add(task)
            self.send(event)
            if not self.missing:
                self.close()

    def close(self) -> None:
        """End the answer; what only this listener waits for is not computed any more."""
        if self.is_open:
            self.is_open = False
            self.send(None)


class OpenPasses:
    """The explanations that keep their forward pass, which is large: only a few, used by one thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: list[WordByWord] = []

    def use(self, steps: WordByWord) -> None:
        """Count an explanation as used; the one that was used longest ago frees its pass."""
        self._open = [other for other in self._open if other is not steps and other.is_open]
        while len(self._open) >= self.limit:
            self._open.pop(0).release()
        self._open.append(steps)


class Explaining(Job):
    """The explanation of one caption of one picture."""

    def __init__(
        self,
        model: Model,
        picture: Picture,
        caption: Sequence[str],
        request: ExplanationRequest,
        settings: Decoding,
        encoded: EncodedPictures,
        passes: OpenPasses,
    ) -> None:
        details = {
            **{"source": picture.name, "model": model.name, "input_size": model.preprocessing.size},
            **{"image": picture.image, "size": picture.size, "crop": picture.crop},
        }
        self.model, self.settings, self.picture, self.caption = model, settings, picture, tuple(caption)
        self.encoded, self.passes = encoded, passes
        pixels = picture.pixels[None].to(model.captioner.device)
        arguments = (model.captioner, model.vocabulary, pixels, caption, request, details, settings.style)
        self.steps = WordByWord(*arguments)
        self._events: dict[Task, Event] = {}
        self._listeners: list[Listener] = []
        self._lock = Lock()

    @property
    def words(self) -> list[Task]:
        """The tasks of all words."""
        return [("word", k) for k in range(len(self.steps))]

    def add(self, listener: Listener) -> None:
        """Send a listener what is known, and let it wait for the rest; the job has to be submitted afterwards."""
        with self._lock:
            self._listeners = [other for other in self._listeners if other.missing]
            for task in listener.missing:
                if task in self._events:
                    listener.receive(task, self._events[task])
            self._listeners.append(listener)

    @property
    def has_work(self) -> bool:
        """Whether somebody waits for something."""
        return any(listener.missing for listener in tuple(self._listeners))

    @property
    def urgency(self) -> int:  # type: ignore[override]
        """That of the most urgent listener."""
        return TAPPED if any(one.urgent and one.missing for one in tuple(self._listeners)) else DETAIL

    def work(self, batch: Sequence[Explaining]) -> None:
        """Compute what is needed next."""
        waiting = sorted(self._listeners, key=lambda one: not one.urgent)
        tasks = [task for listener in waiting for task in listener.missing]
        if not tasks:
            return
        task = self._first_step(tasks[0])
        with self.model.captioner.using_attention(self.settings.attention):
            event = self._compute(task)
        with self._lock:
            self._events[task] = event
            for listener in self._listeners:
                listener.receive(task, event)

    def fail(self, error: Exception) -> None:
        """Pass the error to whoever waits."""
        with self._lock:
            for listener in self._listeners:
                if listener.missing:
                    listener.send(error)
                    listener.is_open = False

    def rest(self) -> None:
        """Free the forward pass."""
        self.steps.release()

    def explanation(self) -> Explanation:
        """All that was computed; every word is known."""
        with torch.inference_mode(False):
            return self.steps.explanation()

    def _first_step(self, task: Task) -> Task:
        """What has to be computed before the maps of a method: the words one by one."""
        missing = self.steps.missing if task[0] == "maps" else []
        return ("word", missing[0]) if missing else task

    def _compute(self, task: Task) -> Event:
        kind, value = task
        if task == DOUBTS:
            return doubts_event(doubts_of(self.model, self.encoded, self.picture, self.caption, self.settings))
        if kind == "word":
            self.passes.use(self.steps)
            return word_event(value, self.steps.explain(value), self.steps.alternatives(value))
        if value in GRADIENT_METHODS:
            self.steps.add_gradients([value])
        return maps_event(value, self.explanation())
