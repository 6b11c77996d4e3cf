"""Explain the captions of many images: one row for each, with the explanation in it or in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saywhy.bulk.parts import SHARD_BITS
from saywhy.bulk.row_files import Column, Row
from saywhy.bulk.tasks import KEY, RESULT, ModelChoice, result_columns
from saywhy.errors import UserError
from saywhy.inference.batches import ImageBatch
from saywhy.inference.model import Model

ROWS_FILE = "explanations.jsonl"
"""The rows of explanations that have a folder of their own, beside these folders."""
CAPTION = Column("caption", "string", "the explained caption; null where the image cannot be read")
IN_ROW = (
    Column("explanation", "json", "what `saywhy explain` writes to explanation.json"),
    Column("maps", "binary", "Parquet only: the maps, as `saywhy explain` writes them to maps.npz"),
)
IN_FOLDER = (Column("folder", "string", "folder of the explanation, relative to --out"),)


@dataclass(frozen=True)
class ExplainTask:
    """Explains the caption of each image.

    Attributes:
        choice: the model.
        options: arguments of `Model.batch_explainer`.
        folder: write each explanation here, in a folder of its own; None to write it into its row.
    """

    choice: ModelChoice = ModelChoice()
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def columns(self) -> Sequence[Column]:
        """Of the rows."""
        return (*KEY, CAPTION, *(IN_FOLDER if self.folder else IN_ROW), *RESULT)

    def load(self) -> ExplainWorker:
        """Load the model."""
        return ExplainWorker(self, self.choice.load())


class ExplainWorker:
    """Explains batches."""

    def __init__(self, task: ExplainTask, model: Model) -> None:
        self.task, self.model = task, model
        self.reader = task.choice.reader(model, keep_images=True)
        self.explain_batch = model.batch_explainer(**task.options, **task.choice.decoding)

    def settings(self) -> dict[str, Any]:
        """What the rows depend on besides the images, as JSON."""
        options = {name: value if isinstance(value, list | tuple | str | int) else str(value)
                   for name, value in self.task.options.items() if value is not None}  # fmt: skip
        return {"task": "explain", **self.task.choice.settings(self.model, **options)}

    def __call__(self, batch: ImageBatch) -> list[Row]:
        """A row for each image of a batch."""
        rows: list[Row] = []
        for number in range(len(batch)):  # one by one, so that an image that cannot be explained is known
            rows.append(self._row(batch.select([number])))
        return rows

    def _row(self, batch: ImageBatch) -> Row:
        try:
            (explanation,) = self.explain_batch(batch, None)
        except UserError as error:
            return {"error": str(error)}
        row = {"caption": explanation.caption, **result_columns(explanation)}
        if self.task.folder is None:
            return {**row, "explanation": explanation.as_dict(), "maps": explanation.as_npz()}
        name = folder_name(batch.indices[0])
        for unfinished in (self.task.folder / name).glob(".*.part"):  # of a process that was killed
            unfinished.unlink()
        explanation.save(self.task.folder / name)
        return {**row, "folder": name}


def folder_name(index: int) -> str:
    """The folder of an explanation: shard, thousands, number of the image in the shard.

    >>> folder_name((3 << SHARD_BITS) + 12345)
    '000003/000012/000012345'
    """
    shard, number = index >> SHARD_BITS, index % (1 << SHARD_BITS)
    return f"{shard:06d}/{number // 1000:06d}/{number:09d}"
