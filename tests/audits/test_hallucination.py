"""Labels of object words, and the AUC of statistics that separate true words from made-up ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import audit_data
from reference import audits as reference
from saywhy.audits import hallucination
from saywhy.audits.context import NotApplicable
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.hallucination import STATISTICS, Hallucination, map_statistics, object_word_statistics
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.explain.methods import METHODS
from saywhy.hallucination.labels import few_references, is_supported

run = Hallucination().run


def with_references(evidence: EvidenceSet, *captions: str) -> EvidenceSet:
    """The same evidence, with other reference captions for all images."""
    images = tuple(replace(image, captions=captions) for image in evidence.context.data.images)
    return EvidenceSet(replace(evidence.context, data=replace(evidence.context.data, images=images)))


def image(name: str, *captions: str) -> CaptionedImage:
    return CaptionedImage(name, name, captions, "test")


@pytest.mark.parametrize(
    ("lemma", "reference", "supported"),
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
def test_a_word_is_supported_by_itself_its_plural_synonyms_and_narrower_words(soft, lemma, reference, supported):
    data = Dataset("made", soft.context.data.root, (image("x", "a wall", reference),))
    context = replace(soft.context, data=data)
    assert is_supported(context.object_words, context.references, ["x"], [lemma]).tolist() == [supported]


def test_references_of_other_images_do_not_support_a_word(soft):
    data = Dataset("made", soft.context.data.root, (image("x", "a dog"), image("y", "a car")))
    context = replace(soft.context, data=data)
    images, lemmas = ["x", "y", "x", "y"], ["dog", "dog", "car", "car"]
    supported = is_supported(context.object_words, context.references, images, lemmas)
    assert supported.tolist() == [True, False, False, True]


def test_every_occurrence_of_a_word_counts(soft):
    body = run(soft.context, soft)
    words = [str(word) for _, caption in soft for word in caption.words if word in audit_data.OBJECTS]
    assert body["words"] == body["all_words"]["words"] == len(words) == 10
    generated = {row["word"]: row["generated"] for row in body["by_word"]}
    lemmas = [audit_data.OBJECTS[word] for word in words]
    assert generated == {lemma: lemmas.count(lemma) for lemma in lemmas}
    assert generated["dog"] == 7
    # The references of grey have dogs and no man, those of pink a man and a puppy, those of gold no dog.
    assert {row["word"]: row["made_up"] for row in body["by_word"]} == {"dog": 1, "man": 1, "puppy": 0}
    assert body["made_up"] == 2


def test_labels_follow_the_references(soft):
    none, everything, dogs = (
        with_references(soft, *captions) for captions in (["a boat"], ["puppies", "two men"], ["two dogs"])
    )
    assert not object_word_statistics(none.context, none).true.any()
    assert object_word_statistics(everything.context, everything).true.all()
    assert run(dogs.context, dogs)["made_up"] == 3  # two men and a puppy


def test_words_that_are_all_true_or_all_made_up_make_it_not_applicable(soft):
    for caption, kind in (("a boat", "made up"), ("puppies and men", "true")):
        evidence = with_references(soft, caption)
        with pytest.raises(NotApplicable, match=f"all 10 object words are {kind}"):
            run(evidence.context, evidence)


class PlantedMaps(EvidenceSet):
    """Evidence with LRP maps that are higher for true words, and Grad-CAM maps that are lower."""

    def load(self, image) -> ImageEvidence:
        caption, context = super().load(image), self.context
        names = [image.name] * len(caption.lemmas)
        true = is_supported(context.object_words, context.references, names, caption.lemmas)
        noise = np.random.default_rng(len(caption.words)).random((len(true), 64, 64))
        higher, lower = noise + 2.0 * true[:, None, None], noise - 2.0 * true[:, None, None]
        maps = {method: np.zeros((len(true), 64, 64)) for method in METHODS}
        return replace(caption, maps=maps | {"lrp": higher, "gradcam": lower})


def test_planted_statistics_have_an_auc_of_one_zero_and_a_half(soft):
    evidence = PlantedMaps(soft.context)
    body = run(evidence.context, evidence)
    for name in STATISTICS:
        values = {method: scores[name]["value"] for method, scores in body["all_words"]["statistics"].items()}
        assert (values["lrp"], values["gradcam"], values["attention"]) == (1, 0, 0.5)
    holds = {check["claim"]: check["holds"] for check in body["checks"]}
    assert holds["lrp's 5 % quantile is higher for true words"] is True
    assert "lrp's 5 % quantile separates true from made-up words better than β" in holds


def test_aucs_equal_loops_over_pairs(evidence):
    body, words = run(evidence.context, evidence), object_word_statistics(evidence.context, evidence)
    assert 0 < words.true.sum() < len(words.true)
    for m, method in enumerate(METHODS):
        for s, name in enumerate(STATISTICS):
            expected = reference.auc(words.statistics[:, m, s].tolist(), words.true.tolist())
            assert body["all_words"]["statistics"][method][name]["value"] == pytest.approx(expected)
    for name, values in words.other_statistics.items():
        expected = reference.auc(values.tolist(), words.true.tolist())
        assert body["all_words"]["other_statistics"][name]["value"] == pytest.approx(expected)


def test_statistics_of_maps_equal_those_of_sorted_pixels(soft):
    caption = soft.load(soft.images[0])
    statistics = map_statistics(caption)
    assert statistics.shape == (len(caption.objects), len(METHODS), 4)
    for j in range(len(caption.objects)):
        for m, method in enumerate(METHODS):
            pixels = caption.maps[method][j].astype(float).ravel().tolist()
            quantiles = [reference.quantile(pixels, share) for share in (0.05, 0.5)]
            expected = [*quantiles, max(pixels), reference.mean(pixels)]
            np.testing.assert_allclose(statistics[j, m], expected, rtol=1e-4, atol=1e-7)


def test_the_gate_statistic_is_the_share_of_the_image(evidence_of):
    soft, ada = (evidence_of(name) for name in ("soft-attention", "ada-lstm"))
    for evidence, name, of_image in ((soft, "β", lambda beta: beta), (ada, "1 − β", lambda beta: 1 - beta)):
        others = object_word_statistics(evidence.context, evidence).other_statistics
        assert [*others] == [name, "attention entropy", "probability", "image share"]
        beta = np.concatenate([caption.beta[caption.objects] for _, caption in evidence])
        np.testing.assert_allclose(others[name], of_image(beta))
    claims = [check["claim"] for check in run(ada.context, ada)["checks"]]
    assert "1 − β is higher for true words" in claims


def test_frequent_words_are_those_most_frequent_in_the_references(soft, monkeypatch):
    monkeypatch.setattr(hallucination, "FREQUENT", 2)
    evidence = with_references(soft, "a dog and a dog", "a man", "a car and a dog with a man")
    body = run(evidence.context, evidence)
    assert body["frequent_words"]["lemmas"] == ["dog", "man"]
    assert body["frequent_words"]["words"] == 9  # without the puppy
    assert body["all_words"]["words"] == 10


def test_one_reference_per_image_is_noted(soft):
    assert few_references(soft.context.references) == []
    evidence = with_references(soft, "a dog")
    body = run(evidence.context, evidence)
    assert body["references_per_image"] == 1
    (note,) = body["notes"]
    assert note.startswith("one reference per image")
