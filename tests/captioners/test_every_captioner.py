"""What holds of every registered captioner, with each of its switches turned over."""

from __future__ import annotations

import dataclasses
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tiny
from saywhy.captioners import Captioner, captioners
from saywhy.captioners.saving import SavedModel, load
from saywhy.data.preprocess import Preprocessing
from saywhy.data.vocabulary import PAD
from saywhy.decoding import Decoding, decode
from saywhy.encoders.annotations import Annotations

VARIANTS = {tiny.label(variant): variant for variant in tiny.variants()}
B, T, L = 3, 7, 6
KINDS = ("grid", "regions")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=VARIANTS)
def built(request: pytest.FixtureRequest) -> Captioner:
    name, chosen = VARIANTS[request.param]
    return tiny.opinionated(name, **chosen)


@pytest.fixture
def captioner(built: Captioner) -> Captioner:
    return deepcopy(built)


def stepped(captioner: Captioner, annotations: Annotations, words: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and alphas, word by word, as decoding sees them."""
    state, logits, alphas = captioner.start(annotations), [], []
    for word in words.unbind(1):
        step = captioner.step(word, state)
        state = step.state
        logits.append(step.logits)
        alphas.append(step.glance.alpha)
    return torch.stack(logits, 1), torch.stack(alphas, 1)


def cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)


def test_its_name_is_the_one_it_is_registered_under():
    assert all(captioners[name].name == name for name in captioners)


def test_shapes_are_those_of_the_interface(captioner, kind):
    annotations, words = tiny.annotations(B, kind=kind), tiny.captions(B)[:, :-1]
    step = captioner.step(words[:, 0], captioner.start(annotations))
    assert step.logits.shape == (B, tiny.WORDS)
    assert (step.glance.alpha.shape[0], step.glance.alpha.shape[-1]) == (B, L)
    logits, glance = captioner(annotations, words)
    assert logits.shape == (B, T, tiny.WORDS)
    assert (*glance.alpha.shape[:2], glance.alpha.shape[-1]) == (B, T, L)
    for beta, shape in ((step.glance.beta, (B,)), (glance.beta, (B, T))):
        assert beta is None or beta.shape == shape
        assert beta is None or ((beta > 0) & (beta < 1)).all()
    sums = glance.alpha.sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_pixels_are_encoded_by_its_encoder(captioner):
    pixels = tiny.pixels(2)
    assert torch.equal(captioner.encode(pixels).vectors, captioner.encoder(pixels).vectors)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_word_by_word_it_says_what_teacher_forcing_says(captioner, dtype, within, kind):
    captioner, words = captioner.to(dtype), tiny.captions(B)[:, :-1]
    annotations = tiny.annotations(B, dtype=dtype, kind=kind)
    logits, glance = captioner(annotations, words)
    by_step, alphas = stepped(captioner, annotations, words)
    torch.testing.assert_close(by_step, logits, rtol=within, atol=within)
    torch.testing.assert_close(alphas, glance.alpha, rtol=within, atol=within)


def test_what_it_says_depends_on_the_picture_and_on_every_earlier_word(captioner, kind):
    annotations, words = tiny.annotations(1, kind=kind), tiny.captions(1)[:, :-1]
    last = captioner(annotations, words)[0][:, -1]
    assert (captioner(tiny.annotations(1, seed=9, kind=kind), words)[0][:, -1] - last).abs().max() > 1e-3
    for t in range(T):
        other = words.clone()
        other[:, t] = 4 + (other[:, t] - 3) % (tiny.WORDS - 4)
        assert (captioner(annotations, other)[0][:, -1] - last).abs().max() > 1e-6, f"word {t} is forgotten"


def test_later_words_do_not_change_what_was_said(captioner, kind):
    annotations, words = tiny.annotations(B, kind=kind), tiny.captions(B)[:, :-1]
    changed = words.clone()
    changed[:, 4:] = 5
    torch.testing.assert_close(captioner(annotations, changed)[0][:, :4], captioner(annotations, words)[0][:, :4])


def test_a_picture_alone_is_described_as_among_others(captioner, kind):
    captioner = captioner.double()
    annotations, words = tiny.annotations(B, dtype=torch.float64, kind=kind), tiny.captions(B)[:, :-1]
    logits, glance = captioner(annotations, words)
    for row in range(B):
        alone, looks = captioner(annotations.select(torch.tensor([row])), words[row : row + 1])
        torch.testing.assert_close(alone, logits[row : row + 1], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(looks.alpha, glance.alpha[row : row + 1], rtol=1e-9, atol=1e-9)


def test_padding_changes_neither_logits_nor_loss_of_the_words_before(captioner, kind):
    annotations, words = tiny.annotations(B, kind=kind), tiny.captions(B)
    padded = torch.cat([words, torch.full((B, 4), PAD)], dim=1)
    logits, longer = captioner(annotations, words[:, :-1])[0], captioner(annotations, padded[:, :-1])[0]
    torch.testing.assert_close(longer[:, :T], logits)
    torch.testing.assert_close(cross_entropy(longer, padded[:, 1:]), cross_entropy(logits, words[:, 1:]))


def test_select_reorders_every_part_of_the_state(captioner, kind):
    annotations, words, rows = tiny.annotations(B, kind=kind), tiny.captions(B), torch.tensor([2, 0, 2, 1])
    step = captioner.step(words[:, 1], captioner.step(words[:, 0], captioner.start(annotations)).state)
    chosen = step.state.select(rows)
    for field in dataclasses.fields(step.state):
        before, after = getattr(step.state, field.name), getattr(chosen, field.name)
        if isinstance(before, Annotations):
            assert after.grid == before.grid
            before, after = before.vectors, after.vectors
        assert torch.equal(after, before[rows]), field.name
    expected = captioner.step(words[:, 2], step.state)
    found = captioner.step(words[:, 2][rows], chosen)
    torch.testing.assert_close(found.logits, expected.logits[rows])
    torch.testing.assert_close(found.glance.alpha, expected.glance.alpha[rows])


def test_gradients_reach_every_weight_of_the_decoder_and_none_of_a_frozen_encoder(captioner):
    words = tiny.captions(2)
    cross_entropy(captioner.train()(captioner.encode(tiny.pixels(2)), words[:, :-1])[0], words[:, 1:]).backward()
    for name, parameter in captioner.named_parameters():
        if name.startswith("encoder."):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_gradients_reach_every_weight_of_a_fine_tuned_encoder(captioner):
    captioner.encoder.finetune_from("all")
    words = tiny.captions(2)
    cross_entropy(captioner.train()(captioner.encode(tiny.pixels(2)), words[:, :-1])[0], words[:, 1:]).backward()
    for name, parameter in captioner.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_four_pictures_by_heart(variant, kind):
    name, chosen = VARIANTS[variant]
    captioner = tiny.captioner(name, **chosen).train()
    annotations, words = tiny.annotations(4, kind=kind), tiny.captions(4, seed=3)
    optimiser = torch.optim.Adam([p for p in captioner.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(80):
        loss = cross_entropy(captioner(annotations, words[:, :-1])[0], words[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert losses[-1] < 0.05
    said = decode(captioner.eval(), annotations, Decoding())
    assert [list(caption.words) for caption in said] == words[:, 1:-1].tolist()


@pytest.mark.parametrize("variant", VARIANTS)
def test_dropout_acts_in_training_only(variant, kind):
    name, chosen = VARIANTS[variant]
    switched_on = {field: 0.5 for field in tiny.settings(name) if "dropout" in field}
    captioner = tiny.opinionated(name, **(chosen | switched_on))
    annotations, words = tiny.annotations(B, kind=kind), tiny.captions(B)[:, :-1]
    assert torch.equal(captioner(annotations, words)[0], captioner(annotations, words)[0])
    captioner.train()
    assert not torch.equal(captioner(annotations, words)[0], captioner(annotations, words)[0])


def test_saved_and_loaded_it_says_the_same(captioner, tmp_path):
    SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE), {"beam": 2}).save(tmp_path)
    loaded = load(tmp_path)
    assert (loaded.name, loaded.decoding) == ("tiny", {"beam": 2})
    assert loaded.vocabulary == tiny.vocabulary()
    assert loaded.preprocessing == Preprocessing(tiny.SIDE)
    assert loaded.captioner.settings == captioner.settings
    assert not loaded.captioner.training
    pixels, words = tiny.pixels(2), tiny.captions(2)[:, :-1]
    with torch.no_grad():
        expected, found = (each(each.encode(pixels), words)[0] for each in (captioner, loaded.captioner))
    assert torch.equal(found, expected)
    how = Decoding(beam=2, max_words=6)
    before, after = (decode(each, each.encode(pixels), how) for each in (captioner, loaded.captioner))
    assert [caption.words for caption in after] == [caption.words for caption in before]


def test_saved_in_half_precision_it_says_nearly_the_same_in_float32(captioner, tmp_path, kind):
    captioner = tiny.captioner(captioner.name, **dataclasses.asdict(captioner.settings))  # the usual small weights
    saved = SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE))
    saved.save(tmp_path / "whole")
    saved.save(tmp_path / "half", torch.float16)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    half = load(tmp_path / "half").captioner
    assert all(parameter.dtype == torch.float32 for parameter in half.parameters())
    annotations, words = tiny.annotations(2, kind=kind), tiny.captions(2)[:, :-1]
    with torch.no_grad():
        expected, found = (each(annotations, words)[0] for each in (captioner, half))
    assert 0 < (found - expected).abs().max() < 0.01 * expected.abs().max()


def test_weights_tied_before_saving_are_tied_after_loading(captioner, tmp_path):
    def tied(each: Captioner) -> list[set[str]]:
        names: dict[int, set[str]] = {}
        for name, tensor in each.state_dict().items():
            names.setdefault(tensor.data_ptr(), set()).add(name)
        return sorted((group for group in names.values() if len(group) > 1), key=sorted)

    SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE)).save(tmp_path)
    assert tied(load(tmp_path).captioner) == tied(captioner)
    assert bool(tied(captioner)) == bool(getattr(captioner.settings, "tie", False))
