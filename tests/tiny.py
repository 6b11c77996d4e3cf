"""Small captioners, features, captions and images for tests."""

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
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import END, MARKERS, START, Vocabulary
from saywhy.encoders.base import Encoder, Features
from saywhy.judges import DualEncoder, DualEncoderSettings, SavedJudge

DOCUMENTED = Path(__file__).parents[1] / "docs" / "new-architecture.md"


def documented() -> str:
    """The code of docs/new-architecture.md."""
    return DOCUMENTED.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def _register_documented() -> None:
    module = sys.modules.setdefault("documented", ModuleType("documented"))
    if "show-and-tell" not in captioners:
        exec(compile(documented(), str(DOCUMENTED), "exec", dont_inherit=True), module.__dict__)


_register_documented()  # so that the tests of every captioner include it

SIDE = 64
WORDS = len(MARKERS) + 7
CHOICES = {
    "coca": [{"conditioning": "bottleneck"}],
    "soft-attention": [{"score": "bilinear"}, {"no_image": "learned"}],
    "hard-attention": [{"reward": "onward"}],
}  # settings that the tests of every captioner include, beside switches


@functools.cache
def _encoder() -> Encoder:
    torch.manual_seed(0)
    return encoders.build("timm:test_efficientnet", weights=None, size=SIDE)


def encoder() -> Encoder:
    """A frozen network of 100,000 random weights, with a 2 × 2 grid."""
    return deepcopy(_encoder())


def settings(name: str, **changes: Any) -> dict[str, Any]:
    """The settings of a captioner with small widths and without dropout."""
    small: dict[str, Any] = {}
    for field in dataclasses.fields(captioners[name].Settings):
        if type(field.default) is int and field.default >= 64:
            small[field.name] = field.default // 32
        if "dropout" in field.name:
            small[field.name] = 0.0
    return small | changes


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Every registered captioner with its defaults, with each boolean setting negated, and with `CHOICES`."""
    pairs: list[tuple[str, dict[str, Any]]] = []
    for name in captioners:
        pairs.append((name, {}))
        fields = dataclasses.fields(captioners[name].Settings)
        pairs += [(name, {field.name: not field.default}) for field in fields if isinstance(field.default, bool)]
        pairs += [(name, changes) for changes in CHOICES.get(name, [])]
    return pairs


def label(variant: tuple[str, dict[str, Any]]) -> str:
    name, changes = variant
    return "-".join([name, *(f"{key}={value}" for key, value in changes.items())])


def captioner(name: str = "soft-attention", words: int = WORDS, seed: int = 0, **changes: Any) -> Captioner:
    """A captioner with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return build(name, encoder(), words, **settings(name, **changes)).eval()


def sensitive_captioner(name: str = "soft-attention", words: int = WORDS, seed: int = 0, **changes: Any) -> Captioner:
    """A captioner with large random weights: each word depends strongly on the image and on the previous words."""
    model = captioner(name, words, seed, **changes)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if not parameter_name.startswith("encoder."):
                parameter.normal_(std=0.4)
    return model


def judge(seed: int = 0, **changes: Any) -> DualEncoder:
    """A judge with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    small = {"embedding": 16, "width": 16, "layers": 2, "heads": 2}
    return DualEncoder(encoder(), WORDS, DualEncoderSettings(**small | changes)).eval()


def saved_judge(seed: int = 0) -> SavedJudge:
    return SavedJudge("tiny-judge", judge(seed), vocabulary(), Preprocessing(SIDE))


def features(
    images: int = 3, seed: int = 0, width: int = 256, dtype: torch.dtype = torch.float32, kind: str = "grid"
) -> Features:
    """Random features: a grid of 2 × 3, or "regions": six boxes per image, four in every second image."""
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
    tokens = torch.randint(len(MARKERS), words, (count, length), generator=random)
    ones = torch.ones(count, 1, dtype=torch.long)
    return torch.cat([START * ones, tokens, END * ones], dim=1)


def pixels(images: int = 2, side: int = SIDE, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (images, 3, side, side), dtype=torch.uint8, generator=random)


def vocabulary(words: int = WORDS, styles: tuple[str, ...] = ()) -> Vocabulary:
    markers = (*MARKERS, *(f"<style:{style}>" for style in styles))
    return Vocabulary((*markers, *(f"word{n}" for n in range(words - len(markers)))))


def image_files(folder: Path, count: int, size: tuple[int, int] = (80, 70)) -> list[Path]:
    """Image files of noise, all different."""
    paths = [folder / f"{n}.png" for n in range(count)]
    for n, path in enumerate(paths):
        noise = np.random.default_rng(n).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    return paths


@dataclasses.dataclass(frozen=True)
class TableState(State):
    """The table of logits of each row, (B, V, V)."""

    tables: Tensor


class _NoEncoder(nn.Identity):
    width = 1


class TableCaptioner(Captioner[TableState]):
    """A captioner without a network: a table (V, V) has the logits of the next word for each previous word."""

    name = "table"

    def __init__(self, table: Tensor) -> None:
        super().__init__(_NoEncoder(), len(table), CaptionerSettings())  # type: ignore[arg-type]
        self.table = nn.Parameter(table.float())

    @classmethod
    def always(cls, logits: Tensor) -> TableCaptioner:
        """The same logits after every word."""
        return cls(logits.expand(len(logits), -1).clone())

    def start(self, features: Features) -> TableState:
        return TableState(self.table.expand(len(features), -1, -1))

    def step(self, tokens: Tensor, state: TableState) -> Step[TableState]:
        logits = state.tables[torch.arange(len(tokens)), tokens]
        return Step(logits, state, Attention(torch.ones(len(tokens), 1)))

    def forward(self, features: Features, captions: Tensor, active: Any = None) -> tuple[Tensor, Attention]:
        return self.table[captions], Attention(torch.ones(*captions.shape, 1))
