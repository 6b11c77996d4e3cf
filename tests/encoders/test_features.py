"""Features of several batches as those of one."""

from __future__ import annotations

import pytest

import tiny
from saywhy.encoders.features import Features


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_batches_joined_are_the_batch_they_were_cut_from(kind):
    whole = tiny.features(5, kind=kind)
    joined = Features.joined([whole[:2], whole[2:4], whole[4:]])
    assert joined.grid == whole.grid
    for part in ("vectors", "boxes", "mask"):
        one, other = getattr(joined, part), getattr(whole, part)
        assert (one is None) == (other is None) == (kind == "grid" and part != "vectors")
        assert one is None or one.equal(other)


def test_one_batch_joined_is_itself():
    whole = tiny.features(2)
    assert Features.joined([whole]) is whole
