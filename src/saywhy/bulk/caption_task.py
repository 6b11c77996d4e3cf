"""Caption many images: one row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from saywhy.bulk.row_files import Column, Row
from saywhy.bulk.tasks import KEY, RESULT, ModelChoice, result_columns, rounded
from saywhy.decoding.caption import Caption
from saywhy.inference.batches import ImageBatch
from saywhy.inference.model import Model

CAPTION = (
    Column("caption", "string", "the caption; null where the image cannot be read"),
    Column("logprob", "double", "sum of the words' log-probabilities"),
    Column("score", "double", "length-normalised log-probability, the end of the caption included"),
    Column("words", "list of string", "words of the caption"),
    Column("word_logprobs", "list of double", "log-probability of each word"),
    Column("risks", "list of double", "with --risk: how likely each word is made up; null for words of no object"),
)


@dataclass(frozen=True)
class CaptionTask:
    """Captions each image.

    Attributes:
        choice: the model.
        risk: estimate how likely each object word is made up.
    """

    choice: ModelChoice = ModelChoice()
    risk: bool = False
    columns: ClassVar[Sequence[Column]] = (*KEY, *CAPTION, *RESULT)

    def load(self) -> CaptionWorker:
        """Load the model."""
        return CaptionWorker(self, self.choice.load())


class CaptionWorker:
    """Captions batches."""

    def __init__(self, task: CaptionTask, model: Model) -> None:
        self.task, self.model = task, model
        self.reader = task.choice.reader(model, keep_images=False)
        self.caption_batch = model.batch_captioner(task.risk, **task.choice.decoding)

    def settings(self) -> dict[str, Any]:
        """What the rows depend on besides the images, as JSON."""
        return {"task": "caption", **self.task.choice.settings(self.model, risk=self.task.risk)}

    def __call__(self, batch: ImageBatch) -> list[Row]:
        """A row for each image of a batch."""
        return [_caption_row(caption) for caption in self.caption_batch(batch)]


def _caption_row(caption: Caption) -> Row:
    risks = None if caption.risks is None else [rounded(risk) for risk in caption.risks]
    return {
        "caption": caption.text,
        "logprob": rounded(sum(caption.logprobs)),
        "score": rounded(caption.score),
        "words": list(caption.words),
        "word_logprobs": [rounded(logprob) for logprob in caption.logprobs],
        "risks": risks,
        **result_columns(caption),
    }
