"""Tables of object words: recall by category, and invented persons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saywhy.metrics.objects import AGREEMENT, ObjectScore, Share
from saywhy.reports.results_files import ModelResults
from saywhy.viz.tables import MISSING, Table, decimal, markdown

OBJECTS = (
    f"Recall: of the pairs of an image and a COCO category that at least {AGREEMENT} references name, the share in "
    "which the caption names the category. Invented persons: of the images in which no reference names a person and, "
    "where the data set has boxes, no box is a person's, the share whose caption names one."
)
BY_CATEGORY = "Recall by category; images are those of which enough references name the category."


def object_section(models: Sequence[ModelResults]) -> str:
    """Recall and invented persons of each model, then recall by category; empty if no file has them."""
    scores = {model.name: _first(model) for model in models}
    known = {name: score for name, score in scores.items() if score}
    if not known:
        return ""
    head = ("model", "recall", "named", "of", "invented persons", "captions", "of")
    rows = [(name, *_cells(score.recall), *_cells(score.invented_persons)) for name, score in known.items()]
    return "\n".join(["### Object words\n", markdown(Table(head, rows, caption=OBJECTS)), _by_category(known)])


def _first(model: ModelResults) -> ObjectScore | None:
    """The counts of one seed: counts of several cannot be averaged."""
    return next((result.objects for result in model.results if result.objects), None)


def _by_category(scores: Mapping[str, ObjectScore]) -> str:
    """One row per category, the most frequent first, and one column per model."""
    images: dict[str, int] = {}
    for score in scores.values():
        for category, share in score.by_category.items():
            images[category] = max(share.of, images.get(category, 0))
    order = sorted(images, key=lambda category: (-images[category], category))
    rows = [
        (category, images[category], *(_percent(score.by_category.get(category)) for score in scores.values()))
        for category in order
    ]
    return markdown(Table(("category", "images", *scores), rows, caption=BY_CATEGORY))


def _cells(share: Share) -> tuple[str, str, str]:
    return _percent(share), f"{share.count:,}", f"{share.of:,}"


def _percent(share: Share | None) -> str:
    return MISSING if share is None else decimal(share.percent, 1)
