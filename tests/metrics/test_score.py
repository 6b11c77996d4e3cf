from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest

from saywhy.errors import UserError
from saywhy.metrics import MeteorScore, MetricUnavailable, Signature, bleu, cider, rouge_l, score, signature

_CANDIDATES = ["A dog runs.", "Two men sit on a bench."]
_REFERENCES = [["A brown dog runs.", "The dog is runner."], ["Two men on a bench.", "Men sit.", "Old men."]]


@pytest.fixture
def without_java_programs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_scores_equal_those_of_the_single_metrics_in_percent():
    scores = score(_CANDIDATES, _REFERENCES, meteor=False, spice=False).as_dict()
    parts = bleu(_CANDIDATES, _REFERENCES)
    assert scores["bleu"] == pytest.approx([100 * value for value in parts.bleu])
    assert scores["bleu_no_penalty"] == pytest.approx([100 * value for value in parts.no_penalty])
    assert scores["rouge_l"] == pytest.approx(100 * rouge_l(_CANDIDATES, _REFERENCES).rouge_l)
    assert scores["cider"] == pytest.approx(100 * cider(_CANDIDATES, _REFERENCES).cider)


def test_as_dict_has_nine_keys_and_can_be_written_as_json():
    scores = score(_CANDIDATES, _REFERENCES, meteor=False, spice=False).as_dict()
    keys = "bleu bleu_no_penalty meteor rouge_l cider spice n signature notes"
    assert list(scores) == keys.split()
    assert json.loads(json.dumps(scores)) == scores
    assert scores["meteor"] is None
    assert scores["notes"] == []


@pytest.mark.usefixtures("without_java_programs")
def test_an_unavailable_metric_is_left_out_with_a_note():
    scores = score(_CANDIDATES, _REFERENCES, spice="auto")
    assert scores.meteor is None
    assert [note.split(":")[0] for note in scores.notes] == ["METEOR left out", "SPICE left out"]


@pytest.mark.usefixtures("without_java_programs")
def test_spice_is_neither_computed_nor_mentioned_unless_requested():
    scores = score(_CANDIDATES, _REFERENCES)
    assert scores.spice is None
    assert not any("SPICE" in note for note in scores.notes)


@pytest.mark.usefixtures("without_java_programs")
@pytest.mark.parametrize("metric", ["meteor", "spice"])
def test_a_required_metric_that_is_unavailable_is_an_error(metric):
    with pytest.raises(MetricUnavailable):
        score(_CANDIDATES, _REFERENCES, **{"meteor": False, "spice": False, metric: True})


@pytest.mark.skipif(shutil.which("java") is None, reason="the signature has the version of Java")
def test_the_signature_has_the_versions_of_meteor_and_java(monkeypatch):
    meteor_score = MeteorScore(0.25, np.array([0.25, 0.25]))
    module = sys.modules["saywhy.metrics.score"]  # the package attribute of this name is the function
    monkeypatch.setattr(module, "meteor_score", lambda words, groups: meteor_score)
    scores = score(_CANDIDATES, _REFERENCES, meteor=True, spice=False)
    assert scores.as_dict()["meteor"] == 25
    assert scores.signature.meteor == "1.5"
    assert scores.signature.java[0].isdigit()


def test_the_signature_combines_given_settings_with_properties_of_the_captions():
    settings = Signature(split="test", decode="beam5", length=0.7, saywhy="9")
    scores = score(_CANDIDATES, _REFERENCES, meteor=False, spice=False, signature=settings)
    expected = "tok:ptb|refs:2-3|n:2|split:test|decode:beam5|length:0.7|case:lower|saywhy:9"
    assert str(scores.signature) == expected


def test_captions_given_as_words_have_the_tokeniser_given():
    words = [["A", "Dog"]]
    scores = score(words, [words], meteor=False, spice=False)
    assert str(scores.signature).startswith("tok:given|refs:1|n:1|saywhy:")


def test_a_signature_has_the_version_of_the_package():
    from importlib import metadata

    assert signature(n=1) == f"n:1|saywhy:{metadata.version('saywhy')}"


def test_unknown_parts_and_separators_in_a_signature_are_errors():
    with pytest.raises(UserError, match="unknown part 'beam'"):
        signature(beam=5)
    with pytest.raises(UserError, match="split cannot be"):
        signature(split="a|b")
