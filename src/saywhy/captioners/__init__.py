"""Captioning architectures behind one interface, `Captioner`."""

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
from saywhy.captioners.summed_output import SummedOutputCaptioner

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
