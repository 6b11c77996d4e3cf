"""What training minimises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saywhy.captioners.base import Captioner
from saywhy.captioners.soft_attention import doubly_stochastic
from saywhy.data.augment import Augmentation
from saywhy.data.vocabulary import PAD
from saywhy.encoders.annotations import Annotations


class Sums(NamedTuple):
    """A batch's loss as sums, so that processes can add theirs up before dividing.

    Attributes:
        loss: what is minimised, summed over captions; carries the gradient.
        log_loss: −log p of the words alone, without label smoothing or penalty.
        words: number of words predicted, `<end>` included.
        captions: number of captions.
    """

    loss: Tensor
    log_loss: Tensor
    words: Tensor
    captions: Tensor


class LogLikelihood(nn.Module):
    """−log p(caption | picture) + λ Σ_i (1 − Σ_t α_ti)², summed over captions (Xu et al. 2015, eq. 14).

    The log-likelihood is a sum over a caption's words, as in the paper. Label smoothing spreads that share of each
    target over the whole vocabulary. With teachers, `distil` is the weight of their mean distribution as a target
    beside the caption's own words (Hinton et al. 2015, https://arxiv.org/abs/1503.02531, at temperature 1): what
    several captioners agree on, in one that costs no more than each of them.
    """

    def __init__(
        self,
        captioner: Captioner,
        size: int,
        augmentation: Augmentation | None = None,
        smoothing: float = 0.0,
        penalty: float = 0.0,
        teachers: Sequence[Captioner] = (),
        distil: float = 0.0,
    ) -> None:
        super().__init__()
        self.captioner = captioner
        self.size = size
        self.augmentation = augmentation
        self.smoothing = smoothing
        self.penalty = penalty
        self.distil = distil
        self.teachers = nn.ModuleList(teachers).requires_grad_(False)

    def forward(
        self, inputs: Tensor, mirror: Tensor, words: Tensor, owner: Tensor, grid: tuple[int, int] | None
    ) -> Sums:
        """Sums over a batch; with `grid`, the inputs are annotations already."""
        read, wanted = words[:, :-1], words[:, 1:]
        pixels = self.augmentation(inputs, self.size, mirror) if self.augmentation else inputs
        annotations = Annotations(inputs, grid) if grid else self.captioner.encode(pixels)
        logits, glance = self.captioner(annotations.select(owner), read)
        spoken = wanted != PAD  # (N, T)
        logits = logits.float()
        loss = log_loss = _cross_entropy(logits, wanted)
        if self.smoothing:
            loss, log_loss = _cross_entropy(logits, wanted, self.smoothing), log_loss.detach()
        if self.distil:
            taught = self._taught(pixels, owner, read)
            cross = -(taught * logits.log_softmax(dim=-1)).sum(dim=-1)  # (N, T)
            loss = (1 - self.distil) * loss + self.distil * (cross * spoken).sum()
        captions = spoken.any(dim=1)
        if self.penalty:
            loss = loss + self.penalty * (doubly_stochastic(glance.alpha.float(), spoken) * captions).sum()
        return Sums(loss, log_loss, spoken.sum(), captions.sum())

    @torch.no_grad()
    def _taught(self, pixels: Tensor, owner: Tensor, read: Tensor) -> Tensor:
        """The teachers' mean distribution of each next word, (N, T, V), on the very pixels the captioner sees."""
        said = []
        for teacher in self.teachers.eval():
            assert isinstance(teacher, Captioner)
            logits, _ = teacher(teacher.encode(pixels).select(owner), read)
            said.append(logits.float().softmax(dim=-1))
        return torch.stack(said).mean(dim=0)


def _cross_entropy(logits: Tensor, wanted: Tensor, smoothing: float = 0.0) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=smoothing
    )


def as_vector(sums: Sums) -> Tensor:
    """The four sums without gradient, for adding up over processes; in float64 where the device has it."""
    precise = torch.float32 if sums.loss.device.type == "mps" else torch.float64
    return torch.stack([each.detach().to(precise) for each in sums])
