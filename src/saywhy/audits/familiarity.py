"""Familiarity: does the model notice images that are unlike the photographs it was trained on?

The familiarity (`inference.familiarity_model`) is fitted to photographs only. Its AUC is the probability that a test
photograph is more familiar than an image of another kind; the false-alarm rate is the share of test photographs below
the threshold. Images of other kinds come from a folder with one sub-folder per kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saywhy.audits.audit import Audit, Plot, audits
from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.statistics import Bootstrap
from saywhy.cache import Arrays
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.images import find_images
from saywhy.errors import UserError
from saywhy.inference.batches import ImageBatch
from saywhy.inference.familiarity_model import (
    FAMILIARITY_FILE,
    Familiarity,
    Statistics,
)
from saywhy.inference.map_statistics import image_statistics, middle_blocks
from saywhy.viz import plots
from saywhy.viz.tables import Table, estimate_text, short_estimate, value_of

DEV_IMAGES = 1000
"""Photographs of each data set's dev split that set the percentiles, at most."""
MIN_IMAGES = 20
"""Photographs of train, and of dev, that fitting needs."""
ALL = "all kinds"


@audits.register("familiarity")
class FamiliarityAudit(Audit):
    """Test the model's familiarity on photographs of a split, and on images of other kinds."""

    title = "Familiarity: are images unlike the training photographs noticed?"
    description = (
        "The familiarity of an image is the share of dev photographs that are less like the training photographs than "
        "it is. It is fitted to photographs only, of the training and dev splits. *AUC* is the probability that a test "
        "photograph is more familiar than an image of the kind (0.5 is chance, 1 is best). *Reported* is the share of "
        "images below the threshold, for which the commands print a line; for test photographs these are false alarms."
    )
    needs_evidence = False
    tests_explanations = False

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """Test the familiarity on images that it was not fitted to."""
        familiarity = context.model.familiarity
        if familiarity is None:
            raise NotApplicable(f"model {context.model.name} has no {FAMILIARITY_FILE}; give --fit-familiarity DATA")
        _check_independent(familiarity, context)
        by_name = _distances(context, familiarity, context.data.images, "test photographs")
        if not by_name:
            raise UserError(f"{context.data.root}: none of its images can be read; check their format")
        photographs = np.array(list(by_name.values()))
        others = _distances_by_kind(context, familiarity)
        if others:
            others[ALL] = np.concatenate(list(others.values()))
        return {
            "threshold": familiarity.threshold,
            "fitted_on": familiarity.about,
            "photographs": len(photographs),
            "false_alarms": _reported(familiarity, photographs),
            "kinds": {
                kind: {
                    "images": len(distances),
                    "auc": _auc(photographs, distances),
                    "reported": _reported(familiarity, distances),
                }
                for kind, distances in others.items()
            },
            "checks": [],
            "notes": [] if others else ["only false alarms are measured; give --unfamiliar a folder of other images"],
        }

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        fitted = body["fitted_on"]
        photographs = ("test photographs", f"{body['photographs']:,}", "", estimate_text(body["false_alarms"]))
        rows = [
            (kind, f"{part['images']:,}", estimate_text(part["auc"]), estimate_text(part["reported"]))
            for kind, part in body["kinds"].items()
        ]
        data = " and ".join(fitted.get("data", ())) or "unknown data"
        caption = (
            f"Fitted on {fitted.get('train', 0):,} training photographs of {data}, with percentiles of "
            f"{fitted.get('dev', 0):,} dev photographs; threshold {body['threshold']:g}."
        )
        return [Table(("images", "number", "AUC ↑", "reported"), [photographs, *rows], caption=caption)]

    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""
        rows = [("test photographs", f"{body['photographs']:,}", "", short_estimate(body["false_alarms"]))]
        rows += [
            (kind, f"{part['images']:,}", short_estimate(part["auc"]), short_estimate(part["reported"]))
            for kind, part in body["kinds"].items()
        ]
        return Table(("images", "number", "AUC", "reported"), rows)

    def model_plots(self, body: dict[str, Any]) -> list[Plot]:
        """Plots of one model."""
        return [Plot("kinds", "AUC of each kind of image", lambda: _draw(body))] if body["kinds"] else []


def images_by_kind(folder: Path) -> dict[str, list[CaptionedImage]]:
    """The images of each sub-folder, by its name."""
    if not folder.is_dir():
        raise UserError(f"--unfamiliar {folder}: no such folder; give a folder with one sub-folder per kind of image")
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not folders:
        raise UserError(f"--unfamiliar {folder}: has no sub-folders; put the images of each kind into one")
    return {
        kind.name: [
            CaptionedImage(f"{kind.name}/{path.relative_to(kind)}", path, (), "unfamiliar")
            for path in find_images([kind])
        ]
        for kind in folders
    }


def fit(context: AuditContext, data: Sequence[Dataset], count: int) -> Familiarity:
    """Fit to `count` training photographs of each data set, evenly spaced, and to its dev photographs."""
    train = [image for part in data for image in _evenly_spaced(part, "train", count)]
    dev = [image for part in data for image in _evenly_spaced(part, "dev", min(count, DEV_IMAGES))]
    blocks = _blocks(context, train)
    statistics = {
        split: _statistics(replace(context, unreadable=set()), images, blocks, f"fitting familiarity: {split}")
        for split, images in (("train", train), ("dev", dev))
    }
    numbers = {split: len(next(iter(values.values()), ())) for split, values in statistics.items()}
    if min(numbers.values()) < MIN_IMAGES:
        raise UserError(
            f"--fit-familiarity: {numbers['train']} training and {numbers['dev']} dev photographs are too few; "
            f"it needs {MIN_IMAGES} of each"
        )
    return Familiarity.fit(**statistics, about={"data": [part.name for part in data], **numbers})


def _evenly_spaced(data: Dataset, split: str, count: int) -> list[CaptionedImage]:
    """Images of a split; their names begin with that of the data set, as two may name an image alike."""
    images = data.split(split).images
    count = min(count, len(images))
    chosen = [images[index * len(images) // count] for index in range(count)]
    return [replace(image, name=f"{data.name}/{image.name}") for image in chosen]


def _blocks(context: AuditContext, images: Sequence[CaptionedImage]) -> tuple[str, ...]:
    for batch in replace(context, unreadable=set(), workers=0).batches(images[:MIN_IMAGES]):
        return middle_blocks(context.captioner, batch.pixels, batch.boxes)
    return ()


def _statistics(
    context: AuditContext, images: Sequence[CaptionedImage], blocks: Sequence[str], stage: str
) -> Statistics:
    """The statistics of the images that can be read, (N, …) each, computed once and cached."""
    cache = context.stage_cache("familiarity", blocks=blocks)
    readable = context.compute_missing(cache, partial(_compute, context, blocks), stage, images)
    arrays = [cache.load(context.image_key(image)) for image in readable]
    return {name: np.stack([values[name] for values in arrays]) for name in (arrays[0] if arrays else ())}


def _compute(
    context: AuditContext, blocks: Sequence[str], batch: ImageBatch, images: list[CaptionedImage]
) -> Iterator[Arrays]:
    _, statistics = image_statistics(context.captioner, batch.pixels, batch.boxes, blocks)
    for row in range(len(batch)):
        yield {name: values[row] for name, values in statistics.items()}


def _distances(
    context: AuditContext, familiarity: Familiarity, images: Sequence[CaptionedImage], kind: str
) -> dict[str, float]:
    """By name, the distance of each image that can be read from the training photographs."""
    statistics = _statistics(context, images, familiarity.blocks, f"measuring familiarity: {kind}")
    names = [image.name for image in images if image.name not in context.unreadable]
    return dict(zip(names, familiarity.distances(statistics).tolist(), strict=True)) if names else {}


def _distances_by_kind(context: AuditContext, familiarity: Familiarity) -> dict[str, np.ndarray]:
    """The distances of the images of each kind that has any."""
    if context.unfamiliar is None:
        return {}
    kinds = images_by_kind(context.unfamiliar)
    context = replace(context, unreadable=set())  # those of the photographs are counted
    by_name = _distances(context, familiarity, [image for images in kinds.values() for image in images], "other images")
    by_kind = {
        kind: [by_name[image.name] for image in images if image.name in by_name] for kind, images in kinds.items()
    }
    return {kind: np.array(distances) for kind, distances in by_kind.items() if distances}


def _reported(familiarity: Familiarity, distances: np.ndarray) -> dict[str, Any]:
    """The share of images below the threshold."""
    reported = familiarity.shares(distances) < familiarity.threshold
    return Bootstrap(range(len(distances))).mean(reported).as_dict()


def _auc(photographs: np.ndarray, others: np.ndarray) -> dict[str, Any]:
    """How well the distance separates other images from photographs."""
    is_other = np.repeat([False, True], [len(photographs), len(others)])
    distances = np.concatenate([photographs, others])
    return Bootstrap(range(len(distances))).auc(distances, is_other).as_dict()


def _check_independent(familiarity: Familiarity, context: AuditContext) -> None:
    """Raise `NotApplicable` if the familiarity was fitted on the audited split."""
    split = context.data.images[0].split
    if split in ("train", "dev") and context.data.name in familiarity.about.get("data", ()):
        raise NotApplicable(
            f"the familiarity of model {context.model.name} was fitted on {context.data.name} {split}; "
            "give --split test"
        )


def _draw(body: dict[str, Any]) -> Any:
    kinds = sorted(body["kinds"], key=lambda kind: (kind != ALL, -(value_of(body["kinds"][kind]["auc"]) or 0), kind))
    figure = plots.new_figure(plots.WIDTH, len(kinds) * plots.ROW + 1.2)
    axes = figure.subplots()
    for y, kind in enumerate(kinds):
        plots.dot(axes, y, body["kinds"][kind]["auc"], plots.ACCENT if kind == ALL else plots.MUTED)
    plots.labels_on_y(axes, kinds)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"AUC, 0.5 is chance ({body['photographs']:,} test photographs)")
    return figure
