"""CLIPScore and RefCLIPScore by hand and by a loop; the prefix; what cannot be scored."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from reference import metrics as reference
from saywhy.errors import UserError
from saywhy.metrics.clip_score import ClipScorer, clip_score

UP, RIGHT, BETWEEN, LEFT = (0, 1), (1, 0), (math.sqrt(0.5), math.sqrt(0.5)), (-1, 0)


@pytest.mark.parametrize(
    ("caption", "image", "references", "expected"),
    [
        (UP, UP, [UP], (2.5, 2 * 2.5 * 1 / 3.5)),  # the largest value of each
        (UP, BETWEEN, [UP, LEFT], (2.5 * math.sqrt(0.5), 2 / (1 / (2.5 * math.sqrt(0.5)) + 1))),
        (UP, RIGHT, [UP], (0, 0)),
        (RIGHT, LEFT, [RIGHT], (0, 0)),  # a negative cosine counts as 0
        (RIGHT, RIGHT, [LEFT, UP], (2.5, 0)),  # also with references
        (LEFT, RIGHT, [RIGHT], (0, 0)),
    ],
)
def test_scores_by_hand(caption, image, references, expected) -> None:
    score = clip_score([caption], [image], [references])
    assert (score.clip_score, score.ref_clip_score) == pytest.approx(expected)


def test_scores_equal_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    captions, images = rng.normal(size=(2, 20, 4))
    references = [rng.normal(size=(count, 4)) for count in rng.integers(1, 6, size=20)]
    expected = reference.clip_scores(captions.tolist(), images.tolist(), [group.tolist() for group in references])
    score = clip_score(captions, images, references)
    found = np.stack([score.per_caption, score.ref_per_caption], axis=1)
    assert found == pytest.approx(np.array(expected))
    assert score.as_dict() == {
        "clip_score": pytest.approx(found[:, 0].mean()),
        "ref_clip_score": pytest.approx(found[:, 1].mean()),
    }
    assert 0 < (found == 0).mean() < 1, "no case is clipped"


def test_without_references_there_is_no_score_with_them() -> None:
    assert clip_score([UP], [UP]).as_dict() == {"clip_score": 2.5, "ref_clip_score": None}


class LetterModel:
    """Embeds a text by how often it has each of the letters a to d, and an image by those of its name."""

    name = "letters"

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed_texts(self, texts):
        self.texts += texts
        return np.array(
            [[1 + text.removeprefix("A photo depicts ").count(letter) for letter in "abcd"] for text in texts]
        )

    def embed_images(self, images, progress=lambda done, total: None):
        return self.embed_texts([path.stem for path in images])


def test_the_class_gives_the_scores_of_the_function_for_any_batches() -> None:
    captions, images = [["a", "bad", "cab"], "dad", "abba"], [Path("bad.png"), Path("dada.png"), Path("c.png")]
    references = [["a bad cab"], ["dada", "dad"], ["add", "bab", "cad"]]
    scorer, model = ClipScorer(LetterModel()), LetterModel()
    scorer.update(captions[:1], images[:1], references[:1])
    scorer.update(captions[1:], images[1:], references[1:])
    expected = clip_score(
        model.embed_texts(["a bad cab", *captions[1:]]),
        model.embed_images(images),
        [model.embed_texts(group) for group in references],
    )
    assert scorer.compute().as_dict() == pytest.approx(expected.as_dict())
    assert scorer.captions.shape == scorer.images.shape == (3, 4)
    scorer.reset()
    scorer.update(captions[:1], images[:1], references[:1])
    assert len(scorer.captions) == 1


def test_captions_and_references_get_the_prefix() -> None:
    model = LetterModel()
    ClipScorer(model).update([["a", "dog", "'s", "tail"]], [Path("a.png")], [["A dog ."]])
    assert model.texts == ["A photo depicts a dog's tail", "A photo depicts A dog .", "a"]


@pytest.mark.parametrize(
    ("captions", "images", "references", "message"),
    [
        ([[math.nan, 1]], [UP], None, "captions: 1 of 1 embeddings are zero or not finite"),
        ([UP], [UP], [[(0, 0)]], "references: 1 of 1 embeddings are zero"),
        ([UP], [UP, UP], None, "give one caption per image"),
        ([UP], [UP], [[UP], [UP]], "1 captions but references for 2 images"),
        ([UP, UP], [UP, UP], [[UP], []], r"image 1 \(counted from 0\) has no reference"),
    ],
)
def test_what_cannot_be_scored_is_refused(captions, images, references, message: str) -> None:
    with pytest.raises(UserError, match=message):
        clip_score(captions, images, references)


def test_a_batch_without_an_image_for_each_caption_is_refused() -> None:
    with pytest.raises(UserError, match="2 captions, 1 images, references for 2: give one of each"):
        ClipScorer(LetterModel()).update(["a", "b"], [Path("a.png")], [["a"], ["b"]])
