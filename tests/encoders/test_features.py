"""Features: joining batches."""

from __future__ import annotations

import pytest

import tiny
from saywhy.encoders.base import Features


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_joined_parts_equal_the_batch(kind):
    batch = tiny.features(5, kind=kind)
    joined = Features.joined([batch[:2], batch[2:4], batch[4:]])
    assert joined.grid == batch.grid
    for field in ("vectors", "boxes", "mask"):
        values, expected = getattr(joined, field), getattr(batch, field)
        assert (values is None) == (expected is None) == (kind == "grid" and field != "vectors")
        assert values is None or values.equal(expected)


def test_joining_one_batch_returns_it():
    batch = tiny.features(2)
    assert Features.joined([batch]) is batch
