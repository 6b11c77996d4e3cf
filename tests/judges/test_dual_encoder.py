"""The judge's network: unit vectors that depend on the image or the words alone."""

from __future__ import annotations

import math

import pytest
import torch

import tiny
from saywhy.data.tokenizer import PAD
from saywhy.errors import UserError
from saywhy.judges.dual_encoder import LARGEST_LOG_SCALE, DualEncoderSettings


@pytest.mark.parametrize("pooling", ["attention", "mean"])
def test_images_and_captions_are_unit_vectors_of_one_space(pooling):
    model = tiny.judge(pooling=pooling)
    x, y = model.embed_images(tiny.pixels(3)), model.embed_captions(tiny.captions(4))
    assert x.shape == (3, 16)
    assert y.shape == (4, 16)
    for vectors in (x, y):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))


def test_padding_does_not_change_the_embedding_of_a_caption():
    model, tokens = tiny.judge(), tiny.captions(3)
    padded = torch.cat([tokens, torch.full((3, 5), PAD)], dim=1)
    torch.testing.assert_close(model.embed_captions(padded), model.embed_captions(tokens))


def test_a_caption_of_padding_alone_is_no_nan():
    assert tiny.judge().embed_captions(torch.full((2, 4), PAD)).isfinite().all()


def test_every_word_and_its_position_change_the_embedding():
    model, tokens = tiny.judge(), tiny.captions(1)
    before = model.embed_captions(tokens)
    for position in range(1, tokens.shape[1] - 1):
        changed = tokens.clone()
        changed[0, position] = tokens[0, position] % (tiny.WORDS - 4) + 4  # another word
        assert (model.embed_captions(changed) - before).abs().max() > 1e-4
    swapped = tokens.clone()
    swapped[0, 1:-1] = tokens[0, 1:-1].flip(0)
    assert (model.embed_captions(swapped) - before).abs().max() > 1e-4


def test_an_embedding_does_not_depend_on_the_rest_of_its_batch():
    model, pixels, tokens = tiny.judge(), tiny.pixels(4), tiny.captions(4)
    for embed, batch in ((model.embed_images, pixels), (model.embed_captions, tokens)):
        alone = torch.cat([embed(row[None]) for row in batch])
        torch.testing.assert_close(embed(batch), alone, rtol=1e-4, atol=1e-5)


def test_attention_pools_the_mean_before_it_is_trained():
    features = tiny.features()
    pooling = tiny.judge().pooling
    torch.testing.assert_close(pooling(features), pooling.value(features.mean()))
    with torch.no_grad():
        pooling.energy.weight.normal_()
    assert (pooling(features) - pooling.value(features.mean())).abs().max() > 1e-3


def test_each_head_of_the_pooling_weighs_its_own_part_of_the_vector():
    features, pooling = tiny.features(), tiny.judge().pooling
    with torch.no_grad():
        pooling.energy.weight.normal_()
    parts = []
    for head in range(2):
        alpha = (features.vectors @ pooling.energy.weight[head]).softmax(dim=1)  # (B, L)
        pooled = (features.vectors * alpha[..., None]).sum(dim=1)
        parts.append(pooling.value(pooled)[:, 8 * head : 8 * head + 8])
    torch.testing.assert_close(pooling(features), torch.cat(parts, dim=1), rtol=1e-4, atol=1e-5)


def test_the_scale_starts_and_ends_as_in_clip():
    model = tiny.judge()
    assert model.log_scale.exp().item() == pytest.approx(1 / 0.07)
    with torch.no_grad():
        model.log_scale.fill_(9.0)
    model.limit_scale()
    assert model.log_scale.item() == pytest.approx(LARGEST_LOG_SCALE) == pytest.approx(math.log(100))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"pooling": "max"}, "unknown pooling 'max'"),
        ({"width": 31, "heads": 1}, "width is even"),
        ({"heads": 3}, "3 heads divide both"),
        ({"layers": 0}, "at least 1"),
        ({"layers": 1000}, "at most 100"),
        ({"dropout": 1.0}, "dropout = 1.0 must be from 0 to below 1"),
        ({"embedding": "512"}, "embedding must be int, not '512'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, reason):
    with pytest.raises(UserError, match=reason):
        DualEncoderSettings(**settings)
