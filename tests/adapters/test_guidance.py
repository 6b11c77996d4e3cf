"""A language model with the captioner's tokenizer guides a captioner of sub-words; others are refused."""

from __future__ import annotations

import pytest
import torch
import transformers

import adapted
import tiny_transformers
from saywhy.data.tokenizer import END, START
from saywhy.errors import UserError
from saywhy.language_models.load_scorer import load_scorer


@pytest.fixture(scope="module")
def model():
    return adapted.as_model(adapted.trained("vision-encoder-decoder"), "vision-encoder-decoder")


def save_language_model(folder, tokenizer):
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    language_model = tiny_transformers.random_weights(transformers.GPT2LMHeadModel(config))
    language_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return language_model


def test_scores_of_steps_are_those_of_the_language_model(model, tmp_path):
    language_model = save_language_model(tmp_path, tiny_transformers.byte_pairs())
    scorer = load_scorer(tmp_path, model.vocabulary)
    tokens = torch.tensor([[START, 9, 12, 40], [START, 8, 20, 21]])
    state = scorer.start(2)
    native = model.captioner.native
    with torch.no_grad():
        expected = language_model(native[tokens]).logits.log_softmax(dim=-1)
    for t in range(tokens.shape[1]):
        log_q, state = scorer.step(tokens[:, t], state)
        torch.testing.assert_close(log_q[:, 4:], expected[:, t][:, native[4:]], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(log_q[:, END], expected[:, t, native[END]], rtol=1e-4, atol=1e-4)
    swapped = state.select(torch.tensor([1, 0]))
    again, _ = scorer.step(torch.tensor([9, 9]), state)
    torch.testing.assert_close(scorer.step(torch.tensor([9, 9]), swapped)[0], again.flip(0))


def test_guidance_with_a_language_model_changes_captions_and_without_one_is_refused(model, tmp_path):
    save_language_model(tmp_path, tiny_transformers.byte_pairs())
    image = adapted.images()[3]
    guided = model.caption(image, lm_weight=(0.02, 0), lm=str(tmp_path), beam=2)
    assert guided.text != model.caption(image, beam=2).text
    assert model.explain(image, methods=["lrp"], lm_weight=(0.02, 0), lm=str(tmp_path), beam=2).caption == guided.text
    with pytest.raises(UserError, match="without conditioning dropout"):
        model.caption(image, guidance=3.0)


def test_a_language_model_with_another_tokenizer_is_refused(model, tmp_path):
    save_language_model(tmp_path, tiny_transformers.word_pieces())
    with pytest.raises(UserError, match="same tokenizer"):
        load_scorer(tmp_path, model.vocabulary)
