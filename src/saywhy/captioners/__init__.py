"""Architectures behind one interface; importing this package registers them all."""

from saywhy.captioners import ada_lstm, coca, hard_attention, mh_fc, soft_attention  # noqa: F401
from saywhy.captioners.base import (
    Attention,
    Captioner,
    CaptionerSettings,
    State,
    Step,
    TeacherForced,
    build,
    captioners,
)

__all__ = ["Attention", "Captioner", "CaptionerSettings", "State", "Step", "TeacherForced", "build", "captioners"]
