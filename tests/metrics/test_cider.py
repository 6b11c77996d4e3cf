from __future__ import annotations

import numpy as np
import pytest

from reference import metrics as reference
from saywhy.errors import UserError
from saywhy.metrics import Cider, DocumentFrequency, cider


@pytest.mark.data
def test_cider_equals_pycocoevalcap_on_1000_captions(flickr_corpus, as_lines):
    theirs = pytest.importorskip("pycocoevalcap.cider.cider").Cider()
    expected, expected_per_caption = theirs.compute_score(*as_lines(flickr_corpus))
    ours = cider(*flickr_corpus)
    assert ours.cider == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(ours.per_caption, expected_per_caption, atol=1e-12)


def test_cider_equals_the_reference_implementation(random_corpus):
    np.testing.assert_allclose(cider(*random_corpus).per_caption, reference.cider(*random_corpus), atol=1e-12)


def test_document_frequencies_of_other_references_are_used_as_weights(random_corpus):
    candidates, references = random_corpus
    documents = references[:7] + [[["a", "b", "b"], ["c"]]] * 3
    ours = cider(candidates, references, DocumentFrequency.of(documents)).per_caption
    np.testing.assert_allclose(ours, reference.cider(candidates, references, documents), atol=1e-12)


def test_passing_the_document_frequencies_of_the_references_changes_nothing(random_corpus):
    explicit = cider(*random_corpus, DocumentFrequency.of(random_corpus[1]))
    np.testing.assert_allclose(explicit.per_caption, cider(*random_corpus).per_caption, atol=1e-13)


def test_cider_equals_the_example_published_by_aac_metrics():
    references = [
        ["a man speaks.", "someone speaks.", "a man is speaking while a bird is chirping in the background"],
        ["rain is falling hard on a surface"],
    ]
    score = cider(["a man is speaking", "rain falls"], references)
    assert score.per_caption == pytest.approx([1.3641, 0.5587], abs=5e-5)
    assert score.cider == pytest.approx(0.9614, abs=5e-5)


def test_a_single_image_scores_zero():
    assert cider(["a dog runs"], [["a dog runs"]]).cider == 0


def test_perfect_captions_without_shared_words_score_ten():
    captions = ["a dog runs over grass", "two men sit on benches"]
    assert cider(captions, [[caption] for caption in captions]).cider == pytest.approx(10)


def test_an_empty_candidate_scores_zero():
    assert cider(["", "two men"], [["a dog"], ["two men"]]).per_caption[0] == 0


def test_captions_without_words_score_zero():
    assert cider(["", ""], [[""], ["", ""]]).cider == 0


def test_words_of_all_scripts_are_counted():
    assert cider(["犬 が 走る", "ένας σκύλος"], [["犬 が 走る"], ["ένας σκύλος"]]).per_caption.min() > 0


def test_a_score_from_batches_equals_that_of_all_captions(random_corpus):
    candidates, references = random_corpus
    metric = Cider()
    metric.update(candidates[:5], references[:5])
    metric.update(candidates[5:], references[5:])
    assert metric.compute() == cider(candidates, references)


def test_document_frequencies_without_references_are_an_error():
    with pytest.raises(UserError, match="no references"):
        DocumentFrequency.of([])
