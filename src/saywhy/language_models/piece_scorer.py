"""A causal model of Hugging Face as a scorer of a captioner's sub-words, with the same tokenizer as the captioner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saywhy.data.subwords import SubwordVocabulary
from saywhy.data.tokenizer import END, MARKERS
from saywhy.encoders.base import take_rows
from saywhy.errors import UserError
from saywhy.language_models.cache_tensors import packed, unpacked


@dataclass(frozen=True)
class PieceState:
    """Keys and values of the tokens read so far, (B, layers, 2, heads, t, d); (B, 0) before the first."""

    cache: Tensor

    def select(self, rows: Tensor) -> PieceState:
        """The states of these rows."""
        return PieceState(take_rows(self.cache, rows))


class PieceScorer:
    """log q(token | earlier tokens) as a `WordScorer` of a vocabulary of sub-words.

    Args:
        model: a causal model of transformers.
        tokenizer: its tokenizer, which has to be that of the captioner.
        vocabulary: of the captioner.
        location: where the model is, for error messages.
    """

    candidates: int | None = None

    def __init__(self, model: Any, tokenizer: Any, vocabulary: SubwordVocabulary, location: str) -> None:
        self.model = model.eval()
        self.device = next(model.parameters()).device
        known = [token for token in vocabulary.tokens if token < len(tokenizer)]
        if tokenizer.convert_ids_to_tokens(known) != list(vocabulary.names[: len(known)]):
            raise UserError(
                f"{location}: a captioner of sub-words is guided by a language model with the same tokenizer, and this "
                "one has another"
            )
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        start = next(id for id in (tokenizer.bos_token_id, tokenizer.cls_token_id, end) if id is not None)
        outputs = model.get_output_embeddings().weight.shape[0]
        native = torch.tensor([end, start, end, end, *vocabulary.tokens], device=self.device)
        self.has_token = native < outputs
        self.has_token[: len(MARKERS)] = False
        self.has_token[END] = True
        self.native = native.clamp(max=outputs - 1)

    def start(self, batch: int) -> PieceState:
        """The state before `<start>`."""
        return PieceState(torch.empty(batch, 0, device=self.device))

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: PieceState, candidates: Tensor | None = None) -> tuple[Tensor, PieceState]:
        """Read tokens (B,): log q (B, V) of all tokens, and the next state."""
        cache = unpacked(state.cache)
        output = self.model(input_ids=self.native[tokens][:, None], past_key_values=cache, use_cache=True)
        logits = output.logits[:, -1].float().index_select(1, self.native)
        log_q = logits.masked_fill(~self.has_token, -torch.inf).log_softmax(dim=-1)
        return log_q, PieceState(packed(cache))
