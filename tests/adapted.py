"""Tiny captioners of transformers that were trained for a moment, so that their captions have words and an end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import tiny_transformers
from saywhy.adapters.base import adapters
from saywhy.adapters.load_adapter import adapt
from saywhy.data.tokenizer import PAD
from saywhy.inference.model import Model

STEPS = 60
PATCHES = 16
BUILDERS: dict[str, Callable[[int], Any]] = {
    "vision-encoder-decoder": tiny_transformers.vit_gpt2_parts,
    "blip": tiny_transformers.blip_parts,
    "git": tiny_transformers.git_parts,
    "llava": tiny_transformers.llava_parts,
}


@dataclass(frozen=True)
class Tiny:
    """A model of transformers with its parts."""

    model: Any
    tokenizer: Any
    processor: Any

    @property
    def ends(self) -> set[int]:
        """Tokens that end a caption."""
        return {self.tokenizer.sep_token_id or self.tokenizer.eos_token_id}

    def prompt(self, count: int) -> dict[str, Any]:
        """What `generate` reads beside pixels: of LLaVA a prompt, in which each patch has a place."""
        if self.model.config.model_type != "llava":
            return {}
        image = self.model.config.image_token_id
        ids = adapters["llava"].prompt(self.model, self.tokenizer)
        expanded = [token for id in ids for token in ([image] * PATCHES if id == image else [id])]
        tokens = torch.tensor([expanded] * count)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def save(self, folder: Path) -> None:
        for part in (self.model, self.tokenizer, self.processor):
            part.save_pretrained(folder)


def images(count: int = 8) -> list[Image.Image]:
    """Images of coloured rectangles, all different."""
    random = np.random.default_rng(0)
    arrays = random.integers(0, 256, (count, 3, 4, 3), dtype=np.uint8)
    return [Image.fromarray(array).resize((48, 40), Image.Resampling.NEAREST) for array in arrays]


def pixels_of(model: Model, count: int = 8) -> torch.Tensor:
    """The encoder's input of the images."""
    return torch.stack([torch.from_numpy(model.preprocessing(image)) for image in images(count)])


def trained(name: str, seed: int = 0) -> Tiny:
    """The model after a few steps on one caption per image."""
    tiny = Tiny(*BUILDERS[name](seed))
    saved = adapt(adapters[name], tiny.model, tiny.tokenizer, tiny.processor, name)
    captioner, vocabulary = saved.captioner, saved.vocabulary
    pixels = torch.stack([torch.from_numpy(saved.preprocessing(image)) for image in images()])
    captions = tiny_transformers.CAPTIONS
    tokens = [torch.tensor(vocabulary.encode(captions[i % len(captions)].split())) for i in range(len(pixels))]
    padded = pad_sequence(tokens, batch_first=True, padding_value=PAD)
    with torch.no_grad():
        features = captioner.encode(pixels)
    parameters = [p for p in captioner.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=5e-3)
    for _ in range(STEPS):
        logits, _ = captioner(features, padded[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), padded[:, 1:].flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return tiny


def as_model(tiny: Tiny, name: str, dtype: torch.dtype = torch.float32) -> Model:
    """The model behind its adapter."""
    saved = adapt(adapters[name], tiny.model, tiny.tokenizer, tiny.processor, name)
    saved.captioner.to(dtype)
    return Model(saved)


def generate(tiny: Tiny, x: torch.Tensor, max_words: int | None = None, **options: Any) -> list[list[int]]:
    """What the model's own `generate` says of normalised pixels: its tokens without prompt and end."""
    if max_words is not None:
        options["max_new_tokens"] = max_words
    prompt, ends = tiny.prompt(len(x)), tiny.ends
    ids = tiny.model.generate(pixel_values=x, do_sample=False, **prompt, **options).tolist()
    start = 1 if not prompt else prompt["input_ids"].shape[1]
    captions = [row[start:] for row in ids]
    return [row[: min((row.index(end) for end in ends if end in row), default=len(row))] for row in captions]
