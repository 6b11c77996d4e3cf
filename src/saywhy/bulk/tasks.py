"""What is done with each image: the interface of tasks, and what captioning and explaining have in common.

A task is a few settings that any process can be given; `load` makes the worker that reads images and turns batches of
them into rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from saywhy.bulk.row_files import Column, Row
from saywhy.decoding.caption import Caption
from saywhy.explain.explanation import Explanation
from saywhy.inference.batches import ImageBatch, ImageBatches
from saywhy.inference.model import Model, load
from saywhy.language_models.load_scorer import lm_key
from saywhy.registry import import_plugin

KEY = (
    Column("image", "string", "path of the image file, name of the tar member, or number of the Parquet row, from 0"),
    Column("shard", "string", "the tar or Parquet file; null for image files"),
    Column("key", "string", "key of the webdataset sample: the member's name up to its first dot; else null"),
)
RESULT = (
    Column("style", "string", "style of the caption; null for a model without styles"),
    Column("familiarity", "double", "share of dev photographs that are less like the training photographs; or null"),
    Column("familiar", "bool", "whether the familiarity is not below the model's threshold; or null"),
    Column("error", "string", "why there is no caption; null where there is one"),
)
DIGITS = 6
MODEL_FILES = "*.safetensors", "*.json", "*.txt"


class Worker(Protocol):
    """A task with its model loaded."""

    reader: ImageBatches

    def settings(self) -> dict[str, Any]:
        """What the rows depend on besides the images, as JSON."""

    def __call__(self, batch: ImageBatch) -> list[Row]:
        """A row for each image of a batch."""


class Task(Protocol):
    """What is done with each image."""

    @property
    def choice(self) -> ModelChoice:
        """The model."""

    @property
    def columns(self) -> Sequence[Column]:
        """Of the rows."""

    def load(self) -> Worker:
        """Load the model."""


@dataclass(frozen=True)
class ModelChoice:
    """A model, and how it is used.

    Attributes:
        name: name or folder of the model; None for the shipped one.
        device: as `choose_device` takes it.
        plugins: modules to import before it is loaded.
        regions: path of the regions, for a model that attends to regions.
        decoding: settings that replace the model's.
    """

    name: str | None = None
    device: str = "auto"
    plugins: tuple[str, ...] = ()
    regions: Path | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Model:
        """The model."""
        for plugin in self.plugins:
            import_plugin(plugin)
        return load(self.name, self.device)

    def reader(self, model: Model, keep_images: bool) -> ImageBatches:
        """Reads batches for the model, from sources that are given batch by batch."""
        regions = model.region_source(self.regions)
        width = model.captioner.encoder.width
        return ImageBatches(model.preprocessing, (), regions, width=width, keep_images=keep_images)

    def settings(self, model: Model, **options: Any) -> dict[str, Any]:
        """What the model's output depends on."""
        digest = model_files_digest(model.folder) if model.folder else model.digest()
        decoding = model.decoding_with(**self.decoding)
        guide = {"language model": lm_key(decoding.lm, decoding.lm_prompt)} if decoding.lm else {}
        regions = str(self.regions) if self.regions else None
        return {
            "model": {"name": model.name, "digest": digest},
            "options": {**asdict(decoding), **guide, "regions": regions, **options},
        }


def result_columns(result: Caption | Explanation) -> dict[str, Any]:
    """The columns that captions and explanations have in common."""
    return {
        "style": result.style or None,
        "familiarity": rounded(result.familiarity),
        "familiar": result.familiar,
    }


def model_files_digest(folder: Path) -> str:
    """A digest of the files of a model folder that its captions and explanations depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern)}):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def rounded(value: float | None) -> float | None:
    """The number as it is written."""
    return None if value is None else round(value, DIGITS)
