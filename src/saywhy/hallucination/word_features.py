"""Features of object words, from which the risk is estimated that they are hallucinated.

All come from the decoder and the features of the image: no relevance, and no second pass through the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from saywhy.captioners.base import Attention, Captioner
from saywhy.data.object_words import ObjectWords
from saywhy.data.tokenizer import PAD, Vocabulary
from saywhy.decoding.config import log_probabilities
from saywhy.encoders.base import Features
from saywhy.explain.passes import Targets
from saywhy.hallucination.presence import prompted_log_p, prompts_in, sampled_captions

WORD_FEATURES = (
    "log p",  # of the word
    "log p of synonyms",  # of all words that a reference could use for the object: a puppy for a dog
    "log p of any object",  # of all object words together
    "p of another object",  # of the likeliest object word that does not name the object
    "entropy",  # of the distribution over the next word
    "log p without image",  # of the word
    "attention entropy",  # divided by its maximum
    "beta",  # the gate; 0 for models without one
    "position",  # the number of words before it, at most 15
    "prompted, highest",  # log p of synonyms after short prompts: the highest
    "prompted, mean",  # the same: the mean
    "mentions",  # the share of sampled captions that support the object
    "unfamiliarity",  # −log of the image's familiarity; that of an ordinary photograph where it is not known
)
LOWEST = -14.0  # of logarithms of probabilities

Lemmas = Sequence[Sequence[str | None]]
"""The object that each target of each image names, None for words that are not object words."""


class ObjectVocabulary:
    """Which words of a vocabulary name which objects.

    Attributes:
        vocabulary: the vocabulary.
        objects: the table of object words.
        ids: the ids of all object words of the vocabulary.
        prompts: the prompts of `presence` that the vocabulary can express, as token ids.
    """

    def __init__(self, vocabulary: Vocabulary, objects: ObjectWords) -> None:
        self.vocabulary = vocabulary
        self.objects = objects
        lemmas = ((id, objects.lemma(word)) for id, word in enumerate(vocabulary.words))
        self._lemmas = {id: lemma for id, lemma in lemmas if lemma is not None}
        self._synonyms: dict[str, np.ndarray] = {}
        self.ids = np.array(list(self._lemmas), dtype=np.int64)
        self.prompts = prompts_in(vocabulary)

    def synonyms(self, lemma: str) -> np.ndarray:
        """Ids of the words that support this object in a reference: its plural, synonyms and narrower words."""
        if lemma not in self._synonyms:
            supporting = self.objects.supporting(lemma)
            ids = [id for id, other in self._lemmas.items() if other in supporting]
            self._synonyms[lemma] = np.array(ids, dtype=np.int64)
        return self._synonyms[lemma]

    def names(self, word: int, lemma: str) -> np.ndarray:
        """Ids of the word and of all its object's synonyms."""
        return np.union1d(self.synonyms(lemma), word)

    def lemmas(self, caption: Sequence[str]) -> list[str | None]:
        """The object that each word of a caption names, None for words that are not object words."""
        by_position = {mention.position: mention.lemma for mention in self.objects.mentions(caption)}
        return [by_position.get(position) for position in range(len(caption))]

    def target_lemmas(self, targets: Targets) -> list[list[str | None]]:
        """The object that each target names: in its caption, or alone where the caption has another word there."""
        rows = []
        for tokens, positions, labels in zip(targets.tokens, targets.positions, targets.labels, strict=True):
            caption = self.vocabulary.decode(id for id in tokens[1:].tolist() if id != PAD)
            lemmas = self.lemmas(caption)
            pairs = zip(labels, positions.tolist(), strict=False)  # positions are padded
            rows.append([lemmas[i] if word == caption[i] else self.objects.lemma(word) for word, i in pairs])
        return rows


@torch.no_grad()
def word_features(
    captioner: Captioner,
    features: Features,
    targets: Targets,
    lemmas: Lemmas,
    object_vocabulary: ObjectVocabulary,
    familiarity: Sequence[float | None] = (),
) -> np.ndarray:
    """The features of K words of B images, (B, K, F); NaN for words that are not object words.

    Args:
        captioner: the captioner.
        features: of the images.
        targets: the words.
        lemmas: the object that each word names.
        object_vocabulary: the object words of the captioner's vocabulary.
        familiarity: of each image, None or () where it is not known.
    """
    log_p, attention = _at_targets(captioner, features, targets)  # (B, K, V)
    without_image, _ = _at_targets(captioner, captioner.without_image(features), targets)
    alpha, beta = _mean_attention(attention, targets), _gate(attention, targets)
    words, positions = targets.words.cpu().numpy(), targets.positions.tolist()
    state, starts = captioner.start(features), targets.tokens[:, 0]
    prompted = prompted_log_p(captioner, state, starts, object_vocabulary.prompts).cpu().numpy()  # (B, P, V)
    samples = sampled_captions(captioner, state, starts)
    values = np.full((*words.shape, len(WORD_FEATURES)), np.nan)
    for row, row_lemmas in enumerate(lemmas):
        captions = [object_vocabulary.vocabulary.decode(sample) for sample in samples[row]]
        for k, lemma in enumerate(row_lemmas):
            if lemma is not None:
                by_name = {
                    **_at_its_position(log_p[row, k], words[row, k], lemma, object_vocabulary),
                    **_anywhere(prompted[row], captions, words[row, k], lemma, object_vocabulary),
                    "log p without image": max(without_image[row, k, words[row, k]], LOWEST),
                    "attention entropy": entropy(alpha[row, k]) / np.log(max(alpha.shape[-1], 2)),
                    "beta": beta[row, k],
                    "position": min(positions[row][k], 15),
                    "unfamiliarity": _unfamiliarity(familiarity[row] if familiarity else None),
                }
                values[row, k] = [by_name[name] for name in WORD_FEATURES]
    return values


def _at_its_position(log_p: np.ndarray, word: int, lemma: str, objects: ObjectVocabulary) -> dict[str, float]:
    """Features of the distribution (V,) from which the word was chosen."""
    p, names = np.exp(log_p), objects.names(word, lemma)
    return {
        "log p": max(log_p[word], LOWEST),
        "log p of synonyms": _log(p[names].sum()),
        "log p of any object": _log(p[objects.ids].sum()),
        "p of another object": p[np.setdiff1d(objects.ids, names)].max(initial=0),
        "entropy": entropy(p),
    }


def _anywhere(
    prompted: np.ndarray, captions: Sequence[Sequence[str]], word: int, lemma: str, objects: ObjectVocabulary
) -> dict[str, float]:
    """Features of the object elsewhere: log p after prompts (P, V), and sampled captions."""
    after_prompts = _log(np.exp(prompted[:, objects.names(word, lemma)]).sum(axis=-1))  # (P,)
    return {
        "prompted, highest": after_prompts.max(),
        "prompted, mean": after_prompts.mean(),
        "mentions": float(np.mean([objects.objects.is_supported(lemma, [caption]) for caption in captions])),
    }


def entropy(p: np.ndarray) -> np.ndarray:
    """The entropy of distributions (…, N), in nats, (…)."""
    return -(p * np.log(np.clip(p, 1e-30, None))).sum(axis=-1)


def _at_targets(captioner: Captioner, features: Features, targets: Targets) -> tuple[np.ndarray, Attention]:
    """log p of every word at the targets' positions, (B, K, V), and the attention of all positions."""
    logits, attention = captioner(features, targets.tokens)
    return log_probabilities(targets.at_positions(logits), captioner.styles).cpu().numpy(), attention


def _mean_attention(attention: Attention, targets: Targets) -> np.ndarray:
    """α of the targets, averaged over heads, (B, K, L)."""
    alpha = targets.at_positions(attention.alpha).float().cpu().numpy()
    return alpha if alpha.ndim == 3 else alpha.mean(axis=2)


def _gate(attention: Attention, targets: Targets) -> np.ndarray:
    """β of the targets, (B, K); zeros for a model without a gate."""
    if attention.beta is None:
        return np.zeros(tuple(targets.words.shape))
    return targets.at_positions(attention.beta).float().cpu().numpy()


def _unfamiliarity(familiarity: float | None) -> float:
    """−log of a familiarity, which is the share of photographs that are less familiar; on average 1 of photographs."""
    return 1.0 if familiarity is None else -float(np.log(max(familiarity, 0.01)))


def _log(p: np.ndarray) -> np.ndarray:
    """log p, at least `LOWEST`."""
    return np.log(np.maximum(p, np.exp(LOWEST)))
