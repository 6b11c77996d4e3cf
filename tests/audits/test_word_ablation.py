"""Word ablation, compared with removing words and teacher forcing one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import audit_data
from saywhy.audits import word_ablation
from saywhy.audits.context import NotApplicable
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.word_ablation import RANKINGS, WordAblation
from saywhy.data.images import open_image
from saywhy.data.tokenizer import START
from saywhy.decoding.config import log_probabilities

METHOD = {"lrp": "lrp", "gradient": "gradcam", "gradient-input": "gradient-input"}
run = WordAblation().run


def positions(caption: ImageEvidence) -> list[int]:
    tested = {*audit_data.OBJECTS, "a", "the", "on", "with"}
    return [i for i in range(6, len(caption.words)) if caption.words[i] in tested]


def removed_words(caption: ImageEvidence, position: int, ranking: str) -> set[int]:
    """The three earlier words with the highest weight."""
    if ranking == "last":
        return {position - 1, position - 2, position - 3}
    if ranking == "attention":
        now = caption.alpha[position]
        weights = [
            float((then * now).sum() / np.sqrt((then**2).sum() * (now**2).sum())) for then in caption.alpha[:position]
        ]
    elif ranking == "gradient-size":
        weights = np.abs(caption.earlier_words["guided-backprop"][position, :position]).tolist()
    else:
        weights = caption.earlier_words[METHOD[ranking]][position, :position].tolist()
    return set(sorted(range(position), key=lambda i: (-weights[i], i))[:3])


def cached(evidence: EvidenceSet, image) -> dict[str, np.ndarray]:
    return audit_data.cached(evidence.context, "word-ablation", image)


def test_drops_equal_removing_the_words_one_by_one(evidence):
    context = evidence.context
    run(context, evidence)
    captioner, ids = context.captioner, context.model.vocabulary.ids
    compared = 0
    for image, caption in evidence:
        if not positions(caption):
            continue
        arrays = cached(evidence, image)
        assert arrays["drops"].shape == (len(positions(caption)), len(RANKINGS))
        pixels = torch.as_tensor(context.model.preprocessing(open_image(image.path)))[None]
        for row, position in enumerate(positions(caption)):
            assert arrays["kind"][row] == (0 if caption.words[position] in audit_data.OBJECTS else 1)
            for m, ranking in enumerate(RANKINGS):
                if ranking == "random":
                    continue
                removed = removed_words(caption, position, ranking)
                prefix = [ids[str(word)] for i, word in enumerate(caption.words[:position]) if i not in removed]
                with torch.no_grad():
                    logits, _ = captioner(captioner.encode(pixels), torch.tensor([[START, *prefix]]))
                p = log_probabilities(logits[0, -1]).exp()[ids[str(caption.words[position])]]
                assert len(prefix) == position - 3
                drop = float(caption.probability[position] - p)
                assert arrays["drops"][row, m] == pytest.approx(drop, abs=1e-4), ranking
                compared += 1
    assert compared > 15


def test_every_ranking_removes_three_earlier_words_and_the_same_each_time(soft):
    image, caption = next((image, caption) for image, caption in soft if len(word_ablation._positions(caption)) > 1)
    removals = list(word_ablation._removals(image, caption))
    for position, removed in zip(word_ablation._positions(caption), removals, strict=True):
        assert [len(words) for words in removed] == [3] * len(RANKINGS)
        assert set.union(*removed) <= set(range(position))
    assert removals == list(word_ablation._removals(image, caption))


def caption_of(text: str, weights: np.ndarray | None = None, alpha: np.ndarray | None = None) -> ImageEvidence:
    """The evidence of a caption with these weights of earlier words and this attention."""
    words = text.split()
    K = len(words)
    objects = [i for i, word in enumerate(words) if word in audit_data.OBJECTS]
    weights = np.zeros((K, K)) if weights is None else weights
    zeros = np.zeros(K)
    return ImageEvidence(
        np.array(words), np.array(objects, int), np.array([audit_data.OBJECTS[words[i]] for i in objects]),
        zeros, zeros, zeros, zeros, np.eye(K) + 0.01 if alpha is None else alpha,
        dict.fromkeys(("lrp", "gradcam", "gradient-input"), weights), {},
    )  # fmt: skip


def test_only_object_words_and_stop_words_after_six_words_are_tested():
    assert word_ablation._positions(caption_of("a dog on the red car a dog runs the red man")) == [6, 7, 9, 11]
    assert word_ablation._positions(caption_of("a dog on the red car")) == []


def test_the_three_highest_signed_weights_are_removed_except_for_the_size_of_gradients(soft):
    weights = np.zeros((8, 8))
    weights[7, :7] = [0.1, -9, 0.3, 0.2, -8, 0.05, -7]
    _, last = word_ablation._removals(soft.images[0], caption_of("a a a a a a a a", weights))
    removed = dict(zip(RANKINGS, last, strict=True))
    for ranking in ("lrp", "gradient", "gradient-input"):
        assert removed[ranking] == {0, 2, 3}
    assert removed["gradient-size"] == {1, 4, 6}
    assert removed["last"] == {4, 5, 6}


def test_attention_removes_words_with_similar_attention(soft):
    alpha = np.array([[1, 0, 0], [0, 1, 0], [0.2, 0.8, 0], [0, 0, 1], [0.5, 0.5, 0], [0, 0.9, 0.1], [0, 1, 0]])
    (removed,) = word_ablation._removals(soft.images[0], caption_of("red red red red red red dog", alpha=alpha))
    assert removed[RANKINGS.index("attention")] == {1, 2, 5}


def test_results_are_means_over_object_words_and_over_stop_words(soft):
    body = run(soft.context, soft)
    arrays = [cached(soft, image) for image, caption in soft if positions(caption)]
    kinds, drops = (np.concatenate([values[name] for values in arrays]) for name in ("kind", "drops"))
    for number, key in enumerate(("object_words", "stop_words")):
        selected = drops[kinds == number]
        assert body[key]["words"] == len(selected) > 0
        for m, ranking in enumerate(RANKINGS):
            scores = body[key]["methods"][ranking]
            assert scores["probability_drop"]["value"] == pytest.approx(selected[:, m].mean())
            assert scores["share_dropped"]["value"] == pytest.approx((selected[:, m] > 0).mean())
    claims = {check["claim"]: check["difference"]["value"] for check in body["checks"]}
    methods = body["stop_words"]["methods"]
    expected = methods["lrp"]["probability_drop"]["value"] - methods["random"]["probability_drop"]["value"]
    assert claims["lrp lowers the probability of stop words more than random"] == pytest.approx(expected)


def test_captions_that_are_too_short_make_it_not_applicable(data, tmp_path):
    context = audit_data.context(data, tmp_path, model=audit_data.model(min_words=1, max_words=5))
    with pytest.raises(NotApplicable, match="no object word or stop word of 3 captions has 6 words before it"):
        run(context, EvidenceSet(context))


def test_results_do_not_depend_on_the_batch_size(soft, tmp_path):
    single, batched = run(soft.context, soft), run(replace(soft.context, cache=tmp_path, batch_size=3), soft)
    for key in ("object_words", "stop_words"):
        for ranking, scores in single[key]["methods"].items():
            drop = batched[key]["methods"][ranking]["probability_drop"]["value"]
            assert drop == pytest.approx(scores["probability_drop"]["value"], abs=1e-5)
