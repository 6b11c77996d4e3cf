"""The networks of torchvision that captioning papers use, cut before their pooling.

Every body is an `nn.Sequential` of the network's modules under their own names, so torchvision's files fit unchanged.
The default weights are the first that torchvision published (IMAGENET1K_V1), which the papers used. torchvision is
an optional package (`pip install "saywhy[torchvision]"`).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saywhy.encoders.registry import (
    IMAGENET,
    EncoderSettings,
    EncoderSpec,
    InputConvention,
    encoders,
    import_extra,
    refuse_output_stride,
    same_names,
)
from saywhy.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from saywhy.encoders.registry import StateDict

Cut = Callable[[Any], "dict[str, nn.Module]"]

# torchvision converts the input of its two Inceptions to this inside the network, as in their training
INCEPTION = InputConvention((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))


def cut_features(net: Any) -> dict[str, nn.Module]:
    """Keep the convolutions up to the last ReLU, without the pooling after it (VGG, AlexNet)."""
    return {"features": net.features[:-1]}


def cut_mobilenet(net: Any) -> dict[str, nn.Module]:
    """Keep everything before the classifier, including the last 1×1 convolution to 1280 channels."""
    return {"features": net.features}


def cut_densenet(net: Any) -> dict[str, nn.Module]:
    """Keep the dense blocks and their last norm; add the ReLU that DenseNet applies outside any module."""
    from torch import nn

    return {"features": net.features, "relu": nn.ReLU()}


def cut_until(last: str) -> Cut:
    """Keep the modules up to `last`, in the order they run, without auxiliary classifiers (AuxLogits)."""

    def cut(net: Any) -> dict[str, nn.Module]:
        modules = {name: module for name, module in net.named_children() if not name.lower().startswith("aux")}
        names = list(modules)
        return {name: modules[name] for name in names[: names.index(last) + 1]}

    return cut


def make_sequential(build: Callable[[], nn.Module], cut: Cut) -> nn.Module:
    """Build a network on the meta device, keep the part that `cut` returns, and initialise that part only.

    The classifier of a VGG alone has 120 million weights.
    """
    import torch
    from torch import nn

    from saywhy.encoders.base import initialise

    with torch.device("meta"):
        body = nn.Sequential(OrderedDict(cut(build())))
    return initialise(body.to_empty(device="cpu"))


def fetch(name: str) -> StateDict:
    """Read torchvision's file from torch's folder of checkpoints; download it first if it is not there."""
    from torch import hub

    from saywhy.encoders.weights import read_weights

    models = import_extra("torchvision.models", "torchvision")
    url = models.get_model_weights(ROWS[name].architecture)["IMAGENET1K_V1"].url
    path = Path(hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[1]
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            checksum = path.stem.rsplit("-", 1)[1]  # the file name ends with the beginning of the file's hash
            hub.download_url_to_file(url, str(path), checksum, progress=False)
        except Exception as error:  # no network, a full disk, a broken download: the advice is the same
            raise UserError(
                f"cannot download {name}'s ImageNet weights: put {path.name} into {path.parent}, "
                "or pass --weights FILE, or --weights none"
            ) from error
    return read_weights(path)


def translate_densenet(state: StateDict, body: nn.Module) -> StateDict:
    """Rename tensors of old DenseNet files: "norm.1.weight" is now "norm1.weight"."""
    return {re.sub(r"\.(norm|conv)\.([12])\.", r".\1\2.", name): tensor for name, tensor in state.items()}


def make(settings: EncoderSettings) -> nn.Module:
    """Build the torchvision network of this name."""
    models = import_extra("torchvision.models", "torchvision")
    row = ROWS[settings.name]
    options: dict[str, Any] = {}
    if settings.name.startswith("resnet"):
        options["replace_stride_with_dilation"] = _dilations(settings)
    else:
        refuse_output_stride(settings)
    if row.convention is INCEPTION:
        options |= {"init_weights": False, "aux_logits": False}
    build = getattr(models, row.architecture)
    return make_sequential(lambda: build(weights=None, **options), row.cut)


def _dilations(settings: EncoderSettings) -> list[bool]:
    """Which of a ResNet's last three stages replace their stride by dilation."""
    choices = {
        None: [False, False, False],
        32: [False, False, False],
        16: [False, False, True],
        8: [False, True, True],
    }
    if settings.output_stride not in choices:
        raise UserError(f"{settings.name} has no output stride {settings.output_stride}: it may be 8, 16 or 32")
    return choices[settings.output_stride]


class Row(NamedTuple):
    """One network of the table below."""

    name: str
    architecture: str
    width: int
    stride: int
    side: int
    size: int
    cut: Cut
    convention: InputConvention = IMAGENET
    translate: Callable[[StateDict, nn.Module], StateDict] = same_names


TABLE = (
    Row("alexnet", "alexnet", 256, 16, 13, 224, cut_features),
    Row("vgg16", "vgg16", 512, 16, 14, 224, cut_features),
    Row("vgg19", "vgg19", 512, 16, 14, 224, cut_features),
    Row("googlenet", "googlenet", 1024, 32, 7, 224, cut_until("inception5b"), INCEPTION),
    Row("inception-v3", "inception_v3", 2048, 32, 8, 299, cut_until("Mixed_7c"), INCEPTION),
    Row("resnet50", "resnet50", 2048, 32, 7, 224, cut_until("layer4")),
    Row("resnet101", "resnet101", 2048, 32, 7, 224, cut_until("layer4")),
    Row("resnet152", "resnet152", 2048, 32, 7, 224, cut_until("layer4")),
    Row("densenet121", "densenet121", 1024, 32, 7, 224, cut_densenet, translate=translate_densenet),
    Row("densenet201", "densenet201", 1920, 32, 7, 224, cut_densenet, translate=translate_densenet),
    Row("mobilenet-v2", "mobilenet_v2", 1280, 32, 7, 224, cut_mobilenet),
)
ROWS = {row.name: row for row in TABLE}

for row in TABLE:
    encoders.register(row.name)(
        EncoderSpec(
            name=row.name,
            width=row.width,
            stride=row.stride,
            side=row.side,
            size=row.size,
            convention=row.convention,
            source="torchvision's download",
            licence="BSD-3-Clause",
            make=make,
            fetch=fetch,
            translate=row.translate,
        )
    )
