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
from saywhy.captioners.model_folder import WEIGHTS, SavedModel, load, read_config, read_tensors
from saywhy.data.checks import require_images
from saywhy.data.datasets import CaptionedImage, Dataset, digest
from saywhy.data.loading import CachedImages, ImageFiles, RegionBoxes
from saywhy.data.mixture import Mixture
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSource
from saywhy.data.tokenizer import Vocabulary, tokenize
from saywhy.data.training_batches import Inputs, TokenIds
from saywhy.encoders import precomputed
from saywhy.encoders.base import Encoder
from saywhy.encoders.base import build as build_encoder
from saywhy.encoders.weights import load_into
from saywhy.errors import UnreadableImage, UserError
from saywhy.inference.batches import ImageBatches
from saywhy.training.objectives import CaptionLoss
from saywhy.training.recipe import EncoderRecipe, PixelRecipe, Recipe, VocabularyRecipe, fill_dataclass
from saywhy.training.relevance_weighting import RelevanceWeighting
from saywhy.training.rewards import PenalisedReward, rewards
from saywhy.training.self_critical import SelfCriticalLoss

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OnEvent = Callable[[dict[str, Any]], None]

MOST_WORDS = 1000  # in a caption
DEFAULT_MIN_COUNT = 5
CANVAS = 1.125  # training crops are cut from an image this much larger than they are
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


def training_captions(images: Sequence[CaptionedImage], max_words: int | None) -> list[list[list[str]]]:
    """The words of each caption of each image; of captions that are all too long, the shortest is kept.

    Without a limit, a `UserError` names a caption whose length can only be a mistake, and would need much memory.
    """
    captions = [[tokenize(text) for text in image.captions] for image in images]
    if max_words is None:
        for image, texts in zip(images, captions, strict=True):
            if (longest := max(map(len, texts))) > MOST_WORDS:
                problem = f"a caption of {longest:,} words, and training reads at most {MOST_WORDS:,}"
                raise UserError(f"{image.name}: {problem}: correct it, or leave it out with training.max_words")
        return captions
    return [
        [words for words in image if len(words) <= max_words] or [min(image, key=len)[:max_words]] for image in captions
    ]


def build_vocabulary(
    recipe: VocabularyRecipe, captions: Sequence[Sequence[Sequence[str]]], styles: Sequence[str] = ()
) -> Vocabulary:
    """The vocabulary of the training captions (words of each caption of each image)."""
    min_count, size = recipe.min_count, recipe.size
    if min_count is None and size is None:
        min_count = DEFAULT_MIN_COUNT
    vocabulary = Vocabulary.build((words for image in captions for words in image), min_count, size, styles)
    if len(vocabulary) == vocabulary.markers:
        raise UserError(f"no word occurs {min_count} times in the training captions: lower vocabulary.min_count")
    return vocabulary


def build_captioner(
    recipe: Recipe, words: int, width: int | None = None, initial: SavedModel | None = None
) -> captioners.Captioner:
    """A captioner with a pretrained encoder and a decoder drawn from the seed, or with the weights of an initial model.

    `width` is the length of precomputed region features, which take the place of an encoder.
    """
    torch.manual_seed(recipe.seed)
    settings = replace(recipe.encoder, weights="none") if initial else recipe.encoder
    settings = replace(settings, name=f"{precomputed.PREFIX}{width}") if width else settings
    encoder = pretrained_encoder(settings, recipe.preprocessing.size)
    captioner = captioners.build(recipe.captioner.name, encoder, words, **recipe.captioner.settings)
    if initial:
        captioner.load_state_dict(initial.captioner.state_dict())
    return captioner


def pretrained_encoder(recipe: EncoderRecipe, size: int) -> Encoder:
    """The encoder of a recipe with its initial weights, and with the blocks that are trained."""
    weights = recipe.weights
    from_model = Path(weights).is_dir()
    encoder = build_encoder(
        recipe.name,
        "none" if from_model else weights,
        size=size,
        output_stride=recipe.output_stride,
        train_batch_norm=recipe.train_batch_norm,
    )
    if from_model:
        tensors = read_tensors(Path(weights) / WEIGHTS)
        prefix = "encoder.body."
        body = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        load_into(encoder.body, body, Path(weights) / WEIGHTS)
    encoder.finetune_from(recipe.finetune_from or None)
    return encoder


def build_loss(
    recipe: Recipe,
    captioner: captioners.Captioner,
    teachers: Sequence[captioners.Captioner],
    vocabulary: Vocabulary,
    token_ids: TokenIds,
) -> CaptionLoss | SelfCriticalLoss:
    """The training loss of a recipe; `token_ids` are those of all training captions."""
    reward, relevance = recipe.reward, recipe.relevance
    cross_entropy = CaptionLoss(
        captioner,
        recipe.preprocessing.size,
        None if reward else recipe.augmentation,
        smoothing=recipe.training.label_smoothing,
        penalty=recipe.training.doubly_stochastic,
        teachers=teachers,
        distil=recipe.training.distil,
        conditioning_dropout=recipe.training.conditioning_dropout,
        relevance=RelevanceWeighting(relevance.weights, vocabulary) if relevance else None,
        cross_entropy=relevance.cross_entropy if relevance else 1.0,
    )
    if not reward:
        return cross_entropy
    metric = rewards[reward.metric](token_ids, len(vocabulary))
    return SelfCriticalLoss(
        cross_entropy,
        PenalisedReward(metric, vocabulary.words, reward.hallucination) if reward.hallucination else metric,
        references=max(map(len, token_ids)),
        max_words=recipe.decoding.max_words,
        augmentation=recipe.augmentation,
        samples=reward.samples,
        baseline=reward.baseline,
        weight=reward.weight,
        temperature=reward.temperature,
    )


def load_teachers(
    folders: Sequence[str | Path], recipe: Recipe, vocabulary: Vocabulary, device: torch.device
) -> list[captioners.Captioner]:
    """Trained captioners to distil from; they must have the run's vocabulary and kind of regions.

    They get the captioner's pixels, so without augmentation their input size must be the run's, too. Teachers with
    equal encoders share one.
    """
    teachers, encoders = [], dict[str, Encoder]()
    for folder in folders:
        teacher = load(folder, device)
        same_regions = (teacher.regions and teacher.regions.kind) == (recipe.regions and recipe.regions.kind)
        same_size = bool(recipe.augmentation) or teacher.preprocessing.size == recipe.preprocessing.size
        if teacher.vocabulary != vocabulary or not same_size or not same_regions:
            raise UserError(f"{folder} cannot teach this run: its vocabulary, input size or kind of regions differ")
        encoder = teacher.captioner.encoder
        teacher.captioner.encoder = encoders.setdefault(weights_digest(encoder), encoder)
        teachers.append(teacher.captioner)
    return teachers


def start_from(model: SavedModel, recipe: Recipe, styles: Sequence[str]) -> Vocabulary:
    """The vocabulary of a trained model that a run starts from; a `UserError` where the recipe differs from it."""
    architecture = captioners.captioners[recipe.captioner.name]
    settings = fill_dataclass(architecture.Settings, recipe.captioner.settings, "captioner.")
    if model.captioner.name != recipe.captioner.name or model.captioner.settings != settings:
        raise UserError(f"--start {model.name}: its [captioner] table differs from the recipe's; make them equal")
    if model.captioner.encoder.settings.name != recipe.encoder.name:
        raise UserError(
            f"--start {model.name}: its encoder is {model.captioner.encoder.settings.name}, the recipe's "
            f"{recipe.encoder.name}"
        )
    for style in styles:
        model.vocabulary.start(style)  # a UserError where the model does not have it
    return model.vocabulary


def check_images(split: Dataset, regions: RegionSource | None) -> None:
    """Raise a `UserError` if the regions of an image, or images of a split, are missing."""
    if regions:
        regions.table.require(image.name for image in split.images)
    if regions and regions.are_features:
        regions.vectors(split.images[0].name)  # raises a UserError if the file has boxes only
    else:
        require_images(split)


def source_digests(
    data: Mixture, start: str | Path | None, teachers: Sequence[str | Path], regions: RegionSource | None
) -> dict[str, Any]:
    """Digests of everything that a run depends on, besides the recipe and the encoder's weights."""
    return {
        "data": digest(*(split for part in data.parts for split in (part.train, part.dev))),
        "start": _model_key(Path(start)) if start else None,
        "teachers": {Path(folder).name: _model_key(Path(folder)) for folder in teachers},
        "regions": regions.table.identity() if regions else None,
    }


def _model_key(folder: Path) -> str:
    read_config(folder)  # a UserError where the folder holds no captioner
    return content_key(folder / WEIGHTS)


def image_files(recipe: PixelRecipe, paths: Sequence[Path]) -> ImageFiles:
    """Pixels: the encoder's input or, for augmentation, a larger canvas."""
    preprocessing = recipe.preprocessing
    side = preprocessing.size
    if recipe.augmentation:
        side = round((recipe.augmentation.size or side) * CANVAS)
    prepare: Callable[[Image.Image], np.ndarray] = preprocessing
    if recipe.augmentation:
        prepare = partial(preprocessing.canvas, side=side)
    return ImageFiles(paths, (3, side, side), prepare, max(side, preprocessing.min_side))


def image_inputs(recipe: PixelRecipe, paths: Sequence[Path], cache: Path | None) -> Inputs:
    """Pixels from image files; decoded images are cached if asked."""
    files = image_files(recipe, paths)
    return CachedImages(files, cache, pixel_key(recipe)) if cache else files


def pixel_key(recipe: PixelRecipe) -> dict[str, Any]:
    """How pixels were made from an image; beside their shape, what a cache of them depends on."""
    preprocessing = recipe.preprocessing
    has_margin = preprocessing.fit == "crop" and not recipe.augmentation  # as `Preprocessing.canvas`
    return {"fit": preprocessing.fit, "margin": preprocessing.margin if has_margin else 1.0}


def region_boxes(recipe: Recipe, regions: RegionSource, images: Sequence[CaptionedImage]) -> RegionBoxes:
    """Boxes as shares of the batch's pixels; of the complete images where regions have precomputed features."""
    frame = recipe.preprocessing
    if recipe.augmentation:
        frame = replace(frame, margin=1.0)  # as `Preprocessing.canvas`
    names, paths = [image.name for image in images], [image.path for image in images]
    return RegionBoxes(regions, names, paths, None if regions.are_features else frame)


def has_fixed_features(recipe: Recipe, encoder: Encoder) -> bool:
    """Whether the encoder is frozen and gets the same pixels in every epoch."""
    trained = any(parameter.requires_grad for parameter in encoder.parameters())
    has_features = recipe.regions is not None and recipe.regions.kind == "features"
    return not (trained or has_features or recipe.augmentation or recipe.training.distil)


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
