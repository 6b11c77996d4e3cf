"""A captioner ready to use: `saywhy.load()`."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence

from saywhy.captioners.model_folder import SavedModel
from saywhy.captioners.model_folder import load as load_folder
from saywhy.data.object_words import ObjectWords
from saywhy.data.region_files import find_regions
from saywhy.data.regions import RegionLocation, RegionSource
from saywhy.data.tokenizer import PAD, tokenize
from saywhy.decoding.caption import Caption
from saywhy.decoding.config import decode
from saywhy.decoding.settings import Decoding, Hypothesis
from saywhy.encoders.base import Features
from saywhy.errors import UnreadableImage, UserError, did_you_mean
from saywhy.explain.composites import DEFAULT, Composite
from saywhy.explain.explanation import Explanation
from saywhy.explain.methods import REPORT_METHODS
from saywhy.explain.request import ExplanationRequest, explain
from saywhy.explain.targets import Targets
from saywhy.files import read_json
from saywhy.hallucination.risk_model import OBJECTS_FILE, RISK_FILE, ObjectVocabulary, Risk, RiskEstimator
from saywhy.inference.batches import ImageBatch, ImageBatches
from saywhy.inference.familiarity_model import Familiarity
from saywhy.inference.image_loading import require_several
from saywhy.inference.map_statistics import image_statistics
from saywhy.model_names import CONFIG, locate
from saywhy.model_names import SHIPPED as SHIPPED  # offered here too
from saywhy.model_names import shipped as shipped
from saywhy.pretrained import HUB, HubSource, download, is_hub_name, is_transformers_model

if TYPE_CHECKING:
    from saywhy.language_models.word_scorer import WordScorer

ImageSource = Any
"""A path, or anything else that `data.images.to_image` accepts: a Pillow image, an array, a tensor, bytes, a file."""
OnUnreadable = Callable[[UserError], None]


class Model:
    """A captioner with its vocabulary, preprocessing and default decoding.

    Args:
        saved: the contents of a model folder.
        risk: the hallucination risk model; without it, that of `folder`.
        objects: the table of object words; without it, that of `folder`, or the shipped one.
        folder: where the model was loaded from.
        familiarity: how familiar images are to it; without it, that of `folder`.
        source: where a model of transformers came from; None for saywhy's own.
    """

    def __init__(
        self,
        saved: SavedModel,
        risk: Risk | None = None,
        objects: ObjectWords | None = None,
        folder: Path | None = None,
        familiarity: Familiarity | None = None,
        source: HubSource | None = None,
    ) -> None:
        self.source = source
        self.name = saved.name
        self.captioner = saved.captioner
        self.vocabulary = saved.vocabulary
        self.preprocessing = saved.preprocessing
        self.regions = saved.regions
        self._conditioning_dropout = saved.conditioning_dropout
        self._language_models: dict[tuple[str, str], WordScorer] = {}
        self._risk, self._objects, self._folder, self._familiarity = risk, objects, folder, familiarity
        try:
            self.decoding = Decoding.from_config(saved.decoding).with_style_of(saved.vocabulary)
        except UserError as error:
            raise UserError(f"model {saved.name}: {CONFIG}: {error}") from None

    def __repr__(self) -> str:
        network = f"{self.captioner.name} over {self.captioner.encoder.settings.name}"
        return f"<Model {self.name}: {network}, {len(self.vocabulary):,} words, on {self.captioner.device}>"

    def caption(self, image: ImageSource, **options: Any) -> Caption:
        """Caption one image; `captions` lists the options."""
        return next(self.captions([image], **options))

    def captions(
        self,
        images: Iterable[ImageSource],
        batch_size: int = 16,
        on_unreadable: OnUnreadable | None = None,
        regions: RegionLocation = None,
        risk: bool = False,
        **decoding: Any,
    ) -> Iterator[Caption]:
        """Caption images, one batch at a time, in their order.

        Args:
            images: paths, Pillow images, arrays (height, width, 3), tensors (3, height, width), bytes or open files.
            batch_size: images per batch.
            on_unreadable: called with the error of an image that cannot be read, which is then left out; without it,
                the error is raised.
            regions: the file or folder of regions, or a table read from it, for a model that attends to regions.
            risk: estimate how likely each object word is hallucinated.
            decoding: settings of `saywhy.decoding.Decoding` to change, such as `beam=5`, `style="coco"` or
                `guidance=1.5`.
        """
        caption_batch = self.batch_captioner(risk, **decoding)
        batches = self._batches("captions", "caption", images, batch_size, on_unreadable, regions)
        return (caption for batch in batches for caption in caption_batch(batch))

    def batch_captioner(self, risk: bool = False, **decoding: Any) -> Callable[[ImageBatch], list[Caption]]:
        """Captions a batch of images; the settings are those of `captions`, and are checked here."""
        settings = self._decoding("caption", decoding)
        estimator = self.risk_estimator() if risk else None
        return lambda batch: self._caption_batch(batch, settings, estimator)

    def explain(self, image: ImageSource, **options: Any) -> Explanation:
        """Explain the caption of one image, word by word; `explanations` lists the options."""
        return next(self.explanations([image], **options))

    def explanations(
        self,
        images: Iterable[ImageSource],
        methods: Sequence[str] = REPORT_METHODS,
        caption: str | None = None,
        word: str | None = None,
        position: int | None = None,
        contrast: str | None = None,
        composite: str | Composite = DEFAULT,
        batch_size: int | None = None,
        words_per_pass: int | None = None,
        regions: RegionLocation = None,
        on_unreadable: OnUnreadable | None = None,
        **decoding: Any,
    ) -> Iterator[Explanation]:
        """Explain images, one batch at a time: which pixels and which earlier words support each word.

        Args:
            images: as in `captions`.
            methods: of `saywhy.explain.methods`: "lrp", its other maps such as "lrp-apart" and "lrp-seen", the gradient
                methods, "attention", and "occlusion", which is slow.
            caption: explain this caption instead of the model's own.
            word: explain this word only: where the caption has it, or else where it is most probable.
            position: explain the word at this position only, counted from 1; with `word`, that word at this position.
            contrast: explain why not this word: the difference of the two logits.
            composite: the LRP rules, or the name of a composite in `saywhy.explain.composites`.
            batch_size: images per batch; by default 1 on a CPU and 8 on a GPU.
            words_per_pass: words per backward pass; by default 1 on a CPU and 16 on a GPU.
            regions: as in `captions`.
            on_unreadable: called with the error of an image that cannot be read, or whose caption has no word at
                `position`; such images are left out. Without it, the error is raised.
            decoding: settings of `saywhy.decoding.Decoding` to change, for the model's own caption; `style`
                also for a given caption.
        """
        explain_batch = self.batch_explainer(
            methods, caption, word, position, contrast, composite, words_per_pass, **decoding
        )
        batch_size = batch_size if batch_size is not None else 1 if self.captioner.device.type == "cpu" else 8
        batches = self._batches("explanations", "explain", images, batch_size, on_unreadable, regions)
        return (explanation for batch in batches for explanation in explain_batch(batch, on_unreadable))

    def batch_explainer(
        self,
        methods: Sequence[str] = REPORT_METHODS,
        caption: str | None = None,
        word: str | None = None,
        position: int | None = None,
        contrast: str | None = None,
        composite: str | Composite = DEFAULT,
        words_per_pass: int | None = None,
        **decoding: Any,
    ) -> Callable[[ImageBatch, OnUnreadable | None], list[Explanation]]:
        """Explains a batch of images; the settings are those of `explanations`, and are checked here."""
        settings = self._decoding("explain", decoding)
        request = ExplanationRequest.parse(
            self.vocabulary,
            settings.max_words,
            caption=caption,
            word=word,
            position=position,
            contrast=contrast,
            methods=methods,
            composite=composite,
        )
        estimator = None if self.risk_error else self.risk_estimator()
        return lambda batch, on_unreadable: self._explain_batch(
            batch, request, settings, estimator, words_per_pass, on_unreadable
        )

    def match(self, image: ImageSource, texts: Sequence[str], regions: RegionLocation = None) -> list[float]:
        """Cosine similarity of one image with each text, from −1 to 1, for models with a contrastive head (`coca`)."""
        match = getattr(self.captioner, "match", None)
        if match is None:
            raise UserError(f"model {self.name}: a {self.captioner.name} has no contrastive head to match texts with")
        if not texts:
            return []
        token_ids = [torch.tensor(self.vocabulary.encode(_tokens(text), self.decoding.style)) for text in texts]
        captions = pad_sequence(token_ids, batch_first=True, padding_value=PAD)  # (N, T)
        (batch,) = self._batches("match", "match", [image], 1, None, regions)
        with torch.inference_mode():
            return match(self._encode(batch), captions.to(self.captioner.device))[0].tolist()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that `load` reads, with the risk model, and a model card; upload it as it is to the Hub.

        Of a model of transformers, the folder refers to that model.
        """
        from saywhy.inference.save_model import ModelParts, changed_settings

        saved = SavedModel(
            self.name,
            self.captioner,
            self.vocabulary,
            self.preprocessing,
            changed_settings(self.decoding),
            self.regions,
            self.conditioning_dropout,
        )
        ModelParts(saved, self.risk, self._usable_familiarity, self.source, self.folder).save(Path(folder))

    def digest(self) -> str:
        """A hash of everything that determines the captions, except the decoding settings."""
        digest = hashlib.blake2b(digest_size=16)
        parts = (self.captioner.settings, self.captioner.encoder.settings, self.preprocessing)
        settings = [self.captioner.name, *map(asdict, parts), self.vocabulary.words]
        if self.source and self.source.prompt:
            settings.append(self.source.prompt)
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        for name, values in sorted(self.captioner.state_dict().items()):
            digest.update(name.encode())
            digest.update(values.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @property
    def folder(self) -> Path | None:
        """Where the model was loaded from."""
        return self._folder

    @cached_property
    def risk(self) -> Risk | None:
        """The hallucination risk model; None where the model has none. A damaged file raises a `UserError`."""
        return self._risk if self._risk or self._folder is None else Risk.read(self._folder)

    @cached_property
    def familiarity(self) -> Familiarity | None:
        """How familiar images are; None where the model has none. A file of another model raises a `UserError`."""
        return self._familiarity if self._familiarity or self._folder is None else Familiarity.read(self._folder)

    @property
    def familiarity_error(self) -> UserError | None:
        """Why the familiarity cannot be used; None where it can, or where the model has none."""
        try:
            _ = self.familiarity
        except UserError as error:
            return error
        return None

    @cached_property
    def objects(self) -> ObjectWords:
        """The table of object words."""
        own = self._folder / OBJECTS_FILE if self._folder else None
        return self._objects or ObjectWords.read(own if own and own.is_file() else None)

    @property
    def risk_error(self) -> UserError | None:
        """Why there is no risk estimate; None where there is one."""
        try:
            self.risk_estimator()
        except UserError as error:
            return error
        return None

    def risk_estimator(self) -> RiskEstimator:
        """Estimates how likely words are hallucinated; a `UserError` where the model has no risk model."""
        if self.risk is None:
            raise UserError(f"model {self.name} has no {RISK_FILE}: fit one with `saywhy audit risk --save-risk`")
        return self._estimator

    @cached_property
    def _estimator(self) -> RiskEstimator:
        assert self.risk is not None
        return RiskEstimator(self.risk, ObjectVocabulary(self.vocabulary, self.objects))

    @cached_property
    def conditioning_dropout(self) -> float | None:
        """The share of captions that the model was trained on without their image; None if that is unknown.

        Model folders of saywhy 0.2 have it only in the record of their training, run.json.
        """
        if self._conditioning_dropout is not None or self._folder is None:
            return self._conditioning_dropout
        try:
            return float(read_json(self._folder / "run.json")["recipe"]["training"]["conditioning_dropout"])
        except (UserError, KeyError, TypeError, ValueError):
            return None

    def language_model(self, path: str, prompt: str = "") -> WordScorer | None:
        """The language model at this path, which scores the words of this model; None for an empty path.

        `prompt` is a file of example captions, one per line, for a model of Hugging Face.
        """
        if path and (path, prompt) not in self._language_models:
            from saywhy.language_models.load_scorer import load_scorer, read_prompt

            examples = read_prompt(prompt) if prompt else ()
            scorer = load_scorer(path, self.vocabulary, self.captioner.device, examples)
            self._language_models[path, prompt] = scorer
        return self._language_models.get((path, prompt))

    def region_source(self, regions: RegionLocation, beside: Path | None = None) -> RegionSource | None:
        """Where this model's regions come from: `regions`, or the boxes beside the data; None for a grid."""
        if self.regions is None and regions is None:
            return None
        return find_regions(self.regions, regions, f"model {self.name}", beside)

    def decoding_with(self, **changes: Any) -> Decoding:
        """The model's decoding settings with some changed; a `UserError` where the model does not have them."""
        settings = replace(self.decoding, **changes).with_style_of(self.vocabulary)
        self.captioner.check_attention_mode(settings.attention)
        if settings.is_guided:
            self._check_guidance(settings)
        return settings

    def in_style(self, style: str) -> Model:
        """The same model with another default style; it shares the captioner."""
        model = copy.copy(self)
        model.decoding = self.decoding_with(style=style)
        return model

    def _check_guidance(self, settings: Decoding) -> None:
        if settings.needs_no_image and self.conditioning_dropout == 0:
            advice = "use β = 0" if settings.lm else "give a language model in its place (--lm PATH)"
            raise UserError(
                f"model {self.name} was trained without conditioning dropout, so it cannot predict words without an "
                "image, which this guidance needs: train one with conditioning_dropout above 0, as "
                f"recipes/coco-ada-lstm.toml does, or {advice}"
            )
        self.language_model(settings.lm, settings.lm_prompt)  # a `UserError` if it cannot be read

    def _decoding(self, method: str, changes: dict[str, Any]) -> Decoding:
        """As `decoding_with`, for the arguments of a method."""
        if method == "explain" and "method" in changes:
            raise UserError(
                "name explanation methods with methods=[…]; the explained caption is decoded by beam search"
            )
        for name in changes:
            if name not in Decoding.__dataclass_fields__:
                raise UserError(
                    f"{method} has no argument {name!r}: {did_you_mean(name, Decoding.__dataclass_fields__)}"
                )
        return self.decoding_with(**changes)

    def _batches(
        self,
        plural: str,
        single: str,
        images: Iterable[ImageSource],
        batch_size: int,
        on_unreadable: OnUnreadable | None,
        regions: RegionLocation,
    ) -> ImageBatches:
        require_several(images, plural, single)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UserError(f"batch_size must be a whole number of at least 1, not {batch_size!r}")

        def skip(index: int, error: UnreadableImage) -> None:
            assert on_unreadable is not None
            on_unreadable(error)

        return ImageBatches(
            self.preprocessing,
            images,
            self.region_source(regions),
            width=self.captioner.encoder.width,
            batch_size=batch_size,
            on_unreadable=skip if on_unreadable else None,
            keep_images=True,
        )

    def _encode(self, batch: ImageBatch) -> Features:
        batch = batch.to(self.captioner.device)
        return self.captioner.encode(batch.pixels, batch.boxes)

    @property
    def _usable_familiarity(self) -> Familiarity | None:
        return None if self.familiarity_error else self.familiarity

    def encode_and_score(self, batch: ImageBatch) -> tuple[Features, list[dict[str, Any]]]:
        """The features of images, and for each its `familiarity` and whether it is `familiar`, where that is known."""
        familiarity = self._usable_familiarity
        if familiarity is None:
            return self._encode(batch), [{}] * len(batch)
        batch = batch.to(self.captioner.device)
        features, statistics = image_statistics(self.captioner, batch.pixels, batch.boxes, familiarity.blocks)
        shares = familiarity(statistics).tolist()
        return features, [{"familiarity": share, "familiar": share >= familiarity.threshold} for share in shares]

    def _caption_batch(self, batch: ImageBatch, settings: Decoding, estimator: RiskEstimator | None) -> list[Caption]:
        with torch.inference_mode():
            features, scores = self.encode_and_score(batch)
            hypotheses = self._decode(features, batch, settings)
        captions = []
        for row, (image, hypothesis) in enumerate(zip(batch.images, hypotheses, strict=True)):
            details: dict[str, Any] = {"source": image.source, "model": self.name}
            details |= {"image": image.image, "crop": image.image_crop}
            details |= {"style": settings.style, "guidance": settings.guidance_settings}
            captions.append(Caption.of(hypothesis, self.vocabulary, features, row, **details, **scores[row]))
        if estimator is None:
            return captions
        familiarity = [caption.familiarity for caption in captions]
        risks = self.risks(features, [caption.words for caption in captions], familiarity, settings)
        return [replace(caption, risks=tuple(row)) for caption, row in zip(captions, risks, strict=True)]

    def risks(
        self,
        features: Features,
        captions: Sequence[Sequence[str]],
        familiarity: Sequence[float | None],
        settings: Decoding,
    ) -> list[list[float | None]]:
        """The risk of each word of the captions of images with these features; None for words that name no object."""
        targets = Targets.of_captions(captions, None, self.vocabulary, self.captioner.device, style=settings.style)
        estimator = self.risk_estimator().for_images(familiarity)
        with self.captioner.using_attention(settings.attention):
            return estimator.risks(self.captioner, features, targets)

    def _explain_batch(
        self,
        batch: ImageBatch,
        request: ExplanationRequest,
        settings: Decoding,
        estimator: RiskEstimator | None,
        words_per_pass: int | None,
        on_unreadable: OnUnreadable | None,
    ) -> list[Explanation]:
        batch = batch.to(self.captioner.device)
        captions: list[Sequence[str]] = [request.caption] * len(batch) if request.caption else []
        scores: list[dict[str, Any]] = [{}] * len(batch)
        if not captions or self._usable_familiarity:  # a given caption needs no features, its image's familiarity does
            with torch.inference_mode():
                features, scores = self.encode_and_score(batch)
                captions = captions or self._words(features, batch, settings)
        rows = list(_answerable(batch, captions, request, on_unreadable))
        if not rows:
            return []
        batch, captions, scores = batch.select(rows), [captions[row] for row in rows], [scores[row] for row in rows]
        details = [
            {
                **{"source": image.source, "model": self.name, "input_size": self.preprocessing.size},
                **{"image": image.image, "size": image.size, "crop": image.crop, **score},
            }
            for image, score in zip(batch.images, scores, strict=True)
        ]
        with torch.inference_mode(False), self.captioner.using_attention(settings.attention):
            return explain(
                self.captioner,
                self.vocabulary,
                batch.pixels,
                batch.boxes,
                captions,
                request,
                details,
                style=settings.style,
                risk=estimator and estimator.for_images([score.get("familiarity") for score in scores]),
                words_per_pass=words_per_pass,
            )

    def _words(self, features: Features, batch: ImageBatch, settings: Decoding) -> list[Sequence[str]]:
        hypotheses = self._decode(features, batch, settings)
        return [self.vocabulary.decode(hypothesis.tokens) for hypothesis in hypotheses]

    def _decode(self, features: Features, batch: ImageBatch, settings: Decoding) -> list[Hypothesis]:
        start, lm = self.vocabulary.start(settings.style), self.language_model(settings.lm, settings.lm_prompt)
        return decode(self.captioner, features, settings, batch.indices, start, lm)


def _tokens(text: str) -> list[str]:
    tokens = tokenize(text)
    if not tokens:
        raise UserError(f"the text {text!r} has no words to match with an image")
    return tokens


def _answerable(
    batch: ImageBatch,
    captions: Sequence[Sequence[str]],
    request: ExplanationRequest,
    on_unreadable: OnUnreadable | None,
) -> Iterator[int]:
    """The rows whose captions the request fits; the others are reported."""
    for row, (image, words) in enumerate(zip(batch.images, captions, strict=True)):
        try:
            request.check(words)
            yield row
        except UserError as error:
            named = UserError(f"{image.source or 'an image'}: {error}")
            if on_unreadable is None:
                raise named from None
            on_unreadable(named)


def load(
    model: str | Path | None = None,
    device: str | torch.device | None = None,
    *,
    prompt: str | None = None,
    trust_remote_code: bool = False,
) -> Model:
    """Load a model by name or folder; by default, the one that ships with saywhy.

    "hf:NAME" is a captioner on the Hugging Face Hub, and "hf:FOLDER" or a folder one that transformers saved. `prompt`
    is what such a model is asked, if it follows instructions; `trust_remote_code` runs code from its repository.

    >>> load()
    <Model ada-lstm-coco-flickr8k: ada-lstm over efficientnet-lite2, 8,276 words, on cpu>
    """
    if model is not None and is_hub_name(model):
        downloaded = download(str(model))
        model = f"{HUB}{model}" if is_transformers_model(downloaded) else downloaded
    if model is not None and is_transformers_model(model):
        return _load_adapted(str(model), choose_device(device), prompt, trust_remote_code)
    folder = locate(model)
    return Model(load_folder(folder, choose_device(device)), folder=folder)


def _load_adapted(location: str, device: torch.device, prompt: str | None, trust_remote_code: bool) -> Model:
    """A model of transformers, or a folder that refers to one."""
    from saywhy.adapters.load_adapter import load_adapter  # most models are saywhy's own

    folder = Path(location.removeprefix(HUB))
    source = HubSource.read(folder) or HubSource(location)
    source = replace(source, prompt=prompt or source.prompt)
    saved = load_adapter(source.model, device, source.prompt, trust_remote_code)
    return Model(saved, folder=folder if folder.is_dir() else None, source=source)


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """The named device; for None or "auto", a GPU where there is one.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name is None or name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}: use auto, cpu, cuda or mps") from None
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device.type) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"device {str(name)!r} is not available on this machine: use auto or cpu")
    return device
