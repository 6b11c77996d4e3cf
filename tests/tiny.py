"""Captioners, features and images of the real kinds, small enough to run hundreds of times."""

from __future__ import annotations

import dataclasses
import functools
import sys
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from saywhy import encoders
from saywhy.captioners import Attention, Captioner, CaptionerSettings, State, Step, build, captioners
from saywhy.data.vocabulary import END, MARKERS, START, Vocabulary
from saywhy.encoders.base import Encoder
from saywhy.encoders.features import Features

DOCUMENTED = Path(__file__).parents[1] / "docs" / "new-architecture.md"


def documented() -> str:
    """The code of the page that shows how to add an architecture."""
    return DOCUMENTED.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def _register_documented() -> None:
    module = sys.modules.setdefault("documented", ModuleType("documented"))
    if "show-and-tell" not in captioners:
        exec(compile(documented(), str(DOCUMENTED), "exec", dont_inherit=True), module.__dict__)


_register_documented()  # so that the shared suite runs over it

SIDE = 64
WORDS = len(MARKERS) + 7
CHOICES = {
    "coca": [{"conditioning": "bottleneck"}],
    "soft-attention": [{"score": "bilinear"}, {"no_image": "learned"}],
    "hard-attention": [{"reward": "onward"}],
}  # settings worth a run of the shared suite each


@functools.cache
def _encoder() -> Encoder:
    torch.manual_seed(0)
    return encoders.build("timm:test_efficientnet", weights=None, size=SIDE)


def encoder() -> Encoder:
    """A network of 100,000 weights, random and frozen, with a 2 × 2 grid."""
    return deepcopy(_encoder())


def settings(name: str, **chosen: Any) -> dict[str, Any]:
    """A captioner's settings with its large sizes made small and its dropout off."""
    small: dict[str, Any] = {}
    for each in dataclasses.fields(captioners[name].Settings):
        if type(each.default) is int and each.default >= 64:
            small[each.name] = each.default // 32
        if "dropout" in each.name:
            small[each.name] = 0.0
    return small | chosen


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Every registered captioner, with each of its switches turned over, and with other choices."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name in captioners:
        found.append((name, {}))
        fields = dataclasses.fields(captioners[name].Settings)
        found += [(name, {each.name: not each.default}) for each in fields if isinstance(each.default, bool)]
        found += [(name, chosen) for chosen in CHOICES.get(name, [])]
    return found


def label(variant: tuple[str, dict[str, Any]]) -> str:
    name, chosen = variant
    return "-".join([name, *(f"{key}={value}" for key, value in chosen.items())])


def captioner(name: str = "soft-attention", words: int = WORDS, seed: int = 0, **chosen: Any) -> Captioner:
    """A captioner of random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return build(name, encoder(), words, **settings(name, **chosen)).eval()


def opinionated(name: str = "soft-attention", words: int = WORDS, seed: int = 0, **chosen: Any) -> Captioner:
    """A captioner whose every word depends strongly on the image and on the words before."""
    found = captioner(name, words, seed, **chosen)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for part, parameter in found.named_parameters():
            if not part.startswith("encoder."):
                parameter.normal_(std=0.4)
    return found


def features(
    images: int = 3, seed: int = 0, width: int = 256, dtype: torch.dtype = torch.float32, kind: str = "grid"
) -> Features:
    """Random features: a grid of 2 × 3, or "regions": up to six boxes an image, of which every other lacks two."""
    random = torch.Generator().manual_seed(seed)
    vectors = torch.randn(images, 6, width, generator=random, dtype=torch.float64).to(dtype)
    if kind == "grid":
        return Features(vectors, (2, 3))
    corners = torch.rand(images, 6, 2, 2, generator=random, dtype=torch.float64).to(dtype)
    boxes = corners.sort(dim=2).values.flatten(2)  # left, top, right, bottom
    boxes[1::2, 4:] = 0
    return Features.of_regions(vectors, boxes)


def captions(count: int = 3, length: int = 6, words: int = WORDS, seed: int = 0) -> Tensor:
    """Captions (count, length + 2) of random words between `<start>` and `<end>`."""
    random = torch.Generator().manual_seed(seed)
    said = torch.randint(len(MARKERS), words, (count, length), generator=random)
    ends = torch.ones(count, 1, dtype=torch.long)
    return torch.cat([START * ends, said, END * ends], dim=1)


def pixels(images: int = 2, side: int = SIDE, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (images, 3, side, side), dtype=torch.uint8, generator=random)


def vocabulary(words: int = WORDS) -> Vocabulary:
    return Vocabulary((*MARKERS, *(f"word{n}" for n in range(words - len(MARKERS)))))


def image_files(folder: Path, count: int, size: tuple[int, int] = (80, 70)) -> list[Path]:
    """Files of noise, each another."""
    paths = [folder / f"{n}.png" for n in range(count)]
    for n, path in enumerate(paths):
        noise = np.random.default_rng(n).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    return paths


@dataclasses.dataclass(frozen=True)
class ScriptState(State):
    """A row's table of logits, (B, V, V)."""

    tables: Tensor


class _NoEncoder(nn.Identity):
    width = 1


class Script(Captioner[ScriptState]):
    """Not a network: the logits of the next word stand in a table (V, V) by the word before."""

    name = "script"

    def __init__(self, table: Tensor) -> None:
        super().__init__(_NoEncoder(), len(table), CaptionerSettings())  # type: ignore[arg-type]
        self.table = nn.Parameter(table.float())

    @classmethod
    def always(cls, logits: Tensor) -> Script:
        """The same logits after every word."""
        return cls(logits.expand(len(logits), -1).clone())

    def start(self, features: Features) -> ScriptState:
        return ScriptState(self.table.expand(len(features), -1, -1))

    def step(self, words: Tensor, state: ScriptState) -> Step[ScriptState]:
        logits = state.tables[torch.arange(len(words)), words]
        return Step(logits, state, Attention(torch.ones(len(words), 1)))

    def forward(self, features: Features, captions: Tensor) -> tuple[Tensor, Attention]:
        return self.table[captions], Attention(torch.ones(*captions.shape, 1))
