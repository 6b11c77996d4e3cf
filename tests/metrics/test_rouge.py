from __future__ import annotations

import numpy as np
import pytest

from reference import metrics as reference
from saywhy.metrics import RougeL, rouge_l


@pytest.mark.data
def test_rouge_l_equals_pycocoevalcap_on_1000_captions(flickr_corpus, as_lines):
    theirs = pytest.importorskip("pycocoevalcap.rouge.rouge").Rouge()
    expected, expected_per_caption = theirs.compute_score(*as_lines(flickr_corpus))
    ours = rouge_l(*flickr_corpus)
    assert ours.rouge_l == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(ours.per_caption, expected_per_caption, atol=1e-12)


def test_rouge_l_equals_the_reference_implementation(random_corpus):
    candidates, references = random_corpus
    nonempty = [i for i, words in enumerate(candidates) if words]
    candidates, references = [candidates[i] for i in nonempty], [references[i] for i in nonempty]
    expected = reference.rouge_l(candidates, references)
    np.testing.assert_allclose(rouge_l(candidates, references).per_caption, expected, atol=1e-14)


def test_precision_and_recall_may_come_from_different_references():
    # Precision 1 from the long reference, recall 1 from the short one: together a perfect score.
    assert rouge_l(["a b c"], [["a b c d e f", "a"]]).rouge_l == pytest.approx(1)


def test_captions_longer_than_64_words_are_compared_completely():
    words = [f"w{i}" for i in range(200)]
    assert rouge_l([words], [[words[::-1]]]).rouge_l == pytest.approx(1 / 200)
    assert rouge_l([words], [[words]]).rouge_l == pytest.approx(1)


def test_an_empty_candidate_scores_zero():
    assert rouge_l([""], [["a dog"]]).rouge_l == 0


def test_a_score_from_batches_equals_that_of_all_captions(random_corpus):
    candidates, references = random_corpus
    metric = RougeL()
    metric.update(candidates[:5], references[:5])
    metric.update(candidates[5:], references[5:])
    assert metric.compute() == rouge_l(candidates, references)
