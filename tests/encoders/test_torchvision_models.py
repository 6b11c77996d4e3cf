"""The cut networks against torchvision's complete ones, and where their weights come from."""

import urllib.error
import warnings

import pytest
import torch
import torchvision
from torch import hub
from torch.nn import functional as F

from saywhy import encoders
from saywhy.encoders.registry import IMAGENET
from saywhy.encoders.torchvision_models import translate_densenet
from saywhy.errors import UserError

OPTIONS = {
    "googlenet": {"aux_logits": False, "transform_input": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "init_weights": False},
    "vgg16": {"init_weights": False},
}
# what torchvision computes between our features and the input of its average pooling
BETWEEN = {
    "vgg16": lambda x: F.max_pool2d(x, 2),
    "alexnet": lambda x: F.max_pool2d(x, 3, 2),
}


def last_map(net: torch.nn.Module, architecture: str, pixels: torch.Tensor) -> torch.Tensor:
    """The input of the pooling, or of the classifier, of the complete network."""
    inputs_seen = []
    module = {"densenet121": "classifier", "mobilenet_v2": "classifier"}.get(architecture, "avgpool")
    net.get_submodule(module).register_forward_pre_hook(lambda _, inputs: inputs_seen.append(inputs[0]))
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (IMAGENET.mean, IMAGENET.std))
    with torch.no_grad():
        net.eval()((pixels - mean) / std)
    return inputs_seen[0]


@pytest.mark.parametrize(
    "name", ["alexnet", "vgg16", "googlenet", "inception-v3", "resnet50", "densenet121", "mobilenet-v2"]
)
def test_features_equal_the_map_that_torchvision_pools(name):
    architecture = name.replace("-", "_")
    torch.manual_seed(0)
    encoder = encoders.build(name, None, size=160).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        complete = getattr(torchvision.models, architecture)(weights=None, **OPTIONS.get(architecture, {}))
    complete.double()
    result = complete.load_state_dict(encoder.body.state_dict(), strict=False)
    assert not result.unexpected_keys
    pixels = torch.rand(2, 3, 128, 160).double() * 255
    with torch.no_grad():
        feature_map = encoder.feature_map(encoder.normalise(pixels))
    expected = last_map(complete, architecture, pixels)
    feature_map = BETWEEN.get(architecture, lambda x: x)(feature_map)
    if expected.ndim == 2:  # pooled without a module
        feature_map = feature_map.mean((2, 3))
    torch.testing.assert_close(feature_map, expected, rtol=1e-3, atol=1e-4)
    assert expected.std() > 0.01


def test_failed_download_is_one_line_with_the_file_and_its_folder(monkeypatch, tmp_path):
    def no_network(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(hub, "download_url_to_file", no_network)
    with pytest.raises(UserError) as error:
        encoders.build("vgg16")
    message = str(error.value)
    assert "\n" not in message
    for part in ("vgg16-397923af.pth", str(tmp_path / "checkpoints"), "--weights FILE", "--weights none"):
        assert part in message


def test_file_in_the_folder_of_checkpoints_is_not_downloaded(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "get_dir", lambda: str(tmp_path))
    source = encoders.build("alexnet", None, size=64)
    (tmp_path / "checkpoints").mkdir()
    torch.save(source.body.state_dict(), tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth")
    loaded = encoders.build("alexnet")
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in source.state_dict().items())


def test_tensor_names_of_old_densenet_files_are_renamed():
    old = {
        "features.denseblock1.denselayer2.norm.1.weight": 1,
        "features.denseblock1.denselayer2.conv.2.weight": 2,
    }
    new = ["features.denseblock1.denselayer2.norm1.weight", "features.denseblock1.denselayer2.conv2.weight"]
    assert list(translate_densenet(old, None)) == new
