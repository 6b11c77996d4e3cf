"""Any network timm knows, as "timm:NAME".

Convolutional networks give their last map; transformers give their last tokens, less the prefix tokens
(class, registers, distillation), laid out on the grid of patches. Mean, deviation and size come from timm's
own record of the weights.
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
from saywhy.encoders.settings import EncoderSettings, InputConvention
from saywhy.encoders.weights import load_into, read_weights
from saywhy.errors import UserError

PREFIX = "timm:"


class TimmEncoder(Encoder):
    """An encoder whose body is a whole timm network, of which `forward_features` runs."""

    def feature_map(self, x: Tensor) -> Tensor:
        """Bring whatever the network gives into (B, D, rows, columns)."""
        return as_map(self.body.forward_features(x), self.body, x.shape[-2:])  # type: ignore[operator]


def build(settings: EncoderSettings, weights: str | Path | None) -> Encoder:
    """Build a timm network, its size and convention from timm's record unless the settings say otherwise."""
    net = create(settings, pretrained=weights == "imagenet")
    record = net.pretrained_cfg
    mean, std = (tuple(255 * value for value in record[key]) for key in ("mean", "std"))
    convention = settings.convention or InputConvention(mean, std)
    settings = replace(settings, size=settings.size or record["input_size"][-1], convention=convention)
    width, stride = try_out(settings, net)
    if weights not in (None, "imagenet"):
        load_into(net, read_weights(str(weights)), str(weights))
    return TimmEncoder(settings, net, width, stride)


def create(settings: EncoderSettings, pretrained: bool) -> Any:
    """Make the network without its classifier."""
    import timm

    name = settings.name.removeprefix(PREFIX)
    if not timm.is_model(name):
        near = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists what there is"
        raise UserError(f"timm knows no network {name!r}: {hint}")
    options: dict[str, Any] = {"num_classes": 0}
    if settings.output_stride is not None:
        options["output_stride"] = settings.output_stride
    try:
        if pretrained:
            options |= {"pretrained": True, "pretrained_cfg_overlay": local_copy(name)}
        try:  # transformers take any size when told so; other networks know no such option
            return timm.create_model(name, dynamic_img_size=True, **options)
        except TypeError:
            return timm.create_model(name, **options)
    except Exception as error:  # timm and the hub raise many kinds, and the user can mend none of them here
        raise UserError(_why(settings, pretrained)) from error


def as_map(features: Any, net: nn.Module, size: Sequence[int]) -> Tensor:
    """Lay features out as (B, D, rows, columns).

    Args:
        features: (B, D, rows, columns), or (B, rows, columns, D), or tokens (B, prefix + L, D).
        net: the network they came from, which knows their layout.
        size: the image's height and width.
    """
    if not isinstance(features, Tensor) or features.ndim not in (3, 4):
        raise UserError("this timm network gives neither a map nor tokens, so it cannot be an encoder")
    if features.ndim == 4:
        return features.permute(0, 3, 1, 2) if getattr(net, "output_fmt", "NCHW") == "NHWC" else features
    rows, columns = token_grid(features.shape[1], size, getattr(net, "num_prefix_tokens", 0))
    tokens = features[:, features.shape[1] - rows * columns :]  # the prefix tokens go
    return tokens.transpose(1, 2).unflatten(2, (rows, columns))  # (B, D, rows, columns)


def token_grid(tokens: int, size: Sequence[int], prefix: int = 0) -> tuple[int, int]:
    """Find the grid of square patches behind this many tokens; a class token may be among them uncounted.

    >>> token_grid(197, (224, 224)), token_grid(18 * 16 + 5, (288, 256), prefix=5)
    ((14, 14), (18, 16))
    """
    height, width = size
    patch = math.sqrt(height * width / max(tokens - prefix, 1))
    rows, columns = round(height / patch), round(width / patch)
    if not 0 < rows * columns <= tokens:
        raise UserError(f"{tokens} tokens do not lie on a grid over {height} × {width} pixels")
    return rows, columns


@torch.no_grad()
def try_out(settings: EncoderSettings, net: Any) -> tuple[int, int]:
    """Trainer a blank image: width and stride, which timm does not record for every network.

    Parts at the end that do not run (a norm before the classifier) go: fine-tuning could not train them.
    """
    ran: set[nn.Module] = set()
    hooks = [module.register_forward_hook(lambda module, *_: ran.add(module)) for module in net.modules()]
    size = settings.size or 0
    try:
        features = net.eval().forward_features(torch.zeros(1, 3, size, size))
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(f"{settings.name} takes no images of {size} × {size} pixels") from error
    for hook in hooks:
        hook.remove()
    _drop_tail(net, ran)
    _, width, rows, columns = as_map(features, net, (size, size)).shape
    if rows * columns == 1:
        raise UserError(f"{settings.name} gives one vector an image and no grid to look at")
    return width, round(size / rows)


def _drop_tail(net: nn.Module, ran: set[nn.Module]) -> None:
    for name, part in reversed(list(net.named_children())):
        if ran.intersection(part.modules()):
            return
        setattr(net, name, nn.Identity())


def local_copy(name: str) -> dict[str, str]:
    """Find timm's weights in the hub's cache; else make sure that the hub can be reached.

    The hub itself retries for most of a minute before it gives up.
    """
    import timm
    from huggingface_hub import constants, try_to_load_from_cache

    record = timm.get_pretrained_cfg(name)
    if record is None or not record.hf_hub_id:
        return {}
    for file in ("model.safetensors", "pytorch_model.bin"):
        cached = try_to_load_from_cache(record.hf_hub_id, file)
        if isinstance(cached, str):
            return {"file": cached}
    if not getproxies():
        host = urlsplit(constants.ENDPOINT)
        socket.create_connection((host.hostname or "", host.port or 443), timeout=10).close()
    return {}


def _why(settings: EncoderSettings, pretrained: bool) -> str:
    """What the user may do about a network that could not be made."""
    import timm

    name = settings.name.removeprefix(PREFIX)
    if settings.output_stride is not None:
        try:
            timm.create_model(name, num_classes=0, output_stride=settings.output_stride)
        except Exception:
            return f"{settings.name} cannot have the output stride {settings.output_stride}"
    if not pretrained:
        return f"timm cannot build {name}"
    record = timm.get_pretrained_cfg(name)
    if record is None or not record.has_weights:
        return f"timm has no weights for {name}: pass --weights FILE, or --weights none"
    where = record.hf_hub_id or record.url
    return f"cannot get the weights of {settings.name} ({where}): pass --weights FILE, or --weights none"
