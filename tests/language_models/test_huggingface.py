"""Word scores of a Hugging Face model equal the probabilities of token strings, computed without cache or batches."""

from __future__ import annotations

import math
import sys

import pytest
import torch

import tiny
from reference.language_models import mass, next_token_log_p, tokens_log_p
from saywhy.data.tokenizer import END, MARKERS, START, UNK, Vocabulary, as_text
from saywhy.errors import UserError
from saywhy.language_models import load_scorer
from saywhy.language_models.load_scorer import read_prompt

transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from saywhy.language_models import huggingface  # noqa: E402
from saywhy.language_models.huggingface import HuggingFaceScorer, prompt_ids  # noqa: E402
from saywhy.language_models.word_scorer import caption_log_probabilities  # noqa: E402

WORDS = ("a", "dog", "dogs", "snow", "snowboard", "snowboarding", "runs", "two", "'s", "n't", "well-worn", "zebra")
TEXT = [
    "a\n\n",
    "a dog runs",
    "two dogs",
    "a dog's snowboard",
    "the snow",
    "a snowboard runs\n\ntwo dogs runs\n\na dog",
    "the",
]
PROMPT = ["Two dogs run.", "A snowboard!"]
CAPTIONS = ["a dog runs", "two dogs", "zebra snowboarding snowboard", "a dog 's well-worn snow", "snowboard"]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary((*MARKERS, *WORDS))


def byte_pairs():
    """A byte-level BPE of a few merges, such as that of GPT-2: words have one token or several."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=["<eos>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXT * 5, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def whole_words():
    """One token per word, without spaces and line breaks."""
    table = {word: index for index, word in enumerate(("<eos>", "<unk>", "the", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")


def gpt2(size: int):
    """Learned positions."""
    config = transformers.GPT2Config(vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=128)
    return transformers.GPT2LMHeadModel(config)


def llama(size: int):
    """Rotary positions, and fewer heads of keys than of queries, as in SmolLM2."""
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, max_position_embeddings=128,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def random_model(architecture, tokenizer):
    torch.manual_seed(0)
    model = architecture(len(tokenizer))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.config.eos_token_id = tokenizer.eos_token_id
    return model.eval()


@pytest.fixture(scope="module", params=[gpt2, llama], ids=lambda architecture: architecture.__name__)
def model(request):
    return random_model(request.param, byte_pairs())


@pytest.fixture(scope="module")
def tokenizer():
    return byte_pairs()


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def text_before(words: list[str], prompt: bool) -> str:
    return ("two dogs run\n\na snowboard\n\n" if prompt else "") + as_text(words)


def ids_before(tokenizer, words: list[str], prompt: bool) -> list[int]:
    """Tokens of the whole text up to and with these words, by the tokenizer alone."""
    text = text_before(words, prompt)
    return [tokenizer.eos_token_id, *encode(tokenizer, text if words else text + "a")[: None if words else -1]]


def newline_and_end(tokenizer) -> list[int]:
    starts = [token for token in range(len(tokenizer)) if tokenizer.decode([token]).lstrip(" ").startswith("\n")]
    return [tokenizer.eos_token_id, *starts]


def boundaries(tokenizer) -> list[int]:
    """Tokens that do not continue a word: not of letters, digits and hyphens, and not half a character."""

    def continues(text: str) -> bool:
        return text == "" or text[0].isalnum() or text[0] in "-_/&\ufffd"

    texts = {token: tokenizer.decode([token]) for token in range(len(tokenizer))}
    return [token for token, text in texts.items() if token == tokenizer.eos_token_id or not continues(text)]


def test_the_test_tokenizer_splits_some_words_and_not_others(tokenizer, vocabulary, model):
    lengths = HuggingFaceScorer(model, tokenizer, vocabulary).lengths[1, len(MARKERS) :].tolist()
    assert min(lengths) == 1
    assert max(lengths) > 3


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("prompt", [False, True])
def test_the_score_of_a_caption_is_the_probability_of_its_text(model, tokenizer, vocabulary, prompt, lookahead):
    scorer = HuggingFaceScorer(model, tokenizer, vocabulary, PROMPT if prompt else (), lookahead=lookahead)
    scores = caption_log_probabilities(scorer, [vocabulary.encode(caption.split()) for caption in CAPTIONS])
    for caption, found in zip(CAPTIONS, scores, strict=True):
        before, text = ids_before(tokenizer, [], prompt), ids_before(tokenizer, caption.split(), prompt)
        assert text[: len(before)] == before
        expected = tokens_log_p(model, before, text[len(before) :]) + mass(model, text, newline_and_end(tokenizer))
        assert sum(found) == pytest.approx(expected, abs=1e-4)


def words_after(tokenizer, before: list[str], prompt: bool) -> dict[str, list[int]]:
    """The tokens of each word after these words, where the tokenizer keeps the tokens of the text before it."""
    start = ids_before(tokenizer, before, prompt)
    texts = {word: ids_before(tokenizer, [*before, word], prompt) for word in WORDS}
    return {word: ids[len(start) :] for word, ids in texts.items() if ids[: len(start)] == start}


@pytest.mark.parametrize("before", [[], ["a"], ["two", "snowboarding"]])
def test_scores_of_all_words_equal_brute_force(model, tokenizer, vocabulary, before):
    scorer = HuggingFaceScorer(model, tokenizer, vocabulary, PROMPT)
    state = scorer.start(1)
    for token in vocabulary.encode(before)[:-1]:
        log_q, state = scorer.step(torch.tensor([token]), state)
    start, tokens = ids_before(tokenizer, before, True), words_after(tokenizer, before, True)
    assert len(tokens) >= len(WORDS) - 1
    for word, ids in tokens.items():
        assert log_q[0, vocabulary.ids[word]].item() == pytest.approx(tokens_log_p(model, start, ids), abs=1e-4)
    assert log_q[0, END].item() == pytest.approx(mass(model, start, newline_and_end(tokenizer)), abs=1e-4)
    assert log_q[0, [0, START, UNK]].tolist() == [-math.inf] * 3


def test_lookahead_charges_the_end_of_a_word_with_the_word(model, tokenizer, vocabulary):
    scorer, before = HuggingFaceScorer(model, tokenizer, vocabulary, PROMPT, lookahead=True), ["a"]
    state = scorer.start(1)
    for token in vocabulary.encode(before)[:-1]:
        log_q, state = scorer.step(torch.tensor([token]), state)
    start, ends = ids_before(tokenizer, before, True), boundaries(tokenizer)
    ended = mass(model, start, ends)
    for word, ids in words_after(tokenizer, before, True).items():
        expected = tokens_log_p(model, start, ids) + mass(model, [*start, *ids], ends) - ended
        assert log_q[0, vocabulary.ids[word]].item() == pytest.approx(expected, abs=1e-4)
    expected = mass(model, start, newline_and_end(tokenizer)) - ended
    assert log_q[0, END].item() == pytest.approx(expected, abs=1e-4)
    assert log_q.exp().sum().item() <= 1


def read_words(scorer, vocabulary, words: list[str], candidates=None):
    state = scorer.start(1)
    for token in vocabulary.encode(words)[:-1]:
        log_q, state = scorer.step(torch.tensor([token]), state, candidates)
    return log_q, state


@pytest.mark.parametrize("lookahead", [False, True])
def test_candidates_have_the_scores_that_they_have_among_all_words(model, tokenizer, vocabulary, lookahead):
    scorer = HuggingFaceScorer(model, tokenizer, vocabulary, lookahead=lookahead)
    chosen = torch.tensor([[9, 4, END, 15, START]])
    everything, _ = read_words(scorer, vocabulary, ["a", "snowboarding"])
    found, _ = read_words(scorer, vocabulary, ["a", "snowboarding"], chosen)
    torch.testing.assert_close(found[0, [9, 4, END, 15]], everything[0, [9, 4, END, 15]])
    others = [index for index in range(len(vocabulary)) if index not in (9, 4, END, 15)]
    assert found[0, others].tolist() == [-math.inf] * len(others)


@pytest.mark.parametrize("lookahead", [False, True])
def test_many_passes_give_the_scores_of_one(model, tokenizer, vocabulary, lookahead, monkeypatch):
    scorer = HuggingFaceScorer(model, tokenizer, vocabulary, lookahead=lookahead)
    expected, _ = read_words(scorer, vocabulary, ["dogs"])
    monkeypatch.setattr(huggingface, "TOKENS_PER_PASS", 4)
    found, _ = read_words(scorer, vocabulary, ["dogs"])
    torch.testing.assert_close(found, expected)


def test_reordered_beams_score_as_if_read_from_scratch(model, tokenizer, vocabulary):
    scorer = HuggingFaceScorer(model, tokenizer, vocabulary, PROMPT)
    beams = [["a", "snowboarding"], ["zebra", "dog"], ["two", "well-worn"]]  # of different numbers of tokens
    state = scorer.start(3)
    for tokens in zip(*(vocabulary.encode(words)[:-1] for words in beams), strict=True):
        _, state = scorer.step(torch.tensor(tokens), state)
    rows, words = torch.tensor([1, 1, 2, 0]), ["runs", "zebra", "'s", "snowboard"]
    found, _ = scorer.step(torch.tensor([vocabulary.ids[word] for word in words]), state.select(rows))
    for row, word, log_q in zip(rows.tolist(), words, found, strict=True):
        expected, _ = read_words(scorer, vocabulary, [*beams[row], word])
        torch.testing.assert_close(log_q, expected[0], atol=1e-4, rtol=0)


def test_a_tokenizer_of_whole_words_ends_captions_by_the_end_of_text(vocabulary):
    tokenizer = whole_words()
    model = random_model(gpt2, tokenizer)
    scorer = HuggingFaceScorer(model, tokenizer, vocabulary, ["a dog", "two dogs"])
    text = [tokenizer.eos_token_id, *encode(tokenizer, "a dog two dogs")]
    log_q, _ = read_words(scorer, vocabulary, [])
    log_p = next_token_log_p(model, text)
    assert log_q[0, END].item() == pytest.approx(log_p[tokenizer.eos_token_id].item(), abs=1e-4)
    assert log_q[0, vocabulary.ids["zebra"]].item() == pytest.approx(
        log_p[encode(tokenizer, "zebra")[0]].item(), abs=1e-4
    )


def test_line_breaks_before_a_caption_have_the_tokens_that_they_have_between_captions(tokenizer):
    """At the end of a text, two line breaks may be one token, which the model has not seen between captions."""
    ids = prompt_ids(tokenizer, PROMPT)
    assert ids[1:] != encode(tokenizer, text_before([], prompt=True))
    assert ids == ids_before(tokenizer, [], prompt=True)
    assert [*ids, *encode(tokenizer, "dog")] == [tokenizer.eos_token_id, *encode(tokenizer, text_before(["dog"], True))]


def test_prompts_are_written_as_captioners_write(tokenizer):
    assert prompt_ids(tokenizer, ["Two DOGS run .", "A snowboard"]) == prompt_ids(tokenizer, PROMPT)
    with pytest.raises(UserError, match="the prompt has no words"):
        prompt_ids(tokenizer, ["...", " "])


def test_a_prompt_that_leaves_no_room_for_a_caption_is_refused(model, tokenizer, vocabulary):
    with pytest.raises(UserError, match=r"this language model reads 128 tokens, and its prompt has \d+"):
        HuggingFaceScorer(model, tokenizer, vocabulary, ["a dog runs"] * 20)


def test_a_folder_of_hugging_face_is_loaded(tmp_path, tokenizer, vocabulary, model):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = load_scorer(tmp_path, vocabulary, prompt=PROMPT, candidates=7)
    assert isinstance(scorer, HuggingFaceScorer)
    assert scorer.candidates == 7
    expected, _ = read_words(HuggingFaceScorer(model, tokenizer, vocabulary, PROMPT), vocabulary, ["a"])
    found, _ = read_words(scorer, vocabulary, ["a"])
    torch.testing.assert_close(found, expected)


def test_a_broken_folder_of_hugging_face_is_refused_in_one_line(tmp_path, vocabulary):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match="not a causal language model that can be loaded") as caught:
        load_scorer(tmp_path, vocabulary)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_refused(tmp_path, tokenizer, vocabulary, model):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="not a causal language model that can be loaded"):
        load_scorer(tmp_path, vocabulary)


def test_weights_without_an_output_layer_are_refused(tmp_path, tokenizer, vocabulary):
    random_model(llama, tokenizer).model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"its weights lack 1 tensors, such as lm_head\.weight"):
        load_scorer(tmp_path, vocabulary)


def test_without_transformers_one_line_names_the_extra(tmp_path, vocabulary, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r'pip install "saywhy\[hf\]"'):
        load_scorer(tmp_path, vocabulary)


def test_a_prompt_of_decoding_is_read_by_the_language_model(tmp_path, tokenizer, vocabulary, model):
    from saywhy.captioners.model_folder import SavedModel
    from saywhy.data.preprocess import Preprocessing
    from saywhy.inference.model import Model

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    prompt = tmp_path / "captions.txt"
    prompt.write_text("\n\n".join(PROMPT))
    assert read_prompt(prompt) == PROMPT
    captioner = tiny.captioner(words=len(vocabulary))
    loaded = Model(SavedModel("m", captioner, vocabulary, Preprocessing(tiny.SIDE), {}))
    with_prompt, without = loaded.language_model(str(tmp_path), str(prompt)), loaded.language_model(str(tmp_path))
    caption = [START, *map(vocabulary.ids.__getitem__, ("a", "dog")), END]
    expected = HuggingFaceScorer(model, tokenizer, vocabulary, PROMPT)
    scores = [caption_log_probabilities(scorer, [caption])[0] for scorer in (with_prompt, without, expected)]
    assert scores[0] == pytest.approx(scores[2], abs=1e-4)
    assert scores[0] != pytest.approx(scores[1], abs=1e-4)


def test_a_prompt_without_captions_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UserError, match=r"empty.txt: no example captions; write one per line"):
        read_prompt(tmp_path / "empty.txt")
