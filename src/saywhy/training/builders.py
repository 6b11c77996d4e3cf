"""What a run is made of, built from its recipe: vocabulary, captioner, teachers, and what batches are cut from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from saywhy import captioners, encoders
from saywhy.captioners.model_folder import load
from saywhy.data.batches import Inputs
from saywhy.data.datasets import CaptionedImage
from saywhy.data.loading import CachedImages, ImageFiles
from saywhy.data.region_inputs import GivenRegions, RegionBoxes
from saywhy.data.vocabulary import MARKERS, Vocabulary
from saywhy.encoders import precomputed
from saywhy.errors import UserError
from saywhy.training.feature_cache import CachedFeatures, cached_features
from saywhy.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

USUAL_MIN_COUNT = 5
CANVAS = 1.125  # training crops are cut from a canvas this much larger than the encoder's input


def build_vocabulary(recipe: Recipe, captions: Sequence[Sequence[Sequence[str]]]) -> Vocabulary:
    """The words of the training captions that the recipe asks for."""
    every = (words for own in captions for words in own)
    least, size = recipe.vocabulary.min_count, recipe.vocabulary.size
    if least is None and size is None:
        least = USUAL_MIN_COUNT
    vocabulary = Vocabulary.build(every, least, size)
    if len(vocabulary) == len(MARKERS):
        raise UserError(f"no word occurs {least} times in the training captions: lower vocabulary.min_count")
    return vocabulary


def build_captioner(recipe: Recipe, words: int, width: int | None = None) -> captioners.Captioner:
    """A captioner with pretrained encoder and fresh decoder; the seed decides the fresh weights.

    `width` is the length of the vectors where regions come with theirs.
    """
    torch.manual_seed(recipe.seed)
    asked = recipe.encoder
    encoder = encoders.build(
        f"{precomputed.PREFIX}{width}" if width else asked.name,
        asked.weights,
        size=recipe.preprocessing.size,
        output_stride=asked.output_stride,
        train_batch_norm=asked.train_batch_norm,
    )
    encoder.finetune_from(asked.finetune_from or None)
    return captioners.build(recipe.captioner.name, encoder, words, **recipe.captioner.settings)


def load_teacher(
    folder: str | Path, recipe: Recipe, vocabulary: Vocabulary, device: torch.device
) -> captioners.Captioner:
    """A trained captioner to learn from; it must read the same pixels and say the same words."""
    saved = load(folder, device)
    same_regions = (saved.regions and saved.regions.kind) == (recipe.regions and recipe.regions.kind)
    if saved.vocabulary != vocabulary or saved.preprocessing.size != recipe.preprocessing.size or not same_regions:
        raise UserError(
            f"{folder} cannot teach this run: a teacher has the same vocabulary, input size and kind of regions"
        )
    return saved.captioner


def image_inputs(recipe: Recipe, paths: Sequence[Path], cache: Path | None) -> Inputs:
    """Pixels: the encoder's input itself or, to be augmented, a larger canvas; kept decoded where there is a cache."""
    how = recipe.preprocessing
    side = round(how.size * CANVAS) if recipe.augmentation else how.size
    prepare: Callable[[Image.Image], np.ndarray] = partial(how.canvas, side=side) if recipe.augmentation else how
    files = ImageFiles(paths, (3, side, side), prepare, max(side, how.at_least))
    kept_as = {"preprocessing": asdict(how), "canvas": recipe.augmentation is not None}
    return CachedImages(files, cache, kept_as) if cache else files


def region_boxes(recipe: Recipe, regions: GivenRegions, images: Sequence[CaptionedImage]) -> RegionBoxes:
    """Boxes as shares of the batch's pixels, or of the whole images where they come with features."""
    frame = replace(recipe.preprocessing, margin=1.0) if recipe.augmentation else recipe.preprocessing  # as `canvas`
    names, paths = [image.name for image in images], [image.path for image in images]
    return RegionBoxes(regions, names, paths, None if regions.are_features else frame)


def feature_inputs(
    recipe: Recipe,
    captioner: captioners.Captioner,
    paths: Sequence[Path],
    cache: Path,
    workers: int,
    fabric: Fabric,
    on_event: Callable[[dict[str, Any]], None],
) -> CachedFeatures | None:
    """Features from a cache, where the encoder is frozen and sees the same pixels each time; else None."""
    trained = any(parameter.requires_grad for parameter in captioner.encoder.parameters())
    given = recipe.regions is not None and recipe.regions.kind == "features"
    if trained or given or recipe.augmentation or recipe.training.distil:
        return None
    return cached_features(captioner.encoder, recipe.preprocessing, paths, cache, workers, fabric, on_event)
