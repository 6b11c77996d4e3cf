from __future__ import annotations

import numpy as np
import pytest

from reference import metrics as reference
from saywhy.errors import UserError
from saywhy.metrics import Bleu, bleu


@pytest.mark.data
def test_bleu_equals_pycocoevalcap_on_1000_captions(flickr_corpus, as_lines):
    theirs = pytest.importorskip("pycocoevalcap.bleu.bleu").Bleu(4)
    expected, expected_per_caption = theirs.compute_score(*as_lines(flickr_corpus), verbose=0)
    ours = bleu(*flickr_corpus)
    assert ours.bleu == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(ours.per_caption, np.array(expected_per_caption).T, atol=1e-12)


def test_bleu_equals_the_reference_implementation(random_corpus):
    with_penalty, without_penalty = reference.bleu(*random_corpus)
    ours = bleu(*random_corpus)
    assert ours.bleu == pytest.approx(with_penalty, abs=1e-14)
    assert ours.no_penalty == pytest.approx(without_penalty, abs=1e-14)


def test_the_score_has_the_counts_and_lengths_it_is_computed_from():
    score = bleu(["a a a b"], [["a a b", "c c c c c"]])
    assert score.correct == (3, 2, 1, 0)
    assert score.guessed == (4, 3, 2, 1)
    assert (score.candidate_length, score.reference_length) == (4, 3)


def test_of_two_equally_close_references_the_shorter_is_used():
    assert bleu(["a b c"], [["a b c d", "a b"]]).reference_length == 2


def test_overlapping_occurrences_of_an_ngram_are_all_counted():
    assert bleu(["x x x x"], [["x x x"]]).correct == (3, 2, 1, 0)


def test_only_short_candidates_have_a_brevity_penalty():
    short = bleu(["a dog"], [["a dog runs away"]])
    assert short.brevity_penalty == pytest.approx(np.exp(1 - 4 / 2), rel=1e-6)
    assert short.bleu[0] == pytest.approx(short.no_penalty[0] * short.brevity_penalty)
    assert bleu(["a dog runs far away"], [["a dog runs away"]]).brevity_penalty == 1


def test_an_empty_candidate_scores_zero():
    assert bleu([""], [["a dog"]]).bleu == (0, 0, 0, 0)


def test_a_perfect_caption_scores_one():
    assert bleu(["Ein Hund läuft über Gräser!"], [["ein hund läuft über gräser"]]).bleu == pytest.approx([1] * 4)


def test_a_score_from_batches_equals_that_of_all_captions(random_corpus):
    candidates, references = random_corpus
    metric = Bleu()
    metric.update(candidates[:5], references[:5])
    metric.update(candidates[5:], references[5:])
    assert metric.compute() == bleu(candidates, references)
    metric.reset()
    metric.update(["a dog"], [["a dog"]])
    assert metric.compute() == bleu(["a dog"], [["a dog"]])


@pytest.mark.parametrize(
    ("candidates", "references", "message"),
    [
        (["a"], [["a"], ["b"]], "1 candidates but references for 2"),
        (["a", "b"], [["a"], []], "image 1 .* no reference"),
        ([], [], "no captions"),
        ("a dog", [["a"]], "not one text"),
        (["a"], ["a dog"], "not one text"),
    ],
)
def test_candidates_without_matching_references_are_an_error_of_one_line(candidates, references, message):
    with pytest.raises(UserError, match=message) as error:
        bleu(candidates, references)
    assert "\n" not in str(error.value)


def test_a_metric_without_captions_is_an_error():
    with pytest.raises(UserError, match="no captions"):
        Bleu().compute()
