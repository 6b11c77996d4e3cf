"""A language model's words are mapped to those of a captioner, whatever they share."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import tiny
from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK, Vocabulary
from saywhy.errors import UserError
from saywhy.language_models import SavedLanguageModel, VocabularyScorer, build, load_scorer
from saywhy.language_models.load_scorer import lm_key
from saywhy.language_models.word_scorer import caption_log_probabilities, scorer_perplexity


def vocabulary(*words: str) -> Vocabulary:
    return Vocabulary((*MARKERS, *words))


def saved(own: Vocabulary, name: str = "lstm") -> SavedLanguageModel:
    torch.manual_seed(0)
    settings = {"width": 8, "heads": 2, "layers": 2} if name == "transformer" else {"width": 8, "hidden": 12}
    model = build(name, len(own), **settings)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return SavedLanguageModel("mine", model.eval(), own)


def first_step(scorer: VocabularyScorer, *tokens: int) -> torch.Tensor:
    with torch.no_grad():
        state = scorer.start(1)
        for token in tokens:
            log_q, state = scorer.step(torch.tensor([token]), state)
    return log_q[0]


def own_q(model: SavedLanguageModel, *tokens: int) -> dict[str, float]:
    """q of each of the model's own words after these tokens."""
    with torch.no_grad():
        q = model.model(torch.tensor([tokens]))[0, -1].softmax(-1).tolist()
    return dict(zip(model.vocabulary.words, q, strict=True))


def test_with_the_same_vocabulary_q_is_that_of_the_model_without_unknown_words():
    words = vocabulary("a", "dog", "cat")
    model = saved(words)
    q, log_q = own_q(model, START, 5), first_step(VocabularyScorer(model, words), START, 5)
    total = q["a"] + q["dog"] + q["cat"] + q["<end>"]
    assert log_q[4:].exp().tolist() == pytest.approx([q[word] / total for word in ("a", "dog", "cat")])
    assert log_q[END].exp().item() == pytest.approx(q["<end>"] / total)
    assert log_q[[PAD, START, UNK]].tolist() == [-math.inf] * 3


def test_words_in_another_order_keep_their_probability():
    model = saved(vocabulary("a", "dog", "cat"))
    same = first_step(VocabularyScorer(model, model.vocabulary), START, 5)  # dog
    other = first_step(VocabularyScorer(model, vocabulary("cat", "a", "dog")), START, 6)  # dog
    assert other[[5, 6, 4]].tolist() == pytest.approx(same[[4, 5, 6]].tolist())


def test_words_that_the_language_model_lacks_share_its_unknown_mass_equally():
    model = saved(vocabulary("a", "dog"))
    captioner = vocabulary("zebra", "dog", "yak", "a", "emu")
    q, log_q = own_q(model, START), first_step(VocabularyScorer(model, captioner), START)
    total = q["a"] + q["dog"] + q["<end>"] + q["<unk>"]
    expected = [q["<unk>"] / 3, q["dog"], q["<unk>"] / 3, q["a"], q["<unk>"] / 3]
    assert log_q[4:].exp().tolist() == pytest.approx([value / total for value in expected])
    assert log_q.exp().sum().item() == pytest.approx(1)


def test_a_word_that_the_language_model_lacks_is_read_as_unknown():
    model = saved(vocabulary("a", "dog"))
    scorer = VocabularyScorer(model, vocabulary("zebra", "dog", "a"))
    q, log_q = own_q(model, START, UNK, 5), first_step(scorer, START, 4, 5)
    assert (log_q[5] - log_q[END]).item() == pytest.approx(math.log(q["dog"] / q["<end>"]), abs=1e-5)


def test_a_style_marker_of_the_captioner_begins_a_caption():
    model = saved(vocabulary("a", "dog"))
    captioner = Vocabulary((*MARKERS, "<style:coco>", "<style:flickr>", "a", "dog"))
    with_style = first_step(VocabularyScorer(model, captioner), 5, 6)
    without = first_step(VocabularyScorer(model, model.vocabulary), START, 4)
    assert with_style[[END, 6, 7]].tolist() == pytest.approx(without[[END, 4, 5]].tolist())
    assert with_style[[4, 5]].tolist() == [-math.inf] * 2


def test_the_markers_of_a_language_model_are_no_shared_words():
    with pytest.raises(UserError, match="shares no word with the captioner"):
        VocabularyScorer(saved(vocabulary("ein", "hund")), vocabulary("a", "dog"))


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_a_batch_of_captions_has_the_scores_of_single_captions(name):
    words = tiny.vocabulary()
    scorer = VocabularyScorer(saved(words, name), words)
    captions = [[*row[: 3 + n].tolist(), END] for n, row in enumerate(tiny.captions(3, 6))]
    together = caption_log_probabilities(scorer, captions)
    assert [len(scores) for scores in together] == [3, 4, 5]
    for caption, scores in zip(captions, together, strict=True):
        assert scores == pytest.approx(caption_log_probabilities(scorer, [caption])[0], abs=1e-5)


def test_perplexity_is_the_inverse_geometric_mean_of_q_including_the_end():
    words = tiny.vocabulary()
    scorer = VocabularyScorer(saved(words), words)
    captions = [["word0", "word3"], ["word1"], ["word2", "yak"]]
    found = scorer_perplexity(scorer, words, captions, batch_size=1)
    q = [first_step(scorer, *ids[:-1])[ids[-1]].item() for ids in ((1, 4), (1, 4, 7), (1, 4, 7, 2), (1, 5), (1, 5, 2))]
    assert found.perplexity == pytest.approx(math.exp(-sum(q) / 5), rel=1e-5)
    assert (found.captions, found.words, found.left_out) == (2, 5, 1)


def test_a_place_without_a_language_model_is_refused_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no language model; give a folder that `saywhy train-lm` wrote"):
        load_scorer(tmp_path / "gone", tiny.vocabulary())
    with pytest.raises(UserError, match=r"has no config\.json"):
        load_scorer(tmp_path / "empty", tiny.vocabulary())
    with pytest.raises(UserError, match="no such file"):
        load_scorer(tmp_path / "gone.gguf", tiny.vocabulary())


def test_only_hugging_face_models_take_a_prompt(tmp_path):
    saved(tiny.vocabulary()).save(tmp_path)
    assert isinstance(load_scorer(tmp_path, tiny.vocabulary()), VocabularyScorer)
    with pytest.raises(UserError, match="only a Hugging Face language model takes a prompt"):
        load_scorer(tmp_path, tiny.vocabulary(), prompt=["a dog"])


def test_the_key_of_a_language_model_depends_on_its_contents(tmp_path: Path) -> None:
    folder, prompt = tmp_path / "lm", tmp_path / "prompt.txt"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    before = lm_key(str(folder))
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert lm_key(str(folder)) != before
    prompt.write_text("a dog\n")
    assert lm_key(str(folder), str(prompt)) != lm_key(str(folder))
    assert lm_key("hf:name") == "hf:name"
    assert lm_key("") == ""
