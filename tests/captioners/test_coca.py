"""The contrastive captioner against its equations written out, and what it can do that the others cannot."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import Tensor

import saywhy
import tiny
from reference import coca as reference
from saywhy import encoders
from saywhy.captioners import TeacherForced, build
from saywhy.captioners.coca import CoCa
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.vocabulary import PAD
from saywhy.encoders.features import Features
from saywhy.errors import UserError

CONDITIONINGS = ("attention", "bottleneck")
SIZES = {"width": 4, "heads": 2, "queries": 3}


@pytest.fixture(params=CONDITIONINGS)
def conditioning(request: pytest.FixtureRequest) -> str:
    return request.param


def opinionated(**chosen) -> CoCa:
    found = tiny.opinionated("coca", **chosen)
    assert isinstance(found, CoCa)
    return found


def twin_of(captioner: CoCa) -> reference.CoCa:
    weights = {name: p.tolist() for name, p in captioner.state_dict().items() if not name.startswith("encoder.")}
    chosen = captioner.settings
    return reference.CoCa(weights, chosen.conditioning, chosen.heads, chosen.unimodal, chosen.multimodal)


def places(features: Features, row: int) -> list[list[float]]:
    """The vectors that an image has."""
    vectors = features.vectors[row]
    return (vectors if features.mask is None else vectors[features.mask[row]]).tolist()


def forced(captioner: CoCa, features: Features, words: Tensor, has_image: Tensor, owner: Tensor) -> TeacherForced:
    _, attention = captioner(features, words[:, :-1])
    spoken = words[:, 1:] != PAD
    return TeacherForced(features, words, torch.zeros(spoken.shape), spoken, has_image, owner, attention)


def everyone(captioner: CoCa, features: Features, words: Tensor) -> TeacherForced:
    """A forced of as many images as captions."""
    count = len(words)
    return forced(captioner, features, words, torch.ones(count, dtype=torch.bool), torch.arange(count))


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_logits_alpha_and_similarity_equal_those_of_the_slow_twin(conditioning, kind):
    captioner = opinionated(conditioning=conditioning, **SIZES).double()
    features = tiny.features(2, dtype=torch.float64, kind=kind)
    captions = tiny.captions(2, length=4)
    twin = twin_of(captioner)
    logits, attention = captioner(features, captions[:, :-1])
    similarity = captioner.match(features, captions)
    for row in range(2):
        there = places(features, row)
        for t, (expected, alpha) in enumerate(twin(there, captions[row, :-1].tolist())):
            assert logits[row, t].tolist() == pytest.approx(expected, abs=1e-9)
            assert attention.alpha[row, t, : len(alpha)].tolist() == pytest.approx(alpha, abs=1e-9)
        for n, caption in enumerate(captions.tolist()):
            assert similarity[row, n].item() == pytest.approx(twin.match(there, caption), abs=1e-9)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_hundred_words_from_the_cache_are_those_of_teacher_forcing(conditioning, dtype, within):
    captioner = opinionated(conditioning=conditioning).to(dtype)
    features, words = tiny.features(2, dtype=dtype, kind="regions"), tiny.captions(2, length=100)[:, :-1]
    logits, attention = captioner(features, words)
    state = captioner.start(features)
    for t, word in enumerate(words.unbind(1)):
        step = captioner.step(word, state)
        state = step.state
        torch.testing.assert_close(step.logits, logits[:, t], rtol=within, atol=within)
        torch.testing.assert_close(step.attention.alpha, attention.alpha[:, t], rtol=within, atol=within)


def sees_the_same(captioner: CoCa, matched: bool) -> bool:
    """Whether two images get the same logits once they agree on p_0 alone, or, if not `matched`, on all but p_0."""
    features, words = tiny.features(2), tiny.captions(1).expand(2, -1)
    pool = captioner.pooler.forward

    def agreeing(features):
        pooled, pooling = pool(features)
        first = torch.arange(pooled.shape[1])[:, None] == 0  # (P, 1)
        return torch.where(first == matched, pooled[:1], pooled), pooling

    captioner.pooler.forward = agreeing
    one, other = captioner(features, words)[0]
    return torch.equal(one, other)


def test_the_bottleneck_shows_the_decoder_the_vector_that_matches_captions_and_nothing_else():
    assert sees_the_same(opinionated(conditioning="bottleneck"), matched=True)
    assert not sees_the_same(opinionated(conditioning="bottleneck"), matched=False)


def test_attention_shows_the_decoder_every_vector_but_the_one_that_matches_captions():
    assert sees_the_same(opinionated(conditioning="attention"), matched=False)
    assert not sees_the_same(opinionated(conditioning="attention"), matched=True)


def test_the_contrastive_loss_equals_that_of_the_slow_twin(conditioning):
    captioner = opinionated(conditioning=conditioning, contrastive=0.7, **SIZES).double()
    owner = torch.tensor([0, 0, 1, 2, 3, 3, 4])
    has_image = torch.tensor([True, True, True, False, True, True, True])
    features = tiny.features(5, dtype=torch.float64, kind="regions").select(owner)
    words = tiny.captions(7, length=3)
    words[6] = PAD  # a broken image's captions are padding alone
    found = captioner.auxiliary_loss(forced(captioner, features, words, has_image, owner))
    twin, taught = twin_of(captioner), [0, 1, 2, 4, 5]
    similarity = [[0.0] * 7 for _ in owner]
    for i in taught:
        for j in taught:
            similarity[i][j] = twin.match(places(features, i), words[j].tolist())
    scale = captioner.contrastive.log_scale.exp().item()
    expected = reference.contrastive_loss(similarity, scale, [n in taught for n in range(7)], owner.tolist())
    assert found.tolist() == pytest.approx([0.7 * each for each in expected], abs=1e-9)
    assert [n for n in range(7) if found[n] == 0] == [3, 6]


@pytest.mark.parametrize(
    ("has_image", "owner"), [([True, False, False], [0, 1, 2]), ([True, True, True], [4, 4, 4])], ids=["one", "same"]
)
def test_without_rivals_the_contrastive_loss_is_zero_and_still_has_a_gradient_for_every_weight(has_image, owner):
    captioner = opinionated()
    taught = forced(captioner, tiny.features(3), tiny.captions(3), torch.tensor(has_image), torch.tensor(owner))
    loss = captioner.auxiliary_loss(taught)
    assert loss.tolist() == [0, 0, 0]
    loss.sum().backward()
    for part in (captioner.contrastive, captioner.pooler, captioner.unimodal):
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in part.parameters())


def test_its_temperature_ends_at_a_hundredth():
    captioner = opinionated()
    with torch.no_grad():
        captioner.contrastive.log_scale.fill_(9.0)
    assert captioner.contrastive.scale.item() == pytest.approx(100)


def test_in_mixed_precision_similarities_are_still_computed_in_float32():
    captioner, features, words = opinionated(), tiny.features(3), tiny.captions(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = captioner.auxiliary_loss(everyone(captioner, features, words))
        assert captioner(features, words)[0].dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, captioner.auxiliary_loss(everyone(captioner, features, words)), rtol=0.1, atol=0.1)


def test_a_few_dozen_steps_teach_it_which_caption_is_whose(conditioning):
    captioner = tiny.captioner("coca", conditioning=conditioning).train()
    features, words = tiny.features(8), tiny.captions(8)
    optimiser = torch.optim.Adam([p for p in captioner.parameters() if p.requires_grad], lr=0.01)
    own = torch.arange(8)
    assert not torch.equal(captioner.match(features, words).argmax(dim=0), own)
    for _ in range(40):
        loss = captioner.auxiliary_loss(everyone(captioner, features, words)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    similarity = captioner.eval().match(features, words)
    assert torch.equal(similarity.argmax(dim=0), own)
    assert torch.equal(similarity.argmax(dim=1), own)


def test_padding_and_other_captions_change_no_similarity(conditioning):
    captioner = opinionated(conditioning=conditioning).double()
    features = tiny.features(3, dtype=torch.float64, kind="regions")
    short, long = tiny.captions(2, length=3), tiny.captions(2, length=9, seed=5)
    padded = torch.cat([torch.cat([short, torch.full((2, 6), PAD)], dim=1), long])
    found = captioner.match(features, padded)
    assert found.shape == (3, 4)
    assert found.abs().max() <= 1
    torch.testing.assert_close(found[:, :2], captioner.match(features, short), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[:, 2:], captioner.match(features, long), rtol=0, atol=1e-12)


def test_without_contrastive_weight_there_is_no_head_and_nothing_to_match():
    captioner = opinionated(contrastive=0.0)
    assert captioner.auxiliary_loss(everyone(captioner, tiny.features(3), tiny.captions(3))) is None
    assert not [name for name, _ in captioner.named_parameters() if "contrastive" in name]
    with pytest.raises(UserError, match="contrastive = 0"):
        captioner.match(tiny.features(3), tiny.captions(3))


def test_it_looks_at_the_patches_of_a_vision_transformer(conditioning):
    torch.manual_seed(0)
    vit = encoders.build("timm:test_vit", weights=None, size=64)
    captioner = build("coca", vit, tiny.WORDS, **tiny.settings("coca", conditioning=conditioning)).eval()
    features, words = captioner.encode(tiny.pixels(2)), tiny.captions(2)
    assert features.grid == (4, 4)
    logits, attention = captioner(features, words[:, :-1])
    assert logits.shape == (2, 7, tiny.WORDS)
    assert attention.alpha.shape == (2, 7, 16)
    assert (captioner.match(features, words)[0] - captioner.match(features, words)[1]).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"conditioning": "botleneck"}, 'did you mean "bottleneck"'),
        ({"width": 20}, "width 20"),
        ({"width": 9, "heads": 3}, "odd"),
        ({"unimodal": 0}, "at least 1"),
        ({"queries": 0}, "at least 1"),
        ({"dropout": 1.0}, "dropout is below 1"),
        ({"contrastive": -1.0}, "contrastive"),
        ({"no_image": "nothing"}, "no_image"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_in_one_line(chosen, said):
    with pytest.raises(UserError, match=said) as caught:
        tiny.captioner("coca", **chosen)
    assert "\n" not in str(caught.value)


@pytest.fixture
def model(tmp_path) -> saywhy.inference.model.Model:
    saved = SavedModel("tiny", opinionated(), tiny.vocabulary(), Preprocessing(tiny.SIDE))
    saved.save(tmp_path / "model")
    return saywhy.load(tmp_path / "model", device="cpu")


def test_a_loaded_model_says_how_well_texts_match_a_image(model, tmp_path):
    texts = ["Word1 word2, word3.", "word4", "word5 unheard-of"]
    (path,) = tiny.image_files(tmp_path, 1)
    found = model.match(path, texts)
    assert found == model.match(Image.open(path), texts)
    pixels = torch.from_numpy(model.preprocessing(Image.open(path)))[None]
    for text, each in zip(("word1 word2 word3", "word4", "word5 <unk>"), found, strict=True):
        caption = torch.tensor([model.vocabulary.encode(text.split())])
        with torch.no_grad():
            expected = model.captioner.match(model.captioner.encode(pixels), caption)
        assert each == pytest.approx(expected.item(), abs=1e-6)
    assert len({round(each, 6) for each in found}) == 3
    assert model.match(path, []) == []


def test_a_text_without_words_is_refused(model):
    with pytest.raises(UserError, match=r"'\.\.\.' has no words"):
        model.match(Image.new("RGB", (80, 70)), ["word1", "..."])


def test_a_model_without_a_contrastive_head_says_so():
    saved = SavedModel("tiny", tiny.captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE))
    with pytest.raises(UserError, match="soft-attention has no contrastive head"):
        saywhy.inference.model.Model(saved).match(Image.new("RGB", (80, 70)), ["word1"])
