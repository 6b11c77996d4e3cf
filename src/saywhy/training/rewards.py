"""Rewards of self-critical training: the score of sampled captions, computed on token ids on the samples' device.

A reward is a module that is built from all training captions and the size of the vocabulary, and called with

    candidates  (P, n, T)   n captions for each of P images, from the first word to `<end>`, padded
    references  (P, R, U)   the images' training captions, likewise
    copies      (P, R)      how often each reference counts; 0 for padding

and returns the rewards (P, n). It waits for no device and has no shape that depends on the captions, so that a CUDA
graph can replay it.

`<end>` is part of the scored caption, in candidates, references and document frequencies. Without it a captioner learns
that fragments such as "a man on a" cost nothing, and CIDEr-D is up to 4 points higher (Hu et al. 2023, "SacreEOS",
https://arxiv.org/abs/2305.12254). Words outside the vocabulary are `<unk>` in references and document frequencies:
n-grams with `<unk>` add to a reference's norm and length, and match no sample, because it is never sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhy.data.tokenizer import PAD
from saywhy.data.training_batches import TokenIds
from saywhy.errors import UserError
from saywhy.registry import Registry

rewards: Registry[Callable[[TokenIds, int], nn.Module]] = Registry("reward metric")

ORDERS = 4
SIGMA = 6.0
LARGEST_VOCABULARY = math.isqrt(math.isqrt(2**63))
"""With more words, four token ids do not fit into an int64."""


class PenalisedReward(nn.Module):
    """A reward, less `penalty` for every object that a caption names and no reference of its image does."""

    def __init__(self, reward: nn.Module, words: Sequence[str], penalty: float) -> None:
        super().__init__()
        self.reward, self.objects, self.penalty = reward, InventedObjects(words), penalty

    @torch.no_grad()
    def forward(self, candidates: Tensor, references: Tensor, copies: Tensor) -> Tensor:
        """Rewards (P, n)."""
        reward: Tensor = self.reward(candidates, references, copies)
        return reward - self.penalty * self.objects(candidates, references)


class InventedObjects(nn.Module):
    """How often captions name one of COCO's 80 objects that no reference names, as CHAIR counts without boxes.

    It finds what `coco_mentions` finds. Phrases are looked up by integers that have their token ids as digits.

    Args:
        words: the vocabulary. Phrases with other words cannot be in a caption.
    """

    keys: Tensor  # (K,) phrases, sorted, and a last key above all
    meanings: Tensor  # (K, 4) length, category from 1, is_animal, may_be_animal; zeros for the last key

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        from saywhy.data.coco_objects import coco_categories, coco_phrases  # few recipes need them

        ids = {word: token for token, word in enumerate(words)}
        categories = {name: number for number, name in enumerate(coco_categories(), 1)}
        phrases = [phrase for phrase in coco_phrases() if all(word in ids for word in phrase.words)]
        self.radix, self.categories = len(words), len(categories)
        self.longest = max((len(phrase.words) for phrase in phrases), default=1)
        rows = [
            [
                sum(ids[word] * self.radix**n for n, word in enumerate(reversed(phrase.words))),
                *(len(phrase.words), categories.get(phrase.category, 0), phrase.is_animal, phrase.may_be_animal),
            ]
            for phrase in phrases
        ]
        table = torch.tensor([*sorted(rows), [2**63 - 1, 0, 0, 0, 0]])
        self.register_buffer("keys", table[:, 0].contiguous(), persistent=False)
        self.register_buffer("meanings", table[:, 1:].contiguous(), persistent=False)

    def forward(self, candidates: Tensor, references: Tensor) -> Tensor:
        """The number of such mentions in candidates (P, n, T), given references (P, R, U): (P, n)."""
        named = self.mentions(references).any(dim=1)  # (P, C)
        return (self.mentions(candidates) * ~named.unsqueeze(1)).sum(dim=-1)

    def mentions(self, tokens: Tensor) -> Tensor:
        """How often captions (…, T) name each category, (…, C)."""
        _, category, is_animal, may_be_animal = self._longest_phrases(tokens).unbind(dim=-1)  # (…, T)
        has_animal = (is_animal > 0).any(dim=-1, keepdim=True)
        category = category * ~(has_animal & (may_be_animal > 0))
        counts = category.new_zeros(*tokens.shape[:-1], self.categories + 1)
        return counts.scatter_add_(-1, category, torch.ones_like(category))[..., 1:]

    def _longest_phrases(self, tokens: Tensor) -> Tensor:
        """The meaning (…, T, 4) of the phrases into which a caption is divided from left to right; zeros elsewhere."""
        meaning = self.meanings.new_zeros(*tokens.shape, self.meanings.shape[1])
        key = torch.zeros_like(tokens)
        for n in range(self.longest):
            following = functional.pad(tokens[..., n:], (0, n))
            key = key * self.radix + following
            position = torch.searchsorted(self.keys, key)
            found = (self.keys[position] == key) & (following != PAD)
            meaning = torch.where(found.unsqueeze(-1), self.meanings[position], meaning)
        end = torch.zeros_like(tokens[..., 0])  # of the last phrase
        starts = []
        for t in range(tokens.shape[-1]):
            starts.append(end <= t)
            end = torch.where(starts[-1], t + meaning[..., t, 0].clamp(min=1), end)
        return meaning * torch.stack(starts, dim=-1).unsqueeze(-1)


@rewards.register("cider")
class CiderReward(nn.Module):
    """CIDEr-D on its scale of 0 to 10 (`saywhy.metrics.cider` has the equations), with training document frequencies.

    Sums over the distinct n-grams of a caption are sums over its positions, each divided by c_i, the count in that
    caption of the n-gram at position i. With its idf_i, and c_i(h) its count in another caption h,

        |v|²                  = Σ_i (c_i idf_i)² / c_i                   = Σ_i c_i idf_i²
        Σ_g min(v_h, v_r) v_r = Σ_i min(c_i(h), c_i) c_i idf_i² / c_i    = Σ_i min(c_i(h), c_i) idf_i²,   i in r

    Document frequencies are looked up by integers that have the token ids of an n-gram as digits.

    Args:
        captions: token ids of all training captions, by image, with the marker that each begins with.
        vocabulary_size: number of token ids, which must not be above `LARGEST_VOCABULARY`.
    """

    keys: Tensor  # (K,) all n-grams of the training captions, sorted, and a last key above all
    idf: Tensor  # (K,) log N − log df
    word_idf: Tensor  # (V,) the same for words, which need no search

    def __init__(self, captions: TokenIds, vocabulary_size: int) -> None:
        super().__init__()
        if vocabulary_size > LARGEST_VOCABULARY:
            raise UserError(
                f"the reward cider takes at most {LARGEST_VOCABULARY:,} words, and the vocabulary has "
                f"{vocabulary_size:,}: raise vocabulary.min_count"
            )
        self.radix = vocabulary_size
        self.log_images = math.log(max(1, len(captions)))
        keys, frequencies = document_frequencies(captions, vocabulary_size)
        idf = self.log_images - frequencies.double().log()
        word_idf = torch.full((vocabulary_size,), self.log_images)
        words = keys < vocabulary_size
        word_idf[keys[words]] = idf[words].float()
        word_idf[PAD] = 0
        padding, last = keys.new_tensor([0]), keys.new_tensor([2**63 - 1])  # padding has the key 0 and the weight 0
        self.register_buffer("keys", torch.cat([padding, keys, last]), persistent=False)
        self.register_buffer("idf", functional.pad(idf, (1, 1)).float(), persistent=False)
        self.register_buffer("word_idf", word_idf, persistent=False)

    @torch.no_grad()
    def forward(self, candidates: Tensor, references: Tensor, copies: Tensor) -> Tensor:
        """Rewards (P, n)."""
        h, r = candidates.permute(2, 1, 0), references.permute(2, 0, 1)  # (T, n, P), (U, P, R)
        squared_idf_h, squared_idf_r = self._idf(h).square(), self._idf(r).square()  # (4, T, n, P), (4, U, P, R)
        c_r, c_hr = ngram_counts(r, r), ngram_counts(r.unsqueeze(1), h.unsqueeze(3))  # (4, U, P, R), (4, U, n, P, R)
        shared = torch.minimum(c_hr, c_r.unsqueeze(2)).float()
        dot = shared.mul_(squared_idf_r.unsqueeze(2)).sum(dim=1)  # (4, n, P, R)
        norm_h = (squared_idf_h * ngram_counts(h, h)).sum(dim=1).sqrt()  # (4, n, P)
        norm_r = (squared_idf_r * c_r).sum(dim=1).sqrt()  # (4, P, R)
        norms = norm_h.unsqueeze(3) * norm_r.unsqueeze(1)
        cosine = (dot / norms.clamp(min=1e-12)).mean(dim=0).transpose(0, 1)  # (P, n, R), 0 where a norm is 0
        difference = _bigrams(candidates).unsqueeze(-1) - _bigrams(references).unsqueeze(1)  # (P, n, R)
        similarity = cosine * torch.exp(-difference.square() / (2 * SIGMA**2))
        weights = copies.unsqueeze(1).to(similarity)  # (P, 1, R)
        return 10 * (similarity * weights).sum(dim=-1) / weights.sum(dim=-1).clamp(min=1)

    def _idf(self, tokens: Tensor) -> Tensor:
        """log N − log max(1, df) of the n-grams that end at each position of tokens (T, …), (4, T, …); 0 for none."""
        keys = ngram_keys(tokens, self.radix)[1:].flatten()
        position = torch.searchsorted(self.keys, keys)
        is_unknown = self.keys.index_select(0, position) != keys
        idf = self.idf.index_select(0, position).masked_fill_(is_unknown, self.log_images)
        return torch.cat([self.word_idf[tokens], idf.view(-1, *tokens.shape[1:])]).view(ORDERS, *tokens.shape)


def ngram_keys(tokens: Tensor, radix: int) -> Tensor:
    """The n-grams that end at each position of tokens (T, …), as integers (4, T, …); 0 where there is none.

    The key of an n-gram is at least radix^(n−1) and less than radix^n, so keys of different orders differ.
    """
    keys = [tokens.contiguous()]
    for n in range(1, ORDERS):
        earlier = _later(tokens, n)
        exists = (keys[-1] > 0) & (earlier != PAD)
        keys.append((keys[-1] + earlier * radix**n) * exists)
    return torch.stack(keys)


def ngram_counts(tokens: Tensor, others: Tensor) -> Tensor:
    """How often the n-grams that end at each position of tokens (T, …) occur in others (U, …), (4, T, …).

    Two n-grams are equal if their last words are, and the (n−1)-grams before them. Undefined at padding. With time as
    the first axis, all operations run over long contiguous rows.
    """
    shape = torch.broadcast_shapes(tokens.shape[1:], others.shape[1:])
    # of token ids below 2^16, int16 keeps them different
    tokens, others = (part.to(torch.int16).expand(-1, *shape).contiguous() for part in (tokens, others))
    equal = tokens.unsqueeze(1) == others  # (T, U, …)
    dtype = torch.uint8 if len(others) < 2**8 else torch.int32
    matches, counts = equal, []
    for n in range(1, ORDERS + 1):
        counts.append(_later(matches.view(torch.uint8).sum(dim=1, dtype=dtype), n - 1, len(tokens)))
        matches = matches[1:, 1:] & equal[:-n, :-n]
    return torch.stack(counts)


def _later(values: Tensor, steps: int, length: int | None = None) -> Tensor:
    """Values (T, …) moved to later positions, with zeros before them, and cut to `length`."""
    return functional.pad(values, [0, 0] * (values.ndim - 1) + [steps, 0])[: length or len(values)]


def document_frequencies(captions: TokenIds, radix: int) -> tuple[Tensor, Tensor]:
    """The keys of all n-grams of the captions, sorted, and the number of images whose captions contain each."""
    flat = torch.tensor(list(chain.from_iterable((*caption[1:], PAD) for image in captions for caption in image)))
    words = torch.tensor([sum(map(len, image)) for image in captions])  # of each image; markers count as the paddings
    image = torch.arange(len(captions)).repeat_interleave(words)
    keys, frequencies = [], []
    for order in ngram_keys(flat, radix):
        present = order > 0
        sorted_keys, position = order[present].sort(stable=True)  # the images of an n-gram stay in order
        images = image[present][position]
        is_new = torch.ones_like(images, dtype=torch.bool)  # the first occurrence in an image
        is_new[1:] = (sorted_keys[1:] != sorted_keys[:-1]) | (images[1:] != images[:-1])
        unique, counts = sorted_keys[is_new].unique_consecutive(return_counts=True)
        keys.append(unique)
        frequencies.append(counts)
    return torch.cat(keys), torch.cat(frequencies)


def _bigrams(tokens: Tensor) -> Tensor:
    """The length of captions (…, T) as CIDEr-D counts it, (…)."""
    return ((tokens != PAD).sum(dim=-1) - 1).clamp(min=0).float()
