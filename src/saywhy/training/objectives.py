"""The training loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saywhy.captioners.base import Attention, Captioner, TeacherForced
from saywhy.captioners.soft_attention import doubly_stochastic
from saywhy.data.augment import Augmentation
from saywhy.data.tokenizer import PAD
from saywhy.encoders.base import Features
from saywhy.training.relevance_weighting import RelevanceWeighting, require_terms


class LossSums(NamedTuple):
    """The loss of a batch as sums, so that processes can add theirs before dividing.

    Attributes:
        loss: the objective summed over captions; carries the gradient.
        log_loss: −log p of the words alone, without label smoothing or penalties.
        words: number of words predicted, `<end>` included.
        captions: number of captions.
    """

    loss: Tensor
    log_loss: Tensor
    words: Tensor
    captions: Tensor

    def as_vector(self) -> Tensor:
        """The four sums (4,) without gradient, to be added over processes; in float64 where the device has it."""
        dtype = torch.float32 if self.loss.device.type == "mps" else torch.float64
        return torch.stack([value.detach().to(dtype) for value in self])


class CaptionLoss(nn.Module):
    """−log p(caption | image) + λ Σ_i (1 − Σ_t α_ti)², summed over captions (Xu et al. 2015, eq. 14).

    The log-likelihood is a sum over a caption's words, as in the paper. An architecture may add a loss of its own
    (`Captioner.auxiliary_loss`).

    Args:
        captioner: the captioner to train.
        size: side of the encoder's input, to which augmentation crops.
        augmentation: random crops, flips and colours; None for none.
        smoothing: share of each target spread over the whole vocabulary (label smoothing).
        penalty: λ of the doubly stochastic penalty.
        teachers: captioners whose mean word distribution is a second target, at temperature 1 (Hinton et al. 2015,
            https://arxiv.org/abs/1503.02531).
        distil: weight of the teachers' target; 1 − distil is that of the captions.
        conditioning_dropout: share of the captions trained without their image (Kornblith et al. 2023,
            https://arxiv.org/abs/2307.16686), so that the captioner also models p(words).
        relevance: LRP-inference fine-tuning: −log p of the words, with smoothing and distillation, becomes
            λ (−log p) + (1 − λ)(−log p̂), eq. 31 of Sun et al. 2021.
        cross_entropy: λ, the weight of −log p where there is `relevance`.
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
        conditioning_dropout: float = 0.0,
        relevance: RelevanceWeighting | None = None,
        cross_entropy: float = 0.5,
    ) -> None:
        super().__init__()
        if relevance is not None:
            require_terms(captioner)
        self.captioner = captioner
        self.size = size
        self.augmentation = augmentation
        self.smoothing = smoothing
        self.penalty = penalty
        self.distil = distil
        self.conditioning_dropout = conditioning_dropout
        self.relevance = relevance
        self.cross_entropy = cross_entropy
        self.teachers = nn.ModuleList(teachers).requires_grad_(False)

    def forward(
        self,
        inputs: Tensor,
        may_flip: Tensor,
        tokens: Tensor,
        image_index: Tensor,
        grid: tuple[int, int] | None,
        boxes: Tensor | None = None,
        active: Sequence[int] | None = None,
    ) -> LossSums:
        """Sums over a batch (the fields of a `Batch`). With `grid`, the inputs are cached features."""
        previous, targets = tokens[:, :-1], tokens[:, 1:]
        pixels = inputs
        if self.augmentation:
            pixels, boxes = self.augmentation.with_boxes(inputs, self.augmentation.size or self.size, may_flip, boxes)
        features = self.features(pixels, grid, boxes)
        features, has_image = self._drop_images(features.select(image_index))
        logits, reweighted_logits, attention = self._logits(features, previous, active)
        mask = targets != PAD  # (N, T)
        taught = None
        if self.distil:
            taught = self._teacher_distribution(pixels, boxes, image_index, previous, active)
        loss, log_p = self._word_loss(logits, targets, mask, taught, has_image)
        if reweighted_logits is not None:
            reweighted_loss, _ = self._word_loss(reweighted_logits, targets, mask, taught, has_image)
            loss = self.cross_entropy * loss + (1 - self.cross_entropy) * reweighted_loss
        captions = mask.any(dim=1)
        if self.penalty:
            penalties = doubly_stochastic(attention.alpha.float(), mask, features.mask)
            loss = loss + self.penalty * penalties * (captions & has_image)
        forced = TeacherForced(features, tokens, log_p, mask, has_image, image_index, attention)
        auxiliary_loss = self.captioner.auxiliary_loss(forced)
        if auxiliary_loss is not None:
            loss = loss + auxiliary_loss * captions
        return LossSums(loss.sum(), -log_p.detach().sum(), mask.sum(), captions.sum())

    def _logits(
        self, features: Features, previous: Tensor, active: Sequence[int] | None
    ) -> tuple[Tensor, Tensor | None, Attention]:
        """Logits (N, T, V) of p and, where the loss needs it, of p̂, and the attention."""
        if self.relevance is None or self.cross_entropy == 1:
            logits, attention = self.captioner(features, previous, active)
            return logits, None, attention
        captioner = require_terms(self.captioner)
        terms, attention = captioner.forward_terms(features, previous, active)
        logits = captioner.logits(terms)
        return logits, self.relevance(captioner, terms, logits, attention), attention

    def _word_loss(
        self, logits: Tensor, targets: Tensor, mask: Tensor, taught: Tensor | None, has_image: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The words' loss of each caption (N,), with smoothing and distillation, and log p of each word (N, T)."""
        log_softmax = logits.float().log_softmax(dim=-1)  # (N, T, V)
        log_p = log_softmax.gather(-1, targets.unsqueeze(-1)).squeeze(-1) * mask  # (N, T)
        loss = -log_p.sum(dim=1)  # (N,)
        if self.smoothing:
            uniform = -(log_softmax.mean(dim=-1) * mask).sum(dim=1)
            loss = (1 - self.smoothing) * loss + self.smoothing * uniform
        if taught is not None:
            cross_entropy = -(taught * log_softmax).sum(dim=-1)  # (N, T)
            share = self.distil * has_image  # teachers see the image: no target for a caption without one
            loss = (1 - share) * loss + share * (cross_entropy * mask).sum(dim=1)
        return loss, log_p

    def features(self, pixels: Tensor, grid: tuple[int, int] | None, boxes: Tensor | None) -> Features:
        """The features of a batch: of its pixels or, with `grid`, those that were cached."""
        if not grid:
            return self.captioner.encode(pixels, boxes)
        kind = pixels.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.captioner.no_image.dtype
        cached = Features(pixels.to(dtype), grid)
        return cached if boxes is None else cached.in_boxes(boxes)

    def _drop_images(self, features: Features) -> tuple[Features, Tensor]:
        """Conditioning dropout: features (N, L, D), some without their image, and which have it (N,)."""
        device = features.vectors.device
        if not self.conditioning_dropout:
            return features, torch.ones(len(features), dtype=torch.bool, device=device)
        has_image = torch.rand(len(features), device=device) >= self.conditioning_dropout
        return self.captioner.without_image(features, ~has_image), has_image

    @torch.no_grad()
    def _teacher_distribution(
        self,
        pixels: Tensor,
        boxes: Tensor | None,
        image_index: Tensor,
        previous: Tensor,
        active: Sequence[int] | None,
    ) -> Tensor:
        """The teachers' mean distribution of each next word, (N, T, V), on the pixels that the captioner gets."""
        features: dict[int, Features] = {}  # teachers may share an encoder
        total = torch.zeros((), device=pixels.device)
        for teacher in self.teachers.eval():
            assert isinstance(teacher, Captioner)
            encoder = id(teacher.encoder)
            if encoder not in features:
                features[encoder] = teacher.encode(pixels, boxes).select(image_index)
            logits, _ = teacher(features[encoder], previous, active)
            total = total + logits.float().softmax(dim=-1)
        return total / len(self.teachers)
