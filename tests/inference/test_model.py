"""`saywhy.load()` and what a model can do with images."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import audit_data
import saywhy
import tiny
from saywhy.errors import UserError


@pytest.fixture(scope="module")
def model():
    return audit_data.model()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return tiny.image_files(tmp_path, 3)


@pytest.mark.parametrize("images", ["photo.jpg", Path("photo.jpg"), b"bytes", Image.new("RGB", (40, 40)), 7])
@pytest.mark.parametrize("method", ["captions", "explanations"])
def test_one_image_in_place_of_a_list_is_a_one_line_error(model, method, images):
    with pytest.raises(UserError, match="give a list, or use"):
        getattr(model, method)(images)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "3", True])
@pytest.mark.parametrize("method", ["captions", "explanations"])
def test_a_batch_size_must_be_a_positive_whole_number(model, paths, method, batch_size):
    with pytest.raises(UserError, match="batch_size must be a whole number"):
        getattr(model, method)(paths, batch_size=batch_size)


@pytest.mark.parametrize("beam", [2.5, "3", True, 0])
def test_a_beam_must_be_a_positive_whole_number(model, paths, beam):
    with pytest.raises(UserError, match="beam"):
        model.captions(paths, beam=beam)


def test_an_unknown_argument_is_a_one_line_error_that_suggests_a_known_one(model, paths):
    with pytest.raises(UserError, match=r"no argument 'beem'.*beam"):
        model.captions(paths, beem=3)


def test_mistakes_are_reported_by_the_call_and_not_by_the_first_image(model, paths):
    with pytest.raises(UserError):
        model.explanations(paths, position=99)


def test_images_given_as_paths_arrays_and_bytes_have_the_same_caption(model, paths):
    sources = [paths[0], paths[0].read_bytes(), np.asarray(Image.open(paths[0]))]
    texts = {caption.text for caption in model.captions(sources)}
    assert len(texts) == 1


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
@pytest.mark.parametrize("name", ["soft-attention", "hard-attention"])
def test_a_caption_does_not_depend_on_the_batch_it_is_in(paths, name, method):
    attention = "sampled" if name == "hard-attention" else "expected"
    model = saywhy.Model(audit_data.saved(name, seed=1, beam=2))
    settings = {"method": method, "attention": attention}
    together = [caption.words for caption in model.captions(paths, **settings)]
    batches = [caption.words for caption in model.captions(paths, batch_size=1, **settings)]
    assert together == batches


def test_an_explanation_explains_the_draws_that_decoding_used(paths):
    model = saywhy.Model(audit_data.saved("hard-attention", seed=1, beam=2))
    caption = next(model.captions(paths, attention="sampled"))
    explanation = next(model.explanations(paths, methods=["lrp"], attention="sampled"))
    assert explanation.tokens == caption.words
    probabilities = [word.probability for word in explanation.words]
    np.testing.assert_allclose(probabilities, np.exp(caption.logprobs), rtol=1e-4)


def test_repr_names_the_model_its_networks_and_its_device(model):
    assert repr(model).startswith("<Model tiny-soft-attention: soft-attention over timm:")
    assert repr(model).endswith(f"{len(audit_data.WORDS)} words, on cpu>")


def test_captions_and_explanations_show_themselves_in_a_notebook(model, paths):
    assert "<img" in model.caption(paths[0])._repr_html_()
    assert "<img" in model.explain(paths[0], methods=["lrp"])._repr_html_()


def test_a_model_without_a_risk_captions_and_says_how_to_fit_one(model, paths):
    assert next(model.captions(paths)).risks is None
    with pytest.raises(UserError, match=r"no risk\.json: fit one with `saywhy audit risk --save-risk`"):
        model.captions(paths, risk=True)


def test_the_risk_is_read_only_when_it_is_needed(tmp_path, paths):
    audit_data.saved().save(tmp_path / "model")
    (tmp_path / "model" / "risk.json").write_text("{")
    model = saywhy.load(tmp_path / "model")
    assert next(model.captions(paths)).words
    assert "risk.json" in str(model.risk_error)
    assert all(word.risk is None for word in model.explain(paths[0], methods=["lrp"]).words)
