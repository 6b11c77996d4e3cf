"""Any causal language model of Hugging Face transformers, scored word by word over a captioner's vocabulary.

The model has a tokenizer of its own. With the tokens t_1 … t_m of a word after its prefix (`word_tokens`):

    log q(word | prefix)   = Σ_j log P(t_j | prompt, prefix, t_1 … t_{j−1})
    log q(<end> | prefix)  = log (P(end of text | prompt, prefix) + Σ_n P(n | prompt, prefix))

where n are the tokens that begin with a line break: the mass of the newline is moved to `<end>`, as in Kornblith et al.
2023 (https://arxiv.org/abs/2307.16686). The prompt is a number of example captions, each followed by an empty line. So
the sum over a caption's words and `<end>` is the log-probability of its text after the prompt.

**Word boundaries.** In most tokenizers the space belongs to the word after it, so P of a word's tokens includes longer
words with the same beginning ("snowboard" includes "snowboarding" as [snowboard, ing]). The factor "the word ends here"
is part of P of the next word's first token: it comes one step late. With `lookahead` it is charged with its own word:

    log q(word | prefix) = Σ_j log P(t_j | …) + log P(boundary | …, t_1 … t_m) − log P(boundary | prefix)

where P(boundary) is the mass of the tokens that do not continue a word; before the first word its term is left out.
Then q sums to at most 1 over words. Over a caption the boundary terms cancel: the sum is the same. It costs one more
token per candidate.

**Cost.** Keys and values of the prompt and of all earlier words are cached. A step reads the tokens of the previous
word (one pass), and all but the last token of the candidates that have several (one pass for all candidates, which
share the cached prefix through an attention mask). Words that are not candidates get −∞. Without candidates every word
of the vocabulary is scored, which is slow.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saywhy.data.subwords import continues_word
from saywhy.data.tokenizer import END, Vocabulary, as_text, tokenize
from saywhy.encoders.base import take_rows
from saywhy.errors import UserError
from saywhy.language_models.word_tokens import SEPARATOR, WordTokens, token_texts, tokens_before_word
from saywhy.pretrained import import_transformers, load_part, load_weights

TOKENS_PER_PASS = 1024
"""Limit of the tokens of candidates in one pass: their log-probabilities take 200 kB each."""
TOKENS_OF_A_CAPTION = 64
"""Room that a prompt must leave."""


@dataclass(frozen=True)
class HuggingFaceState:
    """The text so far of each row.

    Attributes:
        cache: keys and values of each layer, (B, heads, t, d).
        visible: (B, t); false where a row was padded.
        length: (B,), the number of tokens.
        has_words: (B,), whether a word has been read.
        log_p: (B, tokens), of the next token.
    """

    cache: tuple[tuple[Tensor, Tensor], ...]
    visible: Tensor
    length: Tensor
    has_words: Tensor
    log_p: Tensor

    def select(self, rows: Tensor) -> HuggingFaceState:
        """The states of these rows."""
        cache = tuple((take_rows(keys, rows), take_rows(values, rows)) for keys, values in self.cache)
        others = {name: take_rows(getattr(self, name), rows) for name in ("visible", "length", "has_words", "log_p")}
        return HuggingFaceState(cache, **others)


class HuggingFaceScorer:
    """A causal model and its tokenizer as a `WordScorer`.

    Args:
        model: of transformers, with a key-value cache and a mask of four dimensions (all common ones).
        tokenizer: its tokenizer.
        vocabulary: of the captioner.
        prompt: example captions; they are written as the captioner writes, in lower case without punctuation.
        candidates: how many words the caller should ask for in each step.
        lookahead: charge the end of a word with the word itself (see the module).
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        vocabulary: Vocabulary,
        prompt: Sequence[str] = (),
        candidates: int | None = 50,
        lookahead: bool = False,
    ) -> None:
        self.model, self.candidates, self.lookahead = model.eval(), candidates, lookahead
        device = self.device = next(model.parameters()).device
        words = WordTokens.of(vocabulary, tokenizer)
        self.ids, self.lengths = words.ids.to(device), words.lengths.to(device)
        outputs = model.get_output_embeddings().weight.shape[0]
        texts = token_texts(tokenizer, min(len(tokenizer), outputs))
        ends = _end_ids(model, tokenizer)
        newlines = {token for token, text in enumerate(texts) if text.lstrip(" ").startswith("\n")}
        self.end_ids = torch.tensor(sorted((ends | newlines) & set(range(outputs))), device=device)
        if not len(self.end_ids):
            raise UserError("this tokenizer has neither an end of text nor a line break: captions could not end")
        special = ends | set(tokenizer.all_special_ids)
        boundaries = [token for token, text in enumerate(texts) if token in special or not continues_word(text)]
        self.boundary_ids = torch.tensor(boundaries, device=device)
        self.vocabulary_size = len(vocabulary)
        ids = prompt_ids(tokenizer, prompt)
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit and len(ids) + TOKENS_OF_A_CAPTION > limit:
            raise UserError(
                f"this language model reads {limit} tokens, and its prompt has {len(ids)}, which leaves too few for a "
                "caption: give fewer example captions, or another model"
            )
        self.prompt = self._read_prompt(ids)

    @torch.inference_mode()
    def _read_prompt(self, ids: Sequence[int]) -> HuggingFaceState:
        tokens = torch.tensor([ids], device=self.device)
        length = torch.zeros(1, dtype=torch.long, device=self.device)
        empty = HuggingFaceState((), torch.ones(1, 0, dtype=torch.bool, device=self.device), length, length > 0, length)
        logits, cache = self._run(tokens, torch.arange(len(ids), device=self.device)[None], _causal(tokens), empty, 1)
        visible = torch.ones(1, len(ids), dtype=torch.bool, device=self.device)
        return HuggingFaceState(cache, visible, length + len(ids), length > 0, logits[:, -1].float().log_softmax(-1))

    def start(self, batch: int) -> HuggingFaceState:
        """The state after the prompt, which all rows share."""
        return self.prompt.select(torch.zeros(batch, dtype=torch.long, device=self.device))

    @torch.inference_mode()
    def step(
        self, tokens: Tensor, state: HuggingFaceState, candidates: Tensor | None = None
    ) -> tuple[Tensor, HuggingFaceState]:
        """Read words (B,): log q (B, V) of the next word, and the next state; −∞ for words outside `candidates`."""
        state = self._append(tokens, state)
        if candidates is None:
            candidates = torch.arange(self.vocabulary_size, device=self.device).expand(len(tokens), -1)
        scores = self._candidate_scores(candidates, state)
        log_q = state.log_p.new_full((len(tokens), self.vocabulary_size), -torch.inf)
        log_q.scatter_(1, candidates, scores)
        log_q[:, END] = state.log_p[:, self.end_ids].logsumexp(dim=1)
        if self.lookahead:  # the end of the previous word was charged with that word
            charged = state.log_p[:, self.boundary_ids].logsumexp(dim=1)
            log_q -= torch.where(state.has_words, charged, 0.0)[:, None]
        return log_q, state

    def _append(self, tokens: Tensor, state: HuggingFaceState) -> HuggingFaceState:
        """Read the tokens of a word of each row; markers have none."""
        place = state.has_words.long()
        count = self.lengths[place, tokens]  # (B,)
        longest = int(count.max())
        if not longest:
            return state
        ids = self.ids[place, tokens, :longest]  # (B, m)
        offsets = torch.arange(longest, device=self.device)
        logits, cache = self._run(ids, state.length[:, None] + offsets, _causal(ids), state, 0)
        last = logits[torch.arange(len(ids), device=self.device), (count - 1).clamp(min=0)]
        log_p = torch.where(count[:, None] > 0, last.float().log_softmax(-1), state.log_p)
        visible = torch.cat([state.visible, offsets < count[:, None]], dim=1)
        return HuggingFaceState(cache, visible, state.length + count, state.has_words | (count > 0), log_p)

    def _candidate_scores(self, candidates: Tensor, state: HuggingFaceState) -> Tensor:
        """log q of words (B, K), before the correction for the previous word's end; −∞ for markers."""
        place = state.has_words.long()[:, None]
        ids, counts = self.ids[place, candidates], self.lengths[place, candidates]  # (B, K, M), (B, K)
        scores = state.log_p.gather(1, ids[..., 0]).masked_fill(counts == 0, -torch.inf)
        unread = counts if self.lookahead else counts - 1  # tokens that a further pass has to read
        number = int((unread > 0).sum(dim=1).max())
        order = unread.argsort(dim=1, descending=True, stable=True)[:, :number]  # the longest words first
        start = 0
        while start < number:
            longest = int(unread.gather(1, order[:, start : start + 1]).max())
            stop = start + max(1, TOKENS_PER_PASS // (len(ids) * longest))
            part = order[:, start:stop]
            part_ids = ids.gather(1, part[..., None].expand(-1, -1, ids.shape[-1]))
            rest = self._continuation(part_ids, counts.gather(1, part), longest, state)
            scores.scatter_add_(1, part, rest)
            start = stop
        return scores

    def _continuation(self, ids: Tensor, counts: Tensor, longest: int, state: HuggingFaceState) -> Tensor:
        """log P of the tokens after the first of words (B, K, M), and of a boundary with lookahead: (B, K).

        The tokens of a row's words are packed into one sequence; each attends to the tokens of its own word only.
        """
        words, device = counts.shape[1], self.device
        word = torch.arange(words, device=device).repeat_interleave(longest)  # (K m,)
        place = torch.arange(longest, device=device).repeat(words)
        unread = counts if self.lookahead else counts - 1
        padding = place >= unread.repeat_interleave(longest, dim=1)  # (B, K m)
        total = int((~padding).sum(dim=1).max())
        packed = padding.long().argsort(dim=1, stable=True)[:, :total]  # (B, Q)
        word, place, padding = word[packed], place[packed], padding.gather(1, packed)
        own = (word[:, :, None] == word[:, None]) & (place[:, :, None] >= place[:, None])  # (B, Q, Q)
        rows = torch.arange(len(ids), device=device)[:, None]
        inputs = ids[rows, word, place]
        logits, _ = self._run(inputs, state.length[:, None] + place, own, state, 0)
        log_p = logits.float().log_softmax(dim=-1)  # (B, Q, tokens)
        following = ids[rows, word, (place + 1).clamp(max=ids.shape[-1] - 1)]
        scores = log_p.gather(2, following[..., None]).squeeze(2)  # (B, Q)
        if self.lookahead:
            ends = log_p[..., self.boundary_ids].logsumexp(dim=-1)
            scores = torch.where(place + 1 == counts.gather(1, word), ends, scores)
        return torch.zeros_like(counts, dtype=scores.dtype).scatter_add_(1, word, scores.masked_fill(padding, 0.0))

    def _run(
        self, ids: Tensor, positions: Tensor, own: Tensor, state: HuggingFaceState, keep: int
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
        """Logits of the last `keep` tokens (0: of all) of ids (B, Q) after a state, and the cache with them.

        `own` (Q, Q) or (B, Q, Q) says which of the new tokens each new token attends to; all attend to the visible
        tokens of the state.
        """
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (keys, values) in enumerate(state.cache):
            cache.update(keys, values, layer)
        rows, new = ids.shape
        seen = torch.cat([state.visible[:, None].expand(-1, new, -1), own.expand(rows, -1, -1)], dim=-1)
        dtype = self.model.dtype
        mask = torch.zeros(seen.shape, dtype=dtype, device=ids.device).masked_fill(~seen, torch.finfo(dtype).min)
        output = self.model(
            input_ids=ids,
            attention_mask=mask[:, None],  # (B, 1, Q, t + Q)
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        layers = output.past_key_values.layers
        return output.logits, tuple((layer.keys, layer.values) for layer in layers)


def _causal(ids: Tensor) -> Tensor:
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()


def _end_ids(model: Any, tokenizer: Any) -> set[int]:
    """Tokens that end a text."""
    configured = model.config.eos_token_id
    ids = configured if isinstance(configured, list | tuple) else [configured]
    return {token for token in (*ids, tokenizer.eos_token_id) if token is not None}


def prompt_ids(tokenizer: Any, captions: Sequence[str]) -> list[int]:
    """Tokens of the prompt: the beginning of a text, then each caption and an empty line."""
    texts = [as_text(words) for caption in captions if (words := tokenize(caption))]
    if captions and not texts:
        raise UserError("the prompt has no words: give example captions, one per line")
    first = next((token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id) if token is not None), None)
    text = "".join(text + SEPARATOR for text in texts) or ("" if first is not None else SEPARATOR)
    return ([] if first is None else [first]) + tokens_before_word(tokenizer, text)


def load_huggingface(location: str, device: torch.device | str = "cpu") -> tuple[Any, Any]:
    """A causal model and its tokenizer: from a folder, a GGUF file, hf:NAME, or a GGUF file on the Hub, hf:NAME/FILE.

    On a GPU the model is in bfloat16.
    """
    transformers = import_transformers("a Hugging Face language model")
    what, folder, options = "a causal language model", location, {}
    if location.endswith(".gguf"):
        folder, options = os.path.dirname(location) or ".", {"gguf_file": os.path.basename(location)}
    tokenizer = load_part(transformers.AutoTokenizer, folder, what, **options)
    dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    model = load_weights(
        transformers.AutoModelForCausalLM, folder, what, device,
        dtype=dtype, attn_implementation="sdpa", use_safetensors=None if options else True, **options,
    )  # fmt: skip
    return model, tokenizer
