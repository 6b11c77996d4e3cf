"""Claims about every registered encoder, and about three kinds of timm networks."""

import dataclasses
import json

import pytest
import torch

from saywhy import encoders
from saywhy.encoders.base import Encoder
from saywhy.errors import UserError

SIDE = 96
SPECS = {spec.name: spec for spec in encoders.registered()}
TIMM = ["timm:test_vit", "timm:test_resnet", "timm:test_efficientnet"]


@pytest.fixture(scope="module", params=[*SPECS, *TIMM])
def encoder(request: pytest.FixtureRequest) -> Encoder:
    torch.manual_seed(0)
    return encoders.build(request.param, weights=None, size=160)


@pytest.fixture(autouse=True)
def _freeze_afterwards(encoder: Encoder):
    yield
    encoder.finetune_from(None)
    encoder.eval()


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return torch.randint(0, 256, (3, 3, SIDE, SIDE + 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_features_are_one_contiguous_vector_per_cell_of_the_grid(encoder, pixels):
    features = encoder(pixels)
    rows, columns = features.grid
    assert features.vectors.shape == (3, rows * columns, encoder.width)
    assert features.vectors.is_contiguous()
    assert features.vectors.isfinite().all()
    assert features.vectors.std() > 1e-3


def test_cells_are_in_reading_order(encoder, pixels):
    feature_map = encoder.feature_map(encoder.normalise(pixels))
    columns = feature_map.shape[-1]
    torch.testing.assert_close(encoder(pixels).vectors[:, columns - 1], feature_map[:, :, 0, columns - 1])


def test_width_stride_and_spec_hold_at_the_default_size(encoder):
    spec = SPECS.get(encoder.settings.name)
    size = spec.size if spec else encoder.size
    with torch.no_grad():
        features = encoder(torch.zeros(1, 3, size, size))
    assert features.vectors.shape[2] == encoder.width
    assert abs(size / features.grid[0] - encoder.stride) < encoder.stride / 4
    if spec:
        assert (features.grid, encoder.width, encoder.stride) == (spec.grid, spec.width, spec.stride)


def test_uint8_and_float_pixels_give_the_same_features(encoder, pixels):
    torch.testing.assert_close(encoder(pixels).vectors, encoder(pixels.float()).vectors, rtol=0, atol=0)


def test_features_do_not_depend_on_other_images_of_the_batch(encoder, pixels):
    torch.testing.assert_close(encoder(pixels[1:2]).vectors, encoder(pixels).vectors[1:2], rtol=1e-3, atol=1e-3)


def test_pixels_are_normalised_by_the_convention(encoder, pixels):
    image = pixels[:1].double()
    channels = image[:, [2, 1, 0]] if encoder.convention.channels == "bgr" else image
    for i, (mean, std) in enumerate(zip(encoder.convention.mean, encoder.convention.std, strict=True)):
        expected = ((channels[:, i] - mean) / std).float()
        torch.testing.assert_close(encoder.normalise(pixels)[:1, i], expected, rtol=1e-5, atol=1e-4)


def test_new_encoder_is_frozen(encoder, pixels):
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not encoder.train()(pixels).vectors.requires_grad
    assert not any(module.training for module in encoder.body.modules())


def test_fine_tuning_trains_a_block_and_all_after_it(encoder):
    blocks = encoder.blocks()
    start = len(blocks) // 2
    encoder.finetune_from(blocks[start])
    for position, block in enumerate(blocks):
        trained = [p.requires_grad for p in encoder.body.get_submodule(block).parameters()]
        assert trained
        assert all(requires_grad == (position >= start) for requires_grad in trained)


def test_fine_tuning_all_trains_every_parameter(encoder):
    encoder.finetune_from("all")
    assert all(parameter.requires_grad for parameter in encoder.parameters())


def test_unknown_block_lists_the_known_ones(encoder):
    with pytest.raises(UserError, match=encoder.blocks()[-1]) as error:
        encoder.finetune_from("nonsense")
    assert "\n" not in str(error.value)


def test_gradient_reaches_the_trained_blocks_only(encoder, pixels):
    blocks = encoder.blocks()
    start = max(len(blocks) - 3, 1)
    encoder.finetune_from(blocks[start])
    encoder.train()(pixels).vectors.square().sum().backward()
    for position, block in enumerate(blocks):
        gradients = [p.grad for p in encoder.body.get_submodule(block).parameters()]
        if position < start:
            assert all(gradient is None for gradient in gradients)
        else:
            assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients), block
    encoder.zero_grad(set_to_none=True)


def test_batch_statistics_stay_fixed_in_training(encoder, pixels):
    encoder.finetune_from("all")
    before = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    with torch.no_grad():
        evaluated = encoder.eval()(pixels).vectors
        trained = encoder.train()(pixels).vectors
    for name, buffer in encoder.named_buffers():
        assert torch.equal(buffer, before[name]), name
    torch.testing.assert_close(trained, evaluated)


def test_settings_through_json_and_weights_rebuild_the_network(encoder, pixels):
    saved = json.loads(json.dumps(dataclasses.asdict(encoder.settings)))
    rebuilt = encoders.build(weights="none", **saved)
    assert rebuilt.settings == encoder.settings
    rebuilt.load_state_dict(encoder.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(rebuilt.eval()(pixels).vectors, encoder.eval()(pixels).vectors)
