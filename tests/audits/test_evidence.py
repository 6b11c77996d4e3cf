"""Evidence equals the captions and explanations of `Model.explain`, and survives the cache."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

import audit_data
from saywhy.audits.context import NotApplicable
from saywhy.audits.evidence import EvidenceSet, ImageEvidence, decoder_evidence
from saywhy.data.object_words import ObjectWords
from saywhy.data.preprocess import upsample_grid
from saywhy.explain import passes
from saywhy.explain.explanation import Explanation
from saywhy.explain.methods import METHODS


@pytest.fixture
def explained(evidence: EvidenceSet) -> list[tuple[ImageEvidence, Explanation]]:
    """The evidence of each image, and the explanation of `Model.explain`."""
    model = evidence.context.model
    return [(evidence.load(image), model.explain(image.path)) for image in evidence.images]


def input_map(explanation: Explanation, word: int, method: str) -> np.ndarray:
    """A map over the encoder's input."""
    values = explanation.maps[method][word]
    if method == "attention" and values.ndim == 2 and values.shape[0] != explanation.input_size:
        values = values.mean(axis=0)
    if values.ndim == 2:
        return values
    return upsample_grid(values.reshape(explanation.grid), explanation.input_size, smooth=method == "attention")


def test_captions_probabilities_budgets_and_gates_are_those_of_model_explain(explained):
    for caption, explanation in explained:
        assert tuple(caption.words) == explanation.tokens
        np.testing.assert_allclose(caption.probability, [word.probability for word in explanation.words], rtol=1e-4)
        shares = [word.budget.image_share for word in explanation.words]
        np.testing.assert_allclose(caption.image_share, shares, atol=1e-4)
        np.testing.assert_allclose(caption.beta, [word.beta for word in explanation.words], rtol=1e-4)


def test_weights_of_earlier_words_are_those_of_model_explain(explained):
    for caption, explanation in explained:
        assert caption.earlier_words.keys() == set(METHODS) - {"attention"}
        for method, weights in caption.earlier_words.items():
            assert weights.shape == (len(caption.words),) * 2
            assert not np.triu(weights).any()
            scale = np.abs(weights).max()
            assert scale > 0
            for position, word in enumerate(explanation.words):
                expected = word.earlier_words[method]
                np.testing.assert_allclose(weights[position, :position], expected, atol=1e-4 * scale)


def test_maps_are_those_of_model_explain_up_to_half_precision(explained):
    for method in METHODS:
        scales = []
        for caption, explanation in explained:
            for j, position in enumerate(caption.objects):
                expected = input_map(explanation, int(position), method)
                scales.append(np.abs(expected).max())
                np.testing.assert_allclose(caption.maps[method][j], expected, atol=1e-3 * scales[-1] + 1e-12)
        assert max(scales) > 0


def test_only_object_words_have_maps(evidence):
    for image, without_maps in evidence:
        caption = evidence.load(image)
        objects = {i: audit_data.OBJECTS[word] for i, word in enumerate(caption.words) if word in audit_data.OBJECTS}
        assert 0 < len(objects) < len(caption.words)
        assert dict(zip(caption.objects.tolist(), caption.lemmas.tolist(), strict=True)) == objects
        for maps in caption.maps.values():
            assert maps.shape == (len(objects), 64, 64)
        assert without_maps.maps == {}


def test_attention_is_the_mean_over_heads_and_its_entropy_is_in_nats(evidence):
    for image, caption in evidence:
        alpha = evidence.context.model.caption(image.path).alpha  # (K, [heads,] L)
        alpha = alpha.mean(axis=1) if alpha.ndim == 3 else alpha
        np.testing.assert_allclose(caption.alpha, alpha, atol=1e-5)
        entropies = [-sum(p * np.log(p) for p in row if p > 0) for row in alpha.astype(float)]
        np.testing.assert_allclose(caption.attention_entropy, entropies, atol=1e-5)


def test_arrays_of_the_cache_restore_the_evidence_up_to_half_precision():
    random = np.random.default_rng(0)
    maps = {
        method: random.normal(size=(3, 8, 8)) * 10.0**power
        for power, method in zip((-9, 0, 9), METHODS[:3], strict=True)
    }
    maps["attention"] = np.zeros((3, 8, 8))
    caption = ImageEvidence(
        **{"words": np.array(["a", "dog", "car", "man"]), "objects": np.array([1, 2, 3])},
        **{"lemmas": np.array(["dog", "car", "man"])},
        **{name: random.random(4) for name in ("probability", "beta", "attention_entropy", "image_share")},
        **{"alpha": random.random((4, 4))},
        **{"earlier_words": {"lrp": np.tril(random.normal(size=(4, 4)), -1)}, "maps": maps},
    )
    arrays = caption.to_arrays()
    restored = ImageEvidence.from_arrays(arrays)
    for field in fields(ImageEvidence):
        if field.name not in ("maps", "earlier_words"):
            np.testing.assert_array_equal(getattr(restored, field.name), getattr(caption, field.name))
    np.testing.assert_allclose(restored.earlier_words["lrp"], caption.earlier_words["lrp"], rtol=1e-6)
    assert restored.maps.keys() == maps.keys()
    for method, values in maps.items():
        np.testing.assert_allclose(restored.maps[method], values, atol=6e-4 * np.abs(values).max())
    assert {values.dtype for name, values in arrays.items() if name.startswith("map ")} == {np.dtype(np.float16)}


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc"])
def test_evidence_does_not_depend_on_the_batch_size(name, evidence_of, tmp_path):
    single = evidence_of(name)
    batched = EvidenceSet(replace(single.context, cache=tmp_path, batch_size=3))
    assert [image.name for image in batched.images] == [image.name for image in single.images]
    for image in single.images:
        expected, actual = (evidence.load(image).to_arrays() for evidence in (single, batched))
        assert expected.keys() == actual.keys()
        for key, values in expected.items():
            if values.dtype.kind == "U":
                np.testing.assert_array_equal(actual[key], values)
            else:
                np.testing.assert_allclose(actual[key], values, rtol=2e-3, atol=2e-3, err_msg=key)


def test_cached_evidence_is_not_computed_again(soft, monkeypatch):
    monkeypatch.setattr("saywhy.audits.evidence.attribute", None)
    again = EvidenceSet(soft.context)
    assert [caption.words.tolist() for _, caption in again] == [caption.words.tolist() for _, caption in soft]


def test_images_with_objects_are_those_whose_captions_name_one(soft, tmp_path):
    table = tmp_path / "objects.txt"
    table.write_text("[animals]\ndog\n[vehicles]\nboat\n")
    context = replace(soft.context, cache=tmp_path / "cache", object_words=ObjectWords.read(table))
    with_dog = [image.name for image, caption in soft if {"dog", "dogs"} & {*caption.words.tolist()}]
    assert [image.name for image in EvidenceSet(context).images_with_objects()] == with_dog
    table.write_text("[vehicles]\nboat\n")
    without = EvidenceSet(replace(context, object_words=ObjectWords.read(table)))
    with pytest.raises(NotApplicable, match="no object word in 3 captions"):
        without.images_with_objects()


def test_decoder_evidence_needs_no_backward_pass_through_the_encoder(soft, monkeypatch):
    def fail(*_):
        raise AssertionError("a backward pass through the encoder")

    (batch,) = replace(soft.context, batch_size=3).batches(soft.images)
    monkeypatch.setattr(passes, "_current_features", fail)
    evidence = decoder_evidence(soft.context, batch)
    for row, (_, caption) in enumerate(soft):
        assert evidence.captions[row] == caption.words.tolist()
        assert evidence.objects[row] == caption.objects.tolist()
        assert evidence.lemmas[row].tolist() == caption.lemmas.tolist()
        p = evidence.attributions.probabilities[row, : len(caption.words)]
        np.testing.assert_allclose(p, caption.probability, rtol=1e-3)
