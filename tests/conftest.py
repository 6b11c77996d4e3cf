"""What all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The slow twins in tests/reference are imported as `reference`, the small captioners and images as `tiny`.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads cost tiny tensors more than they give, and far more where other programs run beside."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="module")
def _one_thread_for_tiny_things(request: pytest.FixtureRequest) -> None:
    if hasattr(getattr(request, "module", None), "tiny"):
        request.getfixturevalue("one_thread")


@pytest.fixture(scope="session")
def flickr8k() -> Path:
    """The folder of Flickr8k; tests that want it are skipped where it is absent."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("SAYWHY_DATA", beside)) / "flickr8k"
    if not (folder / "captions.txt").is_file():
        pytest.skip(f"no Flickr8k in {folder}; set SAYWHY_DATA to the folder that holds flickr8k/")
    return folder
