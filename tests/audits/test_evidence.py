"""A case is what the model says and how it explains itself, kept on disk and read again."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

import audit_data
from saywhy.audits.evidence import EvidenceSet, ImageEvidence, decoder_evidence
from saywhy.audits.results import NotApplicable
from saywhy.data.preprocess import enlarged
from saywhy.explain.explanation import Explanation
from saywhy.explain.methods import METHODS
from saywhy.hallucination.risk import WORD_FEATURES


@pytest.fixture
def explained(cases: EvidenceSet) -> list[tuple[ImageEvidence, Explanation]]:
    """Each case, and what `Model.explain` says of the same image."""
    model = cases.bench.model
    return [(cases.of(image), model.explain(image.path)) for image in cases.images]


def square(explanation: Explanation, word: int, method: str) -> np.ndarray:
    """A map over the encoder's square."""
    values = explanation.maps[method][word]
    if method == "attention" and values.ndim == 2 and values.shape[0] != explanation.seen:
        values = values.mean(axis=0)
    if values.ndim == 2:
        return values
    return enlarged(values.reshape(explanation.grid), explanation.seen, smooth=method == "attention")


def test_a_case_tells_what_the_model_says_and_how_it_explains_it(explained):
    for case, why in explained:
        assert tuple(case.words) == why.tokens
        np.testing.assert_allclose(case.probability, [word.probability for word in why.words], rtol=1e-4)
        np.testing.assert_allclose(case.share, [word.budget.share for word in why.words], atol=1e-4)
        np.testing.assert_allclose(case.beta, [word.beta for word in why.words], rtol=1e-4)


def test_earlier_weights_are_those_of_model_explain(explained):
    for case, why in explained:
        assert case.earlier.keys() == set(METHODS) - {"attention"}
        for method, weights in case.earlier.items():
            assert weights.shape == (len(case.words),) * 2
            assert not np.triu(weights).any()
            scale = np.abs(weights).max()
            assert scale > 0
            for place, word in enumerate(why.words):
                np.testing.assert_allclose(weights[place, :place], word.earlier[method], atol=1e-4 * scale)


def test_maps_are_those_of_model_explain_up_to_half_precision(explained):
    for method in METHODS:
        scales = []
        for case, why in explained:
            for j, place in enumerate(case.objects):
                wanted = square(why, int(place), method)
                scales.append(np.abs(wanted).max())
                np.testing.assert_allclose(case.maps[method][j], wanted, atol=1e-3 * scales[-1] + 1e-12)
        assert max(scales) > 0


def test_object_words_alone_have_maps_and_facts(cases):
    for image, brief in cases:
        case = cases.of(image)
        named = {place: audit_data.OBJECTS[word] for place, word in enumerate(case.words) if word in audit_data.OBJECTS}
        assert 0 < len(named) < len(case.words)
        assert dict(zip(case.objects.tolist(), case.lemmas.tolist(), strict=True)) == named
        for maps in case.maps.values():
            assert maps.shape == (len(named), 64, 64)
        assert case.facts.shape == (len(named), len(WORD_FEATURES))
        assert np.isfinite(case.facts).all()
        assert brief.maps == {}


def test_attention_is_the_mean_of_the_heads_and_its_entropy_is_in_nats(cases):
    for image, case in cases:
        alpha = cases.bench.model.caption(image.path).alpha  # (K, [heads,] L)
        alpha = alpha.mean(axis=1) if alpha.ndim == 3 else alpha
        np.testing.assert_allclose(case.alpha, alpha, atol=1e-5)
        slowly = [-sum(share * np.log(share) for share in row if share > 0) for row in alpha.astype(float)]
        np.testing.assert_allclose(case.entropy, slowly, atol=1e-5)


def test_a_case_kept_and_read_is_what_was_computed_up_to_half_precision():
    random = np.random.default_rng(0)
    maps = {
        method: random.normal(size=(3, 8, 8)) * 10.0**power
        for power, method in zip((-9, 0, 9), METHODS[:3], strict=True)
    }
    maps["attention"] = np.zeros((3, 8, 8))
    case = ImageEvidence(
        **{"words": np.array(["a", "dog", "car", "man"]), "objects": np.array([1, 2, 3])},
        **{"lemmas": np.array(["dog", "car", "man"])},
        **{name: random.random(4) for name in ("probability", "beta", "entropy", "share")},
        **{"facts": random.random((3, 2)), "alpha": random.random((4, 4))},
        **{"earlier": {"lrp": np.tril(random.normal(size=(4, 4)), -1)}, "maps": maps},
    )
    again = ImageEvidence.of(case.arrays())
    for each in fields(ImageEvidence):
        if each.name not in ("maps", "earlier"):
            np.testing.assert_array_equal(getattr(again, each.name), getattr(case, each.name))
    np.testing.assert_allclose(again.earlier["lrp"], case.earlier["lrp"], rtol=1e-6)
    assert again.maps.keys() == maps.keys()
    for method, values in maps.items():
        np.testing.assert_allclose(again.maps[method], values, atol=6e-4 * np.abs(values).max())
    assert {each.dtype for name, each in case.arrays().items() if name.startswith("map ")} == {np.dtype(np.float16)}


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc"])
def test_a_case_is_the_same_whatever_the_batch_size(name, heard, tmp_path):
    alone = heard(name)
    together = EvidenceSet(replace(alone.bench, cache=tmp_path, batch=3))
    assert [each.name for each in together.images] == [each.name for each in alone.images]
    for image in alone.images:
        one, other = (each.of(image).arrays() for each in (alone, together))
        assert one.keys() == other.keys()
        for key, values in one.items():
            if values.dtype.kind == "U":
                np.testing.assert_array_equal(other[key], values)
            else:
                np.testing.assert_allclose(other[key], values, rtol=2e-3, atol=2e-3, err_msg=key)


def test_what_is_known_is_not_computed_again(soft, monkeypatch):
    monkeypatch.setattr("saywhy.audits.evidence.explain", None)
    again = EvidenceSet(soft.bench)
    assert [case.words.tolist() for _, case in again] == [case.words.tolist() for _, case in soft]


def test_images_without_object_words_are_left_out_of_those_with_them(soft, tmp_path):
    table = tmp_path / "objects.txt"
    table.write_text("[animals]\ndog\n[vehicles]\nboat\n")
    from saywhy.data.object_words import ObjectWords

    bench = replace(soft.bench, cache=tmp_path / "cache", objects=ObjectWords.read(table))
    cases = EvidenceSet(bench)
    has_dog = [p.name for p, case in soft if {"dog", "dogs"} & {*case.words.tolist()}]
    assert [image.name for image in cases.with_objects()] == has_dog
    table.write_text("[vehicles]\nboat\n")
    none = EvidenceSet(replace(bench, objects=ObjectWords.read(table)))
    with pytest.raises(NotApplicable, match="no object word in 3 captions"):
        none.with_objects()


def test_facts_are_heard_without_a_look_at_pixels(soft, monkeypatch):
    from saywhy.explain import passes

    def no_way_back(*_):
        raise AssertionError("the encoder was gone back through")

    (seen,) = list(replace(soft.bench, batch=3)._seen(soft.images))
    monkeypatch.setattr(passes, "_now", no_way_back)
    told = list(decoder_evidence(soft.bench, seen))
    for (_, case), each in zip(soft, told, strict=True):
        np.testing.assert_allclose(each.facts, case.facts, rtol=1e-3, atol=1e-4)
