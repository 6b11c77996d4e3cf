"""Word ablation against a twin that deletes words and forces its teacher by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import audit_data
from saywhy.audits import word_ablation
from saywhy.audits.evidence import ImageEvidence
from saywhy.audits.results import NotApplicable
from saywhy.audits.word_ablation import RANKED
from saywhy.audits.word_ablation import word_ablation as audit
from saywhy.data.images import open_image
from saywhy.data.vocabulary import START
from saywhy.decoding.config import log_probabilities

METHOD = {"lrp": "lrp", "gradient": "gradcam", "gradient-input": "gradient-input"}


def places(case: ImageEvidence) -> list[int]:
    late = range(6, len(case.words))
    return [i for i in late if case.words[i] in audit_data.OBJECTS or case.words[i] in ("a", "the", "on", "with")]


def taken_by_hand(case: ImageEvidence, place: int, name: str) -> set[int]:
    """The three that a method weighs most, found one after another."""
    if name == "last":
        return {place - 1, place - 2, place - 3}
    if name == "attention":
        now = case.alpha[place]
        weights = [
            float((before * now).sum() / np.sqrt((before**2).sum() * (now**2).sum())) for before in case.alpha[:place]
        ]
    elif name == "gradient-size":
        weights = [abs(float(each)) for each in case.earlier["guided-backprop"][place, :place]]
    else:
        weights = [float(each) for each in case.earlier[METHOD[name]][place, :place]]
    return set(sorted(range(place), key=lambda i: (-weights[i], i))[:3])


def found_in(cases, image) -> dict[str, np.ndarray]:
    return audit_data.kept(cases.bench, "word-ablation", image)


def test_drops_are_those_of_captions_with_words_deleted_by_hand(cases):
    bench = cases.bench
    audit(bench, cases)
    captioner, numbers = bench.captioner, bench.model.vocabulary.numbers
    looked_at = 0
    for image, case in cases:
        if not places(case):
            continue
        found = found_in(cases, image)
        assert found["drops"].shape == (len(places(case)), len(RANKED))
        pixels = torch.as_tensor(bench.model.preprocessing(open_image(image.path)))[None]
        for row, place in enumerate(places(case)):
            assert found["kind"][row] == (0 if case.words[place] in audit_data.OBJECTS else 1)
            for m, name in enumerate(RANKED):
                if name == "random":
                    continue
                out = taken_by_hand(case, place, name)
                left = [numbers[str(word)] for i, word in enumerate(case.words[:place]) if i not in out]
                with torch.no_grad():
                    logits, _ = captioner(captioner.encode(pixels), torch.tensor([[START, *left]]))
                p = log_probabilities(logits[0, -1]).exp()[numbers[str(case.words[place])]]
                assert len(left) == place - 3
                assert found["drops"][row, m] == pytest.approx(float(case.probability[place] - p), abs=1e-4), name
                looked_at += 1
    assert looked_at > 15


def test_chance_takes_three_other_words_each_time(soft):
    image, case = next((image, case) for image, case in soft if len(word_ablation._places(case)) > 1)
    for place, taken in zip(word_ablation._places(case), word_ablation._taken(image, case), strict=True):
        assert [len(each) for each in taken] == [3] * len(RANKED)
        assert set.union(*taken) <= set(range(place))
    again = list(word_ablation._taken(image, case))
    assert again == list(word_ablation._taken(image, case))


def case_of(words: str, earlier: np.ndarray | None = None, alpha: np.ndarray | None = None) -> ImageEvidence:
    """A case of these words, with weights and attention as given."""
    said = words.split()
    K = len(said)
    there = [i for i, word in enumerate(said) if word in audit_data.OBJECTS]
    weights = np.zeros((K, K)) if earlier is None else earlier
    nothing = np.zeros(K)
    return ImageEvidence(
        np.array(said), np.array(there, int), np.array([audit_data.OBJECTS[said[i]] for i in there]),
        nothing, nothing, nothing, nothing, np.zeros((len(there), 1)), np.eye(K) + 0.01 if alpha is None else alpha,
        dict.fromkeys(("lrp", "gradcam", "gradient-input"), weights), {},
    )  # fmt: skip


def test_only_object_words_and_stop_words_with_six_words_before_them_are_looked_at():
    assert word_ablation._places(case_of("a dog on the red car a dog runs the red man")) == [6, 7, 9, 11]
    assert word_ablation._places(case_of("a dog on the red car")) == []


def test_the_three_highest_are_taken_and_signs_count_but_for_the_size_of_gradients(soft):
    weights = np.zeros((8, 8))
    weights[7, :7] = [0.1, -9, 0.3, 0.2, -8, 0.05, -7]
    _, of_last = word_ablation._taken(soft.images[0], case_of("a a a a a a a a", weights))
    taken = dict(zip(RANKED, of_last, strict=True))
    for name in ("lrp", "gradient", "gradient-input"):
        assert taken[name] == {0, 2, 3}
    assert taken["gradient-size"] == {1, 4, 6}
    assert taken["last"] == {4, 5, 6}


def test_attention_takes_words_for_which_the_same_was_looked_at(soft):
    alpha = np.array([[1, 0, 0], [0, 1, 0], [0.2, 0.8, 0], [0, 0, 1], [0.5, 0.5, 0], [0, 0.9, 0.1], [0, 1, 0]])
    (taken,) = word_ablation._taken(soft.images[0], case_of("red red red red red red dog", alpha=alpha))
    assert taken[RANKED.index("attention")] == {1, 2, 5}


def test_what_is_told_is_the_mean_over_words_of_either_kind(soft):
    told = audit(soft.bench, soft)
    rows = [found_in(soft, image) for image, case in soft if places(case)]
    kinds, drops = (np.concatenate([each[name] for each in rows]) for name in ("kind", "drops"))
    for number, kind in enumerate(("object", "stop")):
        of_kind = drops[kinds == number]
        assert told[kind]["words"] == len(of_kind) > 0
        for m, name in enumerate(RANKED):
            row = told[kind]["methods"][name]
            assert row["drop"]["value"] == pytest.approx(of_kind[:, m].mean())
            assert row["dropped"]["value"] == pytest.approx((of_kind[:, m] > 0).mean())
    claims = {each["claim"]: each["difference"]["value"] for each in told["checks"]}
    stop = told["stop"]["methods"]
    wanted = stop["lrp"]["drop"]["value"] - stop["random"]["drop"]["value"]
    assert claims["lrp lowers the probability of stop words more than random"] == pytest.approx(wanted)


def test_captions_too_short_are_left_out_with_a_reason(soft, data, tmp_path):
    from saywhy.audits.evidence import EvidenceSet

    short = audit_data.bench(data, tmp_path, model=audit_data.model(min_words=1, max_words=5))
    with pytest.raises(NotApplicable, match="no object word or stop word of 3 captions has 6 words before it"):
        audit(short, EvidenceSet(short))


def test_the_batch_changes_no_number(soft, tmp_path):
    alone, together = audit(soft.bench, soft), audit(replace(soft.bench, cache=tmp_path, batch=3), soft)
    for kind in ("object", "stop"):
        for name, row in alone[kind]["methods"].items():
            assert together[kind]["methods"][name]["drop"]["value"] == pytest.approx(row["drop"]["value"], abs=1e-5)
