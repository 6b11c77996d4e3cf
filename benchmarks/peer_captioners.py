"""Captioners of other projects, run from a checkout of their own source, and saywhy's on the same work.

All have a ResNet-50 over 256 × 256 pixels, 8 × 8 × 2048 features, decoders of 512 units, 3,500 words and random
weights; all captions have 12 words. A captioner here is a function of image files, an update one step of training.

- sgrvinod (https://github.com/sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning): its `Encoder`, `DecoderWithAttention`
  and `caption_image_beam_search`, image by image, as it has no batches.
- ruotianluo (https://github.com/ruotianluo/ImageCaptioning.pytorch): its `myResnet`, which strides earlier and so has
  fewer operations, also image by image, and its `att2in2` with `_sample_beam`, in a batch.

Their code runs unchanged but for what current versions of their libraries no longer have: scipy's `imread` and
`imresize` (here Pillow's), skimage (not needed without figures), and an integer division that torch made a true one.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

import saywhy
from saywhy import encoders
from saywhy.captioners import build
from saywhy.captioners.model_folder import SavedModel
from saywhy.captioners.soft_attention import doubly_stochastic
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import MARKERS, Vocabulary
from saywhy.encoders.base import Features
from saywhy.onnx_engine.engine import load_onnx
from saywhy.onnx_engine.export import export_model

SIDE, GRID, WIDTH, UNITS, VOCABULARY, WORDS, BEAM = 256, 8, 2048, 512, 3500, 12, 3
NEVER, ALWAYS = -1e4, 1e4
CaptionFiles = Callable[[Sequence[Path]], None]
Update = Callable[[], None]


class FixedLength(nn.Module):
    """An output layer by which every caption ends after `words` words."""

    def __init__(self, layer: nn.Linear, end: int, words: int) -> None:
        super().__init__()
        self.layer, self.end, self.words, self.read = layer, end, words, 0

    @property
    def weight(self) -> Tensor:
        """That of the layer."""
        return self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        """The layer's logits, with another one for the end."""
        logits = self.layer(x)
        logits[..., self.end] = ALWAYS if self.read == self.words else NEVER
        self.read += 1
        return logits


def stub(name: str, **contents: object) -> ModuleType:
    """A module in place of one that is not installed."""
    module = ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


def run_source(path: Path, **replacements: str) -> ModuleType:
    """A module of a peer, with some of its text replaced."""
    text = path.read_text(encoding="utf-8")
    for old, new in replacements.items():
        text = text.replace(old, new)
    module = ModuleType(path.stem)
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def sgrvinod_network(folder: Path) -> tuple[nn.Module, nn.Module]:
    """Its encoder, over a ResNet-50 in place of a ResNet-101, and its decoder."""
    with patch.object(torchvision.models, "resnet101", lambda pretrained: torchvision.models.resnet50(weights=None)):
        models = run_source(folder / "models.py")
        encoder = models.Encoder(encoded_image_size=GRID)
    return encoder.eval(), models.DecoderWithAttention(UNITS, UNITS, UNITS, VOCABULARY)


def sgrvinod(folder: Path) -> CaptionFiles:
    """Its captioner."""
    stub("scipy.misc", imread=lambda path: np.asarray(Image.open(path)), imresize=_resize)
    stub("skimage", transform=stub("skimage.transform"))
    program = run_source(folder / "caption.py", **{"top_k_words / vocab_size": "top_k_words // vocab_size"})
    encoder, decoder = sgrvinod_network(folder)
    decoder.eval()
    end = 2
    decoder.fc = output = FixedLength(decoder.fc, end, WORDS)
    words = {"<start>": 1, "<end>": end} | {f"word{number}": number for number in range(VOCABULARY - 2)}

    @torch.no_grad()
    def caption(paths: Sequence[Path]) -> None:
        for path in paths:
            output.read = 0
            tokens, _ = program.caption_image_beam_search(encoder, decoder, str(path), words, BEAM)
            assert len(tokens) == WORDS + 2

    return caption


def _resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))


def ruotianluo(folder: Path) -> CaptionFiles:
    """Its captioner."""
    sys.path.insert(0, str(folder))
    stub("six", PY3=True, moves=stub("six.moves", cPickle=importlib.import_module("pickle")))
    stub("captioning.utils.config", CfgNode=dict)
    networks, wrapper = (importlib.import_module(f"captioning.utils.{name}") for name in ("resnet", "resnet_utils"))
    encoder = wrapper.myResnet(networks.resnet50()).eval()
    decoder = importlib.import_module("captioning.models").setup(_options()).eval()
    decoder.logit = FixedLength(decoder.logit, end=0, words=-1)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

    def read(path: Path) -> Tensor:
        pixels = torch.from_numpy(np.asarray(Image.open(path).resize((SIDE, SIDE))).astype("float32") / 255)
        return ((pixels - mean) / std).permute(2, 0, 1)

    @torch.no_grad()
    def caption(paths: Sequence[Path]) -> None:
        fc, att = zip(*(encoder(read(path), GRID) for path in paths), strict=True)
        vectors = torch.stack(att).flatten(1, 2)  # (B, L, D)
        options = {"beam_size": BEAM, "sample_n": 1}
        tokens, _ = decoder(torch.stack(fc), vectors, None, opt=options, mode="sample")
        assert tokens.shape == (len(paths), WORDS)

    return caption


def _options() -> argparse.Namespace:
    sizes = {"input_encoding_size": UNITS, "rnn_size": UNITS, "att_hid_size": UNITS}
    features = {"fc_feat_size": WIDTH, "att_feat_size": WIDTH}
    lengths = {"seq_length": WORDS, "max_length": WORDS, "num_layers": 1, "drop_prob_lm": 0.5}
    return argparse.Namespace(
        caption_model="att2in2", vocab_size=VOCABULARY - 1, vocab={}, **sizes, **features, **lengths
    )


def saywhy_model() -> saywhy.Model:
    """Soft attention over the same network."""
    torch.manual_seed(0)
    encoder = encoders.build("resnet50", weights=None, size=SIDE)
    captioner = build("soft-attention", encoder, VOCABULARY, embedding=UNITS, hidden=UNITS, attention=UNITS)
    vocabulary = Vocabulary((*MARKERS, *(f"word{number}" for number in range(VOCABULARY - len(MARKERS)))))
    decoding = {"beam": BEAM, "min_words": WORDS, "max_words": WORDS}
    return saywhy.Model(SavedModel("peer", captioner.eval(), vocabulary, Preprocessing(SIDE, "squash"), decoding))


def saywhy_captioners(model: saywhy.Model, image: Path, folder: Path) -> dict[str, CaptionFiles]:
    """Those of torch, and of ONNX Runtime in single precision and in 8 bits."""
    single = load_onnx(export_model(model, folder / "fp32").folder, threads=1)
    small = load_onnx(export_model(model, folder / "int8", "int8", [image]).folder, threads=1)

    def captioner(engine: Any) -> CaptionFiles:
        def caption(paths: Sequence[Path]) -> None:
            captions: list[saywhy.Caption] = list(engine.captions(paths, batch_size=len(paths)))
            assert all(len(found.words) == WORDS for found in captions)

        return caption

    return {"torch": captioner(model), "onnx": captioner(single), "onnx int8": captioner(small)}


def captions_of(rows: int) -> Tensor:
    """Random captions (rows, WORDS + 2) from `<start>` to `<end>`."""
    words = torch.randint(4, VOCABULARY, (rows, WORDS), generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.full((rows, 1), 1), words, torch.full((rows, 1), 2)], dim=1)


def sgrvinod_update(folder: Path, rows: int) -> Update:
    """One step of its `train.py` with cached features: cross-entropy, doubly stochastic penalty, clipping, Adam."""
    _, decoder = sgrvinod_network(folder)
    adam = torch.optim.Adam(decoder.parameters(), lr=4e-4)
    features, captions = torch.randn(rows, GRID, GRID, WIDTH), captions_of(rows)
    lengths = torch.full((rows, 1), WORDS + 2)

    def update() -> None:
        scores, ordered, decoded, alphas, _ = decoder(features, captions, lengths)
        packed = [
            nn.utils.rnn.pack_padded_sequence(values, decoded, batch_first=True).data
            for values in (scores, ordered[:, 1:])
        ]
        loss = nn.functional.cross_entropy(*packed) + ((1.0 - alphas.sum(dim=1)) ** 2).mean()
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(decoder.parameters(), 5.0)
        adam.step()

    return update


def saywhy_update(model: saywhy.Model, rows: int) -> Update:
    """The same step of soft attention."""
    captioner: Any = model.captioner.train()
    parameters = [value for name, value in captioner.named_parameters() if not name.startswith("encoder.")]
    adam = torch.optim.Adam(parameters, lr=4e-4)
    features, captions = Features(torch.randn(rows, GRID * GRID, WIDTH), (GRID, GRID)), captions_of(rows)
    mask = torch.ones(rows, WORDS + 1, dtype=torch.bool)

    def update() -> None:
        logits, attention = captioner(features, captions[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), captions[:, 1:].flatten())
        loss = loss + doubly_stochastic(attention.alpha, mask).mean() / GRID**2
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(parameters, 5.0)
        adam.step()

    return update
