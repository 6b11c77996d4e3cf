"""One trained tiny model per adapter, for all tests of this folder."""

from __future__ import annotations

import pytest
import torch

import adapted
from adapted import Tiny
from saywhy.inference.model import Model


@pytest.fixture(scope="session", params=list(adapted.BUILDERS))
def name(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def tiny(name) -> Tiny:
    return adapted.trained(name)


@pytest.fixture(scope="session")
def model(name, tiny) -> Model:
    return adapted.as_model(tiny, name)


@pytest.fixture(scope="session")
def double(name, tiny) -> Model:
    """The same model in double precision."""
    return adapted.as_model(tiny, name, torch.float64)
