"""The training loss, against sums computed word by word."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import tiny
from reference import objectives as reference
from saywhy.data.augment import Augmentation
from saywhy.data.tokenizer import PAD
from saywhy.training.objectives import CaptionLoss, LossSums

GRID = (2, 3)
IMAGE_INDEX = torch.tensor([0, 2, 1, 2])
MAY_FLIP = torch.ones(3, dtype=torch.bool)


def padded_captions() -> torch.Tensor:
    """Captions of 5, 2 and 3 words, and one that is all padding because its image is unreadable."""
    tokens = tiny.captions(4, length=5)
    for row, length in ((1, 2), (2, 3)):
        tokens[row, length + 1] = 2
        tokens[row, length + 2 :] = PAD
    tokens[3] = PAD
    return tokens


def values(sums: LossSums) -> list[float]:
    return [value.item() for value in sums]


@pytest.mark.parametrize(
    "settings",
    [{}, {"smoothing": 0.1}, {"penalty": 0.7}, {"smoothing": 0.2, "penalty": 0.3}],
    ids=str,
)
def test_sums_equal_the_reference(settings):
    captioner, features, tokens = tiny.sensitive_captioner(), tiny.features(3), padded_captions()
    with torch.no_grad():
        sums = CaptionLoss(captioner, 64, **settings)(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, GRID)
        logits, attention = captioner(features.select(IMAGE_INDEX), tokens[:, :-1])
    expected = reference.caption_loss(logits.tolist(), attention.alpha.tolist(), tokens[:, 1:].tolist(), **settings)
    assert values(sums) == pytest.approx(expected, rel=1e-5)
    assert (int(sums.words), int(sums.captions)) == (6 + 3 + 4, 3)


@pytest.mark.parametrize("has_image", [None, [True, False, True, False], [False] * 4], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_distillation_equals_the_reference_and_applies_only_to_captions_with_an_image(
    smoothing, has_image, monkeypatch
):
    captioner, tokens, pixels = tiny.sensitive_captioner(), padded_captions(), tiny.pixels(3)
    teachers = [tiny.sensitive_captioner(seed=seed) for seed in (5, 6)]
    settings = {"smoothing": smoothing, "penalty": 0.5, "distil": 0.4}
    loss = CaptionLoss(captioner, 64, teachers=teachers, **settings)
    rows = torch.ones(4, dtype=torch.bool) if has_image is None else torch.tensor(has_image)
    if has_image is not None:  # conditioning dropout that drops these images
        monkeypatch.setattr(loss, "conditioning_dropout", 0.5)
        monkeypatch.setattr(torch, "rand", lambda count, device: rows.float())
    with torch.no_grad():
        sums = loss(pixels, MAY_FLIP, tokens, IMAGE_INDEX, None)
        features = captioner.without_image(captioner.encode(pixels).select(IMAGE_INDEX), ~rows)
        logits, attention = captioner(features, tokens[:, :-1])
        teacher_features = [teacher.encode(pixels).select(IMAGE_INDEX) for teacher in teachers]
        pairs = zip(teachers, teacher_features, strict=True)
        teacher_logits = [teacher(features, tokens[:, :-1])[0] for teacher, features in pairs]
    taught = torch.stack(teacher_logits).softmax(dim=-1).mean(dim=0).tolist()
    expected = reference.caption_loss(
        logits.tolist(), attention.alpha.tolist(), tokens[:, 1:].tolist(), taught=taught, has_image=rows, **settings
    )
    assert values(sums) == pytest.approx(expected, rel=1e-5)


def test_padding_and_unreadable_images_contribute_nothing_to_loss_or_gradient():
    vectors, tokens = tiny.features(3).vectors, padded_captions()

    def loss_and_gradient(tokens: torch.Tensor, image_index: torch.Tensor) -> tuple[list[float], torch.Tensor]:
        captioner = tiny.sensitive_captioner()
        sums = CaptionLoss(captioner, 64, smoothing=0.1, penalty=1.0)(vectors, MAY_FLIP, tokens, image_index, GRID)
        sums.loss.backward()
        gradients = [weight.grad.flatten() for weight in captioner.parameters() if weight.grad is not None]
        return values(sums), torch.cat(gradients)

    sums, gradient = loss_and_gradient(tokens[:3], IMAGE_INDEX[:3])
    padded = torch.cat([tokens, torch.full((4, 3), PAD)], dim=1)
    padded_sums, padded_gradient = loss_and_gradient(padded, IMAGE_INDEX)
    assert padded_sums == pytest.approx(sums, rel=1e-5)
    torch.testing.assert_close(padded_gradient, gradient, rtol=1e-4, atol=1e-4)


def test_sums_of_parts_of_a_batch_add_up_to_those_of_the_batch():
    captioner, features, tokens = tiny.sensitive_captioner(), tiny.features(3), padded_captions()
    loss = CaptionLoss(captioner, 64, smoothing=0.1, penalty=1.0)

    def vector(rows: slice) -> torch.Tensor:
        return loss(features.vectors, MAY_FLIP, tokens[rows], IMAGE_INDEX[rows], GRID).as_vector()

    torch.testing.assert_close(vector(slice(0, 1)) + vector(slice(1, 4)), vector(slice(0, 4)), rtol=1e-5, atol=1e-5)
    assert vector(slice(0, 4)).dtype == torch.float64
    assert not vector(slice(0, 4)).requires_grad


def test_pixels_and_their_cached_features_give_the_same_loss():
    captioner, tokens, pixels = tiny.sensitive_captioner(), padded_captions(), tiny.pixels(3)
    loss = CaptionLoss(captioner, 64)
    features = captioner.encode(pixels)
    from_pixels = loss(pixels, MAY_FLIP, tokens, IMAGE_INDEX, None)
    from_cache = loss(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, features.grid)
    torch.testing.assert_close(from_pixels.loss, from_cache.loss)


def test_augmentation_flips_and_crops_to_the_encoders_input_size():
    captioner, tokens = tiny.sensitive_captioner(), padded_captions()
    encoder_inputs = []
    captioner.encoder.register_forward_pre_hook(lambda module, inputs: encoder_inputs.append(inputs[0]))
    flip = Augmentation((1.0, 1.0), 1.0, 1.0)
    canvases = tiny.pixels(3, side=tiny.SIDE)
    CaptionLoss(captioner, tiny.SIDE, flip)(canvases, torch.tensor([True, False, True]), tokens, IMAGE_INDEX, None)
    expected = canvases.clone()
    expected[[0, 2]] = expected[[0, 2]].flip(-1)
    torch.testing.assert_close(encoder_inputs[0], expected.float(), rtol=0, atol=0.01)
    CaptionLoss(captioner, tiny.SIDE, flip)(tiny.pixels(3, side=72), MAY_FLIP, tokens, IMAGE_INDEX, None)
    assert encoder_inputs[1].shape[-2:] == (tiny.SIDE, tiny.SIDE)


def distilled_from_itself(distil: float, teachers: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, gradient and word distributions of a captioner whose teachers are copies of it."""
    captioner, tokens, pixels = tiny.sensitive_captioner(), padded_captions(), tiny.pixels(3)
    copies = [deepcopy(captioner) for _ in range(teachers)]
    sums = CaptionLoss(captioner.train(), 64, teachers=copies, distil=distil)(
        pixels, MAY_FLIP, tokens, IMAGE_INDEX, None
    )
    sums.loss.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in captioner.parameters() if weight.grad is not None])
    with torch.no_grad():
        logits = captioner(captioner.encode(pixels).select(IMAGE_INDEX), tokens[:, :-1])[0]
    return sums.loss.detach(), gradient, logits[tokens[:, 1:] != PAD].softmax(dim=-1)


def test_distilled_from_itself_the_loss_is_the_entropy_and_the_gradient_is_zero():
    loss, gradient, p = distilled_from_itself(1.0, teachers=2)
    assert gradient.abs().max() < 1e-4
    assert distilled_from_itself(0.0)[1].abs().max() > 0.1, "the gradient is small anyway"
    entropy = -(p * p.log()).sum()
    assert loss.item() == pytest.approx(entropy.item(), rel=1e-5)


def test_teachers_are_not_trained_and_stay_in_evaluation_mode():
    teacher = tiny.sensitive_captioner(seed=5, dropout=0.5)
    loss = CaptionLoss(tiny.sensitive_captioner(), 64, teachers=[teacher], distil=0.5).train()
    inputs = (tiny.pixels(3), MAY_FLIP, padded_captions(), IMAGE_INDEX, None)
    first, second = loss(*inputs), loss(*inputs)
    assert torch.equal(first.loss, second.loss), "a teacher's dropout is on"
    first.loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert loss.captioner.training


def test_conditioning_dropout_of_one_trains_every_caption_without_its_image_and_without_penalty():
    captioner, features, tokens = tiny.sensitive_captioner(), tiny.features(3), padded_captions()
    with torch.no_grad():
        loss = CaptionLoss(captioner, 64, penalty=0.7, conditioning_dropout=1.0)
        sums = loss(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, GRID)
        logits, attention = captioner(captioner.without_image(features).select(IMAGE_INDEX), tokens[:, :-1])
    expected = reference.caption_loss(logits.tolist(), attention.alpha.tolist(), tokens[:, 1:].tolist())
    assert values(sums) == pytest.approx(expected, rel=1e-5)


def test_conditioning_dropout_removes_the_image_of_its_share_of_the_captions():
    captioner, features = tiny.sensitive_captioner(), tiny.features(1)
    loss = CaptionLoss(captioner, 64, conditioning_dropout=0.3)
    torch.manual_seed(0)
    dropped, has_image = loss._drop_images(features.select(torch.zeros(2000, dtype=torch.long)))
    assert 0.67 < has_image.float().mean() < 0.73
    assert torch.equal(dropped.vectors[has_image], features.vectors.expand(int(has_image.sum()), -1, -1))
    assert not dropped.vectors[~has_image].any()
    assert (dropped.mask[~has_image].sum(dim=1) == 1).all()


@pytest.mark.parametrize("name", ["hard-attention", "coca"])
def test_the_auxiliary_loss_is_added_to_that_of_captions_with_words(name, monkeypatch):
    captioner, features, tokens = tiny.sensitive_captioner(name), tiny.features(3), padded_captions()
    monkeypatch.setattr(captioner, "auxiliary_loss", lambda forced: torch.tensor([1.0, 20.0, 300.0, 4000.0]))
    with torch.no_grad():
        sums = CaptionLoss(captioner, 64)(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, GRID)
    assert float(sums.loss - sums.log_loss) == pytest.approx(321.0, abs=1e-3)  # the fourth caption is padding


@pytest.mark.parametrize("name", ["hard-attention", "coca"])
def test_the_auxiliary_loss_gets_the_teacher_forced_captions(name):
    captioner, features, tokens = tiny.sensitive_captioner(name), tiny.features(3), padded_captions()
    calls = []
    captioner.auxiliary_loss = calls.append  # type: ignore[method-assign]
    with torch.no_grad():
        sums = CaptionLoss(captioner, 64)(features.vectors, MAY_FLIP, tokens, IMAGE_INDEX, GRID)
    (forced,) = calls
    assert torch.equal(forced.tokens, tokens)
    assert torch.equal(forced.image_index, IMAGE_INDEX)
    assert torch.equal(forced.mask, forced.tokens[:, 1:] != PAD)
    assert forced.has_image.all()
    assert float(-forced.log_p.sum()) == pytest.approx(float(sums.log_loss))
