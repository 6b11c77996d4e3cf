"""Guidance while decoding, towards captions that are more specific to their image.

After Kornblith et al. 2023 (https://arxiv.org/abs/2307.16686). With the captioner's p(w | image), its p(w | ∅) without
an image, and the q(w) of a language model, each given the words before w, the score of the next word w is

    log p(w | ∅) + γ (log p(w | image) − log p(w | ∅))          classifier-free guidance
    log q(w) + γ (log p(w | image) − log q(w))                  the same, with q in place of p(· | ∅)
    log q(w) + α log p(w | image) − β log p(w | ∅)              language-model guidance

The second form is for captioners that were trained without conditioning dropout and so have no p(· | ∅). If q is the
distribution of captions, it is log p(w | image) + (γ − 1) times the pointwise mutual information of word and image.
All three are weighted sums of the same three terms (`Weights`).

To the decoding methods, a `GuidedCaptioner` is a captioner whose steps have `scores` beside the logits: words are
chosen by the softmax of the scores, while their reported log-probabilities are those of the logits, log p(w | image).
Greedy decoding and sampling then do what the paper does. The paper has no beam search, which could also add up the
scores as they are, without a softmax, and so rank whole captions x by p(x | ∅) (p(x | image) / p(x | ∅))^γ. The softmax
is kept for three reasons:

- Each softmax divides by Z = Σ_w p(w | image)^γ p(w | ∅)^(1−γ), and log Z, which is γ − 1 times a Rényi divergence, is
  not negative for γ > 1. Without the softmax a caption gains log Z with every word, and most where the two
  distributions disagree most, whether it is fluent or not.
- Length normalisation and the stopping rule of beam search need log-probabilities, which are never positive: a positive
  sum divided by length^a favours short captions, and any unfinished caption might still win.
- A beam of one follows the greedy path, and beam search looks for the mode of the distribution that is sampled from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner, State, Step
from saywhy.data.tokenizer import MARKERS
from saywhy.encoders.base import Features

if TYPE_CHECKING:
    from saywhy.language_models.word_scorer import ScorerState, WordScorer

EXCLUDED = -1e4
"""What q(w) = 0 adds to a score. It is finite, so that a caption can always be continued and can always end."""


@dataclass(frozen=True)
class Weights:
    """The weights of log p(w | image), log p(w | ∅) and log q(w) in the score of a word."""

    image: float
    no_image: float
    lm: float

    @classmethod
    def classifier_free(cls, gamma: float) -> Weights:
        """Those of the first form."""
        return cls(gamma, 1 - gamma, 0)

    @classmethod
    def mutual_information(cls, gamma: float) -> Weights:
        """Those of the second form."""
        return cls(gamma, 0, 1 - gamma)

    @classmethod
    def language_model(cls, alpha: float, beta: float) -> Weights:
        """Those of the third form."""
        return cls(alpha, -beta, 1)

    def scores(self, image: Tensor, no_image: Tensor | None, log_q: Tensor | None) -> Tensor:
        """The scores (B, V) from the logits with and without the image, and from log q.

        Logits are as good as log p here: a constant that is added to all words of a row vanishes in the softmax.
        """
        total = self.image * image if self.image else torch.zeros_like(image)
        if no_image is not None:
            total = total + self.no_image * no_image
        if log_q is not None:
            total = total + torch.where(log_q.isneginf(), EXCLUDED, self.lm * log_q)
        return total.masked_fill(image.isneginf(), -torch.inf) if self.image else total


@dataclass(frozen=True)
class GuidedState(State):
    """The states of the captioner with and without the image, and of the language model; None if it has no weight."""

    image: State
    no_image: State | None
    lm: ScorerState | None


class GuidedCaptioner(Captioner[GuidedState]):
    """A captioner whose steps have guided scores.

    The branches run one after the other. The branch without an image attends to a single vector, so its attention costs
    next to nothing; as further rows of one batch it would attend to L. What `start` computes for it is computed once,
    for one row, which all others share.

    Args:
        captioner: in evaluation mode.
        weights: of the three terms.
        lm: the language model, if it has a weight.
    """

    name = "guided"

    def __init__(self, captioner: Captioner, weights: Weights, lm: WordScorer | None = None) -> None:
        super().__init__(captioner.encoder, captioner.vocabulary_size, captioner.settings)
        if bool(weights.lm) != (lm is not None):
            raise ValueError(f"the language model has the weight {weights.lm} and is {lm}")
        self.captioner, self.weights, self.lm, self.styles = captioner, weights, lm, captioner.styles

    @property
    def device(self) -> torch.device:
        """The device of the captioner."""
        return self.captioner.device

    def start(self, features: Features) -> GuidedState:
        """The states of all branches before the first word."""
        no_image, lm = None, None if self.lm is None else self.lm.start(len(features))
        if self.weights.no_image:
            one_row = self.captioner.start(no_image_features(self.captioner, features))
            no_image = one_row.select(torch.zeros(len(features), dtype=torch.long, device=self.device))
        return GuidedState(self.captioner.start(features), no_image, lm)

    def step(self, tokens: Tensor, state: GuidedState) -> Step[GuidedState]:
        """The step with the image; its scores come from all branches."""
        step = self.captioner.step(tokens, state.image)
        no_image = None if state.no_image is None else self.captioner.step(tokens, state.no_image)
        log_q, lm_state = self._read_lm(tokens, step.logits, state.lm)
        scores = self.weights.scores(step.logits.float(), None if no_image is None else no_image.logits.float(), log_q)
        next_state = GuidedState(step.state, None if no_image is None else no_image.state, lm_state)
        return Step(step.logits, next_state, step.attention, scores)

    def _read_lm(
        self, tokens: Tensor, logits: Tensor, state: ScorerState | None
    ) -> tuple[Tensor | None, ScorerState | None]:
        if self.lm is None:
            return None, None
        if self.lm.candidates is None:
            return self.lm.step(tokens, state)
        first = len(MARKERS) + self.styles
        words = logits[:, first:]
        candidates = first + words.topk(min(self.lm.candidates, words.shape[1]), dim=1).indices  # (B, K)
        return self.lm.step(tokens, state, candidates)


def no_image_features(captioner: Captioner, features: Features) -> Features:
    """The features of "no image", (1, 1, D): one row, without the positions that `without_image` masks."""
    one_row = captioner.without_image(features[:1])
    if one_row.mask is None:
        return one_row
    return Features(one_row.vectors[:, one_row.mask[0]])
