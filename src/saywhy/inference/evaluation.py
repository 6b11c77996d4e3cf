"""Caption every image of a split, and score the dev splits of a training run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from saywhy.captioners.base import Captioner
from saywhy.data.datasets import CaptionedImage
from saywhy.data.mixture import Mixture
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSource
from saywhy.data.tokenizer import Vocabulary
from saywhy.decoding.caption import Caption
from saywhy.decoding.config import Decoding, decode
from saywhy.errors import UserError
from saywhy.inference.batches import ImageBatches, default_workers
from saywhy.metrics import bleu, cider

if TYPE_CHECKING:
    from saywhy.language_models.word_scorer import WordScorer


@dataclass(frozen=True)
class SplitCaptions:
    """Captions by image name, and one line for each image that could not be read."""

    captions: dict[str, Caption]
    unreadable: tuple[str, ...]


def caption_split(
    captioner: Captioner,
    vocabulary: Vocabulary,
    preprocessing: Preprocessing,
    images: Sequence[CaptionedImage],
    decoding: Decoding,
    *,
    batch_size: int = 32,
    workers: int | None = None,
    regions: RegionSource | None = None,
    lm: WordScorer | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> SplitCaptions:
    """Caption all images by free decoding; references are not used.

    Oracle regions (see `data.regions`) do come from the references' annotators. `lm` is the language model that
    `decoding.lm` names.
    """
    decoding = decoding.with_style_of(vocabulary)
    unreadable: list[str] = []
    if regions:
        regions.table.require(image.name for image in images)
    batches = ImageBatches(
        preprocessing,
        [image.path for image in images],
        regions,
        width=captioner.encoder.width,
        batch_size=batch_size,
        workers=default_workers() if workers is None else workers,
        on_unreadable=lambda index, error: unreadable.append(str(error)),
        names=[image.name for image in images],
    )
    was_training, captions = captioner.training, {}
    captioner.eval()
    with torch.inference_mode():
        for batch in batches:
            padded = batch.padded(min(batch_size, len(images))).to(captioner.device)
            features = captioner.encode(padded.pixels, padded.boxes)
            indices = [*batch.indices, *[0] * (len(features) - len(batch))]
            hypotheses = decode(captioner, features, decoding, indices, vocabulary.start(decoding.style), lm)
            for row, index in enumerate(batch.indices):
                name = images[index].name
                details = {"source": name, "style": decoding.style, "guidance": decoding.guidance_settings}
                captions[name] = Caption.of(hypotheses[row], vocabulary, features, row, **details)
            progress(batch.indices[-1] + 1, len(images))
    captioner.train(was_training)
    if not captions:
        raise UserError(f"none of the {len(images)} images could be read; the first: {unreadable[0]}")
    return SplitCaptions(captions, tuple(unreadable))


def dev_scores(
    captioner: Captioner,
    vocabulary: Vocabulary,
    preprocessing: Preprocessing,
    data: Mixture,
    decoding: Decoding,
    *,
    workers: int,
    regions: RegionSource | None,
) -> dict[str, Any]:
    """CIDEr and BLEU-4 of freely decoded dev captions, in percent; their means, if there are several data sets."""
    scores = {}
    for part in data.parts:
        settings = replace(decoding, style=part.style) if vocabulary.styles else decoding
        images = part.dev.images
        captions = caption_split(
            captioner, vocabulary, preprocessing, images, settings, batch_size=100, workers=workers, regions=regions
        ).captions
        candidates = [captions[image.name].words for image in images if image.name in captions]
        references = [image.captions for image in images if image.name in captions]
        scores[part.name] = {
            "cider": 100 * cider(candidates, references).cider,
            "bleu4": 100 * bleu(candidates, references).bleu[3],
        }
    means = {metric: sum(part[metric] for part in scores.values()) / len(scores) for metric in ("cider", "bleu4")}
    return means if len(scores) == 1 else {**means, "data": scores}
