"""Architectures behind one interface; importing this package registers them all."""

from saywhy.captioners import soft_attention  # noqa: F401
from saywhy.captioners.base import Captioner, Glance, State, Step, build, captioners

__all__ = ["Captioner", "Glance", "State", "Step", "build", "captioners"]
