"""Captioning architectures behind one interface, `Captioner`."""

from saywhy.captioners.base import (
    Attention,
    Captioner,
    CaptionerSettings,
    State,
    Step,
    SummedOutputCaptioner,
    TeacherForced,
    build,
    captioners,
)

__all__ = [
    "Attention",
    "Captioner",
    "CaptionerSettings",
    "State",
    "Step",
    "SummedOutputCaptioner",
    "TeacherForced",
    "build",
    "captioners",
]
