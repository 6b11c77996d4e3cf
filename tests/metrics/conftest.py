"""Captions to score: 1,000 from Flickr8k, and random ones with many repeats and ties."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from pathlib import Path

import pytest

from saywhy.data.tokenizer import tokenize

Corpus = tuple[list[list[str]], list[list[list[str]]]]


@pytest.fixture(scope="session")
def flickr_corpus(flickr8k: Path) -> Corpus:
    """1,000 candidates, half of them from another image, one empty, with 1 to 4 references."""
    groups: dict[str, list[list[str]]] = defaultdict(list)
    with (flickr8k / "captions.txt").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            groups[row["image"]].append(tokenize(row["caption"]))
    images = list(groups.values())[-1000:]
    rng = random.Random(1)
    candidates = [images[i if i % 2 else i - 1][0] for i in range(1000)]
    candidates[7] = []
    return candidates, [image[1 : rng.randint(2, 5)] for image in images]


@pytest.fixture(params=range(5))
def random_corpus(request: pytest.FixtureRequest) -> Corpus:
    """Captions of few distinct words, so that n-grams repeat, overlap and are clipped; some are empty or short."""
    rng = random.Random(request.param)

    def caption() -> list[str]:
        return rng.choices("abcde"[: 2 + request.param], k=rng.choice([0, 1, 2, 3, 5, 9, 14]))

    return [caption() for _ in range(12)], [[caption() for _ in range(rng.randint(1, 5))] for _ in range(12)]


def lines(corpus: Corpus) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """A corpus in the form of pycocoevalcap: references, then candidates."""
    candidates, references = corpus
    reference_lines = {i: [" ".join(words) for words in group] for i, group in enumerate(references)}
    return reference_lines, {i: [" ".join(words)] for i, words in enumerate(candidates)}


@pytest.fixture(scope="session")
def as_lines():
    return lines
