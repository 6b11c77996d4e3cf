"""CoCa against its equations in plain Python: captions, and matching captions with images."""

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
from saywhy.data.tokenizer import PAD
from saywhy.encoders.base import Features
from saywhy.errors import UserError

CONDITIONINGS = ("attention", "bottleneck")
SIZES = {"width": 4, "heads": 2, "queries": 3}


@pytest.fixture(params=CONDITIONINGS)
def conditioning(request: pytest.FixtureRequest) -> str:
    return request.param


def sensitive_captioner(**changes) -> CoCa:
    captioner = tiny.sensitive_captioner("coca", **changes)
    assert isinstance(captioner, CoCa)
    return captioner


def reference_of(captioner: CoCa) -> reference.CoCa:
    weights = {name: p.tolist() for name, p in captioner.state_dict().items() if not name.startswith("encoder.")}
    settings = captioner.settings
    return reference.CoCa(weights, settings.conditioning, settings.heads, settings.unimodal, settings.multimodal)


def vectors_of(features: Features, row: int) -> list[list[float]]:
    """The vectors of one image, without padding."""
    vectors = features.vectors[row]
    return (vectors if features.mask is None else vectors[features.mask[row]]).tolist()


def teacher_forced(
    captioner: CoCa,
    features: Features,
    tokens: Tensor,
    has_image: Tensor | None = None,
    image_index: Tensor | None = None,
) -> TeacherForced:
    """The result of teacher forcing; by default one caption per image."""
    _, attention = captioner(features, tokens[:, :-1])
    mask = tokens[:, 1:] != PAD
    has_image = torch.ones(len(tokens), dtype=torch.bool) if has_image is None else has_image
    image_index = torch.arange(len(tokens)) if image_index is None else image_index
    return TeacherForced(features, tokens, torch.zeros(mask.shape), mask, has_image, image_index, attention)


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_logits_alpha_and_similarity_equal_the_reference(conditioning, kind):
    captioner = sensitive_captioner(conditioning=conditioning, **SIZES).double()
    features = tiny.features(2, dtype=torch.float64, kind=kind)
    captions = tiny.captions(2, length=4)
    plain = reference_of(captioner)
    logits, attention = captioner(features, captions[:, :-1])
    similarity = captioner.match(features, captions)
    for row in range(2):
        vectors = vectors_of(features, row)
        for t, (expected, alpha) in enumerate(plain(vectors, captions[row, :-1].tolist())):
            assert logits[row, t].tolist() == pytest.approx(expected, abs=1e-9)
            assert attention.alpha[row, t, : len(alpha)].tolist() == pytest.approx(alpha, abs=1e-9)
        for n, caption in enumerate(captions.tolist()):
            assert similarity[row, n].item() == pytest.approx(plain.match(vectors, caption), abs=1e-9)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_hundred_cached_steps_equal_teacher_forcing(conditioning, dtype, within):
    captioner = sensitive_captioner(conditioning=conditioning).to(dtype)
    features, words = tiny.features(2, dtype=dtype, kind="regions"), tiny.captions(2, length=100)[:, :-1]
    logits, attention = captioner(features, words)
    state = captioner.start(features)
    for t, word in enumerate(words.unbind(1)):
        step = captioner.step(word, state)
        state = step.state
        torch.testing.assert_close(step.logits, logits[:, t], rtol=within, atol=within)
        torch.testing.assert_close(step.attention.alpha, attention.alpha[:, t], rtol=within, atol=within)


def has_equal_logits(captioner: CoCa, equal_first: bool) -> bool:
    """Whether two images have the same logits if p_0 is made equal, or, if not `equal_first`, all others are."""
    features, words = tiny.features(2), tiny.captions(1).expand(2, -1)
    pool = captioner.pooler.forward

    def pool_equal(features):
        pooled, pooling = pool(features)
        first = torch.arange(pooled.shape[1])[:, None] == 0  # (P, 1)
        return torch.where(first == equal_first, pooled[:1], pooled), pooling

    captioner.pooler.forward = pool_equal
    return torch.equal(*captioner(features, words)[0])


def test_decoder_with_bottleneck_depends_on_the_matched_vector_only():
    assert has_equal_logits(sensitive_captioner(conditioning="bottleneck"), equal_first=True)
    assert not has_equal_logits(sensitive_captioner(conditioning="bottleneck"), equal_first=False)


def test_decoder_with_attention_depends_on_all_vectors_but_the_matched_one():
    assert has_equal_logits(sensitive_captioner(conditioning="attention"), equal_first=False)
    assert not has_equal_logits(sensitive_captioner(conditioning="attention"), equal_first=True)


def test_contrastive_loss_equals_the_reference(conditioning):
    captioner = sensitive_captioner(conditioning=conditioning, contrastive=0.7, **SIZES).double()
    image_index = torch.tensor([0, 0, 1, 2, 3, 3, 4])
    has_image = torch.tensor([True, True, True, False, True, True, True])
    features = tiny.features(5, dtype=torch.float64, kind="regions").select(image_index)
    words = tiny.captions(7, length=3)
    words[6] = PAD  # captions of an unreadable image are padding only
    loss = captioner.auxiliary_loss(teacher_forced(captioner, features, words, has_image, image_index))
    plain, included = reference_of(captioner), [0, 1, 2, 4, 5]
    similarity = [[0.0] * 7 for _ in image_index]
    for i in included:
        for j in included:
            similarity[i][j] = plain.match(vectors_of(features, i), words[j].tolist())
    scale = captioner.contrastive.log_scale.exp().item()
    rows = [n in included for n in range(7)]
    expected = reference.contrastive_loss(similarity, scale, rows, image_index.tolist())
    assert loss.tolist() == pytest.approx([0.7 * value for value in expected], abs=1e-9)
    assert [n for n in range(7) if loss[n] == 0] == [3, 6]


@pytest.mark.parametrize(
    ("has_image", "image_index"),
    [([True, False, False], [0, 1, 2]), ([True, True, True], [4, 4, 4])],
    ids=["one", "same"],
)
def test_contrastive_loss_without_negatives_is_zero_and_has_gradients_for_every_weight(has_image, image_index):
    captioner = sensitive_captioner()
    rows = (torch.tensor(has_image), torch.tensor(image_index))
    loss = captioner.auxiliary_loss(teacher_forced(captioner, tiny.features(3), tiny.captions(3), *rows))
    assert loss.tolist() == [0, 0, 0]
    loss.sum().backward()
    for part in (captioner.contrastive, captioner.pooler, captioner.unimodal):
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in part.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_scale_is_limited_to_a_hundred_and_keeps_its_gradient_at_the_limit(training):
    captioner = sensitive_captioner().train(training)
    log_scale = captioner.contrastive.log_scale
    with torch.no_grad():
        log_scale.fill_(9.0)
    captioner.auxiliary_loss(teacher_forced(captioner, tiny.features(3), tiny.captions(3))).sum().backward()
    assert log_scale.exp().item() == pytest.approx(100)
    assert log_scale.grad.abs() > 0


def test_scale_leaves_the_limit_again_in_training():
    captioner = sensitive_captioner().train()
    log_scale = captioner.contrastive.log_scale
    with torch.no_grad():
        log_scale.fill_(9.0)
    optimiser = torch.optim.SGD([log_scale], lr=1e-3)
    captioner.auxiliary_loss(teacher_forced(captioner, tiny.features(3), tiny.captions(3))).sum().backward()
    optimiser.step()
    assert log_scale.exp() < 99  # random images and captions do not match, so a smaller scale costs less


def test_similarities_are_computed_in_float32_in_mixed_precision():
    captioner, features, words = sensitive_captioner(), tiny.features(3), tiny.captions(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = captioner.auxiliary_loss(teacher_forced(captioner, features, words))
        assert captioner(features, words)[0].dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss, captioner.auxiliary_loss(teacher_forced(captioner, features, words)), rtol=0.1, atol=0.1
    )


def test_forty_steps_of_training_match_captions_with_their_images(conditioning):
    captioner = tiny.captioner("coca", conditioning=conditioning).train()
    features, words = tiny.features(8), tiny.captions(8)
    optimiser = torch.optim.Adam([p for p in captioner.parameters() if p.requires_grad], lr=0.01)
    rows = torch.arange(8)
    assert not torch.equal(captioner.match(features, words).argmax(dim=0), rows)
    for _ in range(40):
        loss = captioner.auxiliary_loss(teacher_forced(captioner, features, words)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    similarity = captioner.eval().match(features, words)
    assert torch.equal(similarity.argmax(dim=0), rows)
    assert torch.equal(similarity.argmax(dim=1), rows)


def test_similarity_does_not_depend_on_padding_and_other_captions(conditioning):
    captioner = sensitive_captioner(conditioning=conditioning).double()
    features = tiny.features(3, dtype=torch.float64, kind="regions")
    short, long = tiny.captions(2, length=3), tiny.captions(2, length=9, seed=5)
    padded = torch.cat([torch.cat([short, torch.full((2, 6), PAD)], dim=1), long])
    similarity = captioner.match(features, padded)
    assert similarity.shape == (3, 4)
    assert similarity.abs().max() <= 1
    torch.testing.assert_close(similarity[:, :2], captioner.match(features, short), rtol=0, atol=1e-12)
    torch.testing.assert_close(similarity[:, 2:], captioner.match(features, long), rtol=0, atol=1e-12)


def test_contrastive_weight_of_zero_has_no_head_and_cannot_match():
    captioner = sensitive_captioner(contrastive=0.0)
    assert captioner.auxiliary_loss(teacher_forced(captioner, tiny.features(3), tiny.captions(3))) is None
    assert not [name for name, _ in captioner.named_parameters() if "contrastive" in name]
    with pytest.raises(UserError, match="contrastive = 0"):
        captioner.match(tiny.features(3), tiny.captions(3))


def test_features_of_a_vision_transformer_are_its_patches(conditioning):
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
    ("changes", "message"),
    [
        ({"conditioning": "botleneck"}, 'did you mean "bottleneck"'),
        ({"width": 20}, "width 20"),
        ({"width": 9, "heads": 3}, "odd"),
        ({"unimodal": 0}, "at least 1"),
        ({"multimodal": 10**9}, "at most 100 layers"),
        ({"width": 8.0}, "width must be an integer"),
        ({"width": True}, "width must be an integer"),
        ({"dropout": "0.1"}, "dropout must be a number"),
        ({"conditioning": 3}, "conditioning must be a string"),
        ({"queries": 0}, "at least 1"),
        ({"dropout": 1.0}, "dropout is below 1"),
        ({"contrastive": -1.0}, "contrastive"),
        ({"no_image": "nothing"}, "no_image"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused_in_one_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        tiny.captioner("coca", **changes)
    assert "\n" not in str(caught.value)


@pytest.fixture
def model(tmp_path) -> saywhy.inference.model.Model:
    saved = SavedModel("tiny", sensitive_captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE))
    saved.save(tmp_path / "model")
    return saywhy.load(tmp_path / "model", device="cpu")


def test_loaded_model_scores_how_well_texts_match_an_image(model, tmp_path):
    texts = ["Word1 word2, word3.", "word4", "word5 unheard-of"]
    (path,) = tiny.image_files(tmp_path, 1)
    similarities = model.match(path, texts)
    assert similarities == model.match(Image.open(path), texts)
    pixels = torch.from_numpy(model.preprocessing(Image.open(path)))[None]
    for text, similarity in zip(("word1 word2 word3", "word4", "word5 <unk>"), similarities, strict=True):
        caption = torch.tensor([model.vocabulary.encode(text.split())])
        with torch.no_grad():
            expected = model.captioner.match(model.captioner.encode(pixels), caption)
        assert similarity == pytest.approx(expected.item(), abs=1e-6)
    assert len({round(similarity, 6) for similarity in similarities}) == 3
    assert model.match(path, []) == []


def test_text_without_words_is_refused(model):
    with pytest.raises(UserError, match=r"'\.\.\.' has no words"):
        model.match(Image.new("RGB", (80, 70)), ["word1", "..."])


def test_matching_with_another_architecture_is_refused():
    saved = SavedModel("tiny", tiny.captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE))
    with pytest.raises(UserError, match="soft-attention has no contrastive head"):
        saywhy.inference.model.Model(saved).match(Image.new("RGB", (80, 70)), ["word1"])
