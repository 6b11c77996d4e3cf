"""Explanations of captioners of transformers: conserved, sums over pieces, and equal to captum's gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, LayerGradCam, Saliency
from torch import Tensor, nn

import adapted
from adapted import pixels_of
from saywhy.data.tokenizer import START
from saywhy.explain.composites import composites
from saywhy.explain.methods import METHODS, REPORT_METHODS, attribute
from saywhy.explain.passes import run_lrp
from saywhy.explain.request import ExplanationRequest, explain
from saywhy.explain.targets import Targets
from saywhy.explain.word_by_word import APART, WORD_METHODS, WordByWord
from saywhy.inference.model import Model
from tracing import assert_close

METHODS_AND_MAPS = (*METHODS, "lrp-seen", "lrp-apart", "lrp-features", "occlusion")


def targets_of(model: Model, count: int = 3) -> Targets:
    captions = [caption.words for caption in model.captions(adapted.images(count))]
    return Targets.of_captions(captions, None, model.vocabulary, torch.device("cpu"))


@pytest.mark.parametrize("rules", composites)
def test_relevance_is_conserved(double, rules):
    targets = targets_of(double)
    assert targets.subwords is not None
    forward, relevance = run_lrp(double.captioner, pixels_of(double, 3), None, targets, composites[rules], 1)
    scores, image = forward.scores.detach().T, relevance.features.sum(dim=-1)  # (K, B)
    parts = image + relevance.tokens.sum(dim=-1) + relevance.initial_state + relevance.absorbed
    size = scores.abs().clamp(min=1)
    assert ((parts - scores).abs() / size).max() < 1e-9
    assert relevance.pixels is not None
    reached = relevance.pixels.sum(dim=(2, 3)) + relevance.absorbed_by_encoder
    assert ((reached - image).abs() / size).max() < 1e-9
    assert relevance.features.abs().max() > 1e-3
    assert relevance.pixels.abs().max() > 1e-6


def test_the_explained_model_is_the_model_that_captions(double):
    targets = targets_of(double)
    forward, _ = run_lrp(double.captioner, pixels_of(double, 3), None, targets, composites["epsilon"], 1)
    with torch.no_grad():
        logits, _ = double.captioner(double.captioner.encode(pixels_of(double, 3)), targets.tokens)
    torch.testing.assert_close(forward.logits.detach(), logits, rtol=1e-5, atol=1e-5)


def test_a_words_explanation_is_the_sum_over_its_pieces(double):
    """The reference explains every piece as a token of its own, in a backward pass of its own."""
    targets, pixels = targets_of(double, 1), pixels_of(double, 1)
    subwords = targets.subwords
    pieces = targets.tokens[:, 1:]
    each = Targets(targets.tokens, torch.arange(pieces.shape[1])[None], pieces, torch.full_like(pieces, -1))
    _, ours = run_lrp(double.captioner, pixels, None, targets, composites["by-stride"], 1)
    forward, expected = run_lrp(double.captioner, pixels, None, each, composites["by-stride"], 1)
    for k in range(targets.words.shape[1]):
        own = (subwords.word_of[0, 1:] == k + 1).nonzero()[:, 0]
        assert len(own) == subwords.lengths[0, k]
        for part in ("pixels", "features", "initial_state", "absorbed", "absorbed_by_encoder"):
            assert_close(getattr(ours, part)[k], getattr(expected, part)[own].sum(dim=0))
        by_word = [expected.tokens[own][..., subwords.word_of[0] == word].sum() for word in range(k + 2)]
        assert_close(ours.tokens[k, 0, : k + 2], torch.stack(by_word))
    assert (subwords.lengths > 1).any()
    scores = targets.scores(forward.logits)
    assert_close(scores.sum(), each.scores(forward.logits).sum())


def test_budgets_and_weights_of_an_explanation_add_up(double):
    image = adapted.images(1)[0]
    explanation = double.explain(image, methods=METHODS_AND_MAPS)
    assert set(explanation.methods) == set(METHODS_AND_MAPS)
    for position, word in enumerate(explanation.words):
        assert word.budget.total == pytest.approx(word.score, abs=1e-9)
        assert word.position == position
        assert len(word.earlier_words["lrp"]) == position
        assert sum(word.earlier_words["lrp"]) == pytest.approx(word.budget.earlier_words, abs=1e-9)
        image_part = word.budget.image + word.budget.class_token
        assert word.pixel_relevance + word.absorbed_by_encoder == pytest.approx(image_part, abs=1e-9)
        has_pieces = len(explanation.tokens[position].pieces) > 1
        assert (word.budget.own_pieces != 0) == has_pieces
    rows, columns = explanation.grid
    assert explanation.maps["gradcam"].shape[-1] == explanation.maps["attention"].shape[-1] == rows * columns


def test_the_class_token_has_its_own_part_of_the_budget(double):
    unplaced = double.captioner.encoder.unplaced
    words = double.explain(adapted.images(1)[0], methods=["lrp"]).words
    assert (max(abs(word.budget.class_token) for word in words) > 1e-6) == bool(unplaced)


def test_a_word_of_several_pieces_that_the_caption_lacks_is_read_in_its_place(double):
    image, word = adapted.images(1)[0], "umbrella"
    assert len(double.vocabulary.pieces(["a", word])[1]) > 1
    explanation = double.explain(image, methods=["lrp"], word=word, position=2)
    (explained,) = explanation.words
    caption = [explanation.tokens[0], word]
    targets = Targets.of_captions([caption], [[1]], double.vocabulary, torch.device("cpu"))
    with torch.no_grad():
        logits, _ = double.captioner(double.captioner.encode(pixels_of(double, 1)), targets.tokens)
    assert explained.score == pytest.approx(float(targets.scores(logits)), rel=1e-5)
    assert explained.probability == pytest.approx(float(targets.probabilities(logits)), rel=1e-4)


def test_probabilities_do_not_depend_on_the_other_captions_of_the_batch(double):
    captions, pixels = [["two", "dogs", "playing"], ["a", "man"]], pixels_of(double, 2)
    with torch.no_grad():
        features = double.captioner.encode(pixels)
        batch, alone = (
            Targets.of_captions(some, None, double.vocabulary, torch.device("cpu")) for some in (captions, captions[1:])
        )
        together = batch.probabilities(double.captioner(features, batch.tokens)[0])
        expected = alone.probabilities(double.captioner(features[1:], alone.tokens)[0])
    assert batch.subwords.lengths[0].max() > 1
    torch.testing.assert_close(together[1, :2], expected[0])


def test_one_word_at_a_time_gives_the_explanation_of_all_words(double):
    caption, pixels = "a man riding a skateboard down a street", pixels_of(double, 1)
    request = ExplanationRequest.parse(double.vocabulary, 20, caption=caption, methods=REPORT_METHODS)
    details = {"source": "a.png", "model": "tiny", "size": (48, 40), "crop": (0.0, 0.0, 48.0, 40.0), "input_size": 32}
    (expected,) = explain(double.captioner, double.vocabulary, pixels, None, [request.caption], request, [details])
    by_word = WordByWord(double.captioner, double.vocabulary, pixels, request.caption, request, details)
    explanation = by_word.explanation()
    for word, other in zip(explanation.words, expected.words, strict=True):
        assert word.probability == pytest.approx(other.probability)
    for method in (*WORD_METHODS, APART):
        scale = np.abs(expected.maps[method]).max()
        np.testing.assert_allclose(explanation.maps[method], expected.maps[method], atol=1e-5 * scale)
    alternatives = [by_word.alternatives(k) for k in range(len(by_word))]
    assert all(words and all(word and p > 0 for word, p in words) for words in alternatives)


def test_a_contrast_is_that_of_the_first_pieces_that_differ(double):
    caption, place = "a man riding a skateboard", 4
    explanation = double.explain(
        adapted.images(1)[0], methods=["lrp"], caption=caption, position=place + 1, contrast="surfboard"
    )
    (word,) = explanation.words
    own, other = (double.vocabulary.pieces([*caption.split()[:place], w])[place] for w in ("skateboard", "surfboard"))
    offset = next(i for i, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1])
    before = [START, *(id for ids in double.vocabulary.pieces(caption.split()[:place]) for id in ids)]
    with torch.no_grad():
        features = double.captioner.encode(pixels_of(double, 1))
        logits, _ = double.captioner(features, torch.tensor([[*before, *own[:offset]]]))
    assert word.score == pytest.approx(float(logits[0, -1, own[offset]] - logits[0, -1, other[offset]]), rel=1e-5)
    assert word.budget.total == pytest.approx(word.score, abs=1e-9)


class Scores(nn.Module):
    """From normalised pixels to the scores of a caption's words, as captum wants it."""

    def __init__(self, model: Model, targets: Targets) -> None:
        super().__init__()
        self.captioner, self.targets = model.captioner, targets
        self.channels_first = nn.Identity()  # of the vectors, as captum's Grad-CAM expects channels

    def forward(self, x: Tensor) -> Tensor:
        features = self.captioner.encoder.encode_normalised(x)
        vectors = self.channels_first(features.vectors.transpose(1, 2)).transpose(1, 2)
        features = replace(features, vectors=vectors)
        return self.targets.scores(self.captioner(features, self.targets.tokens)[0])


def test_gradient_methods_equal_captums(double):
    targets, pixels = targets_of(double, 1), pixels_of(double, 1)
    ours = attribute(double.captioner, pixels, None, targets, METHODS, composites["by-stride"]).maps
    net, x = Scores(double, targets), double.captioner.encoder.normalise(pixels)
    unplaced = double.captioner.encoder.unplaced
    for k in range(targets.words.shape[1]):
        expected = InputXGradient(net).attribute(x.clone().requires_grad_(), target=k)
        assert_close(ours["gradient-input"][k], expected.detach().sum(dim=1), within=1e-6)
        plain = Saliency(net).attribute(x.clone().requires_grad_(), target=k, abs=False)
        assert_close(ours["guided-backprop"][k], plain.sum(dim=1), within=1e-6)  # none of these models has a ReLU
        cam = LayerGradCam(net, net.channels_first).attribute(x, target=k, relu_attributions=True)  # (1, 1, L)
        assert_close(ours["gradcam"][k], cam.detach()[:, 0, unplaced:], within=1e-6)
    assert ours["gradient-input"].abs().max() > 1e-5
