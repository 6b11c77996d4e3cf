"""The next word of a caption, scored by a language model over the words of a captioner: log q(word | earlier words).

Language-model guidance (`saywhy.decoding.guidance`) uses a language model through this interface only. Token ids are
those of the captioner's vocabulary; a caption begins with `<start>` or the marker of a style:

    state = scorer.start(batch)
    log_q, state = scorer.step(tokens, state)                 (B,) ↦ (B, V)
    log_q, state = scorer.step(tokens, state, candidates)     only the words of `candidates` (B, K) are needed
    state = state.select(rows)                                beams reordered, finished images removed

`log_q` of `<end>` is always finite. Both scorers of this package give `<pad>`, `<start>`, `<unk>` and style markers −∞.

A language model trained by `saywhy train-lm` has a vocabulary of its own, usually that of the captioner
(`VocabularyScorer`):

- a word that the language model lacks gets an equal share of its q(`<unk>`): q(`<unk>`) / (number of such words).
  −∞ would forbid the word whatever the image shows; all of q(`<unk>`) would count the same mass for each of them.
  If it lacks none, q(`<unk>`) is dropped;
- such a word is read as `<unk>` as well;
- q is normalised over the captioner's words and `<end>`, as log p is in decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK, Vocabulary
from saywhy.errors import UserError
from saywhy.language_models.language_model_folder import SavedLanguageModel


class ScorerState(Protocol):
    """The state of a scorer between two words, for a batch."""

    def select(self, rows: Tensor) -> Self:
        """The states of these rows; a row may occur more than once."""


class WordScorer(Protocol):
    """A language model over the captioner's vocabulary, on the captioner's device.

    A word with log q = −∞ is excluded, whatever the weight of q. What q says of markers is not used, except of `<end>`.

    Attributes:
        candidates: how many words per caption it should be asked for, those that are most probable given the image;
            None where all words cost the same.
    """

    candidates: int | None

    def start(self, batch: int) -> ScorerState:
        """The state of this many captions before their first token."""

    def step(self, tokens: Tensor, state: Any, candidates: Tensor | None = None) -> tuple[Tensor, ScorerState]:
        """Read one token of each caption, (B,): log q of the next words, (B, V), and the next state.

        The first token is `<start>`, or the marker of a style. Captions that have ended may still be continued. With
        `candidates` (B, K), words that are not among them may have −∞; `<end>` is always scored.
        """


class VocabularyScorer:
    """A trained language model as a `WordScorer` of a captioner's vocabulary."""

    candidates: int | None = None

    def __init__(self, saved: SavedLanguageModel, vocabulary: Vocabulary) -> None:
        self.model, self.vocabulary = saved.model, saved.vocabulary
        own = saved.vocabulary
        is_word = range(vocabulary.markers, len(vocabulary))
        shared = [index for index in is_word if own.ids.get(vocabulary.words[index], PAD) >= own.markers]
        if not shared:
            raise UserError(
                f"language model {saved.name!r} shares no word with the captioner's vocabulary: train one with "
                "`saywhy train-lm --vocabulary` and this captioner"
            )
        ids = torch.full((len(vocabulary),), UNK)
        ids[shared] = torch.tensor([own.ids[vocabulary.words[index]] for index in shared])
        lacking = torch.ones(len(vocabulary), dtype=torch.bool)
        lacking[: vocabulary.markers] = lacking[shared] = False
        share = torch.zeros(len(vocabulary))  # log of the part of an entry that a word gets
        share[lacking] = -math.log(max(1, int(lacking.sum())))
        share[: vocabulary.markers] = -torch.inf
        ids[END], share[END] = END, 0.0
        as_input = ids.clone()
        as_input[PAD], as_input[START] = PAD, START
        as_input[len(MARKERS) : vocabulary.markers] = START  # of any style
        device = self.model.device
        self.ids, self.share, self.as_input = ids.to(device), share.to(device), as_input.to(device)

    def start(self, batch: int) -> Any:
        """The state before `<start>`."""
        return self.model.start(batch)

    def step(self, tokens: Tensor, state: Any, candidates: Tensor | None = None) -> tuple[Tensor, Any]:
        """Read tokens (B,): log q (B, V) of all words, and the next state."""
        logits, state = self.model.step(self.as_input[tokens], state)
        log_q = (logits.float().index_select(1, self.ids) + self.share).log_softmax(dim=-1)
        return log_q, state


@dataclass(frozen=True)
class Perplexity:
    """How well captions are predicted: exp of the mean −log q per word, where `<end>` counts as a word.

    Attributes:
        perplexity: over all words; NaN without words.
        captions: number of captions.
        words: number of words, including one `<end>` per caption.
        left_out: captions with a word outside the vocabulary, which are not scored.
    """

    perplexity: float
    captions: int
    words: int
    left_out: int = 0


@torch.inference_mode()
def caption_log_probabilities(
    scorer: WordScorer, captions: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> list[list[float]]:
    """log q of each word of a batch of captions, token ids from `<start>` to `<end>`; the first has none."""
    longest = max(map(len, captions))
    tokens = torch.tensor([[*caption, *[PAD] * (longest - len(caption))] for caption in captions], device=device)
    state, columns = scorer.start(len(tokens)), []
    for t in range(longest - 1):
        following = tokens[:, t + 1 : t + 2]
        log_q, state = scorer.step(tokens[:, t], state, following)
        columns.append(log_q.gather(1, following))
    rows = torch.cat(columns, dim=1).tolist()
    return [row[: len(caption) - 1] for row, caption in zip(rows, captions, strict=True)]


def scorer_perplexity(
    scorer: WordScorer,
    vocabulary: Vocabulary,
    captions: Sequence[Sequence[str]],
    device: torch.device | str = "cpu",
    batch_size: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Perplexity:
    """The perplexity of captions (their words), as guidance sees the language model.

    Captions with a word outside the captioner's vocabulary are left out: a captioner cannot write them.
    """
    encoded = [vocabulary.encode(words, vocabulary.styles[0] if vocabulary.styles else "") for words in captions]
    known = sorted((caption for caption in encoded if UNK not in caption), key=len)
    total, words = 0.0, 0
    for start in range(0, len(known), batch_size):
        batch = known[start : start + batch_size]
        for log_q in caption_log_probabilities(scorer, batch, device):
            total, words = total - sum(log_q), words + len(log_q)
        progress(start + len(batch), len(known))
    value = math.exp(min(700.0, total / words)) if words else math.nan
    return Perplexity(value, len(known), words, len(encoded) - len(known))
