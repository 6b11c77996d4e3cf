from __future__ import annotations

import numpy as np
import pytest

from reference import metrics as reference
from saywhy.metrics import RougeL, rouge_l


@pytest.mark.data
def test_rouge_l_equals_pycocoevalcap_on_a_thousand_captions(thousand, as_lines):
    theirs = pytest.importorskip("pycocoevalcap.rouge.rouge").Rouge()
    whole, each = theirs.compute_score(*as_lines(thousand))
    ours = rouge_l(*thousand)
    assert ours.rouge_l == pytest.approx(whole, abs=1e-12)
    np.testing.assert_allclose(ours.per_caption, each, atol=1e-12)


def test_rouge_l_equals_its_slow_twin(random_corpus):
    candidates, references = random_corpus
    kept = [i for i, words in enumerate(candidates) if words]
    candidates, references = [candidates[i] for i in kept], [references[i] for i in kept]
    twin = reference.rouge_l(candidates, references)
    np.testing.assert_allclose(rouge_l(candidates, references).per_caption, twin, atol=1e-14)


def test_precision_and_recall_may_come_from_different_references():
    # Precision 1 from the long reference, recall 1 from the short one: together a perfect score.
    assert rouge_l(["a b c"], [["a b c d e f", "a"]]).rouge_l == pytest.approx(1)


def test_a_caption_longer_than_a_machine_word_is_compared_in_full():
    words = [f"w{i}" for i in range(200)]
    assert rouge_l([words], [[words[::-1]]]).rouge_l == pytest.approx(1 / 200)
    assert rouge_l([words], [[words]]).rouge_l == pytest.approx(1)


def test_an_empty_candidate_scores_zero():
    assert rouge_l([""], [["a dog"]]).rouge_l == 0


def test_batches_add_up_to_the_whole(random_corpus):
    candidates, references = random_corpus
    metric = RougeL()
    metric.update(candidates[:5], references[:5])
    metric.update(candidates[5:], references[5:])
    assert metric.compute() == rouge_l(candidates, references)
