"""What may be said next: the rules that every way of decoding keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from saywhy.data.vocabulary import END, PAD, START, UNK
from saywhy.errors import UserError

METHODS = ("beam", "greedy", "sample")
ATTEND = ("expected", "sampled", "argmax")


@dataclass(frozen=True)
class Decoding:
    """How captions are decoded.

    Attributes:
        method: "beam", "greedy" or "sample".
        beam: width of the beam.
        length: the length rule's exponent a: captions are ranked by log p / length^a, where length counts the
            words and `<end>`. 0 ranks by probability alone, which favours short captions.
        min_words, max_words: bounds of a caption's length; never less than one word.
        no_repeat: no three words in a row are said twice.
        attend: what hard attention takes in: the "expected" context, a "sampled" place, or the "argmax" of attention.
        temperature, top_k, top_p, seed: of sampling; 0 and 1 leave top_k and top_p off.
    """

    method: str = "beam"
    beam: int = 3
    length: float = 0.7
    min_words: int = 1
    max_words: int = 20
    no_repeat: bool = False
    attend: str = "expected"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"unknown decoding method {self.method!r}: use one of {', '.join(METHODS)}")
        if self.attend not in ATTEND:
            raise UserError(f"unknown way to attend {self.attend!r}: use one of {', '.join(ATTEND)}")
        bounds = {
            "beam": self.beam >= 1,
            "length": self.length >= 0,
            "min_words": 1 <= self.min_words <= self.max_words,
            "temperature": self.temperature > 0 and math.isfinite(self.temperature),
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
        }
        for name, right in bounds.items():
            if not right:
                raise UserError(f"decoding: {name} = {getattr(self, name)} is out of range")

    def __str__(self) -> str:
        """As signatures write it.

        >>> print(Decoding(beam=5))
        beam5,length0.7,max20
        """
        how = {
            "beam": f"beam{self.beam}",
            "greedy": "greedy",
            "sample": f"sample,t{self.temperature:g},k{self.top_k},p{self.top_p:g},seed{self.seed}",
        }[self.method]
        least = f",min{self.min_words}" if self.min_words > 1 else ""
        repeat = ",norepeat3" if self.no_repeat else ""
        attend = f",{self.attend}" if self.attend != "expected" else ""
        return f"{how},length{self.length:g}{least},max{self.max_words}{repeat}{attend}"

    def rank(self, log_probability: Tensor, words: int) -> Tensor:
        """The length rule."""
        return log_probability / (words + 1) ** self.length


def log_probabilities(logits: Tensor) -> Tensor:
    """log p over what a caption may contain, (…, V): `<unk>`, `<pad>` and `<start>` are left out of the softmax."""
    logits = logits.float().clone()
    logits[..., [PAD, START, UNK]] = -torch.inf
    return logits.log_softmax(dim=-1)


def permitted(log_p: Tensor, said: Tensor, decoding: Decoding) -> Tensor:
    """`log_p` (R, V) with −∞ where the rules forbid a word after those `said` (R, t)."""
    words = said.shape[1]
    end = log_p[:, END]
    log_p = log_p.clone()
    if words < decoding.min_words:
        log_p[:, END] = -torch.inf
    if words >= decoding.max_words:
        log_p[:, :END] = log_p[:, END + 1 :] = -torch.inf
    elif decoding.no_repeat and words >= 3:
        _forbid_repeated_trigrams(log_p, said)
        stuck = log_p.isneginf().all(dim=-1)  # every word would repeat: the caption ends, however short
        log_p[:, END] = torch.where(stuck, end, log_p[:, END])
    return log_p


def _forbid_repeated_trigrams(log_p: Tensor, said: Tensor) -> None:
    again = (said[:, :-2] == said[:, -2:-1]) & (said[:, 1:-1] == said[:, -1:])  # (R, t-2): the last two, earlier
    rows, places = again.nonzero(as_tuple=True)
    log_p[rows, said[rows, places + 2]] = -torch.inf
