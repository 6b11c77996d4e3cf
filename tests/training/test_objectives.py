"""What training minimises, against sums made word by word."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import tiny
from reference import objectives as reference
from saywhy.data.augment import Augmentation
from saywhy.data.vocabulary import PAD
from saywhy.training.objectives import LogLikelihood, as_vector

GRID = (2, 3)
OWNER = torch.tensor([0, 2, 1, 2])
MIRROR = torch.ones(3, dtype=torch.bool)


def padded_captions() -> torch.Tensor:
    """Captions of 5, 2 and 3 words, and one that is all padding because its image is broken."""
    words = tiny.captions(4, length=5)
    for row, length in ((1, 2), (2, 3)):
        words[row, length + 1] = 2
        words[row, length + 2 :] = PAD
    words[3] = PAD
    return words


@pytest.mark.parametrize(
    "how",
    [{}, {"smoothing": 0.1}, {"penalty": 0.7}, {"smoothing": 0.2, "penalty": 0.3}],
    ids=str,
)
def test_sums_equal_those_of_the_slow_twin(how):
    captioner, features, words = tiny.opinionated(), tiny.features(3), padded_captions()
    with torch.no_grad():
        sums = LogLikelihood(captioner, 64, **how)(features.vectors, MIRROR, words, OWNER, GRID)
        logits, attention = captioner(features.select(OWNER), words[:, :-1])
    expected = reference.log_likelihood(logits.tolist(), attention.alpha.tolist(), words[:, 1:].tolist(), **how)
    assert [float(each) for each in sums] == pytest.approx(expected, rel=1e-5)
    assert (int(sums.words), int(sums.captions)) == (6 + 3 + 4, 3)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_with_teachers_sums_equal_those_of_the_slow_twin(smoothing):
    captioner, words, pixels = tiny.opinionated(), padded_captions(), tiny.pixels(3)
    teachers = [tiny.opinionated(seed=seed) for seed in (5, 6)]
    how = {"smoothing": smoothing, "penalty": 0.5, "distil": 0.4}
    with torch.no_grad():
        sums = LogLikelihood(captioner, 64, teachers=teachers, **how)(pixels, MIRROR, words, OWNER, None)
        logits, attention = captioner(captioner.encode(pixels).select(OWNER), words[:, :-1])
        said = [teacher(teacher.encode(pixels).select(OWNER), words[:, :-1])[0] for teacher in teachers]
    taught = torch.stack(said).softmax(dim=-1).mean(dim=0).tolist()
    expected = reference.log_likelihood(
        logits.tolist(), attention.alpha.tolist(), words[:, 1:].tolist(), taught=taught, **how
    )
    assert [float(each) for each in sums] == pytest.approx(expected, rel=1e-5)


def test_padding_and_broken_images_contribute_nothing_to_loss_or_gradient():
    vectors, words = tiny.features(3).vectors, padded_captions()
    how = {"smoothing": 0.1, "penalty": 1.0}

    def learned(words: torch.Tensor, owner: torch.Tensor) -> tuple[list[float], torch.Tensor]:
        captioner = tiny.opinionated()
        sums = LogLikelihood(captioner, 64, **how)(vectors, MIRROR, words, owner, GRID)
        sums.loss.backward()
        gradients = [p.grad.flatten() for p in captioner.parameters() if p.grad is not None]
        return [each.item() for each in sums], torch.cat(gradients)

    sums, gradient = learned(words[:3], OWNER[:3])
    longer = torch.cat([words, torch.full((4, 3), PAD)], dim=1)
    padded, also = learned(longer, OWNER)
    assert padded == pytest.approx(sums, rel=1e-5)
    torch.testing.assert_close(also, gradient, rtol=1e-4, atol=1e-4)


def test_captions_add_up_so_that_processes_can():
    captioner, features, words = tiny.opinionated(), tiny.features(3), padded_captions()
    objective = LogLikelihood(captioner, 64, smoothing=0.1, penalty=1.0)

    def vector(rows: slice) -> torch.Tensor:
        return as_vector(objective(features.vectors, MIRROR, words[rows], OWNER[rows], GRID))

    torch.testing.assert_close(vector(slice(0, 1)) + vector(slice(1, 4)), vector(slice(0, 4)), rtol=1e-5, atol=1e-5)
    assert vector(slice(0, 4)).dtype == torch.float64
    assert not vector(slice(0, 4)).requires_grad


def test_pixels_and_their_annotations_are_the_same_loss():
    captioner, words, pixels = tiny.opinionated(), padded_captions(), tiny.pixels(3)
    objective = LogLikelihood(captioner, 64)
    features = captioner.encode(pixels)
    from_pixels = objective(pixels, MIRROR, words, OWNER, None)
    from_cache = objective(features.vectors, MIRROR, words, OWNER, features.grid)
    torch.testing.assert_close(from_pixels.loss, from_cache.loss)


def test_augmented_canvases_are_cut_to_the_encoders_size():
    captioner, words = tiny.opinionated(), padded_captions()
    seen = []
    captioner.encoder.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    flip = Augmentation((1.0, 1.0), 1.0, 1.0)
    canvases = tiny.pixels(3, side=tiny.SIDE)
    LogLikelihood(captioner, tiny.SIDE, flip)(canvases, torch.tensor([True, False, True]), words, OWNER, None)
    expected = canvases.clone()
    expected[[0, 2]] = expected[[0, 2]].flip(-1)
    torch.testing.assert_close(seen[0], expected.float(), rtol=0, atol=0.01)
    LogLikelihood(captioner, tiny.SIDE, flip)(tiny.pixels(3, side=72), MIRROR, words, OWNER, None)
    assert seen[1].shape[-2:] == (tiny.SIDE, tiny.SIDE)


def distilling(distil: float, teachers: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loss, gradient, and the distributions themselves, of a captioner taught by copies of itself."""
    captioner, words, pixels = tiny.opinionated(seed=seed), padded_captions(), tiny.pixels(3)
    copies = [deepcopy(captioner) for _ in range(teachers)]
    objective = LogLikelihood(captioner.train(), 64, teachers=copies, distil=distil)
    sums = objective(pixels, MIRROR, words, OWNER, None)
    sums.loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in captioner.parameters() if p.grad is not None])
    with torch.no_grad():
        logits = captioner(captioner.encode(pixels).select(OWNER), words[:, :-1])[0]
    return sums.loss.detach(), gradient, logits[words[:, 1:] != PAD].softmax(dim=-1)


def test_its_own_teacher_teaches_it_nothing_and_the_loss_is_the_entropy():
    loss, gradient, p = distilling(1.0, teachers=2)
    assert gradient.abs().max() < 1e-4
    assert distilling(0.0)[1].abs().max() > 0.1, "the gradient is small anyway"
    entropy = -(p * p.log()).sum()
    assert loss.item() == pytest.approx(entropy.item(), rel=1e-5)


def test_teachers_are_not_trained_and_stay_in_evaluation_mode():
    teacher = tiny.opinionated(seed=5, dropout=0.5)
    objective = LogLikelihood(tiny.opinionated(), 64, teachers=[teacher], distil=0.5).train()
    args = (tiny.pixels(3), MIRROR, padded_captions(), OWNER, None)
    one, other = objective(*args), objective(*args)
    assert torch.equal(one.loss, other.loss), "a teacher's dropout is on"
    one.loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert objective.captioner.training


def test_with_conditioning_dropout_of_one_every_caption_is_taught_without_its_image():
    captioner, features, words = tiny.opinionated(), tiny.features(3), padded_captions()
    blank = captioner.without_image(features)
    with torch.no_grad():
        dropped = LogLikelihood(captioner, 64, penalty=0.7, drop_image=1.0)(
            features.vectors, MIRROR, words, OWNER, GRID
        )
        logits, attention = captioner(blank.select(OWNER), words[:, :-1])
    expected = reference.log_likelihood(logits.tolist(), attention.alpha.tolist(), words[:, 1:].tolist())
    assert [float(each) for each in dropped] == pytest.approx(expected, rel=1e-5)  # and no attention is penalised


def test_conditioning_dropout_takes_the_image_from_its_share_of_the_captions():
    captioner, features = tiny.opinionated(), tiny.features(1)
    objective = LogLikelihood(captioner, 64, drop_image=0.3)
    torch.manual_seed(0)
    some, has_image = objective._dropped(features.select(torch.zeros(2000, dtype=torch.long)))
    assert 0.67 < has_image.float().mean() < 0.73
    assert torch.equal(some.vectors[has_image], features.vectors.expand(int(has_image.sum()), -1, -1))
    assert not some.vectors[~has_image].any()
    assert (some.mask[~has_image].sum(dim=1) == 1).all()


@pytest.mark.parametrize("name", ["hard-attention", "coca"])
def test_an_architectures_own_loss_is_added_to_that_of_captions_with_words(name, monkeypatch):
    captioner, features, words = tiny.opinionated(name), tiny.features(3), padded_captions()
    monkeypatch.setattr(captioner, "auxiliary_loss", lambda forced: torch.tensor([1.0, 20.0, 300.0, 4000.0]))
    with torch.no_grad():
        found = LogLikelihood(captioner, 64)(features.vectors, MIRROR, words, OWNER, GRID)
    assert float(found.loss - found.log_loss) == pytest.approx(321.0, abs=1e-3)  # the fourth is padding


@pytest.mark.parametrize("name", ["hard-attention", "coca"])
def test_an_architectures_own_loss_is_told_what_was_taught(name):
    captioner, features, words = tiny.opinionated(name), tiny.features(3), padded_captions()
    heard = []
    captioner.auxiliary_loss = heard.append  # type: ignore[method-assign]
    with torch.no_grad():
        found = LogLikelihood(captioner, 64)(features.vectors, MIRROR, words, OWNER, GRID)
    (forced,) = heard
    longest_first = torch.tensor([0, 2, 1, 3])
    assert torch.equal(forced.words, words[longest_first])
    assert torch.equal(forced.owner, OWNER[longest_first])
    assert torch.equal(forced.spoken, forced.words[:, 1:] != PAD)
    assert forced.has_image.all()
    assert float(-forced.log_p.sum()) == pytest.approx(float(found.log_loss))
