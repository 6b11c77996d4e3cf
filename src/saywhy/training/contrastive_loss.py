"""The loss of a judge: each caption of a batch has to find its own image, and each image its caption.

With unit vectors x_i of the images and y_j of the captions of N pairs, and the scale e^σ (Radford et al. 2021):

    loss = −½ Σ_i log softmax_j(e^σ x_i · y_j)_i − ½ Σ_j log softmax_i(e^σ x_i · y_j)_j
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saywhy.captioners.coca import info_nce
from saywhy.data.augment import Augmentation
from saywhy.data.tokenizer import PAD
from saywhy.judges.dual_encoder import DualEncoder


class ContrastiveSums(NamedTuple):
    """The loss of a batch as sums over its captions.

    Attributes:
        loss: carries the gradient.
        correct: captions whose own image is the most similar of the batch.
        captions: number of captions.
    """

    loss: Tensor
    correct: Tensor
    captions: Tensor

    def as_vector(self) -> Tensor:
        """The three sums (3,) without gradient."""
        return torch.stack([value.detach().float() for value in self])


class ContrastiveLoss(nn.Module):
    """The loss of the module docstring; it takes the fields of a `Batch`, as `CaptionLoss` does.

    Args:
        model: the judge to train.
        size: side of the encoder's input, to which augmentation crops.
        augmentation: random crops, flips and colours; None for none.
    """

    def __init__(self, model: DualEncoder, size: int, augmentation: Augmentation | None = None) -> None:
        super().__init__()
        self.model, self.size, self.augmentation = model, size, augmentation

    def forward(
        self,
        inputs: Tensor,
        may_flip: Tensor,
        tokens: Tensor,
        image_index: Tensor,
        grid: None = None,
        boxes: None = None,
        active: Sequence[int] | None = None,
    ) -> ContrastiveSums:
        """Sums over the pairs of a batch; captions of padding only cost nothing and are no negatives."""
        self.model.limit_scale()
        pixels = inputs
        if self.augmentation:
            pixels = self.augmentation(inputs, self.augmentation.size or self.size, may_flip)
        x = self.model.embed_images(pixels)[image_index]  # (N, embedding)
        y = self.model.embed_captions(tokens)
        included = (tokens != PAD).any(dim=1)
        with torch.autocast(x.device.type, enabled=False):
            logits = self.model.log_scale.exp() * (x @ y.T)  # (N, N), image i against caption j
            loss = (info_nce(logits, included, image_index) * included).sum()
        return ContrastiveSums(loss, _correct(logits, included, image_index), included.sum())


@torch.no_grad()
def _correct(logits: Tensor, included: Tensor, image_index: Tensor) -> Tensor:
    """How many captions have their own image first."""
    best = logits.masked_fill(~included[:, None], -torch.inf).argmax(dim=0)  # (N,) the image row for each caption
    return ((image_index[best] == image_index) & included).sum()
