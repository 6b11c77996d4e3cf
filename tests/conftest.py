"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def flickr8k() -> Path:
    """The folder of Flickr8k; tests that want it are skipped where it is absent."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("SAYWHY_DATA", beside)) / "flickr8k"
    if not (folder / "captions.txt").is_file():
        pytest.skip(f"no Flickr8k in {folder}; set SAYWHY_DATA to the folder that holds flickr8k/")
    return folder
