"""From features to captions: beam search, greedy decoding, sampling."""

from __future__ import annotations

import torch

from saywhy.captioners.base import Captioner
from saywhy.decoding.beam import beam_search
from saywhy.decoding.caption import Caption, as_text
from saywhy.decoding.config import Decoding
from saywhy.decoding.hypothesis import Hypothesis
from saywhy.decoding.sampling import greedy, sample
from saywhy.encoders.features import Features

__all__ = ["Caption", "Decoding", "Hypothesis", "as_text", "beam_search", "decode", "greedy", "sample"]


def _best_of_beam(captioner: Captioner, features: Features, decoding: Decoding) -> list[Hypothesis]:
    return [found[0] for found in beam_search(captioner, features, decoding)]


_METHODS = {"beam": _best_of_beam, "greedy": greedy, "sample": sample}


@torch.inference_mode()
def decode(captioner: Captioner, features: Features, decoding: Decoding) -> list[Hypothesis]:
    """One caption an image, as numbers. The captioner should be in evaluation mode."""
    with captioner.attention_mode_set(decoding.attend):
        return _METHODS[decoding.method](captioner, features, decoding)
