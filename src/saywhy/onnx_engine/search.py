"""Beam search in numpy: the search of `saywhy.decoding.beam`, for exported captioners.

The same scores, length normalisation, forbidden trigrams and stopping rule, and so the same captions; the tests compare
the two. Only beams that can still win have a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from saywhy.data.tokenizer import END
from saywhy.decoding.settings import Decoding, Hypothesis
from saywhy.errors import UserError
from saywhy.onnx_engine.runtime import DecoderState, DecoderStep

FEW = 16
"""Up to this many words, repeated passes for the maximum are faster than a partial sort."""


class StepwiseCaptioner(Protocol):
    """What the search needs of a captioner."""

    def start(self, features: np.ndarray) -> DecoderState:
        """The state before the first word."""

    def step(self, tokens: np.ndarray, state: DecoderState) -> DecoderStep:
        """Read the previous words."""


@dataclass(frozen=True)
class _Words:
    """One step of the search, for backtracking; all but the attention (B, k), by image and beam."""

    parents: np.ndarray
    tokens: np.ndarray
    log_p: np.ndarray
    end_log_p: np.ndarray
    row: np.ndarray  # of the attention, or −1
    step: DecoderStep


@dataclass
class _Finished:
    """The k best finished captions of each image, (B, k): their scores, and the step and beam in which they ended."""

    scores: np.ndarray
    steps: np.ndarray
    beams: np.ndarray

    def add(self, scores: np.ndarray, step: int) -> None:
        k = scores.shape[1]
        self.scores, best = _best(np.concatenate([self.scores, scores], 1), k)
        steps = np.concatenate([self.steps, np.full_like(self.steps, step)], 1)
        beams = np.concatenate([self.beams, np.broadcast_to(np.arange(k), self.beams.shape)], 1)
        self.steps, self.beams = (np.take_along_axis(values, best, 1) for values in (steps, beams))


def beam_search(
    captioner: StepwiseCaptioner, features: np.ndarray, decoding: Decoding, start: int
) -> list[list[Hypothesis]]:
    """Up to `beam` captions per image, the best first; they begin with the token `start`."""
    images, k = len(features), decoding.beam
    live = np.full((images, k), -np.inf, np.float32)
    live[:, 0] = 0  # one empty caption per image, not k equal ones
    zeros = np.zeros((images, k), np.int64)
    finished, path = _Finished(np.full_like(live, -np.inf), zeros, zeros), list[_Words]()
    image, beam = np.arange(images), np.zeros(images, np.int64)  # of each row
    tokens, last = np.empty((images, 0), np.int64), np.full(images, start)
    state = captioner.start(features)

    for words in range(decoding.max_words + 1):
        step = captioner.step(last, state)
        _require_numbers(step.log_p)
        ends = _on_grid(step.log_p[:, END], image, beam, live)
        allowed = constrained(step.log_p, tokens, decoding)
        finished.add(decoding.score(live + _on_grid(allowed[:, END], image, beam, live), words), words)
        allowed[:, END] = -np.inf
        log_p, choices = best_words(allowed, k)  # (R, n), n = min(k, V)
        n = choices.shape[1]
        row = _rows_on_grid(image, beam, live.shape)
        totals = np.where(row[..., None] < 0, -np.inf, live[..., None] + log_p[row])  # (B, k, n)
        live, best = _best(totals.reshape(images, -1).astype(np.float32), k)
        parents = best // n
        parent_row = np.take_along_axis(row, parents, 1)  # (B, k)
        chosen = choices[parent_row, best % n]
        path.append(_Words(parents, chosen, step.log_p[parent_row, chosen], ends, row, step))
        can_win = decoding.score(live, decoding.max_words) > finished.scores[:, :1]
        image, beam = can_win.nonzero()
        if not len(image):
            break
        live = np.where(can_win, live, np.float32(-np.inf))
        rows, last = parent_row[image, beam], chosen[image, beam]
        state = step.state.select(rows)
        tokens = np.concatenate([tokens[rows], last[:, None]], axis=1)
    return _backtrack(finished, path)


def constrained(log_p: np.ndarray, tokens: np.ndarray, decoding: Decoding) -> np.ndarray:
    """`log_p` (R, V) with −∞ for every word that may not follow `tokens` (R, t)."""
    words = tokens.shape[1]
    allowed = log_p.copy()
    if words < decoding.min_words:
        allowed[:, END] = -np.inf
    if words >= decoding.max_words:
        allowed[:, :END] = allowed[:, END + 1 :] = -np.inf
    elif decoding.no_repeat and words >= 3:
        repeats = (tokens[:, :-2] == tokens[:, -2:-1]) & (tokens[:, 1:-1] == tokens[:, -1:])  # (R, t - 2)
        rows, positions = repeats.nonzero()
        allowed[rows, tokens[rows, positions + 2]] = -np.inf
        no_word_left = np.isneginf(allowed.max(axis=1))  # then the caption ends, even below min_words
        allowed[no_word_left, END] = log_p[no_word_left, END]
    return allowed


def best_words(values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The n = min(k, V) largest values of each row of (R, V), and their places: (R, n) each, in descending order.

    Where a row has fewer than n finite values, places repeat; their values are −∞.
    """
    k = min(k, values.shape[1])
    if k > FEW:
        top = np.argpartition(values, values.shape[1] - k, axis=1)[:, -k:]
        found, order = _best(np.take_along_axis(values, top, 1), k)
        return found, np.take_along_axis(top, order, 1)
    values, rows = values.copy(), np.arange(len(values))
    found, places = np.empty((len(values), k), values.dtype), np.empty((len(values), k), np.int64)
    for column in range(k):
        places[:, column] = values.argmax(axis=1)
        found[:, column] = values[rows, places[:, column]]
        values[rows, places[:, column]] = -np.inf
    return found, places


def _best(values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest values of each row, in descending order, and their places."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(values, order, 1), order


def _on_grid(values: np.ndarray, image: np.ndarray, beam: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Values (R,) by image and beam, (B, k); −∞ elsewhere."""
    grid = np.full_like(like, -np.inf)
    grid[image, beam] = values
    return grid


def _rows_on_grid(image: np.ndarray, beam: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    grid = np.full(shape, -1)
    grid[image, beam] = np.arange(len(image))
    return grid


def _require_numbers(log_p: np.ndarray) -> None:
    if np.isnan(log_p[:, END]).any():  # the softmax spreads a NaN over its whole row
        raise UserError("the model's logits are not finite (NaN or infinity): its weights are damaged; export it again")


def _backtrack(finished: _Finished, path: list[_Words]) -> list[list[Hypothesis]]:
    """The finished captions, followed from their last beam to the first step."""
    captions = []
    for image, ends in enumerate(zip(finished.scores, finished.steps, finished.beams, strict=True)):
        found = [end for end in zip(*ends, strict=True) if end[0] > -np.inf]
        captions.append([_follow(path, image, float(score), int(step), int(beam)) for score, step, beam in found])
    return captions


def _follow(path: list[_Words], image: int, score: float, length: int, beam: int) -> Hypothesis:
    tokens, log_p, origins = [], [float(path[length].end_log_p[image, beam])], []
    for words in reversed(path[:length]):
        tokens.append(int(words.tokens[image, beam]))
        log_p.append(float(words.log_p[image, beam]))
        beam = int(words.parents[image, beam])
        origins.append((words.step, words.row[image, beam]))  # the attention is that of the beam the word came from
    origins.reverse()
    betas = [step.beta[row] for step, row in origins if step.beta is not None]
    return Hypothesis(
        tokens=tuple(reversed(tokens)),
        logprobs=tuple(reversed(log_p)),
        score=score,
        alpha=np.stack([step.alpha[row] for step, row in origins]),
        beta=np.stack(betas) if betas else None,
    )
