"""Networks whose weights were converted from another framework; they are loaded from a file.

Each has a name of its own, because its layers or its pixel normalisation differ from torchvision's:

- `vgg19-normalised` (Gatys et al. 2016): VGG-19 with its channels rescaled to a mean activation of 1: the
  same features up to a positive factor per channel. A 1×1 convolution `input` converts RGB in 0–1 to the network's
  input.
- `resnet50-keras`: ResNet-50 as in He et al. (2015), with the stride of a stage in its first 1×1 convolution
  (torchvision has it in the 3×3 convolution), ε = 1e-3 in batch norm, and BGR minus the means of ImageNet.
- `inception-v3-fid`: the Inception-v3 of 2015 (`inception_fid.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saywhy.encoders.registry import (
    EncoderSettings,
    EncoderSpec,
    InputConvention,
    encoders,
    import_extra,
    refuse_output_stride,
)
from saywhy.encoders.torchvision_models import cut_until, make_sequential

if TYPE_CHECKING:
    from torch import nn

    from saywhy.encoders.registry import StateDict


def make_vgg19_normalised(settings: EncoderSettings) -> nn.Module:
    """VGG-19 after a 1×1 convolution on the pixels."""
    from torch import nn

    refuse_output_stride(settings)
    vgg19 = import_extra("torchvision.models", "torchvision").vgg19
    return make_sequential(vgg19, lambda net: {"input": nn.Conv2d(3, 3, 1), "features": net.features[:-1]})


def make_resnet50_keras(settings: EncoderSettings) -> nn.Module:
    """ResNet-50 with Keras's strides and ε."""
    refuse_output_stride(settings)
    return make_sequential(_resnet50_keras, cut_until("layer4"))


def make_inception_fid(settings: EncoderSettings) -> nn.Module:
    """The Inception-v3 of the Fréchet inception distance."""
    refuse_output_stride(settings)
    import_extra("torchvision", "torchvision")
    from saywhy.encoders.inception_fid import inception_fid

    return make_sequential(inception_fid, cut_until("Mixed_7c"))


def translate_inception(state: StateDict, body: nn.Module) -> StateDict:
    """Rename the convolutions of the TorchScript archive, which are in torchvision's order.

    A layer has (weight, beta, mean, var); its scale γ is 1 and not in the file.
    """
    old_names = [name.removesuffix(".beta") for name in state if name.endswith(".beta")]
    new_names = [name.removesuffix(".conv.weight") for name in body.state_dict() if name.endswith(".conv.weight")]
    if len(old_names) != len(new_names):  # torchvision's names, or a file that `load_into` refuses
        return state
    renamed = {}
    for old, new in zip(old_names, new_names, strict=True):
        renamed[f"{new}.conv.weight"] = state[f"{old}.weight"]
        renamed[f"{new}.bn.weight"] = state[f"{old}.beta"].new_ones(state[f"{old}.beta"].shape)
        renamed[f"{new}.bn.bias"] = state[f"{old}.beta"]
        renamed[f"{new}.bn.running_mean"] = state[f"{old}.mean"]
        renamed[f"{new}.bn.running_var"] = state[f"{old}.var"]
    return renamed


def _resnet50_keras() -> nn.Module:
    from torch import nn

    net: Any = import_extra("torchvision.models", "torchvision").resnet50()
    for stage in (net.layer2, net.layer3, net.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
    return net


encoders.register("vgg19-normalised")(
    EncoderSpec(
        name="vgg19-normalised",
        width=512,
        stride=16,
        side=14,
        size=224,
        convention=InputConvention((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
        source="a file (vgg_normalised)",
        licence="CC-BY-4.0",
        make=make_vgg19_normalised,
    )
)
encoders.register("resnet50-keras")(
    EncoderSpec(
        name="resnet50-keras",
        width=2048,
        stride=32,
        side=7,
        size=224,
        convention=InputConvention((103.939, 116.779, 123.68), (1.0, 1.0, 1.0), "bgr"),
        source="a file (Keras's weights under torchvision's names)",
        licence="MIT",
        make=make_resnet50_keras,
    )
)
encoders.register("inception-v3-fid")(
    EncoderSpec(
        name="inception-v3-fid",
        width=2048,
        stride=32,
        side=8,
        size=299,
        convention=InputConvention((128.0, 128.0, 128.0), (128.0, 128.0, 128.0)),
        source="a file (TorchScript, or a state dict with torchvision's names)",
        licence="Apache-2.0",
        make=make_inception_fid,
        translate=translate_inception,
    )
)
