"""What training minimises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saywhy.captioners.base import Captioner, TeacherForced
from saywhy.captioners.soft_attention import doubly_stochastic
from saywhy.data.augment import Augmentation
from saywhy.data.vocabulary import PAD
from saywhy.encoders.features import Features
from saywhy.encoders.region_pooling import cut_regions


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
    """−log p(caption | image) + λ Σ_i (1 − Σ_t α_ti)², summed over captions (Xu et al. 2015, eq. 14).

    The log-likelihood is a sum over a caption's words, as in the paper; an architecture may add a loss of its own
    (`Captioner.auxiliary_loss`). Label smoothing spreads that share of each target over the whole vocabulary. With
    teachers, `distil` is the weight of their mean distribution as a target beside the caption's own words (Hinton
    et al. 2015, https://arxiv.org/abs/1503.02531, at temperature 1): what several captioners agree on, in one that
    costs no more than each of them. With conditioning dropout, that share of the captions is taught without the
    image (Kornblith et al. 2023, https://arxiv.org/abs/2307.16686), so that the model also knows p(words).
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
        drop_image: float = 0.0,
    ) -> None:
        super().__init__()
        self.captioner = captioner
        self.size = size
        self.augmentation = augmentation
        self.smoothing = smoothing
        self.penalty = penalty
        self.distil = distil
        self.drop_image = drop_image
        self.teachers = nn.ModuleList(teachers).requires_grad_(False)

    def forward(
        self,
        inputs: Tensor,
        mirror: Tensor,
        words: Tensor,
        owner: Tensor,
        grid: tuple[int, int] | None,
        boxes: Tensor | None = None,
    ) -> Sums:
        """Sums over a batch; with `grid`, the inputs are features already; with `boxes`, regions are looked at."""
        longest_first = (words != PAD).sum(dim=1).argsort(descending=True, stable=True)
        words, owner = words[longest_first], owner[longest_first]  # so that little is computed for padding
        read, wanted = words[:, :-1], words[:, 1:]
        pixels = inputs
        if self.augmentation:
            pixels, boxes = self.augmentation.with_boxes(inputs, self.size, mirror, boxes)
        features = self._annotations(pixels, grid, boxes)
        features, has_image = self._dropped(features.select(owner))
        logits, attention = self.captioner(features, read)
        logits = logits.float()
        log_p = -_cross_entropy(logits, wanted)  # (N, T)
        spoken = wanted != PAD  # (N, T)
        forced = TeacherForced(features, words, log_p, spoken, has_image, owner, attention)
        loss = self._losses(forced, logits, wanted)  # (N,)
        if self.distil:
            taught = self._taught(pixels, boxes, owner, read)
            cross = -(taught * logits.log_softmax(dim=-1)).sum(dim=-1)  # (N, T)
            share = self.distil * has_image  # what is said without the image, teachers with it cannot teach
            loss = (1 - share) * loss + share * (cross * spoken).sum(dim=1)
        captions = spoken.any(dim=1)
        if self.penalty:
            missed = doubly_stochastic(attention.alpha.float(), spoken, features.mask)
            loss = loss + self.penalty * missed * (captions & has_image)
        own = self.captioner.auxiliary_loss(forced)
        if own is not None:
            loss = loss + own * captions
        return Sums(loss.sum(), -log_p.detach().sum(), spoken.sum(), captions.sum())

    def _annotations(self, pixels: Tensor, grid: tuple[int, int] | None, boxes: Tensor | None) -> Features:
        if not grid:
            return self.captioner.encode(pixels, boxes)
        kept = Features(pixels, grid)  # what a frozen encoder said
        return kept if boxes is None else cut_regions(kept, boxes)

    def _dropped(self, features: Features) -> tuple[Features, Tensor]:
        """The features (N, L, D), some without their image, and which still have it (N,)."""
        device = features.vectors.device
        if not self.drop_image:
            return features, torch.ones(len(features), dtype=torch.bool, device=device)
        has_image = torch.rand(len(features), device=device) >= self.drop_image
        return self.captioner.without_image(features, ~has_image), has_image

    def _losses(self, forced: TeacherForced, logits: Tensor, wanted: Tensor) -> Tensor:
        """−log p of each caption, (N,), against smoothed targets where they are smoothed."""
        each = _cross_entropy(logits, wanted, self.smoothing) if self.smoothing else -forced.log_p
        return each.sum(dim=1)

    @torch.no_grad()
    def _taught(self, pixels: Tensor, boxes: Tensor | None, owner: Tensor, read: Tensor) -> Tensor:
        """The teachers' mean distribution of each next word, (N, T, V), on the very pixels the captioner sees."""
        said = []
        for teacher in self.teachers.eval():
            assert isinstance(teacher, Captioner)
            logits, _ = teacher(teacher.encode(pixels, boxes).select(owner), read)
            said.append(logits.float().softmax(dim=-1))
        return torch.stack(said).mean(dim=0)


def _cross_entropy(logits: Tensor, wanted: Tensor, smoothing: float = 0.0) -> Tensor:
    """−log p of each wanted word, (N, T); 0 over padding."""
    each = F.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, reduction="none", label_smoothing=smoothing
    )
    return each.view_as(wanted)


def as_vector(sums: Sums) -> Tensor:
    """The four sums without gradient, for adding up over processes; in float64 where the device has it."""
    precise = torch.float32 if sums.loss.device.type == "mps" else torch.float64
    return torch.stack([each.detach().to(precise) for each in sums])
