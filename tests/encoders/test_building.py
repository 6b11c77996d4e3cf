"""Settings, the table, and what a user's mistake is answered with."""

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


def test_listing_the_table_loads_no_torch():
    code = "import sys; from saywhy import encoders; print(len(encoders.registered()), 'torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [str(len(encoders.registered())), "False"]


def test_an_efficientnet_lite_needs_neither_timm_nor_torchvision():
    code = (
        "import sys; from saywhy import encoders; encoders.build('efficientnet-lite0', None, size=64);"
        "print({'timm', 'torchvision'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UserError) as error:
        encoders.build("efficientnet-lit2")
    assert 'did you mean "efficientnet-lite2"?' in one_line(error)


def test_an_unknown_setting_is_answered_with_the_known_ones():
    with pytest.raises(UserError) as error:
        encoders.build("alexnet", None, colour="red")
    assert "output_stride" in one_line(error)


def test_weights_that_are_only_a_file_are_not_downloaded():
    with pytest.raises(UserError) as error:
        encoders.build("resnet50-keras")
    assert "--weights FILE" in one_line(error)


@pytest.mark.parametrize("name", ["vgg16", "resnet50-keras", "efficientnet-lite0", "resnet50"])
def test_an_impossible_output_stride_is_refused(name):
    with pytest.raises(UserError) as error:
        encoders.build(name, None, output_stride=12)
    assert name in one_line(error)


def test_a_convention_may_be_given_for_a_file_trained_otherwise():
    convention = InputConvention((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), "bgr")
    encoder = encoders.build("alexnet", None, convention=convention, size=64)
    assert encoder.settings.convention == convention
    pixel = encoder.normalise(torch.tensor([10.0, 20.0, 30.0]).view(1, 3, 1, 1)).flatten()
    torch.testing.assert_close(pixel, torch.tensor([29 / 4, 18 / 5, 7 / 6]))


@pytest.mark.parametrize("bad", [{"channels": "rbg"}, {"std": (1.0, 0.0, 1.0)}, {"mean": (1.0, 2.0)}])
def test_a_convention_that_makes_no_sense_is_refused(bad):
    with pytest.raises(UserError):
        InputConvention(**{"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), **bad})


def test_settings_know_their_fields():
    with pytest.raises(UserError, match="sise"):
        EncoderSettings.from_dict({"name": "vgg16", "sise": 3})


def test_batch_norm_trains_when_asked_to():
    encoder = encoders.build("mobilenet-v2", None, size=64, train_batch_norm=True)
    encoder.finetune_from("features.17")
    before = {name: buffer.clone() for name, buffer in encoder.named_buffers() if name.endswith("running_mean")}
    encoder.train()(torch.rand(4, 3, 64, 64) * 255)
    moved = {name for name, old in before.items() if not torch.equal(old, encoder.get_buffer(name))}
    assert moved
    assert all(name.startswith(("body.features.17", "body.features.18")) for name in moved)


def test_a_prefix_names_the_first_block_under_it():
    encoder = encoders.build("resnet50", None, size=64)
    encoder.finetune_from("layer4")
    trained = {name.split(".")[1] for name, p in encoder.named_parameters() if p.requires_grad}
    assert trained == {"layer4"}


def test_images_of_the_wrong_shape_are_named():
    encoder = encoders.build("alexnet", None, size=64)
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\)"):
        encoder(torch.zeros(3, 64, 64))
