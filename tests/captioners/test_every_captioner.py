"""Claims about every registered captioner, also with each boolean setting negated."""

from __future__ import annotations

import dataclasses
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tiny
from saywhy.captioners import Captioner, TeacherForced, captioners
from saywhy.captioners.model_folder import SavedModel, load
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import PAD
from saywhy.decoding import Decoding, decode
from saywhy.encoders.base import Features
from saywhy.metrics import cider

VARIANTS = {tiny.label(variant): variant for variant in tiny.variants()}
B, T, L = 3, 7, 6
KINDS = ("grid", "regions")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=VARIANTS)
def built(request: pytest.FixtureRequest) -> Captioner:
    name, changes = VARIANTS[request.param]
    return tiny.sensitive_captioner(name, **changes)


@pytest.fixture
def captioner(built: Captioner) -> Captioner:
    return deepcopy(built)


def run_steps(captioner: Captioner, features: Features, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and alphas from `step`, as in decoding."""
    state, logits, alphas = captioner.start(features), [], []
    for token in tokens.unbind(1):
        step = captioner.step(token, state)
        state = step.state
        logits.append(step.logits)
        alphas.append(step.attention.alpha)
    return torch.stack(logits, 1), torch.stack(alphas, 1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def loss_of(captioner: Captioner, features: Features, tokens: Tensor) -> Tensor:
    """The loss per word of one caption per image: −log p, and the architecture's auxiliary loss."""
    logits, attention = captioner(features, tokens[:, :-1])
    mask = tokens[:, 1:] != PAD
    log_p = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1) * mask
    rows = torch.arange(len(tokens))
    forced = TeacherForced(features, tokens, log_p, mask, torch.ones_like(rows, dtype=torch.bool), rows, attention)
    auxiliary = captioner.auxiliary_loss(forced)
    return ((0 if auxiliary is None else auxiliary) - log_p.sum(dim=1)).sum() / mask.sum()


def test_name_is_the_registered_name():
    assert all(captioners[name].name == name for name in captioners)


def test_shapes_are_those_of_the_interface(captioner, kind):
    features, words = tiny.features(B, kind=kind), tiny.captions(B)[:, :-1]
    step = captioner.step(words[:, 0], captioner.start(features))
    assert step.logits.shape == (B, tiny.WORDS)
    assert (step.attention.alpha.shape[0], step.attention.alpha.shape[-1]) == (B, L)
    logits, attention = captioner(features, words)
    assert logits.shape == (B, T, tiny.WORDS)
    assert (*attention.alpha.shape[:2], attention.alpha.shape[-1]) == (B, T, L)
    for beta, shape in ((step.attention.beta, (B,)), (attention.beta, (B, T))):
        assert beta is None or beta.shape == shape
        assert beta is None or ((beta > 0) & (beta < 1)).all()
    sums = attention.alpha.sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_encode_uses_the_encoder(captioner):
    pixels = tiny.pixels(2)
    assert torch.equal(captioner.encode(pixels).vectors, captioner.encoder(pixels).vectors)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_steps_equal_teacher_forcing(captioner, dtype, within, kind):
    captioner, words = captioner.to(dtype), tiny.captions(B)[:, :-1]
    features = tiny.features(B, dtype=dtype, kind=kind)
    logits, attention = captioner(features, words)
    step_logits, alphas = run_steps(captioner, features, words)
    torch.testing.assert_close(step_logits, logits, rtol=within, atol=within)
    torch.testing.assert_close(alphas, attention.alpha, rtol=within, atol=within)


def test_logits_depend_on_the_image_and_on_every_earlier_word(captioner, kind):
    features, words = tiny.features(1, kind=kind), tiny.captions(1)[:, :-1]
    last = captioner(features, words)[0][:, -1]
    assert (captioner(tiny.features(1, seed=9, kind=kind), words)[0][:, -1] - last).abs().max() > 1e-3
    for t in range(T):
        other = words.clone()
        other[:, t] = 4 + (other[:, t] - 3) % (tiny.WORDS - 4)
        assert (captioner(features, other)[0][:, -1] - last).abs().max() > 1e-6, f"word {t} has no effect"


def test_logits_do_not_depend_on_later_words(captioner, kind):
    features, words = tiny.features(B, kind=kind), tiny.captions(B)[:, :-1]
    changed = words.clone()
    changed[:, 4:] = 5
    torch.testing.assert_close(captioner(features, changed)[0][:, :4], captioner(features, words)[0][:, :4])


def test_logits_do_not_depend_on_other_images_of_the_batch(captioner, kind):
    captioner = captioner.double()
    features, words = tiny.features(B, dtype=torch.float64, kind=kind), tiny.captions(B)[:, :-1]
    logits, attention = captioner(features, words)
    for row in range(B):
        alone, attention_alone = captioner(features.select(torch.tensor([row])), words[row : row + 1])
        torch.testing.assert_close(alone, logits[row : row + 1], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(attention_alone.alpha, attention.alpha[row : row + 1], rtol=1e-9, atol=1e-9)


def test_padding_changes_neither_logits_nor_loss_of_earlier_words(captioner, kind):
    features, words = tiny.features(B, kind=kind), tiny.captions(B)
    padded = torch.cat([words, torch.full((B, 4), PAD)], dim=1)
    logits, padded_logits = captioner(features, words[:, :-1])[0], captioner(features, padded[:, :-1])[0]
    torch.testing.assert_close(padded_logits[:, :T], logits)
    torch.testing.assert_close(cross_entropy(padded_logits, padded[:, 1:]), cross_entropy(logits, words[:, 1:]))


def test_captions_of_different_lengths_in_any_order_equal_each_alone(captioner, kind):
    captioner, features = captioner.double(), tiny.features(4, dtype=torch.float64, kind=kind)
    words = tiny.captions(4)[:, :-1]
    for row, length in enumerate((3, T, 0, 5)):  # the third is all padding: its image is unreadable
        words[row, length:] = PAD
    for order in (torch.arange(4), torch.tensor([1, 3, 0, 2])):  # unsorted, and the longest first
        logits, attention = captioner(features.select(order), words[order])
        assert (len(logits), len(attention.alpha)) == (4, 4)
        for position, row in enumerate(order.tolist()):
            length = int((words[row] != PAD).sum())
            if length:
                alone, expected = captioner(features.select(torch.tensor([row])), words[row : row + 1, :length])
                torch.testing.assert_close(logits[position, :length], alone[0])
                torch.testing.assert_close(attention.alpha[position, :length], expected.alpha[0])


def test_select_reorders_every_field_of_the_state(captioner, kind):
    features, words, rows = tiny.features(B, kind=kind), tiny.captions(B), torch.tensor([2, 0, 2, 1])
    step = captioner.step(words[:, 1], captioner.step(words[:, 0], captioner.start(features)).state)
    selected = step.state.select(rows)
    for field in dataclasses.fields(step.state):
        before, after = getattr(step.state, field.name), getattr(selected, field.name)
        if isinstance(before, Features):
            assert after.grid == before.grid
            pairs = [(getattr(before, name), getattr(after, name)) for name in ("vectors", "boxes", "mask")]
            pairs = [pair for pair in pairs if pair[0] is not None]
            assert len(pairs) == (1 if kind == "grid" else 3)
        else:
            pairs = [(before, after)]
        assert all(torch.equal(after, before[rows]) for before, after in pairs), field.name
    expected = captioner.step(words[:, 2], step.state)
    actual = captioner.step(words[:, 2][rows], selected)
    torch.testing.assert_close(actual.logits, expected.logits[rows])
    torch.testing.assert_close(actual.attention.alpha, expected.attention.alpha[rows])


def without_gradient(captioner: Captioner) -> list[str]:
    """The names of weights without a gradient, or with a gradient of zeros."""
    return [name for name, p in captioner.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


def test_gradients_reach_every_weight_of_the_decoder_and_none_of_a_frozen_encoder(captioner):
    words = tiny.captions(8)
    features = captioner.train().encode(tiny.pixels(8))
    loss_of(captioner, captioner.without_image(features, torch.arange(8) == 7), words).backward()
    frozen = [name for name, _ in captioner.named_parameters() if name.startswith("encoder.")]
    assert without_gradient(captioner) == frozen


def test_gradients_reach_every_weight_of_a_fine_tuned_encoder(captioner):
    captioner.encoder.finetune_from("all")
    words = tiny.captions(8)
    features = captioner.train().encode(tiny.pixels(8))
    loss_of(captioner, captioner.without_image(features, torch.arange(8) == 7), words).backward()
    assert without_gradient(captioner) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_memorises_eight_images(variant, kind):
    name, changes = VARIANTS[variant]
    words = tiny.captions(8, words=30, seed=3)
    captioner, features = tiny.captioner(name, words=30, **changes).train(), tiny.features(8, kind=kind)
    trained = [p for p in captioner.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(trained, lr=0.01)
    losses = []
    for _ in range(150):
        loss = loss_of(captioner, features, words)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        losses.append(loss.item())
        if losses[-1] < 0.05 * losses[0]:  # memorised
            break
    assert losses[-1] < losses[0]
    vocabulary = tiny.vocabulary(30)
    candidates = [vocabulary.decode(caption.tokens) for caption in decode(captioner.eval(), features, Decoding())]
    references = [[" ".join(vocabulary.decode(tokens))] for tokens in words[:, 1:-1].tolist()]
    assert cider(candidates, references).cider > 5


def test_logits_without_image_are_the_same_for_every_image(captioner, kind):
    captioner, words = captioner.double(), tiny.captions(1)[:, :-1].expand(B, -1)
    features = tiny.features(B, dtype=torch.float64, kind=kind)
    partly = captioner.without_image(features, torch.tensor([True, False, True]))
    logits, with_images = captioner(partly, words)[0], captioner(features, words)[0]
    torch.testing.assert_close(logits[1], with_images[1])
    torch.testing.assert_close(logits[0], logits[2])
    assert (logits[0] - with_images[0]).abs().max() > 1e-3
    other = tiny.features(B, seed=5, dtype=torch.float64)  # other images on another grid: nothing of them remains
    torch.testing.assert_close(captioner(captioner.without_image(other), words)[0][0], logits[0])
    step_logits, _ = run_steps(captioner, partly, words)
    torch.testing.assert_close(step_logits, logits)


def test_padding_regions_do_not_change_logits_and_get_no_attention(captioner):
    captioner, words = captioner.double(), tiny.captions(B)[:, :-1]
    features = tiny.features(B, dtype=torch.float64, kind="regions")
    padded = Features.of_regions(
        torch.cat([features.vectors, torch.full((B, 3, 256), 9.0, dtype=torch.float64)], dim=1),
        torch.cat([features.boxes, torch.zeros(B, 3, 4, dtype=torch.float64)], dim=1),
    )
    logits, attention = captioner(features, words)
    padded_logits, padded_attention = captioner(padded, words)
    torch.testing.assert_close(padded_logits, logits)
    torch.testing.assert_close(padded_attention.alpha[..., :L], attention.alpha)
    assert not padded_attention.alpha[..., L:].any()
    assert not attention.alpha[1, ..., 4:].any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_dropout_acts_in_training_only(variant, kind):
    name, changes = VARIANTS[variant]
    dropout = {field: 0.5 for field in tiny.settings(name) if "dropout" in field}
    captioner = tiny.sensitive_captioner(name, **(changes | dropout))
    features, words = tiny.features(B, kind=kind), tiny.captions(B)[:, :-1]
    assert torch.equal(captioner(features, words)[0], captioner(features, words)[0])
    captioner.train()
    assert not torch.equal(captioner(features, words)[0], captioner(features, words)[0])


def test_loaded_model_equals_the_saved_one(captioner, tmp_path):
    SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE), {"beam": 2}).save(tmp_path)
    loaded = load(tmp_path)
    assert (loaded.name, loaded.decoding) == ("tiny", {"beam": 2})
    assert loaded.vocabulary == tiny.vocabulary()
    assert loaded.preprocessing == Preprocessing(tiny.SIDE)
    assert loaded.captioner.settings == captioner.settings
    assert not loaded.captioner.training
    pixels, words = tiny.pixels(2), tiny.captions(2)[:, :-1]
    with torch.no_grad():
        expected, logits = (model(model.encode(pixels), words)[0] for model in (captioner, loaded.captioner))
    assert torch.equal(logits, expected)
    decoding = Decoding(beam=2, max_words=6)
    before, after = (decode(model, model.encode(pixels), decoding) for model in (captioner, loaded.captioner))
    assert [caption.tokens for caption in after] == [caption.tokens for caption in before]


def test_model_saved_in_half_precision_loads_in_float32_with_nearly_equal_logits(captioner, tmp_path, kind):
    captioner = tiny.captioner(
        captioner.name, **dataclasses.asdict(captioner.settings)
    )  # with weights of the default scale
    saved = SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE))
    saved.save(tmp_path / "full")
    saved.save(tmp_path / "half", torch.float16)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "full")]
    assert sizes[0] < 0.6 * sizes[1]
    half = load(tmp_path / "half").captioner
    assert all(parameter.dtype == torch.float32 for parameter in half.parameters())
    features, words = tiny.features(2, kind=kind), tiny.captions(2)[:, :-1]
    with torch.no_grad():
        expected, logits = (model(features, words)[0] for model in (captioner, half))
    assert 0 < (logits - expected).abs().max() < 0.01 * expected.abs().max()


def test_weights_tied_before_saving_are_tied_after_loading(captioner, tmp_path):
    def tied(model: Captioner) -> list[set[str]]:
        names: dict[int, set[str]] = {}
        for name, tensor in model.state_dict().items():
            names.setdefault(tensor.data_ptr(), set()).add(name)
        return sorted((group for group in names.values() if len(group) > 1), key=sorted)

    SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE)).save(tmp_path)
    assert tied(load(tmp_path).captioner) == tied(captioner)
    assert bool(tied(captioner)) == bool(getattr(captioner.settings, "tie", False))


def test_documented_architecture_is_registered_and_at_most_thirty_lines_long():
    assert "show-and-tell" in captioners
    assert len([line for line in tiny.documented().splitlines() if line.strip()]) <= 30
