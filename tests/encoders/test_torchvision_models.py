"""The cut networks against torchvision's whole ones, and the way of their weights."""

import urllib.error
import warnings

import pytest
import torch
import torchvision
from torch import hub
from torch.nn import functional as F

from saywhy import encoders
from saywhy.encoders.settings import IMAGENET
from saywhy.encoders.torchvision_models import translate_densenet
from saywhy.errors import UserError

OPTIONS = {
    "googlenet": {"aux_logits": False, "transform_input": True, "init_weights": False},
    "inception_v3": {"transform_input": True, "init_weights": False},
    "vgg16": {"init_weights": False},
}
# what torchvision does between our features and the input of its average pooling
BETWEEN = {
    "vgg16": lambda x: F.max_pool2d(x, 2),
    "alexnet": lambda x: F.max_pool2d(x, 3, 2),
}


def last_map(net: torch.nn.Module, architecture: str, pixels: torch.Tensor) -> torch.Tensor:
    """What the whole network pools, caught on its way to the classifier."""
    caught = []
    place = {"densenet121": "classifier", "mobilenet_v2": "classifier"}.get(architecture, "avgpool")
    net.get_submodule(place).register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
    mean, std = (torch.tensor(values).double().view(3, 1, 1) for values in (IMAGENET.mean, IMAGENET.std))
    with torch.no_grad():
        net.eval()((pixels - mean) / std)
    return caught[0]


@pytest.mark.parametrize(
    "name", ["alexnet", "vgg16", "googlenet", "inception-v3", "resnet50", "densenet121", "mobilenet-v2"]
)
def test_annotations_are_what_the_whole_network_pools(name):
    architecture = name.replace("-", "_")
    torch.manual_seed(0)
    encoder = encoders.build(name, None, size=160).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = getattr(torchvision.models, architecture)(weights=None, **OPTIONS.get(architecture, {}))
    whole.double()
    fitted = whole.load_state_dict(encoder.body.state_dict(), strict=False)
    assert not fitted.unexpected_keys
    pixels = torch.rand(2, 3, 128, 160).double() * 255
    with torch.no_grad():
        ours = encoder.feature_map(encoder.normalise(pixels))
    theirs = last_map(whole, architecture, pixels)
    ours = BETWEEN.get(architecture, lambda x: x)(ours)
    if theirs.ndim == 2:  # pooled without a module
        ours = ours.mean((2, 3))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert theirs.std() > 0.01


def test_an_unreachable_file_is_one_line_that_says_what_to_put_where(monkeypatch, tmp_path):
    def unplugged(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(hub, "download_url_to_file", unplugged)
    with pytest.raises(UserError) as error:
        encoders.build("vgg16")
    message = str(error.value)
    assert "\n" not in message
    for part in ("vgg16-397923af.pth", str(tmp_path / "checkpoints"), "--weights FILE", "--weights none"):
        assert part in message


def test_a_file_in_the_folder_of_checkpoints_is_used_without_a_network(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "get_dir", lambda: str(tmp_path))
    source = encoders.build("alexnet", None, size=64)
    (tmp_path / "checkpoints").mkdir()
    torch.save(source.body.state_dict(), tmp_path / "checkpoints" / "alexnet-owt-7be5be79.pth")
    loaded = encoders.build("alexnet")
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in source.state_dict().items())


def test_old_densenet_names_are_joined():
    old = {
        "features.denseblock1.denselayer2.norm.1.weight": 1,
        "features.denseblock1.denselayer2.conv.2.weight": 2,
    }
    new = ["features.denseblock1.denselayer2.norm1.weight", "features.denseblock1.denselayer2.conv2.weight"]
    assert list(translate_densenet(old, None)) == new
