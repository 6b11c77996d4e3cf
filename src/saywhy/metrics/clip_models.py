"""CLIP models that the user names, for CLIPScore and retrieval (Radford et al. 2021, https://arxiv.org/abs/2103.00020).

- "hf:NAME" or a folder: a CLIP model of Hugging Face transformers.
- "open_clip:ARCH/PRETRAINED": a model of open_clip (https://github.com/mlfoundations/open_clip), whose PRETRAINED is a
  tag, such as "openai", or a .safetensors file; "open_clip:hf-hub:NAME" and "open_clip:local-dir:FOLDER" as there.

Weights are read from safetensors, except those of tags of open_clip that have none: these are state dicts, read with
`weights_only=True`. Images go through the model's own preprocessing; for CLIP, a bicubic resize and a centre crop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from PIL.Image import new as new_image
from torch import Tensor

from saywhy.data.images import open_image
from saywhy.errors import UserError
from saywhy.metrics.base import Floats
from saywhy.metrics.retrieval import Progress, unit_vectors
from saywhy.pretrained import import_transformers, load_part, load_weights, quiet, short_name, unusable

OPEN_CLIP = "open_clip:"
_SCHEMES = ("hf-hub:", "local-dir:")
_TEXTS, _IMAGES = 256, 32  # per batch


@dataclass(frozen=True)
class ClipModel:
    """A CLIP model as an `EmbeddingModel`.

    Attributes:
        name: as scores name it; no path.
        text_features: the features (B, D) of a batch of texts.
        image_features: the features (B, D) of a batch of images.
    """

    name: str
    text_features: Callable[[list[str]], Tensor]
    image_features: Callable[[list[Image]], Tensor]

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> Floats:
        """Unit vectors (N, D) of texts; equal texts are embedded once, and long ones cut."""
        distinct = sorted(set(texts), key=lambda text: (len(text), text))  # texts of a batch have similar lengths
        row = {text: number for number, text in enumerate(distinct)}
        batches = [self.text_features(distinct[start : start + _TEXTS]) for start in range(0, len(distinct), _TEXTS)]
        return _unit(batches, f"{self.name}, texts")[[row[text] for text in texts]]

    @torch.inference_mode()
    def embed_images(self, images: Sequence[Path], progress: Progress = lambda done, total: None) -> Floats:
        """Unit vectors (N, D) of image files; raises `UnreadableImage` for a file that is none."""
        batches = []
        for start in range(0, len(images), _IMAGES):
            batches.append(self.image_features([open_image(path) for path in images[start : start + _IMAGES]]))
            progress(min(start + _IMAGES, len(images)), len(images))
        return _unit(batches, f"{self.name}, images")


def _unit(batches: list[Tensor], what: str) -> Floats:
    if not batches:
        raise UserError(f"{what}: nothing to embed")
    return unit_vectors(np.concatenate([batch.float().cpu().numpy() for batch in batches]), what)


def load_clip(location: str | Path, device: torch.device | str = "cpu") -> ClipModel:
    """The CLIP model at a location (see the module)."""
    text = str(location)
    if text.startswith(OPEN_CLIP):
        return _load_open_clip(text, text.removeprefix(OPEN_CLIP), device)
    return _load_transformers(text, device)


def _load_transformers(location: str, device: torch.device | str) -> ClipModel:
    what = "a CLIP model"
    transformers = import_transformers(what)
    config = load_part(transformers.AutoConfig, location, what)
    if config.model_type != "clip":
        raise unusable(
            location, what, f"it is of the type {config.model_type}, not clip; open_clip has other dual encoders"
        )
    model = load_weights(transformers.CLIPModel, location, what, device)
    tokenizer = load_part(transformers.AutoTokenizer, location, what)
    # Pillow's bicubic filter, as in the original. Before release 5 of transformers, this class was the only one.
    processors = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)
    processor = load_part(processors, location, what)
    longest = config.text_config.max_position_embeddings

    def text_features(texts: list[str]) -> Tensor:
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt").to(device)
        return _pooled(model.get_text_features(tokens["input_ids"], attention_mask=tokens["attention_mask"]))

    def image_features(images: list[Image]) -> Tensor:
        pixels = processor(images=images, return_tensors="pt")["pixel_values"]
        return _pooled(model.get_image_features(pixels.to(device)))

    try:
        with torch.inference_mode():
            text_features(["a"])
            image_features([new_image("RGB", (64, 64))])
    except (
        Exception
    ) as error:  # transformers loads values of any type, and fails with any exception where they are used
        raise unusable(location, what, error) from None
    return ClipModel(short_name(location), text_features, image_features)


def _pooled(output: Any) -> Tensor:
    """Before release 5 of transformers, the features themselves were returned."""
    features: Tensor = getattr(output, "pooler_output", output)
    return features


def _load_open_clip(location: str, model_name: str, device: torch.device | str) -> ClipModel:
    try:
        import open_clip
    except ImportError:
        raise UserError(f'{location} needs open_clip: pip install "saywhy[clip]"') from None
    architecture, pretrained = (model_name, "")
    if not model_name.startswith(_SCHEMES):
        architecture, pretrained = _architecture_and_weights(location, model_name)
    # Tags of OpenAI's weights need this activation, which their architecture's name does not say.
    quick_gelu = (open_clip.get_pretrained_cfg(architecture, pretrained) or {}).get("quick_gelu", False)
    try:
        with quiet():
            model, preprocess = open_clip.create_model_from_pretrained(  # refuses to leave weights random
                architecture, pretrained or None, force_quick_gelu=quick_gelu, device=device, weights_only=True
            )
            tokenizer = open_clip.get_tokenizer(architecture)
    except Exception as error:  # loaders raise exceptions of any type for broken files
        raise unusable(location, "a model of open_clip", error) from None
    model.eval()
    return ClipModel(
        _open_clip_name(architecture, pretrained),
        lambda texts: model.encode_text(tokenizer(texts).to(device)),
        lambda images: model.encode_image(torch.stack([preprocess(image) for image in images]).to(device)),
    )


def _architecture_and_weights(location: str, model_name: str) -> tuple[str, str]:
    """ARCH and PRETRAINED; weights in a file must be safetensors."""
    architecture, _, pretrained = model_name.partition("/")
    if not pretrained:
        raise UserError(f"{location}: give open_clip:ARCH/PRETRAINED, such as open_clip:ViT-B-32/openai")
    if Path(pretrained).exists() and not pretrained.endswith(".safetensors"):
        raise UserError(f"{location}: give weights as a .safetensors file; other files are not read")
    return architecture, pretrained


def _open_clip_name(architecture: str, pretrained: str) -> str:
    """The location without folders.

    >>> _open_clip_name("ViT-B-32", "weights/mine.safetensors"), _open_clip_name("hf-hub:laion/CLIP", "")
    ('open_clip:ViT-B-32/mine.safetensors', 'open_clip:hf-hub:laion/CLIP')
    """
    scheme, _, place = architecture.partition(":")
    if scheme == "local-dir":
        architecture = f"{scheme}:{Path(place).resolve().name}"
    return OPEN_CLIP + architecture + (f"/{Path(pretrained).name}" if pretrained else "")
