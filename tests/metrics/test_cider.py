from __future__ import annotations

import numpy as np
import pytest

from reference import metrics as reference
from saywhy.errors import UserError
from saywhy.metrics import Cider, DocumentFrequency, cider


@pytest.mark.data
def test_cider_equals_pycocoevalcap_on_a_thousand_captions(thousand, as_lines):
    theirs = pytest.importorskip("pycocoevalcap.cider.cider").Cider()
    whole, each = theirs.compute_score(*as_lines(thousand))
    ours = cider(*thousand)
    assert ours.cider == pytest.approx(whole, abs=1e-12)
    np.testing.assert_allclose(ours.per_caption, each, atol=1e-12)


def test_cider_equals_its_slow_twin(random_corpus):
    np.testing.assert_allclose(cider(*random_corpus).per_caption, reference.cider(*random_corpus), atol=1e-12)


def test_document_frequencies_of_other_references_weigh_the_ngrams(random_corpus):
    candidates, references = random_corpus
    others = references[:7] + [[["a", "b", "b"], ["c"]]] * 3
    ours = cider(candidates, references, DocumentFrequency.of(others)).per_caption
    np.testing.assert_allclose(ours, reference.cider(candidates, references, others), atol=1e-12)


def test_the_references_own_document_frequencies_change_nothing(random_corpus):
    given = cider(*random_corpus, DocumentFrequency.of(random_corpus[1]))
    np.testing.assert_allclose(given.per_caption, cider(*random_corpus).per_caption, atol=1e-13)


def test_cider_equals_the_example_that_aac_metrics_publishes():
    references = [
        ["a man speaks.", "someone speaks.", "a man is speaking while a bird is chirping in the background"],
        ["rain is falling hard on a surface"],
    ]
    score = cider(["a man is speaking", "rain falls"], references)
    assert score.per_caption == pytest.approx([1.3641, 0.5587], abs=5e-5)
    assert score.cider == pytest.approx(0.9614, abs=5e-5)


def test_one_image_alone_scores_zero():
    assert cider(["a dog runs"], [["a dog runs"]]).cider == 0


def test_a_perfect_caption_of_its_own_words_scores_ten():
    captions = ["a dog runs over grass", "two men sit on benches"]
    assert cider(captions, [[caption] for caption in captions]).cider == pytest.approx(10)


def test_an_empty_candidate_scores_zero():
    assert cider(["", "two men"], [["a dog"], ["two men"]]).per_caption[0] == 0


def test_captions_without_any_word_score_zero():
    assert cider(["", ""], [[""], ["", ""]]).cider == 0


def test_words_of_any_script_count():
    assert cider(["犬 が 走る", "ένας σκύλος"], [["犬 が 走る"], ["ένας σκύλος"]]).per_caption.min() > 0


def test_batches_add_up_to_the_whole(random_corpus):
    candidates, references = random_corpus
    metric = Cider()
    metric.update(candidates[:5], references[:5])
    metric.update(candidates[5:], references[5:])
    assert metric.compute() == cider(candidates, references)


def test_document_frequencies_of_nothing_are_refused():
    with pytest.raises(UserError, match="no references"):
        DocumentFrequency.of([])
