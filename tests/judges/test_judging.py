"""Captions are ranked by a judge, and beside them those that people wrote."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from saywhy.errors import UnreadableImage, UserError
from saywhy.judges.judging import CaptionMatch, Judge, judge_captions, pad


@pytest.fixture
def judge() -> Judge:
    return Judge(tiny.saved_judge(), batch_size=2, workers=0)


class WrittenJudge(Judge):
    """A judge whose vectors of texts are written in the texts, and those of images in their names."""

    def __init__(self) -> None:
        super().__init__(tiny.saved_judge())

    def embed_texts(self, texts):
        return np.array([list(map(float, text.split())) for text in texts])

    def embed_images(self, images, progress=lambda done, total: None):
        return self.embed_texts(images)


def test_texts_keep_their_order_whatever_their_length(judge):
    texts = ["word1 word2 word3 word1", "word1", "word2 word3", "word1 word5 word6"] * 80
    vectors = judge.embed_texts(texts)
    assert vectors.shape == (320, 16)
    np.testing.assert_allclose(
        vectors[:4], np.concatenate([judge.embed_texts([text]) for text in texts[:4]]), atol=1e-5
    )
    np.testing.assert_allclose(vectors[:4], vectors[-4:], atol=1e-5)


def test_texts_are_tokenised_and_cut(judge):
    np.testing.assert_allclose(judge.embed_texts(["Word1, WORD2."]), judge.embed_texts(["word1 word2"]), atol=1e-6)
    long = judge.embed_texts(["word1 " * 100, "word1 " * 5000])
    np.testing.assert_allclose(long[0], long[1], atol=1e-5)


def test_images_are_embedded_in_order_and_in_batches(judge, tmp_path):
    paths = tiny.image_files(tmp_path, 5)
    calls: list[tuple[int, int]] = []
    vectors = judge.embed_images(paths, lambda *call: calls.append(call))
    assert calls == [(2, 5), (4, 5), (5, 5)]
    pixels = [judge.saved.preprocessing(tiny.Image.open(path)) for path in paths]
    with torch.inference_mode():
        expected = judge.saved.model.embed_images(torch.from_numpy(np.stack(pixels)))
    np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-5)


def test_an_image_that_cannot_be_read_is_an_error(judge, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(UnreadableImage):
        judge.embed_images([tmp_path / "broken.jpg"])


def test_no_images_and_no_texts_have_no_vectors(judge):
    assert judge.embed_images([]).shape == judge.embed_texts([]).shape == (0, 16)


def test_the_similarity_is_the_mean_cosine():
    match = CaptionMatch.of(np.array([[2.0, 0.0], [3.0, 4.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert match.similarity == pytest.approx((1.0 + 0.8) / 2)
    assert match.recall == (1.0, 1.0, 1.0)


def test_human_captions_are_judged_position_by_position():
    images = ["1 0 0", "0 1 0", "0 0 1"]
    captions = ["1 0 0", "0 1 0", "0 1 0"]  # the third finds the second image
    references = [("1 0 0", "1 0 0"), ("0 1 0", "0 1 0"), ("0 0 1", "1 0 0", "not judged: others have two")]
    result = judge_captions(WrittenJudge(), images, captions, references)
    assert (result.images, result.positions) == (3, 2)
    assert result.captions.recall[0] == pytest.approx(2 / 3)
    assert result.human.recall[0] == pytest.approx((1 + 2 / 3) / 2)
    assert result.human.similarity == pytest.approx((1 + 2 / 3) / 2)
    written = result.as_dict()
    assert written["encoder"] == "timm:test_efficientnet"
    assert written["captions"]["recall_at_1"] == pytest.approx(200 / 3)
    assert written["human"]["captions_per_image"] == 2


def test_the_image_itself_is_no_evidence_without_others():
    with pytest.raises(UserError, match="at least two"):
        judge_captions(WrittenJudge(), ["1 0"], ["1 0"], [["1 0"]])


def test_padding_fills_up_to_the_longest():
    assert pad([[1, 2], [1, 5, 2]]).tolist() == [[1, 2, 0], [1, 5, 2]]
