"""Show, attend and tell with hard attention (Xu et al. 2015, https://arxiv.org/abs/1502.03044, section 4.1).

The network is that of soft attention; what differs is what it takes in. At each word one place is drawn,

    s̃_t ~ Multinoulli(α_t),    z_t = β a_s̃t

and training maximises a lower bound of log p(y | a), L_s = Σ_s p(s | a) log p(y | s, a), by the gradient

    ∂L_s ≈ ∂log p(y | s̃, a) + λ_r (log p(y | s̃, a) − b) ∂log p(s̃ | a) + λ_e ∂H[s̃]

with b ← 0.9 b + 0.1 log p(y | s̃, a), and with probability ½ a caption takes in the expected context Σ α_i a_i
instead of a place. The first term is the log-likelihood every captioner is trained on; `auxiliary_loss` is the rest.
With λ_r = 1 and λ_e = 0 the estimate is unbiased, whatever b is; b used here is the one before this batch, so
that it does not depend on what the batch drew.

The authors' code differs from the paper (`recipes/flickr8k-hard-authors.toml` has its constants): the reward is the
mean log p of a caption's words and not their sum, λ_r is 1/10, one coin is tossed for a whole minibatch, and λ_e,
for which the paper has no number, is 0.002. (In their code the doubly stochastic penalty seems to have no effect on
hard attention; here it acts on α as it does on soft attention's.) A third reward, "onward", is ours: the place drawn
for a word is credited with that word and those after it, and each is compared with b, the mean log p of a word. It
is as unbiased and varies less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from saywhy.captioners.base import TeacherForced, captioners
from saywhy.captioners.soft_attention import SoftAttention, SoftAttentionSettings, SoftAttentionState
from saywhy.encoders.base import Encoder
from saywhy.encoders.features import Features
from saywhy.errors import UserError, closest

COINS = ("caption", "batch")
REWARDS = ("caption", "mean", "onward")
MEMORY = 0.9  # of the moving average b
SMALLEST = 1e-12  # α below this has no gradient: a place that is not there has none


@dataclass(frozen=True)
class HardAttentionSettings(SoftAttentionSettings):
    """Soft attention's settings, and those of drawing.

    Attributes:
        expected: chance that a caption is trained with the expected context instead of drawn places.
        coin: what that chance is drawn for: each "caption", or the whole "batch" as in the authors' code.
        reward: "caption" (the paper), "mean" (the authors' code) or "onward".
        reward_weight: λ_r.
        entropy_weight: λ_e; more keeps attention wider.
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
                raise UserError(f"hard-attention: unknown {name} {value!r}: {closest(value, known)}")
        weights = (self.reward_weight, self.entropy_weight)
        if not 0 <= self.expected <= 1 or not all(0 <= weight < math.inf for weight in weights):
            raise UserError("hard-attention: expected is a chance, and the weights are finite and not negative")


@dataclass(frozen=True)
class HardAttentionState(SoftAttentionState):
    """Soft attention's state, and which captions take in the expected context, (B,)."""

    soft: Tensor


@captioners.register("hard-attention")
class HardAttention(SoftAttention):
    """The captioner: soft attention's network, which draws places while it is trained.

    Once trained it takes in the expected context, a sampled place, or that with the largest α.

    Attributes:
        baseline: b, not a number before the first batch.
    """

    name = "hard-attention"
    Settings = HardAttentionSettings
    attention_modes = ("expected", "sampled", "argmax")
    settings: HardAttentionSettings
    baseline: Tensor

    def __init__(self, encoder: Encoder, words: int, settings: HardAttentionSettings) -> None:
        super().__init__(encoder, words, settings)
        self.register_buffer("baseline", torch.tensor(torch.nan))
        self._dice: torch.Generator | None = None

    def start(self, features: Features) -> HardAttentionState:
        """Soft attention's beginning; in training a coin decides who draws."""
        begun = super().start(features)
        rows, device = len(features), features.vectors.device
        if self.training:
            coins = torch.rand(1 if self.settings.coin == "batch" else rows, device=device)
            soft, self._dice = (coins < self.settings.expected).expand(rows), None
        else:
            soft = torch.full((rows,), self.attend == "expected", device=device)
            self._dice = torch.Generator(device).manual_seed(0)  # the same images are captioned the same
        return HardAttentionState(begun.h, begun.c, begun.features, begun.keys, soft)

    def _places(self, alpha: Tensor, state: SoftAttentionState) -> tuple[Tensor, Tensor | None]:
        """One place, or α of each where the expected context is taken in; and the place, −1 where there is none."""
        assert isinstance(state, HardAttentionState)
        if not self.training and self.attend == "argmax":
            place = alpha.argmax(dim=-1)  # (B,)
        else:
            place = torch.multinomial(alpha.detach(), 1, generator=self._dice).squeeze(-1)
        one = F.one_hot(place, alpha.shape[-1]).to(alpha)  # (B, L)
        return torch.where(state.soft[:, None], alpha, one), torch.where(state.soft, -1, place)

    def auxiliary_loss(self, forced: TeacherForced) -> Tensor:
        """−λ_r (log p(y | s̃) − b) log p(s̃) − λ_e H[s̃] of each caption, (N,)."""
        alpha, drawn = forced.attention.alpha.clamp(min=SMALLEST), forced.attention.drawn
        assert drawn is not None
        is_drawn = (drawn >= 0) & forced.spoken  # (N, T)
        log_s = alpha.gather(-1, drawn.clamp(min=0).unsqueeze(-1)).squeeze(-1).log() * is_drawn  # (N, T)
        entropy = torch.special.entr(alpha).sum(dim=-1) * forced.spoken  # (N, T)
        how = self.settings
        gained = how.reward_weight * self._advantage(forced, is_drawn) * log_s + how.entropy_weight * entropy
        return -gained.sum(dim=1)

    @torch.no_grad()
    def _advantage(self, forced: TeacherForced, is_drawn: Tensor) -> Tensor:
        """The reward less b, (N, T) or (N, 1); b moves on."""
        log_p, spoken, how = forced.log_p, forced.spoken, self.settings.reward
        rewards = log_p if how == "onward" else log_p.sum(dim=1, keepdim=True)  # (N, T) or (N, 1)
        if how == "mean":
            rewards = rewards / spoken.sum(dim=1, keepdim=True).clamp(min=1)
        counted = is_drawn if how == "onward" else is_drawn.any(dim=1, keepdim=True)
        mean = (rewards * counted).sum() / counted.sum().clamp(min=1)
        b = torch.where(self.baseline.isnan(), mean, self.baseline)
        if self.training:
            self.baseline.copy_(torch.where(counted.any(), MEMORY * b + (1 - MEMORY) * mean, self.baseline))
        if how == "onward":
            return ((rewards - b) * spoken).flip(1).cumsum(dim=1).flip(1)  # from this word to the last
        return rewards - b
