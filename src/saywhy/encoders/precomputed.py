"""Region features that were made elsewhere, by a detector say: an encoder without a network."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from saywhy.encoders.base import Encoder
from saywhy.encoders.features import Features
from saywhy.encoders.settings import EncoderSettings, InputConvention
from saywhy.errors import UserError

PREFIX = "features:"
NO_FEATURES = "this model looks at given region features, not at pixels: say where they are (--regions)"
AS_THEY_ARE = InputConvention((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


class GivenFeatures(Encoder):
    """The encoder of a model that looks at region features made elsewhere: it has no network.

    Its name says how long the vectors are: "features:2048".
    """

    def __init__(self, settings: EncoderSettings, width: int) -> None:
        usual = replace(settings, size=settings.size or 224, convention=settings.convention or AS_THEY_ARE)
        super().__init__(usual, nn.Identity(), width, stride=1)

    def encode_normalised(self, x: Tensor, boxes: Tensor | None = None) -> Features:
        """Features of vectors (B, R, D), which stand in the place of pixels, and their boxes (B, R, 4)."""
        if boxes is None:
            raise UserError(NO_FEATURES)
        return Features.of_regions(x, boxes.to(x.dtype))

    def normalise(self, pixels: Tensor) -> Tensor:
        """The vectors as they are."""
        if pixels.ndim != 3:
            raise UserError(NO_FEATURES)
        if pixels.shape[-1] != self.width:
            raise UserError(f"region features have {pixels.shape[-1]} numbers each, this model looks at {self.width}")
        return pixels.to(self.mean.dtype)


def build(settings: EncoderSettings, weights: object = None) -> GivenFeatures:
    """Build what "features:D" names; there are no weights to be had."""
    width = settings.name.removeprefix(PREFIX)
    if not (width.isdecimal() and int(width) > 0):
        raise UserError(f'{settings.name!r} names no encoder: "features:2048" says how long the given vectors are')
    return GivenFeatures(settings, int(width))
