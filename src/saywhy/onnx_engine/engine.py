"""A captioner in ONNX Runtime, ready to use: `saywhy.load_onnx()`. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from saywhy.data.tokenizer import Vocabulary
from saywhy.decoding.caption import Caption
from saywhy.decoding.settings import Decoding, Hypothesis
from saywhy.errors import UnreadableImage, UserError, did_you_mean
from saywhy.inference.familiarity_model import Familiarity
from saywhy.inference.image_loading import ImageLoader, LoadedImage, require_several
from saywhy.model_names import VOCABULARY
from saywhy.onnx_engine.manifest import Manifest
from saywhy.onnx_engine.runtime import OnnxCaptioner
from saywhy.onnx_engine.search import beam_search

Batch = tuple[Sequence[LoadedImage], np.ndarray]


class OnnxModel:
    """An exported captioner with its vocabulary, preprocessing and default decoding.

    Args:
        folder: that `saywhy export` wrote.
        threads: of ONNX Runtime; by default OMP_NUM_THREADS, or one per core.
    """

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.read(self.folder)
        self.name, self.preprocessing = self.manifest.name, self.manifest.preprocessing
        self.vocabulary = Vocabulary.load(self.folder / VOCABULARY)
        self.decoding = Decoding.from_config(self.manifest.decoding).with_style_of(self.vocabulary)
        self.captioner = OnnxCaptioner(self.folder, self.manifest, threads)

    def __repr__(self) -> str:
        network = f"{self.manifest.captioner} over {self.manifest.encoder}"
        return f"<OnnxModel {self.name}: {network}, {len(self.vocabulary):,} words, {self.manifest.precision}>"

    @cached_property
    def familiarity(self) -> Familiarity | None:
        """How familiar images are; None where the model has none."""
        return Familiarity.read(self.folder, self.manifest.model) if self.manifest.maps else None

    def caption(self, image: Any, **options: Any) -> Caption:
        """Caption one image; `captions` lists the options."""
        return next(self.captions([image], **options))

    def captions(
        self,
        images: Iterable[Any],
        batch_size: int = 16,
        on_unreadable: Callable[[UserError], None] | None = None,
        **decoding: Any,
    ) -> Iterator[Caption]:
        """Caption images, one batch at a time, in their order.

        Args:
            images: paths, Pillow images, arrays (height, width, 3), bytes or open files.
            batch_size: images per batch.
            on_unreadable: called with the error of an image that cannot be read, which is then left out; without it,
                the error is raised.
            decoding: settings of `saywhy.decoding.Decoding` to change, such as `beam=5`. Methods other than beam
                search, guidance and other modes of hard attention need torch.
        """
        require_several(images, "captions", "caption")
        settings = self.decoding_with(**decoding)
        batches = self._batches(images, batch_size, on_unreadable)
        return (caption for batch in batches for caption in self._caption_batch(*batch, settings))

    def decoding_with(self, **changes: Any) -> Decoding:
        """The model's decoding settings with some changed; a `UserError` where the engine does not have them."""
        for name in changes:
            if name not in Decoding.__dataclass_fields__:
                known = did_you_mean(name, Decoding.__dataclass_fields__)
                raise UserError(f"caption has no argument {name!r}: {known}")
        settings = replace(self.decoding, **changes).with_style_of(self.vocabulary)
        exported = str(self.manifest.decoding.get("attention", "expected"))
        lacking = {
            f"decoding method {settings.method!r}": settings.method != "beam",
            "guidance": settings.is_guided,
            f"attention mode {settings.attention!r}": settings.attention != exported,
        }
        for setting, is_lacking in lacking.items():
            if is_lacking:
                raise UserError(f"the ONNX engine has no {setting}: it has beam search only; use --engine torch")
        return settings

    def _batches(
        self, images: Iterable[Any], batch_size: int, on_unreadable: Callable[[UserError], None] | None
    ) -> Iterator[Batch]:
        load, numbered = ImageLoader(self.preprocessing, keep_images=True), iter(enumerate(images))
        while pairs := list(islice(numbered, batch_size)):
            loaded = []
            for index, source in pairs:
                try:
                    loaded.append(load(index, source)[:2])
                except UnreadableImage as error:
                    if on_unreadable is None:
                        raise
                    on_unreadable(error)
            if loaded:
                yield [image for image, _ in loaded], np.stack([pixels for _, pixels in loaded])

    def _caption_batch(self, images: Sequence[LoadedImage], pixels: np.ndarray, settings: Decoding) -> list[Caption]:
        features, statistics = self.captioner.encode(pixels)
        start = self.vocabulary.start(settings.style)
        hypotheses = [found[0] for found in beam_search(self.captioner, features, settings, start)]
        scores = self._familiarity_of(statistics, len(images))
        return [
            self._caption(image, hypothesis, settings, score)
            for image, hypothesis, score in zip(images, hypotheses, scores, strict=True)
        ]

    def _familiarity_of(self, statistics: Any, images: int) -> list[dict[str, Any]]:
        if self.familiarity is None:
            return [{}] * images
        shares, threshold = self.familiarity(statistics).tolist(), self.familiarity.threshold
        return [{"familiarity": share, "familiar": share >= threshold} for share in shares]

    def _caption(
        self, image: LoadedImage, hypothesis: Hypothesis, settings: Decoding, score: dict[str, Any]
    ) -> Caption:
        words = tuple(self.vocabulary.decode(hypothesis.tokens))
        return Caption(
            words,
            hypothesis.logprobs[: len(words)],
            hypothesis.score,
            hypothesis.alpha,
            hypothesis.beta,
            self.manifest.grid,
            source=image.source,
            model=self.name,
            style=settings.style,
            image=image.image,
            crop=image.image_crop,
            **score,
        )


def load_onnx(model: str | Path, threads: int | None = None) -> OnnxModel:
    """Load a folder that `saywhy export` wrote."""
    return OnnxModel(model, threads)
