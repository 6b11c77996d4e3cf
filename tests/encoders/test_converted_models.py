"""Converted weights, each in its network.

Tests that need the files run if SAYWHY_WEIGHTS is a folder that contains them.
"""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from saywhy import encoders
from saywhy.encoders.inception_fid import average
from saywhy.encoders.weights import read_weights

IMAGES = Path(__file__).parents[2] / "examples" / "images"
# among the 1,000 classes of ImageNet: tabby, tiger cat, Egyptian cat; espresso, cup, coffee mug
PLAUSIBLE = {"chelsea.jpg": {281, 282, 285}, "coffee.jpg": {967, 968, 504}}


def file_of(pattern: str) -> Path:
    folder = os.environ.get("SAYWHY_WEIGHTS")
    if not folder:
        pytest.skip("SAYWHY_WEIGHTS is not set")
    paths = sorted(Path(folder).glob(pattern))
    if not paths:
        pytest.skip(f"no {pattern} in SAYWHY_WEIGHTS")
    return paths[0]


def photograph(name: str, size: int) -> torch.Tensor:
    image = Image.open(IMAGES / name).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]


def vectors_of(encoder, pixels: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return encoder(pixels).vectors


def test_keras_strides_are_in_the_first_convolution_of_a_stage():
    body = encoders.build("resnet50-keras", None, size=64).body
    for stage in ("layer2", "layer3", "layer4"):
        first = body.get_submodule(f"{stage}.0")
        assert (first.conv1.stride, first.conv2.stride) == ((2, 2), (1, 1))
    assert {m.eps for m in body.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {1e-3}


def test_average_pooling_does_not_count_padding():
    x = torch.rand(1, 2, 4, 5).double()
    for row in range(4):
        for column in range(5):
            patch = x[:, :, max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
            torch.testing.assert_close(average(x)[:, :, row, column], patch.mean((2, 3)))


@pytest.mark.parametrize(
    ("name", "pattern", "head"),
    [
        ("resnet50-keras", "resnet50_keras.safetensors", "fc"),
        ("mobilenet-v2", "mobilenet_v2-*.pth", "classifier.1"),
    ],
)
def test_network_with_its_classifier_recognises_a_cat_and_a_cup(name, pattern, head):
    path = file_of(pattern)
    encoder, state = encoders.build(name, path), read_weights(path)
    for image, classes in PLAUSIBLE.items():
        pooled = vectors_of(encoder, photograph(image, encoder.size)).mean(1)
        scores = pooled @ state[f"{head}.weight"].T + state[f"{head}.bias"]
        assert len(classes & set(scores.topk(5).indices[0].tolist())) >= 2


def test_inception_equals_its_torchscript_program():
    path = file_of("inception_v3*.pt")
    encoder = encoders.build("inception-v3-fid", path)
    pixels = torch.cat([photograph(image, 299) for image in PLAUSIBLE])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = torch.jit.load(path).eval()((pixels.float() - 128) / 128)
    torch.testing.assert_close(vectors_of(encoder, pixels).mean(1), expected, rtol=0, atol=1e-4)


def test_normalised_vgg19_has_a_mean_activation_near_one():
    encoder = encoders.build("vgg19-normalised", file_of("vgg19_normalised*.safetensors"))
    pixels = torch.cat([photograph(path.name, 224) for path in sorted(IMAGES.glob("*.??g"))])
    assert 0.5 < vectors_of(encoder, pixels).mean() < 2


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("alexnet", "alexnet_features.safetensors"),
        ("vgg16", "vgg16_features.safetensors"),
        ("vgg19-normalised", "vgg19_normalised*.safetensors"),
        ("resnet50-keras", "resnet50_keras.safetensors"),
        ("mobilenet-v2", "mobilenet_v2-*.pth"),
        ("inception-v3-fid", "inception_v3*.pt"),
    ],
)
def test_mirrored_photograph_is_more_similar_than_any_other(name, pattern):
    encoder = encoders.build(name, file_of(pattern))
    pixels = torch.cat([photograph(path.name, encoder.size) for path in sorted(IMAGES.glob("*.??g"))])
    images, mirrored = (
        torch.nn.functional.normalize(vectors_of(encoder, x).mean(1)) for x in (pixels, pixels.flip(-1))
    )
    assert (mirrored @ images.T).argmax(1).tolist() == list(range(len(images)))
