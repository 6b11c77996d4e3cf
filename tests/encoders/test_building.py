"""Building encoders: settings, the registry, optional packages, and errors."""

import subprocess
import sys

import pytest
import torch

from saywhy import encoders
from saywhy.encoders import EncoderSettings, InputConvention
from saywhy.errors import UserError


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_does_not_import_torch():
    assert run_python("import sys; from saywhy.encoders import encoders; print('torch' in sys.modules)") == "False"


def test_efficientnet_lite_imports_neither_timm_nor_torchvision():
    code = (
        "import sys; from saywhy import encoders; encoders.build('efficientnet-lite0', None, size=64);"
        "print({'timm', 'torchvision'} & set(sys.modules))"
    )
    assert run_python(code) == "set()"


@pytest.mark.parametrize(
    ("name", "package"),
    [
        *(("vgg16", "torchvision"), ("resnet50-keras", "torchvision"), ("vgg19-normalised", "torchvision")),
        *(("inception-v3-fid", "torchvision"), ("timm:resnet18", "timm")),
    ],
)
def test_missing_optional_package_is_one_line_that_names_the_extra(monkeypatch, name, package):
    for module in [module for module in sys.modules if module.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "saywhy.encoders.inception_fid", raising=False)
    with pytest.raises(UserError) as error:
        encoders.build(name, None)
    assert f'pip install "saywhy[{package}]"' in one_line(error)


def test_regions_without_torchvision_are_one_line_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.ops", None)
    encoder = encoders.build("efficientnet-lite0", None, size=64)
    with pytest.raises(UserError) as error:
        encoder(torch.zeros(1, 3, 64, 64), torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]))
    assert 'pip install "saywhy[torchvision]"' in one_line(error)


def test_unknown_family_names_the_known_ones():
    with pytest.raises(UserError) as error:
        encoders.build("tim:resnet18")
    assert 'did you mean "timm"?' in one_line(error)


def test_unknown_name_suggests_the_most_similar():
    with pytest.raises(UserError) as error:
        encoders.build("efficientnet-lit2")
    assert 'did you mean "efficientnet-lite2"?' in one_line(error)


def test_unknown_setting_lists_the_known_ones():
    with pytest.raises(UserError) as error:
        encoders.build("alexnet", None, colour="red")
    assert "output_stride" in one_line(error)


def test_weights_that_exist_only_as_a_file_are_not_downloaded():
    with pytest.raises(UserError) as error:
        encoders.build("resnet50-keras")
    assert "--weights FILE" in one_line(error)


@pytest.mark.parametrize("name", ["vgg16", "resnet50-keras", "efficientnet-lite0", "resnet50"])
def test_impossible_output_stride_is_refused(name):
    with pytest.raises(UserError) as error:
        encoders.build(name, None, output_stride=12)
    assert name in one_line(error)


def test_convention_can_be_set_for_other_weights():
    convention = InputConvention((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), "bgr")
    encoder = encoders.build("alexnet", None, convention=convention, size=64)
    assert encoder.settings.convention == convention
    pixel = encoder.normalise(torch.tensor([10.0, 20.0, 30.0]).view(1, 3, 1, 1)).flatten()
    torch.testing.assert_close(pixel, torch.tensor([29 / 4, 18 / 5, 7 / 6]))


@pytest.mark.parametrize(
    "invalid",
    [
        {"channels": "rbg"},
        {"channels": 3},
        *({"std": values} for values in ((1.0, 0.0, 1.0), (1.0, 1e-30, 1.0), (1.0, -1.0, 1.0), "1.0", ("1", "1", "1"))),
        *({"mean": values} for values in ((1.0, 2.0), 0.0, None, (0.0, float("nan"), 0.0), (0.0, float("inf"), 0.0))),
    ],
    ids=str,
)
def test_invalid_convention_is_refused_in_one_line(invalid):
    with pytest.raises(UserError) as error:
        InputConvention(**{"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), **invalid})
    one_line(error)


@pytest.mark.parametrize(
    "invalid",
    [
        {"name": 3},
        {"sise": 3},
        *({"size": size} for size in (0, -8, 4096, 10**9, "224", 224.5, True)),
        *({"output_stride": stride} for stride in (0, "16", 8.0)),
        {"convention": [1, 2]},
        {"train_batch_norm": "no"},
    ],
    ids=str,
)
def test_invalid_settings_are_refused_in_one_line(invalid):
    with pytest.raises(UserError) as error:
        EncoderSettings.from_dict({"name": "vgg16", **invalid})
    assert next(iter(invalid)) in one_line(error)


def test_batch_norm_trains_if_the_setting_is_true():
    encoder = encoders.build("mobilenet-v2", None, size=64, train_batch_norm=True)
    encoder.finetune_from("features.17")
    before = {name: buffer.clone() for name, buffer in encoder.named_buffers() if name.endswith("running_mean")}
    encoder.train()(torch.rand(4, 3, 64, 64) * 255)
    changed = {name for name, old in before.items() if not torch.equal(old, encoder.get_buffer(name))}
    assert changed
    assert all(name.startswith(("body.features.17", "body.features.18")) for name in changed)


def test_prefix_of_block_names_selects_the_first_of_them():
    encoder = encoders.build("resnet50", None, size=64)
    encoder.finetune_from("layer4")
    trained = {name.split(".")[1] for name, p in encoder.named_parameters() if p.requires_grad}
    assert trained == {"layer4"}


def test_images_of_a_wrong_shape_are_refused():
    encoder = encoders.build("alexnet", None, size=64)
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\)"):
        encoder(torch.zeros(3, 64, 64))
