"""The parts of a training run, built from its recipe: vocabulary, captioner, teachers, loss, and the inputs of batches.

A frozen encoder that gets the same pixels in every epoch runs once per image: its features are kept in a disk cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from saywhy import captioners
from saywhy.cache import DiskCache, content_key
from saywhy.captioners.model_folder import WEIGHTS, load
from saywhy.data.datasets import CaptionedImage, Dataset, digest
from saywhy.data.loading import CachedImages, ImageFiles, RegionBoxes
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSource
from saywhy.data.tokenizer import MARKERS, Vocabulary
from saywhy.data.training_batches import Inputs
from saywhy.encoders import precomputed
from saywhy.encoders.base import Encoder
from saywhy.encoders.base import build as build_encoder
from saywhy.errors import UnreadableImage, UserError
from saywhy.inference.batches import ImageBatches
from saywhy.training.objectives import CaptionLoss
from saywhy.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OnEvent = Callable[[dict[str, Any]], None]

DEFAULT_MIN_COUNT = 5
CANVAS = 1.125  # training crops are cut from an image this much larger than the encoder's input
TIMEOUT = timedelta(days=1)  # the other processes wait while the first encodes features and evaluates on dev
PRECISIONS = {"bf16": "bf16-mixed", "float32": "32-true"}


def launch_fabric(precision: str = "auto", device: str = "auto") -> Fabric:
    """A launched Lightning Fabric for this process; `torchrun` sets the number of processes."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy
    except ImportError:
        raise UserError('training needs Lightning Fabric: pip install "saywhy[train]"') from None
    processes = int(os.environ.get("WORLD_SIZE", 1))
    processes_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    fabric = Fabric(
        accelerator=device,
        devices=processes_per_node,
        num_nodes=processes // processes_per_node,
        strategy=DDPStrategy(timeout=TIMEOUT) if processes > 1 else "auto",
        precision=_fabric_precision(precision, device),  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric


def _fabric_precision(precision: str, device: str) -> str:
    if precision == "auto":
        has_bf16 = device != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        precision = "bf16" if has_bf16 else "float32"
    if precision not in PRECISIONS:
        raise UserError(f'unknown precision {precision!r}: use "auto", "bf16" or "float32"')
    return PRECISIONS[precision]


def build_vocabulary(recipe: Recipe, captions: Sequence[Sequence[Sequence[str]]]) -> Vocabulary:
    """The vocabulary of the training captions (words of each caption of each image)."""
    min_count, size = recipe.vocabulary.min_count, recipe.vocabulary.size
    if min_count is None and size is None:
        min_count = DEFAULT_MIN_COUNT
    vocabulary = Vocabulary.build((words for image in captions for words in image), min_count, size)
    if len(vocabulary) == len(MARKERS):
        raise UserError(f"no word occurs {min_count} times in the training captions: lower vocabulary.min_count")
    return vocabulary


def build_captioner(recipe: Recipe, words: int, width: int | None = None) -> captioners.Captioner:
    """A captioner with a pretrained encoder and a decoder initialised from the seed.

    `width` is the length of precomputed region features, which take the place of an encoder.
    """
    torch.manual_seed(recipe.seed)
    encoder = build_encoder(
        f"{precomputed.PREFIX}{width}" if width else recipe.encoder.name,
        recipe.encoder.weights,
        size=recipe.preprocessing.size,
        output_stride=recipe.encoder.output_stride,
        train_batch_norm=recipe.encoder.train_batch_norm,
    )
    encoder.finetune_from(recipe.encoder.finetune_from or None)
    return captioners.build(recipe.captioner.name, encoder, words, **recipe.captioner.settings)


def build_loss(
    recipe: Recipe, captioner: captioners.Captioner, teachers: Sequence[captioners.Captioner]
) -> CaptionLoss:
    """The training loss of a recipe."""
    return CaptionLoss(
        captioner,
        recipe.preprocessing.size,
        recipe.augmentation,
        smoothing=recipe.training.label_smoothing,
        penalty=recipe.training.doubly_stochastic,
        teachers=teachers,
        distil=recipe.training.distil,
        conditioning_dropout=recipe.training.conditioning_dropout,
    )


def load_teacher(
    folder: str | Path, recipe: Recipe, vocabulary: Vocabulary, device: torch.device
) -> captioners.Captioner:
    """A trained captioner to distil from; it must have the same input size, vocabulary and kind of regions."""
    teacher = load(folder, device)
    same_regions = (teacher.regions and teacher.regions.kind) == (recipe.regions and recipe.regions.kind)
    if teacher.vocabulary != vocabulary or teacher.preprocessing.size != recipe.preprocessing.size or not same_regions:
        raise UserError(f"{folder} cannot teach this run: its vocabulary, input size or kind of regions differ")
    return teacher.captioner


def check_images(split: Dataset, regions: RegionSource | None) -> None:
    """Raise a `UserError` if the regions of an image, or all images of a split, are missing."""
    if regions:
        regions.table.require(image.name for image in split.images)
    if regions and regions.are_features:
        regions.vectors(split.images[0].name)  # raises a UserError if the file has boxes only
    elif not any(image.path.is_file() for image in split.images):
        first = split.images[0]
        raise UserError(f"none of the {len(split)} images of {first.split} exists, such as {first.path}")


def source_digests(
    train_data: Dataset, dev_data: Dataset, teachers: Sequence[str | Path], regions: RegionSource | None
) -> dict[str, Any]:
    """Digests of everything that a run depends on, besides the recipe and the encoder's weights."""
    return {
        "data": digest(train_data, dev_data),
        "teachers": {Path(folder).name: content_key(Path(folder) / WEIGHTS) for folder in teachers},
        "regions": regions.table.identity() if regions else None,
    }


def image_inputs(recipe: Recipe, paths: Sequence[Path], cache: Path | None) -> Inputs:
    """Pixels: the encoder's input or, for augmentation, a larger canvas; decoded images are cached if asked."""
    preprocessing = recipe.preprocessing
    side = round(preprocessing.size * CANVAS) if recipe.augmentation else preprocessing.size
    prepare: Callable[[Image.Image], np.ndarray] = preprocessing
    if recipe.augmentation:
        prepare = partial(preprocessing.canvas, side=side)
    files = ImageFiles(paths, (3, side, side), prepare, max(side, preprocessing.min_side))
    cache_key = {"preprocessing": asdict(preprocessing), "canvas": recipe.augmentation is not None}
    return CachedImages(files, cache, cache_key) if cache else files


def region_boxes(recipe: Recipe, regions: RegionSource, images: Sequence[CaptionedImage]) -> RegionBoxes:
    """Boxes as shares of the batch's pixels; of the complete images where regions have precomputed features."""
    frame = recipe.preprocessing
    if recipe.augmentation:
        frame = replace(frame, margin=1.0)  # as `Preprocessing.canvas`
    names, paths = [image.name for image in images], [image.path for image in images]
    return RegionBoxes(regions, names, paths, None if regions.are_features else frame)


def feature_inputs(
    recipe: Recipe,
    encoder: Encoder,
    paths: Sequence[Path],
    cache: Path,
    workers: int,
    fabric: Fabric,
    on_event: OnEvent,
) -> CachedFeatures | None:
    """Features from a cache, where the encoder is frozen and gets the same pixels in every epoch; else None."""
    trained = any(parameter.requires_grad for parameter in encoder.parameters())
    has_features = recipe.regions is not None and recipe.regions.kind == "features"
    if trained or has_features or recipe.augmentation or recipe.training.distil:
        return None
    return cached_features(encoder, recipe.preprocessing, paths, cache, workers, fabric, on_event)


class CachedFeatures:
    """The features of a frozen encoder, read from a disk cache; the inputs of a batch in place of pixels.

    Attributes:
        unreadable: the error of each image that could not be read, by image number.
        grid: rows and columns of the features.
    """

    def __init__(self, cache: DiskCache, keys: list[str], unreadable: dict[int, str], blank: Any) -> None:
        self.cache, self.keys, self.unreadable = cache, keys, unreadable
        self.shape, self.grid = tuple(blank.vectors.shape[1:]), blank.grid

    def rows(self, images: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """Features (P, L, D) in float32, and the error of each unreadable image ("" for the others)."""
        features = np.zeros((len(images), *self.shape), np.float32)
        for row, image in enumerate(images):
            if image not in self.unreadable:
                features[row] = self.cache.load(self.keys[image])["vectors"]
        return features, [self.unreadable.get(image, "") for image in images]


def weights_digest(encoder: Encoder) -> str:
    """A hash of all weights of an encoder."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def cached_features(
    encoder: Encoder,
    preprocessing: Preprocessing,
    paths: Sequence[Path],
    folder: Path,
    workers: int,
    fabric: Fabric,
    on_event: OnEvent,
) -> CachedFeatures:
    """Encode the images that are not in the cache; the first process does it while the others wait."""
    key = {
        "encoder": asdict(encoder.settings),
        "weights": weights_digest(encoder),
        "preprocessing": asdict(preprocessing),
    }
    cache = DiskCache(folder, "features", key)
    unreadable: dict[int, str] = {}
    keys = [_image_key(path, image, unreadable) for image, path in enumerate(paths)]
    if fabric.is_global_zero:
        missing = [n for n, image_key in enumerate(keys) if n not in unreadable and not cache.has(image_key)]
        batches = ImageBatches(
            preprocessing,
            [paths[n] for n in missing],
            batch_size=32,
            workers=workers,
            on_unreadable=lambda index, error: unreadable.update({missing[index]: str(error)}),
        )
        for batch in batches:
            with torch.inference_mode(), fabric.autocast():
                vectors = encoder(batch.pixels.to(fabric.device)).vectors.half().cpu().numpy()
            for index, image_vectors in zip(batch.indices, vectors, strict=True):
                cache.save(keys[missing[index]], {"vectors": image_vectors})
            on_event({"kind": "encode", "done": batch.indices[-1] + 1, "total": len(missing)})
    fabric.barrier()
    with torch.inference_mode():
        blank = encoder(torch.zeros(1, 3, preprocessing.size, preprocessing.size, device=fabric.device))
    return CachedFeatures(cache, keys, fabric.broadcast(unreadable), blank)


def _image_key(path: Path, image: int, unreadable: dict[int, str]) -> str:
    try:
        return content_key(path)
    except UnreadableImage as error:
        unreadable[image] = str(error)
        return ""
