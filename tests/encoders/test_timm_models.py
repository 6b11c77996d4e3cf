"""Networks of timm, with its smallest test models."""

import pytest
import torch
from safetensors.torch import save_file

from saywhy import encoders
from saywhy.encoders import timm_models
from saywhy.errors import UserError

timm = pytest.importorskip("timm")


def refusal(*args, **kwargs) -> str:
    with pytest.raises(UserError) as error:
        encoders.build(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["test_vit", "test_vit2", "test_vit4"])
def test_features_of_a_transformer_are_its_patch_tokens(name):
    encoder = encoders.build(f"timm:{name}", None)
    pixels = torch.rand(2, 3, 96, 160) * 255
    features = encoder(pixels)
    tokens = encoder.body.forward_features(encoder.normalise(pixels))
    assert features.grid == (96 // encoder.stride, 160 // encoder.stride)
    torch.testing.assert_close(features.vectors, tokens[:, encoder.body.num_prefix_tokens :])


def test_channels_last_map_is_permuted():
    net = torch.nn.Module()
    net.output_fmt = "NHWC"
    features = torch.rand(2, 3, 4, 5)
    permuted = timm_models.as_map(features, net, (96, 128))
    assert torch.equal(permuted[1, :, 2, 3], features[1, 2, 3])


def test_size_and_convention_come_from_the_pretrained_configuration():
    encoder = encoders.build("timm:test_vit", None)
    config = timm.create_model("test_vit").pretrained_cfg
    assert encoder.size == config["input_size"][-1]
    assert encoder.convention.mean == tuple(255 * value for value in config["mean"])
    assert encoder.convention.std == tuple(255 * value for value in config["std"])


def test_output_stride_gives_a_finer_grid():
    pixels = torch.rand(1, 3, 128, 128)
    assert encoders.build("timm:test_resnet", None)(pixels).grid == (4, 4)
    finer = encoders.build("timm:test_resnet", None, output_stride=16)
    assert (finer(pixels).grid, finer.stride) == ((8, 8), 16)


def test_weights_are_loaded_from_a_file(tmp_path):
    source = timm.create_model("test_efficientnet")
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    loaded = encoders.build("timm:test_efficientnet", tmp_path / "w.safetensors").body.state_dict()
    assert len(loaded) > 50
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in loaded.items())


def test_modules_that_do_not_run_are_removed():
    encoder = encoders.build("timm:test_convnext", None)
    assert "head" not in {block.split(".")[0] for block in encoder.blocks()}
    encoder.finetune_from("all")
    encoder(torch.rand(1, 3, 64, 64)).vectors.square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_unknown_network_suggests_similar_names():
    assert "did you mean" in refusal("timm:resnet17", None)
    assert "resnet18" in refusal("timm:resnet17", None)


def test_impossible_output_stride_is_refused():
    assert "output stride 16" in refusal("timm:test_vit", None, output_stride=16)


def test_impossible_size_is_refused():
    assert "101 × 101" in refusal("timm:test_vit", None, size=101)


def test_weights_that_cannot_be_downloaded_are_one_line_that_names_them(monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(timm_models.socket, "create_connection", no_network)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args: None)
    monkeypatch.setattr(timm_models, "getproxies", dict)
    message = refusal("timm:resnet18")
    for part in ("timm/resnet18", "--weights FILE", "--weights none"):
        assert part in message


def test_network_without_published_weights_is_an_error():
    assert "has no weights" in refusal("timm:efficientnet_lite1")
