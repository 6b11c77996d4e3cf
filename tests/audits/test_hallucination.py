"""Which words are true, and how well a statistic tells them from those that are made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import audit_data
from reference import audits as reference
from saywhy.audits import hallucination
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.hallucination import STATISTICS, gather, statistics_of
from saywhy.audits.hallucination import hallucination as audit
from saywhy.audits.results import NotApplicable
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.explain.methods import METHODS
from saywhy.hallucination.labels import few_references, is_supported


def with_references(cases: EvidenceSet, *captions: str, of: str | None = None) -> EvidenceSet:
    """The same cases, whose images (or one of them) people described otherwise."""
    images = [replace(each, captions=captions) if of in (None, each.name) else each for each in cases.bench.data.images]
    bench = replace(cases.bench, data=replace(cases.bench.data, images=tuple(images)))
    return type(cases)(bench)


@pytest.mark.parametrize(
    ("lemma", "reference", "true"),
    [
        ("dog", "a dog", True),
        ("dog", "Two DOGS!", True),
        ("man", "two men", True),
        ("man", "a guy", True),
        ("dog", "some puppies", True),
        ("person", "a cowboy", True),
        ("puppy", "a dog", False),
        ("man", "a person", False),
        ("dog", "a hot dog", False),
        ("dog", "a cat", False),
        ("hot dog", "two hot dogs", True),
        ("grass", "a grassy hill", True),
    ],
)
def test_a_word_is_true_if_a_reference_has_it_or_what_makes_it_true(soft, lemma, reference, true):
    bench = replace(soft.bench, data=Dataset("made", soft.bench.data.root, (image("x", "a wall", reference),)))
    assert is_supported(bench.objects, bench.references, ["x"], [lemma]).tolist() == [true]


def image(name: str, *captions: str) -> CaptionedImage:
    return CaptionedImage(name, name, captions, "test")


def test_references_of_other_images_make_nothing_true(soft):
    data = Dataset("made", soft.bench.data.root, (image("x", "a dog"), image("y", "a car")))
    bench = replace(soft.bench, data=data)
    assert is_supported(
        bench.objects, bench.references, ["x", "y", "x", "y"], ["dog", "dog", "car", "car"]
    ).tolist() == [
        True,
        False,
        False,
        True,
    ]


def test_every_occurrence_of_a_word_counts(soft):
    told = audit(soft.bench, soft)
    said = [str(word) for _, case in soft for word in case.words if word in audit_data.OBJECTS]
    assert told["words"] == told["every"]["words"] == len(said) == 10
    by_word = {row["word"]: row["said"] for row in told["by_word"]}
    named = [audit_data.OBJECTS[word] for word in said]
    assert by_word == {lemma: named.count(lemma) for lemma in named}
    assert by_word["dog"] == 7
    # grey is of dogs and no man, pink of a man and a puppy, gold of no dog
    assert {row["word"]: row["made_up"] for row in told["by_word"]} == {"dog": 1, "man": 1, "puppy": 0}
    assert told["made_up"] == 2


def test_words_of_other_references_are_true_or_made_up_otherwise(soft):
    none, every, dogs = (with_references(soft, *said) for said in (["a boat"], ["puppies", "two men"], ["two dogs"]))
    assert not gather(none.bench, none).true.any()
    assert gather(every.bench, every).true.all()
    assert audit(dogs.bench, dogs)["made_up"] == 3  # two men and a puppy


def test_words_of_one_kind_alone_are_left_out_with_a_reason(soft):
    for said, kind in (("a boat", "made up"), ("puppies and men", "true")):
        cases = with_references(soft, said)
        with pytest.raises(NotApplicable, match=f"all 10 object words are {kind}"):
            audit(cases.bench, cases)


class Planted(EvidenceSet):
    """Maps that are high where a word is true: its statistics tell all, or the opposite."""

    def of(self, image) -> ImageEvidence:
        case = super().of(image)
        true = is_supported(self.bench.objects, self.bench.references, [image.name] * len(case.lemmas), case.lemmas)
        random = np.random.default_rng(len(case.words)).random((len(true), 64, 64))
        tells, lies = random + 2.0 * true[:, None, None], random - 2.0 * true[:, None, None]
        maps = {method: np.zeros((len(true), 64, 64)) for method in METHODS}
        return replace(case, maps=maps | {"lrp": tells, "gradcam": lies})


def test_the_auc_of_a_planted_statistic_is_one_of_its_opposite_none_and_of_nothing_a_half(soft):
    cases = Planted(soft.bench)
    told = audit(cases.bench, cases)
    for name in STATISTICS:
        assert told["every"]["statistics"]["lrp"][name]["value"] == 1
        assert told["every"]["statistics"]["gradcam"][name]["value"] == 0
        assert told["every"]["statistics"]["attention"][name]["value"] == 0.5
    holds = {each["claim"]: each["holds"] for each in told["checks"]}
    assert holds["lrp's 5 % quantile is higher for true words"] is True
    assert "lrp's 5 % quantile tells them apart better than β" in holds


def test_aucs_of_real_statistics_are_those_of_every_pair(cases):
    told, words = audit(cases.bench, cases), gather(cases.bench, cases)
    if words.true.all() or not words.true.any():
        pytest.fail("words of both kinds are needed")
    for m, method in enumerate(METHODS):
        for s, name in enumerate(STATISTICS):
            slow = reference.auc(words.statistics[:, m, s].tolist(), words.true.tolist())
            assert told["every"]["statistics"][method][name]["value"] == pytest.approx(slow)
    for name, values in words.others.items():
        assert told["every"]["others"][name]["value"] == pytest.approx(
            reference.auc(values.tolist(), words.true.tolist())
        )


def test_statistics_are_those_of_sorted_pixels(soft):
    case = soft.of(soft.images[0])
    found = statistics_of(case)
    assert found.shape == (len(case.objects), len(METHODS), 4)
    for j in range(len(case.objects)):
        for m, method in enumerate(METHODS):
            pixels = case.maps[method][j].astype(float).ravel().tolist()
            slow = [reference.quantile(pixels, 0.05), reference.quantile(pixels, 0.5), max(pixels)]
            np.testing.assert_allclose(found[j, m], [*slow, reference.mean(pixels)], rtol=1e-4, atol=1e-7)


def test_the_gate_is_read_as_what_it_lets_of_the_image_in(heard):
    soft, ada = (heard(name) for name in ("soft-attention", "ada-lstm"))
    for cases, name, sign in ((soft, "β", 1), (ada, "1 − β", -1)):
        others = gather(cases.bench, cases).others
        assert [*others] == [name, "attention entropy", "probability", "image share"]
        beta = np.concatenate([case.beta[case.objects] for _, case in cases])
        np.testing.assert_allclose(others[name], beta if sign > 0 else 1 - beta)
    assert "1 − β is higher for true words" in [each["claim"] for each in audit(ada.bench, ada)["checks"]]


def test_the_frequent_words_are_those_that_people_say_most(soft, monkeypatch):
    monkeypatch.setattr(hallucination, "FREQUENT", 2)
    cases = with_references(soft, "a dog and a dog", "a man", "a car and a dog with a man")
    told = audit(cases.bench, cases)
    assert told["frequent"]["list"] == ["dog", "man"]
    assert told["frequent"]["words"] == 9  # all but the puppy
    assert told["every"]["words"] == 10


def test_one_reference_a_image_is_noted(soft):
    assert few_references(soft.bench.references) == []
    cases = with_references(soft, "a dog")
    told = audit(cases.bench, cases)
    assert told["references"] == 1
    (note,) = told["notes"]
    assert note.startswith("one reference an image")
