"""Audits of a model with styles test the captions of one style."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import audit_data
import tiny
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.sanity import _AlteredModels
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import Vocabulary
from saywhy.decoding.config import log_probabilities
from saywhy.explain import METHODS
from saywhy.inference.model import Model

STYLES = ("coco", "flickr8k")
WORDS = (*tiny.vocabulary(styles=STYLES).words[:6], *audit_data.WORDS[4:])


@pytest.fixture
def contexts(tmp_path: Path) -> dict[str, AuditContext]:
    """A context in each style; both use one cache."""
    data = audit_data.write_data(tmp_path / "data")
    captioner = tiny.sensitive_captioner(words=len(WORDS), seed=3)
    captioner.styles = len(STYLES)

    def context(style: str) -> AuditContext:
        decoding = {**audit_data.LONG, "style": style}
        saved = SavedModel("tiny", captioner, Vocabulary(WORDS), Preprocessing(tiny.SIDE), decoding)
        return audit_data.context(data, tmp_path / "cache", model=Model(saved))

    return {style: context(style) for style in STYLES}


def test_evidence_is_that_of_the_captions_of_the_style(contexts):
    for style, context in contexts.items():
        for image, evidence in EvidenceSet(context):
            caption = context.model.caption(image.path)
            assert caption.style == style
            assert tuple(evidence.words) == caption.words
            np.testing.assert_allclose(evidence.probability, np.exp(caption.logprobs), rtol=1e-3)
    assert contexts["coco"].key != contexts["flickr8k"].key, "the styles would share cached results"


def test_maps_of_evidence_and_of_altered_models_are_those_of_the_style(contexts):
    for style, context in contexts.items():
        evidence = EvidenceSet(context)
        image = evidence.images_with_objects()[0]
        caption, altered = evidence.load(image), _AlteredModels(context, evidence)
        explanation = context.model.explain(image.path, methods=["lrp"], style=style)
        expected = explanation.maps["lrp"][caption.objects]  # (J, S, S)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(caption.maps["lrp"], expected, atol=2e-3 * scale)
        (batch,) = context.batches([image])
        (maps,) = altered._maps(context.captioner, batch.pixels, batch, [caption])  # (J, M, S, S)
        np.testing.assert_allclose(maps[:, METHODS.index("lrp")], expected, atol=1e-4 * scale)


def test_probabilities_after_a_prefix_begin_with_the_marker_of_the_style(contexts):
    probabilities = {}
    for style, context in contexts.items():
        (batch,) = context.batches(context.data.images[:1])
        features, prefix, word = context.encode(batch), [7, 9], 8
        words = [context.model.vocabulary.words[id] for id in (*prefix, word)]
        tokens = torch.tensor([[context.model.vocabulary.start(style), *prefix]])
        with torch.no_grad():
            logits, _ = context.captioner(features, tokens)
        expected = log_probabilities(logits[0, -1], styles=2)[word].exp()
        probabilities[style] = float(context.probabilities(features, [0], [words[:-1]], words[-1:])[0])
        assert probabilities[style] == pytest.approx(float(expected), rel=1e-4)
    assert probabilities["coco"] != pytest.approx(probabilities["flickr8k"], rel=1e-3)
