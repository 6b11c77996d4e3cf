"""Self-critical training (Rennie et al. 2017, https://arxiv.org/abs/1612.00563; eqs. 17 and 18 of Sun et al. 2021).

With n captions w¹ … wⁿ drawn from p for each image, their rewards r and baselines b,

    L = −1/n Σ_s (r(w^s) − b_s) Σ_t log p(w^s_t | w^s_1 … w^s_{t−1}, image)

whose gradient is an unbiased estimate of that of −E[r], because b_s does not depend on w^s:

    "others"   b_s = the mean reward of the image's other samples (Luo 2020, https://arxiv.org/abs/2003.09971)
    "greedy"   b_s = the reward of the greedily decoded caption, without dropout

The sums over t include `<end>`. A sample that has not ended after `max_words` + 1 words is scored as it is, without
`<end>`. `<pad>`, `<start>`, `<unk>` and the markers of styles are never drawn, nor is an empty caption, as in decoding;
p is the distribution over the other words, at the sampling temperature.

Captions are drawn in training mode, and the gradient is that of the log-probabilities with which they were drawn. A
second, teacher-forced pass over the samples would have other dropout masks, and so the gradient of another distribution
than the one that the samples come from. It would also compute the decoder twice.

Where the cross-entropy has a relevance weighting (`RelevanceWeighting`), captions are drawn from p̂ in place of p, with
its gradient, and the greedy baseline is that of p (section V-C2 of Sun et al. 2021).

No tensor has a shape that depends on the samples, and nothing waits for the device: a CUDA graph can replay a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saywhy.captioners.base import Captioner, State
from saywhy.data.augment import Augmentation
from saywhy.data.tokenizer import END, MARKERS, PAD
from saywhy.encoders.base import Features
from saywhy.training.objectives import CaptionLoss
from saywhy.training.relevance_weighting import require_terms

BASELINES = ("others", "greedy")

Choose = Callable[[Tensor], Tensor]
"""log p (B, V) ↦ words (B,)."""


class SelfCriticalSums(NamedTuple):
    """The loss of a batch as sums, as `LossSums`, and the reward of its samples.

    Attributes:
        loss: the objective, with the samples of an image weighted like its captions; carries the gradient.
        log_loss: −log p of the sampled words; per word, an estimate of the entropy of p.
        words: number of sampled words, `<end>` included.
        captions: number of captions.
        reward: sum over the samples.
        samples: number of samples.
    """

    loss: Tensor
    log_loss: Tensor
    words: Tensor
    captions: Tensor
    reward: Tensor
    samples: Tensor

    def as_vector(self) -> Tensor:
        """The sums (6,) without gradient, to be added over processes; in float64 where the device has it."""
        dtype = torch.float32 if self.loss.device.type == "mps" else torch.float64
        return torch.stack([value.detach().to(dtype) for value in self])


class Sample(NamedTuple):
    """Captions word by word: tokens (B, T) from the first word to `<end>`, padded, and log p of each, 0 at padding."""

    tokens: Tensor
    log_p: Tensor


class SelfCriticalLoss(nn.Module):
    """L of the module docstring and cross-entropy, mixed, summed over captions.

    A batch must have all training captions of its images: they are the references of the reward.

    Args:
        cross_entropy: the loss of the captions, without augmentation; its captioner is trained.
        reward: a module of `saywhy.training.rewards`.
        references: the largest number of training captions of an image.
        max_words: most words of a sample.
        augmentation: random crops, flips and colours; None for none.
        samples: n.
        baseline: one of `BASELINES`; "others" needs two samples.
        weight: of the reward's loss; 1 − weight is that of cross-entropy.
        temperature: of the distribution that captions are drawn from.
    """

    allowed: Tensor  # (V,) 0 for words, −∞ for markers

    def __init__(
        self,
        cross_entropy: CaptionLoss,
        reward: nn.Module,
        references: int,
        max_words: int = 20,
        augmentation: Augmentation | None = None,
        samples: int = 5,
        baseline: str = "others",
        weight: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.cross_entropy, self.reward = cross_entropy, reward
        self.references, self.steps, self.augmentation = references, max_words + 1, augmentation
        self.samples, self.baseline, self.weight, self.temperature = samples, baseline, weight, temperature
        captioner = cross_entropy.captioner
        allowed = torch.zeros(captioner.vocabulary_size)
        allowed[: len(MARKERS) + captioner.styles] = -torch.inf
        allowed[END] = 0
        self.register_buffer("allowed", allowed, persistent=False)

    @property
    def captioner(self) -> Captioner:
        """The captioner to train."""
        return self.cross_entropy.captioner

    def forward(
        self,
        inputs: Tensor,
        may_flip: Tensor,
        tokens: Tensor,
        image_index: Tensor,
        grid: tuple[int, int] | None,
        boxes: Tensor | None = None,
        active: Sequence[int] | None = None,
    ) -> SelfCriticalSums:
        """Sums over a batch (the fields of a `Batch`). With `grid`, the inputs are cached features."""
        if self.augmentation:
            size = self.augmentation.size or self.cross_entropy.size
            inputs, boxes = self.augmentation.with_boxes(inputs, size, may_flip, boxes)
        features = self.cross_entropy.features(inputs, grid, boxes)
        references, copies = image_references(tokens, image_index, len(features), self.references)
        captions = copies.sum(dim=1)  # (P,)
        sample, reward, advantage = self._sample(features, references, copies)
        log_p = sample.log_p.sum(dim=1).view_as(reward)  # (P, n)
        loss = -((advantage * log_p).mean(dim=1) * captions).sum()
        if self.weight < 1:
            loss = self.weight * loss + (1 - self.weight) * self._cross_entropy(
                features, inputs, may_flip, tokens, image_index, grid, boxes, active
            )
        has_captions = captions > 0
        words = (sample.tokens != PAD).sum(dim=1).view_as(reward)
        return SelfCriticalSums(
            loss,
            -(log_p.detach().sum(dim=1) * has_captions).sum(),
            (words.sum(dim=1) * has_captions).sum(),
            captions.sum(),
            (reward.sum(dim=1) * has_captions).sum(),
            has_captions.sum() * self.samples,
        )

    def _sample(self, features: Features, references: Tensor, copies: Tensor) -> tuple[Sample, Tensor, Tensor]:
        """Samples of all images, image by image (P · n), their rewards (P, n), and reward − baseline (P, n)."""
        images, start, targets = len(features), references[:, 0, 0], references[..., 1:]
        rows = torch.arange(images * self.samples, device=references.device) // self.samples
        state = self.captioner.start(features).select(rows)
        with self._relevance_weighting():
            sample = self._decode(state, start[rows], draw_words)
        reward = self.reward(sample.tokens.unflatten(0, (images, -1)), targets, copies)
        if self.baseline == "others":
            baseline = (reward.sum(dim=1, keepdim=True) - reward) / (self.samples - 1)
        else:  # after sampling: autocast keeps the first copy of each weight, which must have a gradient
            baseline = self._greedy_reward(features, start, targets, copies)
        return sample, reward, reward - baseline

    def _relevance_weighting(self) -> AbstractContextManager[None]:
        """Within it the captioner predicts p̂, if the loss weights terms by relevance."""
        relevance = self.cross_entropy.relevance
        return nullcontext() if relevance is None else require_terms(self.captioner).reweighted(relevance)

    @torch.no_grad()
    def _greedy_reward(self, features: Features, start: Tensor, targets: Tensor, copies: Tensor) -> Tensor:
        """The reward of the greedily decoded caption of each image, (P, 1)."""
        with evaluation_mode(self.captioner):
            greedy = self._decode(self.captioner.start(features), start, lambda log_p: log_p.argmax(dim=-1))
        return self.reward(greedy.tokens.unsqueeze(1), targets, copies)

    def _decode(self, state: State, word: Tensor, choose: Choose) -> Sample:
        """Captions that begin with these markers (B,)."""
        words, log_ps = [], []
        ended = torch.zeros_like(word, dtype=torch.bool)
        for t in range(self.steps):
            step = self.captioner.step(word, state)
            state = step.state
            logits = step.logits.float() / self.temperature + self.allowed
            if t == 0:
                logits[:, END] = -torch.inf
            log_p = logits.log_softmax(dim=-1)
            word = choose(log_p.detach())
            log_ps.append(log_p.gather(1, word[:, None]).squeeze(1) * ~ended)
            words.append(word.masked_fill(ended, PAD))
            ended = ended | (word == END)
        return Sample(torch.stack(words, dim=1), torch.stack(log_ps, dim=1))

    def _cross_entropy(
        self,
        features: Features,
        inputs: Tensor,
        may_flip: Tensor,
        tokens: Tensor,
        image_index: Tensor,
        grid: tuple[int, int] | None,
        boxes: Tensor | None,
        active: Sequence[int] | None,
    ) -> Tensor:
        """The loss of the captions; features on a grid are not computed again, those of regions are."""
        if boxes is None and features.grid:
            inputs, grid = features.vectors, features.grid
        loss: Tensor = self.cross_entropy(inputs, may_flip, tokens, image_index, grid, boxes, active).loss
        return loss


def draw_words(log_p: Tensor) -> Tensor:
    """Words (B,) drawn from p, by the Gumbel-max trick: argmax log p − log e, with e ~ Exp(1)."""
    noise = torch.empty_like(log_p).exponential_().clamp_(min=2**-25)  # a 0 would win against every word
    return (log_p - noise.log()).argmax(dim=-1)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Within the block, the module is in evaluation mode."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def image_references(tokens: Tensor, image_index: Tensor, images: int, most: int) -> tuple[Tensor, Tensor]:
    """The captions of a batch by image: tokens (P, R, T), and how often each caption is in the batch, (P, R).

    Equal captions of an image become one: an image of a data set with a weight above 1 may be in a batch twice.

    Args:
        tokens: (N, T), padded; captions that are padding only are left out.
        image_index: (N,) the image of each caption.
        images: P.
        most: R, the largest number of captions of an image.
    """
    exists = (tokens != PAD).any(dim=1)  # (N,)
    equal = (image_index[:, None] == image_index) & (tokens[:, None] == tokens).all(dim=-1) & exists  # (N, N)
    number = torch.arange(len(tokens), device=tokens.device)
    earlier = number < number[:, None]
    is_first = exists & ~(equal & earlier).any(dim=1)
    same_image = (image_index[:, None] == image_index) & is_first
    slot = (same_image & earlier).sum(dim=1).masked_fill(~is_first, most)  # others go to a column that is cut
    references = tokens.new_full((images, most + 1, tokens.shape[1]), PAD)
    references[image_index, slot] = tokens
    copies = tokens.new_zeros(images, most + 1)
    copies[image_index, slot] = equal.sum(dim=1)
    return references[:, :most], copies[:, :most]
