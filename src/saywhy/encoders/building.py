"""From settings and weights to an encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from saywhy.encoders import precomputed, timm_models
from saywhy.encoders.base import Encoder
from saywhy.encoders.catalogue import encoders
from saywhy.encoders.initial import settle_batch_norm
from saywhy.encoders.settings import EncoderSettings
from saywhy.encoders.weights import load_into, read_weights


def build(settings: EncoderSettings, weights: str | Path | None) -> Encoder:
    """Build the encoder these settings describe, with these weights."""
    encoder = build_without_weights(settings, None if weights == "none" else weights)
    if weights in (None, "none"):
        settle_batch_norm(encoder)
    return encoder


def build_without_weights(settings: EncoderSettings, weights: str | Path | None = None) -> Encoder:
    """As `build`, but random weights are left as drawn: for one who fills them in next."""
    if settings.name.startswith(precomputed.PREFIX):
        return precomputed.build(settings, weights)
    make = timm_models.build if settings.name.startswith(timm_models.PREFIX) else build_registered
    return make(settings, weights)


def build_registered(settings: EncoderSettings, weights: str | Path | None) -> Encoder:
    """Build an encoder of the table; size and convention are its card's unless the settings differ."""
    card = encoders[settings.name]
    settings = replace(settings, size=settings.size or card.size, convention=settings.convention or card.convention)
    body = card.make(settings)
    if weights == "imagenet":
        load_into(body, card.translate(card.fetch(card.name), body), f"{card.name}'s file of weights")
    elif weights is not None:
        load_into(body, card.translate(read_weights(weights), body), weights)
    return Encoder(settings, body, card.width, settings.output_stride or card.stride)
