"""Region features that another program computed, such as a detector: an encoder without a network."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from saywhy.encoders.base import Encoder, Features
from saywhy.encoders.registry import EncoderSettings, InputConvention, families
from saywhy.errors import UserError

PREFIX = "features:"
NO_FEATURES = "this model takes precomputed region features, not pixels: pass them with --regions"
IDENTITY = InputConvention((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class PrecomputedFeatures(Encoder):
    """The encoder of a model that takes precomputed region features.

    Its name contains the length of the vectors: "features:2048".
    """

    def __init__(self, settings: EncoderSettings, width: int) -> None:
        settings = replace(settings, size=settings.size or 224, convention=settings.convention or IDENTITY)
        super().__init__(settings, nn.Identity(), width, stride=1)

    def encode_normalised(self, x: Tensor, boxes: Tensor | None = None) -> Features:
        """Features of vectors (B, R, D), which are passed in place of pixels, and their boxes (B, R, 4)."""
        if boxes is None:
            raise UserError(NO_FEATURES)
        return Features.of_regions(x, boxes.to(x.dtype))

    def normalise(self, pixels: Tensor) -> Tensor:
        """The vectors unchanged."""
        if pixels.ndim != 3:
            raise UserError(NO_FEATURES)
        if pixels.shape[-1] != self.width:
            raise UserError(f"region features have {pixels.shape[-1]} numbers each, this model takes {self.width}")
        return pixels.to(self.mean.dtype)


@families.register("features")
def build(settings: EncoderSettings, weights: object = None) -> PrecomputedFeatures:
    """Build the encoder "features:D"; it has no weights."""
    width = settings.name.removeprefix(PREFIX)
    if not (width.isdecimal() and int(width) > 0):
        raise UserError(f'{settings.name!r} is no encoder: write "features:2048" for vectors of 2048 numbers')
    return PrecomputedFeatures(settings, int(width))
