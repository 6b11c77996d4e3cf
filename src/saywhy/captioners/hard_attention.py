"""Show, attend and tell with hard attention (Xu et al. 2015, https://arxiv.org/abs/1502.03044, section 4.1).

The network is that of soft attention; the context differs. For each word one feature is sampled,

    s̃_t ~ Multinoulli(α_t),    z_t = β a_s̃t

and training maximises a lower bound of log p(y | a), L_s = Σ_s p(s | a) log p(y | s, a), with the gradient

    ∂L_s ≈ ∂log p(y | s̃, a) + λ_r (log p(y | s̃, a) − b) ∂log p(s̃ | a) + λ_e ∂H[s̃]

where b ← 0.9 b + 0.1 log p(y | s̃, a). With probability ½ a caption uses the expected context Σ α_i a_i in place of
sampled features. The first term is the log-likelihood, which all captioners share; `auxiliary_loss` is the rest. With
λ_r = 1 and λ_e = 0 the estimate is unbiased for any b that does not depend on the samples of the batch. Therefore b is
the average before the batch; the first batch, for which there is none, has no REINFORCE term, and b starts at its mean.

The authors' code differs from the paper (`recipes/flickr8k-hard-authors.toml` has its constants): the reward is the
mean log p of a caption's words and not their sum, λ_r is 1/10, one coin is tossed for a whole minibatch, and λ_e,
for which the paper has no number, is 0.002. (In their code the doubly stochastic penalty seems to have no effect on
hard attention; here it acts on α as it does for soft attention.) A third reward, "onward", is ours: the feature sampled
for a word is credited with that word and all later ones, and each is compared with b, the mean log p of a word. It
is unbiased too and has less variance.

A trained captioner with the attention mode "sampled" draws s̃_t from a hash of the image's features and t, so that
every pass over an image draws the same features: decoding alone or in a batch, and explaining.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from saywhy.captioners.base import Attention, TeacherForced, captioners
from saywhy.captioners.soft_attention import SoftAttention, SoftAttentionSettings, SoftAttentionState
from saywhy.encoders.base import Encoder, Features
from saywhy.errors import UserError, did_you_mean

COINS = ("caption", "batch")
REWARDS = ("caption", "mean", "onward")
MOMENTUM = 0.9  # of the moving average b
SMALLEST_ALPHA = 1e-12  # a smaller α, such as that of a masked feature, has no gradient
SEEDS = 1000  # cells of the cosine that `seeds_of` rounds to: more tell more images apart, fewer are more robust


@dataclass(frozen=True)
class HardAttentionSettings(SoftAttentionSettings):
    """The settings of soft attention, and those of sampling.

    Attributes:
        expected: probability that a caption is trained with the expected context and not with sampled features.
        coin: what that probability is drawn for: each "caption", or the whole "batch" as in the authors' code.
        reward: "caption" (the paper), "mean" (the authors' code) or "onward".
        reward_weight: λ_r.
        entropy_weight: λ_e; a larger weight keeps attention wider.
    """

    expected: float = 0.5
    coin: str = "caption"
    reward: str = "caption"
    reward_weight: float = 1.0
    entropy_weight: float = 0.002

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("coin", COINS), ("reward", REWARDS)):
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"hard-attention: unknown {name} {value!r}: {did_you_mean(value, known)}")
        weights = (self.reward_weight, self.entropy_weight)
        if not 0 <= self.expected <= 1 or not all(0 <= weight < math.inf for weight in weights):
            raise UserError("hard-attention: expected is in 0–1, and the weights are finite and not negative")


@dataclass(frozen=True)
class HardAttentionState(SoftAttentionState):
    """The state of soft attention, and what sampling needs, each (B,)."""

    soft: Tensor  # true where the expected context is used
    seed: Tensor  # of the image; used outside training
    t: Tensor  # number of words read


@captioners.register("hard-attention")
class HardAttention(SoftAttention):
    """The captioner: the network of soft attention, which samples features while it is trained.

    A trained captioner uses the expected context, a sampled feature, or the feature with the largest α.

    Attributes:
        baseline: b; 0 before the first batch (log-probabilities have a negative mean).
    """

    name = "hard-attention"
    Settings = HardAttentionSettings
    attention_modes = ("expected", "sampled", "argmax")
    settings: HardAttentionSettings
    baseline: Tensor

    def __init__(self, encoder: Encoder, vocabulary_size: int, settings: HardAttentionSettings) -> None:
        super().__init__(encoder, vocabulary_size, settings)
        self.register_buffer("baseline", torch.tensor(0.0))

    def start(self, features: Features) -> HardAttentionState:
        """The initial state of soft attention; in training, a coin decides which captions sample."""
        state = super().start(features)
        rows, device = features.vectors.shape[0], features.vectors.device  # not len(), which an export takes for fixed
        if self.training:
            coins = torch.rand(1 if self.settings.coin == "batch" else rows, device=device)
            soft = (coins < self.settings.expected).expand(rows)
        else:
            soft = torch.full((rows,), self.attention_mode == "expected", device=device)
        t = torch.zeros(rows, dtype=torch.long, device=device)
        return HardAttentionState(state.h, state.c, state.features, state.keys, soft, seeds_of(features), t)

    def _attend(self, Ey: Tensor, state: SoftAttentionState) -> tuple[SoftAttentionState, Tensor, Attention]:
        assert isinstance(state, HardAttentionState)
        return super()._attend(Ey, replace(state, t=state.t + 1))

    def _weights(self, alpha: Tensor, state: SoftAttentionState) -> tuple[Tensor, Tensor | None]:
        """One feature, or α of all where the expected context is used; and its index, −1 where there is none."""
        assert isinstance(state, HardAttentionState)
        if self.training:
            index = torch.multinomial(alpha.detach(), 1).squeeze(-1)  # (B,)
        elif self.attention_mode == "argmax":
            index = alpha.argmax(dim=-1)
        else:
            index = sample_index(alpha.detach(), uniform(state.seed, state.t))
        one_hot = F.one_hot(index, alpha.shape[-1]).to(alpha)  # (B, L)
        return torch.where(state.soft[:, None], alpha, one_hot), torch.where(state.soft, -1, index)

    def auxiliary_loss(self, forced: TeacherForced) -> Tensor:
        """−λ_r (log p(y | s̃) − b) log p(s̃) − λ_e H[s̃] of each caption, (N,)."""
        alpha, drawn = forced.attention.alpha.clamp(min=SMALLEST_ALPHA), forced.attention.drawn
        assert drawn is not None
        is_drawn = (drawn >= 0) & forced.mask  # (N, T)
        log_s = alpha.gather(-1, drawn.clamp(min=0).unsqueeze(-1)).squeeze(-1).log() * is_drawn  # (N, T)
        entropy = torch.special.entr(alpha).sum(dim=-1) * forced.mask  # (N, T)
        advantage = self._advantage(forced, is_drawn)
        gain = self.settings.reward_weight * advantage * log_s + self.settings.entropy_weight * entropy
        return -gain.sum(dim=1)

    @torch.no_grad()
    def _advantage(self, forced: TeacherForced, is_drawn: Tensor) -> Tensor:
        """The reward minus b, (N, T) or (N, 1), 0 in the first batch; in training, b is updated."""
        log_p, mask, reward = forced.log_p, forced.mask, self.settings.reward
        rewards = log_p if reward == "onward" else log_p.sum(dim=1, keepdim=True)  # (N, T) or (N, 1)
        if reward == "mean":
            rewards = rewards / mask.sum(dim=1, keepdim=True).clamp(min=1)
        counted = is_drawn if reward == "onward" else is_drawn.any(dim=1, keepdim=True)
        mean = (rewards * counted).sum() / counted.sum().clamp(min=1)
        b = self.baseline.clone()
        if self.training:
            updated = torch.where(b == 0, mean, MOMENTUM * b + (1 - MOMENTUM) * mean)
            self.baseline.copy_(torch.where(counted.any(), updated, b))
        advantage = torch.where(b == 0, 0.0, rewards - b)
        if reward == "onward":
            return (advantage * mask).flip(1).cumsum(dim=1).flip(1)  # from this word to the last
        return advantage


def seeds_of(features: Features) -> Tensor:
    """A seed per image, (B,), from the direction of its mean feature.

    It is rounded to `SEEDS` cells, so that rounding errors, which depend on the size of the batch, rarely change it.
    """
    mean = replace(features, vectors=features.vectors.detach()).mean().float()  # (B, D)
    direction = torch.arange(mean.shape[-1], device=mean.device).float().cos()  # any fixed vector
    return ((1 + F.cosine_similarity(mean, direction, dim=-1)) / 2 * SEEDS).long()


def uniform(seed: Tensor, t: Tensor) -> Tensor:
    """Numbers in [0, 1), (B,), that are a hash of seeds (B,) and of times (B,).

    The mixing steps are those of lowbias32 (https://nullprogram.com/blog/2018/07/31/), modulo 2³² in int64.
    """
    x = (seed * 0x9E3779B1 + t * 0x85EBCA77) % 2**32
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * factor % 2**32
    return ((x ^ (x >> 16)) >> 8).float() / 2**24  # float32 has 24 bits


def sample_index(alpha: Tensor, u: Tensor) -> Tensor:
    """The first index whose cumulative probability exceeds u, (B,), for probabilities α (B, L) and u (B,)."""
    cumulative = alpha.float().cumsum(dim=-1)
    return (cumulative <= u[:, None] * cumulative[:, -1:]).sum(dim=-1).clamp(max=alpha.shape[-1] - 1)
