"""The explanation of one caption, one word at a time, so that a page can show each word as soon as it is known.

The forward pass is computed once and kept until the last word is explained; words may come in any order. The finished
explanation equals that of `request.explain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.data.tokenizer import Vocabulary
from saywhy.decoding.config import log_probabilities
from saywhy.explain.composites import less_others, lrp_map
from saywhy.explain.explanation import Explanation, WordExplanation
from saywhy.explain.methods import REPORT_METHODS, Attributions, gradient_attributions
from saywhy.explain.passes import LRPPass, Relevance, lrp_pass
from saywhy.explain.request import ExplanationRequest, image_explanation, word_explanation
from saywhy.explain.targets import Targets

WORD_METHODS = ("lrp", "attention")
"""The methods whose maps come with each word."""
APART = "lrp-apart"


class WordByWord:
    """Explains the words of one caption of one image.

    Args:
        captioner: the captioner.
        vocabulary: its vocabulary.
        pixels: (1, 3, S, S).
        caption: the words of the caption.
        request: which of them to explain; all of them, a position, or another word or a contrast at a position.
        details: further fields of the `Explanation`: source, model, size, crop, input_size, image.
        style: that of the caption, for a model with styles.
    """

    def __init__(
        self,
        captioner: Captioner,
        vocabulary: Vocabulary,
        pixels: Tensor,
        caption: Sequence[str],
        request: ExplanationRequest,
        details: Mapping[str, Any],
        style: str = "",
    ) -> None:
        positions = request.positions(caption)
        assert positions is not None, "a word without its position is not looked for"
        self.captioner, self.vocabulary, self.pixels = captioner, vocabulary, pixels
        self.caption, self.request, self.details, self.style = caption, request, details, style
        self.targets = Targets.of_captions(
            [caption], [positions], vocabulary, pixels.device, request.word, request.contrast, style
        )
        self._lrp: LRPPass | None = None
        self._parts: dict[int, Attributions] = {}
        self._gradients: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})

    def __len__(self) -> int:
        return self.targets.words.shape[1]

    @property
    def missing(self) -> list[int]:
        """The indices of the words that are not explained yet."""
        return [k for k in range(len(self)) if k not in self._parts]

    def explain(self, k: int) -> Explanation:
        """The explanation of the word with this index alone; it is computed once."""
        if k not in self._parts:
            self._lrp = self._lrp or self._forward()
            self._parts[k] = self._attributions(self._lrp, k)
            if not self.missing:
                self.release()
        return self._explanation([self._word(k)], self._parts[k], self._parts[k].maps)

    def release(self) -> None:
        """Free the forward pass, which is large; the next word that is missing computes it again."""
        self._lrp = None

    @property
    def is_open(self) -> bool:
        """Whether the forward pass is kept."""
        return self._lrp is not None

    def add_gradients(self, methods: Sequence[str]) -> None:
        """Compute the maps of gradient methods, of all words."""
        with torch.inference_mode(False):
            maps, weights = gradient_attributions(
                self.captioner, self.pixels, None, self.targets, methods, self._words_per_pass
            )
        kept = {method: values for method, values in maps.items() if method in methods}
        self._gradients = (self._gradients[0] | kept, self._gradients[1] | weights)

    def alternatives(self, k: int, count: int = 5) -> list[tuple[str, float]]:
        """The words that were most probable in place of an explained word, with their probabilities.

        With sub-words, these are the most probable first pieces.
        """
        log_p = self._parts[k].log_p[0, 0].clone()  # (V,)
        log_p[int(self.targets.words[0, k])] = -torch.inf
        best = log_p.topk(count + 1)
        words = ("".join(self.vocabulary.decode([index])) for index in best.indices.tolist())
        pairs = zip(words, best.values.exp().tolist(), strict=True)
        return [(word, p) for word, p in pairs if not word.startswith("<")][:count]

    def explanation(self) -> Explanation:
        """The explanation of all words; those that are missing are explained first."""
        for k in self.missing:
            self.explain(k)
        indices = range(len(self))
        maps = {method: torch.cat([self._parts[k].maps[method] for k in indices]) for method in WORD_METHODS}
        if self.compares_words:
            maps[APART] = self._apart()
        maps |= self._gradients[0]
        ordered = {method: maps[method] for method in REPORT_METHODS if method in maps}
        return self._explanation([self._word(k) for k in indices], self._parts[0], ordered)

    def _explanation(
        self, words: Sequence[WordExplanation], part: Attributions, maps: dict[str, Tensor]
    ) -> Explanation:
        request = replace(self.request, methods=tuple(maps))
        details = {"style": self.style, **self.details}
        return image_explanation(0, self.caption, words, replace(part, maps=maps), request, details)

    @property
    def compares_words(self) -> bool:
        """Whether there is a map of what tells a word from the caption's other words."""
        return self.request.contrast is None and len(self) == len(self.caption)

    @property
    def _words_per_pass(self) -> int:
        return 1 if self.pixels.device.type == "cpu" else 16

    def _forward(self) -> LRPPass:
        with torch.inference_mode(False):
            return lrp_pass(self.captioner, self.pixels, None, self.targets, self.request.composite, 1)

    def _attributions(self, lrp: LRPPass, k: int) -> Attributions:
        with torch.inference_mode(False):
            relevance = lrp.relevance([k])
        forward, target = lrp.forward.detached(), self.targets.select([k])
        alpha = target.at_positions(forward.attention.alpha).cpu()
        beta = None if forward.attention.beta is None else target.at_positions(forward.attention.beta).cpu()
        log_p = log_probabilities(target.at_positions(forward.logits), self.captioner.styles).cpu()  # (1, 1, V)
        probabilities = target.probabilities(forward.logits, self.captioner.styles).cpu()
        parts = (relevance.pixels, relevance.features, forward.features)
        maps = {"lrp": lrp_map(self.request.composite.map, *parts), "attention": alpha.transpose(0, 1)}
        weights = dict.fromkeys(("lrp", APART), relevance.tokens)
        scores, logits = forward.scores[:, [k]].cpu(), target.scores(forward.logits).cpu()
        return Attributions(
            scores, logits, probabilities, log_p, alpha, beta, forward.features, maps, weights, relevance
        )

    def _word(self, k: int) -> WordExplanation:
        part = self._parts[k]
        gradients = {method: weights[[k]] for method, weights in self._gradients[1].items()}
        part = replace(part, earlier_words=part.earlier_words | gradients)
        return word_explanation(0, 0, self.caption, self.targets.select([k]), part, self.request, None)

    def _apart(self) -> Tensor:
        """The maps "apart", (K, 1, S, S)."""
        parts = [self._parts[k] for k in range(len(self))]
        seen = torch.cat([lrp_map("apart", *_of(part.relevance), part.features) for part in parts])
        return less_others(seen, self.targets.word_positions.cpu(), seen, [len(self)])


def _of(relevance: Relevance) -> tuple[Tensor | None, Tensor]:
    return relevance.pixels, relevance.features
