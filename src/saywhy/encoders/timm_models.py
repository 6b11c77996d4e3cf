"""Any network of timm, as "timm:NAME".

The features of a convolutional network are its last map; those of a transformer are its last tokens without the prefix
tokens (class, registers, distillation), on the grid of patches. Mean, standard deviation and size come from timm's
configuration of the weights. timm is an optional package (`pip install "saywhy[timm]"`).
"""

from __future__ import annotations

import difflib
import math
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from saywhy.encoders.base import Encoder
from saywhy.encoders.registry import EncoderSettings, InputConvention, families, import_extra
from saywhy.encoders.weights import load_into, read_weights
from saywhy.errors import UserError

PREFIX = "timm:"


class TimmEncoder(Encoder):
    """An encoder whose body is a timm network; it runs the body's `forward_features`."""

    def feature_map(self, x: Tensor) -> Tensor:
        """The output of the network as (B, D, rows, columns)."""
        return as_map(self.body.forward_features(x), self.body, x.shape[-2:])  # type: ignore[operator]


@families.register("timm")
def build(settings: EncoderSettings, weights: str | Path | None) -> Encoder:
    """Build a timm network; size and convention come from timm's configuration unless they are set."""
    net = create(settings, pretrained=weights == "imagenet")
    pretrained = net.pretrained_cfg
    mean, std = (tuple(255 * value for value in pretrained[key]) for key in ("mean", "std"))
    convention = settings.convention or InputConvention(mean, std)
    settings = replace(settings, size=settings.size or pretrained["input_size"][-1], convention=convention)
    width, stride = probe(settings, net)
    if weights not in (None, "imagenet"):
        load_into(net, read_weights(str(weights)), str(weights))
    return TimmEncoder(settings, net, width, stride)


def create(settings: EncoderSettings, pretrained: bool) -> Any:
    """Create the network without its classifier."""
    timm = import_extra("timm", "timm")
    name = settings.name.removeprefix(PREFIX)
    if not timm.is_model(name):
        similar = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=3)
        hint = f"did you mean {', '.join(similar)}?" if similar else "timm.list_models() lists all names"
        raise UserError(f"timm has no network {name!r}: {hint}")
    options: dict[str, Any] = {"num_classes": 0}
    if settings.output_stride is not None:
        options["output_stride"] = settings.output_stride
    try:
        if pretrained:
            options |= {"pretrained": True, "pretrained_cfg_overlay": local_copy(name)}
        try:  # transformers need this option to take any size; other networks do not have it
            return timm.create_model(name, dynamic_img_size=True, **options)
        except TypeError:
            return timm.create_model(name, **options)
    except Exception as error:  # timm and the hub raise errors of many types
        raise UserError(_reason(settings, pretrained)) from error


def as_map(features: Any, net: nn.Module, size: Sequence[int]) -> Tensor:
    """Features as (B, D, rows, columns).

    Args:
        features: (B, D, rows, columns), or (B, rows, columns, D), or tokens (B, prefix + L, D).
        net: the network that computed them, which has their layout as an attribute.
        size: the image's height and width.
    """
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        raise UserError("this timm network returns neither a feature map nor tokens, so it cannot be an encoder")
    if features.ndim == 4:
        return features.permute(0, 3, 1, 2) if getattr(net, "output_fmt", "NCHW") == "NHWC" else features
    rows, columns = token_grid(features.shape[1], size, getattr(net, "num_prefix_tokens", 0))
    tokens = features[:, features.shape[1] - rows * columns :]  # without the prefix tokens
    return tokens.transpose(1, 2).unflatten(2, (rows, columns))  # (B, D, rows, columns)


def token_grid(tokens: int, size: Sequence[int], prefix: int = 0) -> tuple[int, int]:
    """The grid of square patches of this many tokens; they may include a class token that `prefix` does not count.

    >>> token_grid(197, (224, 224)), token_grid(18 * 16 + 5, (288, 256), prefix=5)
    ((14, 14), (18, 16))
    """
    height, width = size
    patch = math.sqrt(height * width / max(tokens - prefix, 1))
    rows, columns = round(height / patch), round(width / patch)
    if not 0 < rows * columns <= tokens:
        raise UserError(f"{tokens} tokens are no grid over {height} × {width} pixels")
    return rows, columns


@torch.no_grad()
def probe(settings: EncoderSettings, net: Any) -> tuple[int, int]:
    """Width and stride, from a run on a blank image: timm does not list them for every network.

    Modules at the end that do not run (a norm before the classifier) are removed: fine-tuning could not train them.
    """
    ran: set[nn.Module] = set()
    hooks = [module.register_forward_hook(lambda module, *_: ran.add(module)) for module in net.modules()]
    size = settings.size or 0
    try:
        features = net.eval().forward_features(torch.zeros(1, 3, size, size))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(f"{settings.name} does not take images of {size} × {size} pixels") from error
    for hook in hooks:
        hook.remove()
    _drop_tail(net, ran)
    _, width, rows, columns = as_map(features, net, (size, size)).shape
    if rows * columns == 1:
        raise UserError(f"{settings.name} returns one vector per image, not a grid")
    return width, round(size / rows)


def _drop_tail(net: nn.Module, ran: set[nn.Module]) -> None:
    for name, module in reversed(list(net.named_children())):
        if ran.intersection(module.modules()):
            return
        setattr(net, name, nn.Identity())


def local_copy(name: str) -> dict[str, str]:
    """The path of timm's weights in the hub's cache; if they are not there, check that the hub can be reached.

    The hub itself retries for most of a minute before it fails.
    """
    import timm
    from huggingface_hub import constants, try_to_load_from_cache

    pretrained = timm.get_pretrained_cfg(name)
    if pretrained is None or not pretrained.hf_hub_id:
        return {}
    for file in ("model.safetensors", "pytorch_model.bin"):
        cached = try_to_load_from_cache(pretrained.hf_hub_id, file)
        if isinstance(cached, str):
            return {"file": cached}
    if not getproxies():
        host = urlsplit(constants.ENDPOINT)
        socket.create_connection((host.hostname or "", host.port or 443), timeout=10).close()
    return {}


def _reason(settings: EncoderSettings, pretrained: bool) -> str:
    """Why a network could not be created, and what the user can do."""
    import timm

    name = settings.name.removeprefix(PREFIX)
    if settings.output_stride is not None:
        try:
            timm.create_model(name, num_classes=0, output_stride=settings.output_stride)
        except Exception:
            return f"{settings.name} has no output stride {settings.output_stride}"
    if not pretrained:
        return f"timm cannot build {name}"
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        return f"timm has no weights for {name}: pass --weights FILE, or --weights none"
    source = config.hf_hub_id or config.url
    return f"cannot download the weights of {settings.name} ({source}): pass --weights FILE, or --weights none"
