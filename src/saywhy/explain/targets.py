"""The words of a batch of captions that are explained, and their scores.

A word of a captioner with sub-words is several tokens, its pieces. Its score is the sum of the scores of its pieces, so
that its relevance, its budget and its maps are the sums of those of its pieces, from one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saywhy.data.tokenizer import PAD, Vocabulary
from saywhy.decoding.config import log_probabilities, without_markers
from saywhy.errors import UserError


@dataclass(frozen=True)
class Subwords:
    """Which tokens are which words.

    Attributes:
        lengths: the number of pieces of each target, (B, K).
        word_of: the number of the word that each token belongs to, (B, T), from 1; 0 for `<start>` and padding.
    """

    lengths: Tensor
    word_of: Tensor


@dataclass(frozen=True)
class Targets:
    """The words of a batch that are explained.

    Attributes:
        tokens: the captions, (B, T) from `<start>`, or the marker of their style, on; padded.
        positions: the number of tokens before each target, `<start>` not counted, (B, K).
        words: the targets, (B, K), padded with `<pad>`; of several pieces the first.
        contrast: the words whose logits are subtracted, (B, K), −1 for none.
        labels: the targets of each image as strings, not padded.
        subwords: for captions of sub-words; None where every token is a word.
    """

    tokens: Tensor
    positions: Tensor
    words: Tensor
    contrast: Tensor
    labels: Sequence[Sequence[str]] = ()
    subwords: Subwords | None = None

    @classmethod
    def of_captions(
        cls,
        captions: Sequence[Sequence[str]],
        positions: Sequence[Sequence[int]] | None,
        vocabulary: Vocabulary,
        device: torch.device,
        word: str | None = None,
        contrast: str | None = None,
        style: str = "",
    ) -> Targets:
        """The words of captions at these positions, or all of them; `word` is the target at every position instead.

        `style` is that of the captions, as `Vocabulary.encode` takes it. A contrast of words of several pieces is one
        of the first pieces that differ.
        """
        positions = [range(len(caption)) for caption in captions] if positions is None else positions
        pairs = list(zip(captions, positions, strict=True))
        labels = [[word or caption[position] for position in row] for caption, row in pairs]
        spelled = [_Spelled.of(caption, row, vocabulary, word, contrast) for caption, row in pairs]

        def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
            tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
            return pad_sequence(tensors, batch_first=True, padding_value=value).to(device)

        subwords = None
        if any(caption.has_subwords for caption in spelled):
            subwords = Subwords(
                padded([caption.lengths for caption in spelled], 0), padded([caption.word_of for caption in spelled], 0)
            )
        start = vocabulary.start(style)
        return cls(
            tokens=padded([[start, *caption.tokens] for caption in spelled], PAD),
            positions=padded([caption.positions for caption in spelled], 0),
            words=padded([caption.targets for caption in spelled], PAD),
            contrast=padded([caption.contrasts for caption in spelled], _padding(contrast, vocabulary)),
            labels=labels,
            subwords=subwords,
        )

    def scores(self, logits: Tensor, score: str = "logit", styles: int = 0) -> Tensor:
        """The explained numbers (B, K), from logits z (B, T, V).

            logit      z_w, the logit of the target
            logp       z_w − Σ_{v≠w} q_v z_v,  q_v = p_v / (1 − p_w) held constant
            contrast   z_w − z_c, the same for both, wherever a target has a contrast c

        The gradient of "logp" is that of log p_w, divided by 1 − p_w, as in SGLRP (Iwana et al. 2019,
        https://arxiv.org/abs/1908.04351); what supports all likely words alike cancels out. p is over the words that
        a caption of a model with `styles` may contain. The score of a word of several pieces is the sum of theirs.
        """
        return self._sum_over_pieces(lambda piece: piece._scores(logits, score, styles))

    def _scores(self, logits: Tensor, score: str, styles: int) -> Tensor:
        rows = logits.gather(1, self.positions.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))  # (B, K, V)
        target = rows.gather(-1, self.words.unsqueeze(-1)).squeeze(-1)
        contrast = rows.gather(-1, self.contrast.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        if score == "logp":
            q = without_markers(rows.detach(), styles).scatter(-1, self.words.unsqueeze(-1), -torch.inf).softmax(-1)
            return target - torch.where(self.contrast >= 0, contrast, (q * rows).sum(dim=-1))
        return target - contrast * (self.contrast >= 0)

    def log_p(self, logits: Tensor, styles: int = 0) -> Tensor:
        """log p of the targets, less that of the contrast, (B, K), from logits (B, T, V)."""
        return self._sum_over_pieces(lambda piece: piece._log_p(logits, styles))

    def _log_p(self, logits: Tensor, styles: int) -> Tensor:
        log_p = log_probabilities(self.at_positions(logits), styles)
        target, contrast = (
            log_p.gather(-1, words.clamp(min=0).unsqueeze(-1))[..., 0] for words in (self.words, self.contrast)
        )
        return target - torch.where(self.contrast >= 0, contrast, 0)

    def probabilities(self, logits: Tensor, styles: int = 0) -> Tensor:
        """p of the targets, (B, K), from logits (B, T, V)."""
        return replace(self, contrast=torch.full_like(self.contrast, -1)).log_p(logits, styles).exp()

    def _sum_over_pieces(self, score: Callable[[Targets], Tensor]) -> Tensor:
        """The score (B, K) of targets of one piece, summed over the pieces of each word."""
        total = score(self)
        if self.subwords is None:
            return total
        last = self.tokens.shape[1] - 1
        for number in range(1, int(self.subwords.lengths.max())):
            following = (self.positions + 1 + number).clamp(max=last)
            words = self.tokens.gather(1, following)
            piece = replace(self, positions=following - 1, words=words, contrast=torch.full_like(words, -1))
            has_piece = self.subwords.lengths > number  # elsewhere the score may be that of padding, whose log p is −∞
            total = total + torch.where(has_piece, score(piece), 0)
        return total

    @property
    def word_positions(self) -> Tensor:
        """The number of words before each target, (B, K)."""
        if self.subwords is None:
            return self.positions
        return (self.subwords.word_of.gather(1, self.positions + 1) - 1).clamp(min=0)

    def per_word(self, values: Tensor) -> Tensor:
        """Values of tokens (K, B, T), summed over the pieces of words, (K, B, 1 + words); first those of `<start>`."""
        if self.subwords is None:
            return values
        word_of = self.subwords.word_of.cpu() if values.device.type == "cpu" else self.subwords.word_of
        # the captions' tokens after `<start>`
        out = values.new_zeros(*values.shape[:2], int(word_of.max()) + 1)
        return out.scatter_add(2, word_of.expand_as(values), values)

    def whole_captions(self) -> Targets:
        """Every word of the captions as a target."""
        if self.subwords is None:
            words = self.tokens[:, 1:]
            positions = torch.arange(words.shape[1], device=words.device).expand_as(words) * (words != PAD)
            return Targets(self.tokens, positions, words, torch.full_like(words, -1))
        word_of = self.subwords.word_of
        number = torch.arange(1, int(word_of.max()) + 1, device=word_of.device)
        is_word = word_of[:, None] == number[:, None]  # (B, words, T)
        lengths = is_word.sum(dim=-1)
        first = is_word.int().argmax(dim=-1)
        words = torch.where(lengths > 0, self.tokens.gather(1, first), PAD)
        subwords = replace(self.subwords, lengths=lengths)
        return Targets(self.tokens, (first - 1).clamp(min=0), words, torch.full_like(words, -1), (), subwords)

    def select(self, words: Sequence[int]) -> Targets:
        """Some of the K words, by their indices, of targets without padding."""
        columns = list(words)
        subwords = self.subwords and replace(self.subwords, lengths=self.subwords.lengths[:, columns])
        positions, ids, contrast = (part[:, columns] for part in (self.positions, self.words, self.contrast))
        labels = [[row[k] for k in columns] for row in self.labels]
        return Targets(self.tokens, positions, ids, contrast, labels, subwords)

    def at_positions(self, values: Tensor) -> Tensor:
        """The values (B, K, …) at the targets' positions, of values (B, T, …); of several pieces those of the first."""
        rows = torch.arange(len(values), device=values.device).unsqueeze(1)
        return values[rows, self.positions]


@dataclass(frozen=True)
class _Spelled:
    """A caption and its targets in token ids: `positions`, `targets`, `contrasts` and `lengths` of each target."""

    tokens: Sequence[int]
    word_of: Sequence[int]
    positions: Sequence[int]
    targets: Sequence[int]
    contrasts: Sequence[int]
    lengths: Sequence[int]

    @property
    def has_subwords(self) -> bool:
        """Whether a word has several pieces."""
        return len(self.tokens) != max(self.word_of)

    @classmethod
    def of(
        cls,
        caption: Sequence[str],
        positions: Sequence[int],
        vocabulary: Vocabulary,
        word: str | None,
        contrast: str | None,
    ) -> _Spelled:
        words = list(caption)
        if word is not None and len(_at(vocabulary, word, 1)) > 1:
            for place in positions:  # its later pieces are read after its first ones
                words[place] = word
        pieces = vocabulary.pieces(words)
        starts = [sum(map(len, pieces[:place])) for place in range(len(words))]
        rows = [
            _target(pieces[place] if word is None else _at(vocabulary, word, place), contrast, vocabulary, place)
            for place in positions
        ]
        return cls(
            tokens=[id for ids in pieces for id in ids],
            word_of=[0, *(number for number, ids in enumerate(pieces, start=1) for _ in ids)],
            positions=[starts[place] + offset for place, (offset, *_) in zip(positions, rows, strict=True)],
            targets=[target for _, target, _, _ in rows],
            contrasts=[other for _, _, other, _ in rows],
            lengths=[length for *_, length in rows],
        )


def _at(vocabulary: Vocabulary, word: str, place: int) -> tuple[int, ...]:
    """The pieces of a word at a place in a caption."""
    return vocabulary.pieces([word] if place == 0 else ["a", word])[-1]


def _padding(contrast: str | None, vocabulary: Vocabulary) -> int:
    return -1 if contrast is None else _at(vocabulary, contrast, 1)[0]


def _target(
    pieces: Sequence[int], contrast: str | None, vocabulary: Vocabulary, place: int
) -> tuple[int, int, int, int]:
    """The offset, the token, its contrast or −1, and the number of pieces that are explained together."""
    if contrast is None:
        return 0, pieces[0], -1, len(pieces)
    pairs = zip(pieces, _at(vocabulary, contrast, place), strict=False)
    offset, pair = next(((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1]), (0, None))
    if pair is None:
        raise UserError(f"the contrast {contrast!r} begins with the word or the word with it: choose another contrast")
    return offset, *pair, 1
