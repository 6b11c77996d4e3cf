"""Guided decoding against brute force, and against recomputation of every caption from its first word."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from reference import decoding as plain_reference
from reference import guidance as reference
from saywhy.captioners import State
from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK
from saywhy.decoding import Decoding, beam_search, decode
from saywhy.decoding.guidance import GuidedCaptioner, Weights, no_image_features
from saywhy.errors import UserError

FIRST = len(MARKERS)
METHODS = ["beam", "greedy", "sample"]
CAPTIONERS = [
    ("ada-lstm", {}),
    ("mh-fc", {}),
    ("soft-attention", {}),
    ("soft-attention", {"no_image": "learned"}),
    ("hard-attention", {}),
    ("coca", {}),
    ("coca", {"conditioning": "bottleneck"}),
]
every_captioner = pytest.mark.parametrize("captioner", CAPTIONERS, ids=tiny.label, indirect=True)


@dataclasses.dataclass(frozen=True)
class TinyLMState(State):
    """The hidden vector of each row, (B, 5)."""

    h: Tensor


class TinyLM:
    """A recurrent language model with random weights: log q depends on all words before."""

    candidates = None

    def __init__(self, words: int, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.E, self.W, self.O = (torch.randn(shape, generator=random) for shape in ((words, 5), (5, 5), (5, words)))

    def start(self, batch: int) -> TinyLMState:
        return TinyLMState(torch.zeros(batch, 5))

    def step(self, tokens: Tensor, state: TinyLMState, candidates: Tensor | None = None) -> tuple[Tensor, TinyLMState]:
        h = torch.tanh(state.h @ self.W + self.E[tokens])
        return (2 * h @ self.O).log_softmax(dim=-1), TinyLMState(h)

    def after(self, tokens: list[int]) -> Tensor:
        """log q after all of these tokens, for the reference."""
        state = self.start(1)
        for token in tokens:
            log_q, state = self.step(torch.tensor([token]), state)
        return log_q[0]


@dataclasses.dataclass(frozen=True)
class Form:
    """One form of guidance: its decoding settings, and the same as a reference function."""

    settings: dict
    guided: functools.partial

    @property
    def uses_lm(self) -> bool:
        return "lm" in self.settings


FORMS = {
    "classifier-free": Form({"guidance": 1.8}, functools.partial(reference.classifier_free, gamma=1.8)),
    "below one": Form({"guidance": 0.4}, functools.partial(reference.classifier_free, gamma=0.4)),
    "mutual information": Form(
        {"guidance": 1.6, "lm": "q"}, functools.partial(reference.mutual_information, gamma=1.6)
    ),
    "language model": Form(
        {"lm": "q", "lm_weight": (2.0, 0.7)}, functools.partial(reference.language_model, alpha=2.0, beta=0.7)
    ),
    "fusion": Form({"lm": "q", "lm_weight": (1.5, 0)}, functools.partial(reference.language_model, alpha=1.5, beta=0)),
}


@pytest.fixture
def captioner(request):
    name, changes = request.param
    return functools.partial(tiny.sensitive_captioner, name, **changes)


def images_of(features):
    """The features of each image alone."""
    return [features.select(torch.tensor([row])) for row in range(len(features))]


def decoded(captioner, features, form: Form, lm=None, indices=None, **settings):
    decoding = Decoding(**form.settings, **settings)
    return decode(captioner, features, decoding, indices, lm=(lm or TinyLM(tiny.WORDS)) if form.uses_lm else None)


def assert_recomputed(hypothesis, captioner, image, guided, lm=None, **markers):
    """Assert that a caption of one image has the log-probabilities and the score that its words have from scratch."""
    prefixes = [hypothesis.tokens[:t] for t in range(len(hypothesis.tokens) + 1)]
    after = {tokens: reference.branches_after(captioner, image, tokens, lm, **markers) for tokens in prefixes}
    own = reference.caption_logprobs(hypothesis.tokens, lambda tokens: after[tokens].image)
    assert hypothesis.logprobs == pytest.approx(own, abs=1e-3), "not log p given the image"
    guided_logprobs = reference.caption_logprobs(hypothesis.tokens, lambda tokens: guided(after[tokens]))
    assert hypothesis.score == pytest.approx(plain_reference.score(guided_logprobs, 0.7), abs=1e-3)


@every_captioner
def test_guided_beam_search_with_a_full_beam_equals_brute_force(captioner):
    words, max_words = FIRST + 3, 3
    captioner, lm, features = captioner(words=words), TinyLM(words), tiny.features(2)
    tables = [reference.all_branches(captioner, image, max_words, lm) for image in images_of(features)]
    best, lengths = {}, set()
    for (name, form), penalty in itertools.product(FORMS.items(), (0.0, 0.7, 2.0)):
        settings = {"beam": 3**max_words, "length_penalty": penalty, "max_words": max_words}
        hypotheses = decoded(captioner, features, form, lm, **settings)
        for table, hypothesis in zip(tables, hypotheses, strict=True):
            captions = reference.all_captions(table, form.guided, max_words)
            assert len(captions) == 39
            tokens, score = plain_reference.best_caption(captions, penalty, 1, max_words)
            assert hypothesis.tokens == tokens
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
            lengths.add(len(tokens))
        best[name, penalty] = [hypothesis.tokens for hypothesis in hypotheses]
    assert len(lengths) > 1, "one length is always best: the length penalty was not tested"
    assert len({tuple(tokens) for tokens in best.values()}) > 2, "guidance changes no caption"


@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("name", FORMS)
@every_captioner
def test_guidance_under_a_reordered_beam_equals_recomputation_of_every_hypothesis(captioner, name, kind):
    captioner, form, lm, features = captioner(), FORMS[name], TinyLM(tiny.WORDS), tiny.features(3, kind=kind)
    decoding = Decoding(beam=5, min_words=3, max_words=5, length_penalty=0.7, **form.settings)
    weights = {
        "classifier-free": Weights.classifier_free(1.8),
        "below one": Weights.classifier_free(0.4),
        "mutual information": Weights.mutual_information(1.6),
        "language model": Weights.language_model(2.0, 0.7),
        "fusion": Weights.language_model(1.5, 0),
    }[name]
    with torch.inference_mode():
        guided = GuidedCaptioner(captioner, weights, lm if form.uses_lm else None)
        results = beam_search(guided, features, decoding)
    for image, hypotheses in zip(images_of(features), results, strict=True):
        assert len(hypotheses) > 2
        for hypothesis in hypotheses:
            assert_recomputed(hypothesis, captioner, image, form.guided, lm)
            with torch.no_grad():
                alpha = captioner(image, torch.tensor([[START, *hypothesis.tokens]]))[1].alpha[0, :-1]
            torch.testing.assert_close(torch.from_numpy(hypothesis.alpha), alpha, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FORMS)
def test_greedy_decoding_takes_the_word_with_the_highest_guided_score(name):
    form, captioner, lm = FORMS[name], tiny.sensitive_captioner("ada-lstm"), TinyLM(tiny.WORDS)
    features = tiny.features(4)
    for image, hypothesis in zip(
        images_of(features), decoded(captioner, features, form, lm, method="greedy", max_words=5), strict=True
    ):
        for t, word in enumerate((*hypothesis.tokens, END)[:5]):
            scores = form.guided(reference.branches_after(captioner, image, hypothesis.tokens[:t], lm))
            allowed = {token: score for token, score in scores.items() if t or token != END}
            assert word == max(allowed, key=allowed.__getitem__)


@pytest.mark.parametrize("name", FORMS)
def test_sampling_draws_from_the_guided_distribution(name):
    form, captioner, lm = FORMS[name], tiny.sensitive_captioner("coca"), TinyLM(tiny.WORDS)
    features, temperature = tiny.features(6), 1.3
    settings = {"method": "sample", "temperature": temperature, "max_words": 5, "seed": 3}
    for row, hypothesis in enumerate(decoded(captioner, features, form, lm, **settings)):
        draws = np.random.default_rng((3, row)).random(6)
        image = features.select(torch.tensor([row]))
        for t, word in enumerate((*hypothesis.tokens, END)[:5]):
            scores = form.guided(reference.branches_after(captioner, image, hypothesis.tokens[:t], lm))
            p = {token: math.exp(score / temperature) for token, score in scores.items() if t or token != END}
            cumulative = np.cumsum(list(p.values())) / sum(p.values())
            assert word == list(p)[int(np.searchsorted(cumulative, draws[t], side="right"))]


@pytest.mark.parametrize("method", METHODS)
@every_captioner
def test_guidance_of_zero_equals_the_captioner_without_an_image(captioner, method):
    captioner, features = captioner(), tiny.features(4)
    settings = {"method": method, "max_words": 6, "seed": 2}
    expected = decode(captioner, captioner.without_image(features), Decoding(**settings))
    with_image = decode(captioner, features, Decoding(**settings))
    guided = decode(captioner, features, Decoding(guidance=0, **settings))
    assert [hypothesis.tokens for hypothesis in guided] == [hypothesis.tokens for hypothesis in expected]
    assert [hypothesis.score for hypothesis in guided] == pytest.approx([h.score for h in expected], abs=1e-4)
    assert any(abs(one.score - other.score) > 1e-3 for one, other in zip(guided, with_image, strict=True))


@pytest.mark.parametrize("method", METHODS)
@every_captioner
def test_guidance_of_one_is_plain_decoding_bit_for_bit_and_loads_nothing(captioner, method, monkeypatch):
    captioner, features = captioner(), tiny.features(4)
    plain = decode(captioner, features, Decoding(method=method, max_words=6))
    monkeypatch.setitem(sys.modules, "saywhy.decoding.guidance", None)  # an import would raise an error
    guided = decode(captioner, features, Decoding(method=method, max_words=6, guidance=1.0))
    for one, other in zip(plain, guided, strict=True):
        assert (one.tokens, one.logprobs, one.score) == (other.tokens, other.logprobs, other.score)
        assert np.array_equal(one.alpha, other.alpha)


@pytest.mark.parametrize("method", METHODS)
def test_guidance_close_to_one_changes_nothing(method):
    captioner, features = tiny.sensitive_captioner("mh-fc"), tiny.features(4)
    settings = {"method": method, "max_words": 6}
    for one, other in zip(
        decode(captioner, features, Decoding(**settings)),
        decode(captioner, features, Decoding(guidance=1 + 1e-6, **settings)),
        strict=True,
    ):
        assert one.tokens == other.tokens
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.logprobs == other.logprobs, "the branch with the image is computed as without guidance"


@pytest.mark.parametrize("kind", ["grid", "regions"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["classifier-free", "mutual information", "language model"])
def test_guided_captions_of_a_batch_equal_those_of_single_images(name, method, kind):
    for captioner_name in ("ada-lstm", "coca"):
        captioner, features = tiny.sensitive_captioner(captioner_name), tiny.features(5, kind=kind)
        together = decoded(captioner, features, FORMS[name], method=method, max_words=6)
        for row, image in enumerate(images_of(features)):
            (alone,) = decoded(captioner, image, FORMS[name], method=method, max_words=6, indices=[row])
            assert alone.tokens == together[row].tokens
            assert alone.score == pytest.approx(together[row].score, abs=1e-4)


@pytest.mark.parametrize("mode", ["expected", "sampled", "argmax"])
def test_guidance_uses_the_attention_mode_of_hard_attention(mode):
    captioner, features = tiny.sensitive_captioner("hard-attention"), tiny.features(4)
    decoding = Decoding(guidance=2.0, attention=mode, max_words=6)
    for image, hypothesis in zip(images_of(features), decode(captioner, features, decoding), strict=True):
        with captioner.using_attention(mode):
            assert_recomputed(hypothesis, captioner, image, functools.partial(reference.classifier_free, gamma=2.0))


@every_captioner
def test_the_branch_without_an_image_is_started_once_for_one_row_and_one_vector(captioner, monkeypatch):
    captioner, started, steps = captioner(), [], []
    start, step = captioner.start, captioner.step
    monkeypatch.setattr(captioner, "start", lambda features: started.append(features.vectors.shape) or start(features))
    monkeypatch.setattr(captioner, "step", lambda words, state: steps.append(len(words)) or step(words, state))
    monkeypatch.setattr(captioner, "encode", None)
    features = tiny.features(4)
    decode(captioner, features, Decoding(guidance=2.0, max_words=4, method="greedy"))
    assert sorted(started) == [(1, 1, 256), (4, 6, 256)]
    assert set(steps) == {4}
    assert len(steps) % 2 == 0


@every_captioner
def test_the_features_of_no_image_have_the_one_vector_that_is_not_masked(captioner):
    captioner = captioner()
    with torch.no_grad():
        captioner.no_image.copy_(torch.randn(256))
    for kind in ("grid", "regions"):
        assert torch.equal(no_image_features(captioner, tiny.features(3, kind=kind)).vectors[0, 0], captioner.no_image)


def test_scores_are_the_weighted_sum_of_the_three_terms():
    image, no_image, log_q = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-3.0, -0.5]]), torch.tensor([[-0.25, -4.0]])

    def scores(weights, *terms):
        return weights.scores(*terms)[0].tolist()

    assert scores(Weights.classifier_free(2.0), image, no_image, None) == [1.0, -3.5]  # 2 · −1 + 3, 2 · −2 + 0.5
    assert scores(Weights.mutual_information(3.0), image, None, log_q) == [-2.5, 2.0]  # 3 · −1 + 0.5, 3 · −2 + 8
    assert scores(Weights.language_model(5.0, 2.0), image, no_image, log_q) == [
        0.75,
        -13.0,
    ]  # −0.25 − 5 + 6, −4 − 10 + 1


def test_the_language_model_is_given_exactly_where_it_has_a_weight():
    captioner, lm = tiny.captioner(), TinyLM(tiny.WORDS)
    with pytest.raises(ValueError, match="language model"):
        GuidedCaptioner(captioner, Weights.classifier_free(2.0), lm)
    with pytest.raises(ValueError, match="language model"):
        GuidedCaptioner(captioner, Weights.mutual_information(2.0))
    for decoding, model in ((Decoding(), lm), (Decoding(guidance=2.0, lm="q"), None)):
        with pytest.raises(ValueError, match="language model"):
            decode(captioner, tiny.features(1), decoding, lm=model)


class MaskedLM(TinyLM):
    """A language model for which all tokens but these are impossible."""

    def __init__(self, possible: list[int]) -> None:
        super().__init__(tiny.WORDS)
        self.possible = possible

    def step(self, tokens, state, candidates=None):
        log_q, state = super().step(tokens, state)
        mask = torch.full_like(log_q, -torch.inf)
        mask[:, self.possible] = 0
        return log_q + mask, state


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["mutual information", "language model"])
def test_words_that_are_impossible_for_the_language_model_are_excluded(name, method):
    captioner, features = tiny.sensitive_captioner(), tiny.features(4)
    settings = {"method": method, "max_words": 6, "min_words": 3}
    for hypothesis in decoded(captioner, features, FORMS[name], MaskedLM([END, FIRST, FIRST + 2]), **settings):
        assert set(hypothesis.tokens) <= {FIRST, FIRST + 2}
    for possible in ([END], [FIRST]):  # a caption needs a word, and an end
        for hypothesis in decoded(captioner, features, FORMS[name], MaskedLM(possible), **settings):
            assert 3 <= len(hypothesis.tokens) <= 6
            assert math.isfinite(hypothesis.score)


def test_a_language_model_with_candidates_is_asked_for_the_most_probable_words():
    captioner, features = tiny.sensitive_captioner(), tiny.features(3)
    captioner.styles, asked = 1, []

    class CandidatesLM(TinyLM):
        candidates = 2

        def step(self, tokens, state, candidates=None):
            asked.append(candidates)
            log_q, state = super().step(tokens, state)
            keep = torch.zeros_like(log_q, dtype=torch.bool).scatter(1, candidates, True)
            keep[:, END] = True
            return log_q.masked_fill(~keep, -torch.inf), state

    lm, start = CandidatesLM(tiny.WORDS), FIRST
    for method in METHODS:
        asked.clear()
        decoding = Decoding(method=method, lm="q", lm_weight=(1, 0), max_words=4)
        hypotheses = decode(captioner, features, decoding, start=start, lm=lm)
        after = [reference.branches_after(captioner, image, (), start=start, styles=1) for image in images_of(features)]
        for row, (branches, hypothesis) in enumerate(zip(after, hypotheses, strict=True)):
            words = sorted((w for w in branches.image if w != END), key=branches.image.__getitem__, reverse=True)
            assert asked[0][row].tolist() == words[:2]
            assert hypothesis.tokens[0] in words[:2]


@pytest.mark.parametrize("method", METHODS)
def test_constraints_and_markers_hold_with_guidance(method):
    captioner = tiny.sensitive_captioner("ada-lstm")
    captioner.styles, start = 2, FIRST + 1
    settings = {"method": method, "guidance": 4.0, "no_repeat": True, "min_words": 7, "max_words": 9}
    for hypothesis in decode(captioner, tiny.features(6), Decoding(**settings), start=start):
        assert 7 <= len(hypothesis.tokens) <= 9
        assert not {PAD, START, UNK, END, FIRST, FIRST + 1} & set(hypothesis.tokens)
        trigrams = list(zip(hypothesis.tokens, hypothesis.tokens[1:], hypothesis.tokens[2:], strict=False))
        assert len(set(trigrams)) == len(trigrams)


def test_guided_captions_in_a_style_begin_with_its_marker_in_both_branches():
    captioner, features = tiny.sensitive_captioner("soft-attention"), tiny.features(3)
    captioner.styles, guided = 2, functools.partial(reference.classifier_free, gamma=2.0)
    for start in (FIRST, FIRST + 1):
        hypotheses = decode(captioner, features, Decoding(guidance=2.0, max_words=5), start=start)
        for image, hypothesis in zip(images_of(features), hypotheses, strict=True):
            assert_recomputed(hypothesis, captioner, image, guided, start=start, styles=2)


@pytest.mark.parametrize("method", METHODS)
def test_a_word_with_a_logit_of_minus_infinity_stays_impossible(method):
    logits = torch.zeros(FIRST + 3)
    logits[FIRST] = -math.inf
    decoding = Decoding(method=method, guidance=2.0, max_words=5)
    for hypothesis in decode(tiny.TableCaptioner.always(logits), tiny.features(3, width=1), decoding):
        assert FIRST not in hypothesis.tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guidance": math.nan}, "guidance = nan is out of range: use 0 to 100"),
        ({"guidance": -0.5}, "guidance = -0.5 is out of range"),
        ({"guidance": math.inf}, "guidance = inf is out of range"),
        ({"guidance": "2"}, "guidance must be a number, not '2'"),
        ({"guidance": True}, "guidance must be a number, not True"),
        ({"lm": 3}, "lm must be text, not 3"),
        ({"lm": "q"}, "lm needs guidance other than 1, or lm_weight"),
        ({"lm_prompt": "captions.txt"}, "lm_prompt is for a language model: give lm"),
        ({"lm_weight": (5, 2.5)}, "lm_weight is for a language model: give lm"),
        ({"lm": "q", "guidance": 2, "lm_weight": (5, 2.5)}, "guidance = 2 and lm_weight exclude each other"),
        ({"lm": "q", "lm_weight": 5}, "lm_weight must be two numbers"),
        ({"lm": "q", "lm_weight": (5,)}, "lm_weight must be two numbers"),
        ({"lm": "q", "lm_weight": (5, "x")}, "lm_weight must be two numbers"),
        ({"lm": "q", "lm_weight": (5, math.nan)}, "lm_weight must be two numbers"),
        ({"lm": "q", "lm_weight": (5, -2.5)}, "lm_weight must be two numbers"),
        ({"lm": "q", "lm_weight": (True, 1)}, "lm_weight must be two numbers"),
    ],
    ids=str,
)
def test_wrong_settings_are_an_error_of_one_line(settings, message):
    with pytest.raises(UserError, match=message) as caught:
        Decoding(**settings)
    assert "\n" not in str(caught.value)


def test_signatures_name_the_guidance():
    assert str(Decoding(guidance=1.0)) == "beam3,length0.7,max20"
    assert str(Decoding(guidance=1.5, style="coco")) == "beam3,length0.7,max20,style:coco,guidance1.5"
    assert str(Decoding(guidance=1.5, lm="runs/lstm-coco/")) == "beam3,length0.7,max20,guidance1.5,lm:lstm-coco"
    weighted = Decoding(lm="/runs/lstm-coco", lm_weight=(5, 2.5))
    assert str(weighted) == "beam3,length0.7,max20,lm:lstm-coco,alpha5,beta2.5"
    assert weighted.guidance_settings == {"lm": "lstm-coco", "lm_weight": [5, 2.5]}
    assert Decoding().guidance_settings == {}


def test_settings_of_guidance_are_read_from_json():
    settings = {"lm": "q", "lm_weight": [5, 2.5]}
    assert Decoding.from_config(settings).lm_weight == (5, 2.5)
    assert Decoding.from_config(dataclasses.asdict(Decoding(guidance=2.0))) == Decoding(guidance=2.0)


def test_only_some_forms_need_a_captioner_that_predicts_words_without_an_image():
    assert Decoding(guidance=1.5).needs_no_image
    assert Decoding(lm="q", lm_weight=(5, 2.5)).needs_no_image
    assert not Decoding(lm="q", lm_weight=(5, 0)).needs_no_image
    assert not Decoding(lm="q", guidance=1.5).needs_no_image
    assert not Decoding().needs_no_image
