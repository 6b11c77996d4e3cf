"""Decoding: from image features to captions, by beam search, greedy decoding or sampling."""

from saywhy.data.tokenizer import as_text
from saywhy.decoding.beam import beam_search
from saywhy.decoding.caption import Caption
from saywhy.decoding.config import Decoding, Hypothesis, decode, decoding_methods
from saywhy.decoding.sampling import greedy, sample

__all__ = [
    "Caption",
    "Decoding",
    "Hypothesis",
    "as_text",
    "beam_search",
    "decode",
    "decoding_methods",
    "greedy",
    "sample",
]
