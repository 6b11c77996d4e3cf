"""LRP of the words of one caption by another project, run from a checkout of its own source, and by saywhy.

Both explain the logits of the same 12 words by an Ada-LSTM with random weights: either down to the features of the
image, 14 × 14 × 512, which are given, or further down to the 224 × 224 pixels, through a VGG-16. The widths are 512,
the words 3,500. An explainer here is a function without arguments; it computes the states of the caption once, and then
the relevance of each word.

- LRP-imagecaptioning-pytorch (https://github.com/SunJiamei/LRP-imagecaptioning-pytorch): its
  `ExplainAdaptiveAttention.explain_caption` on its `AdaptiveAttentionCaptioningModel`.
- saywhy: `run_lrp` on its `ada-lstm`, which has a second LSTM, and so more to propagate through; with the peer's rules
  (ε, α1β0 without biases, constant attention: the composite "paper"), and with those that are saywhy's default.

Its code runs unchanged. What is no relevance is left out on both sides: reading the image, searching for the caption,
drawing. Of its imports, those that serve only these are replaced by empty modules where they are missing; on a CPU,
`.cuda()` returns the tensor itself; and the hooks on its encoder are registered once, not once more for each caption.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from peer_captioners import UNITS, VOCABULARY, WORDS, stub
from torch import Tensor, nn

from saywhy import encoders
from saywhy.captioners import build
from saywhy.data.tokenizer import MARKERS, Vocabulary
from saywhy.explain.composites import DEFAULT, composite
from saywhy.explain.passes import run_lrp
from saywhy.explain.targets import Targets

SIDE, GRID, WIDTH = 224, 14, 512  # the peer's attention is built for 196 features
CAPTION = [f"word{number}" for number in range(WORDS)]
Explainer = Callable[[], list[Tensor]]


class GivenFeatures(nn.Module):
    """In place of the peer's encoder: the features (1, D, rows, columns) and their mean (D,)."""

    feat_dim = WIDTH
    encoder = None

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Those that were given."""
        return self.features, self.features.mean(dim=(0, 2, 3))


def image_features() -> Tensor:
    """Random features (1, D, rows, columns), not negative, as those of a VGG-16."""
    return torch.rand(1, WIDTH, GRID, GRID, generator=torch.Generator().manual_seed(0))


def image_pixels() -> Tensor:
    """Random pixels (1, 3, S, S)."""
    return torch.randint(256, (1, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0)).float()


def lrp_imagecaptioning(folder: Path, scratch: Path, to_pixels: bool) -> Explainer:
    """The peer's explainer, down to pixels or to features; it makes an empty folder in `scratch`."""
    source = _peer_source(folder)
    explainer = _peer_explainer(source, scratch, to_pixels)
    image = (image_pixels() - 127) / 58
    explainer.preprocess_img = lambda path: image.clone()
    explainer.visualize_explanations = explainer.save_linguistic_explanation = lambda *args, **kwargs: None
    if to_pixels:
        source.lrp_wrapper.add_lrp(explainer.model.img_encoder.encoder)
    else:
        explainer.explain_cnn = lambda relevance: relevance

    def explain() -> list[Tensor]:
        on_cpu, with_hooks = patch.object(torch.Tensor, "cuda", _itself), patch.object(source.lrp_wrapper, "add_lrp")
        with on_cpu, with_hooks, _quiet():
            maps, _ = explainer.explain_caption("image.jpg")
        return [values.sum(dim=1).squeeze(0) for values in maps]

    return explain


def _peer_source(folder: Path) -> ModuleType:
    """Its module of the Ada-LSTM and its explainers."""
    _stub_if_missing("skimage", "transform")
    _stub_if_missing("torchvision.models", "utils", load_state_dict_from_url=None)
    with patch.object(sys, "path", [str(folder), *sys.path]):
        return importlib.import_module("models.adaptiveattention")


def _stub_if_missing(package: str, name: str, **contents: object) -> None:
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        stub(package)
    parent = importlib.import_module(package)
    if not hasattr(parent, name):
        setattr(parent, name, stub(f"{package}.{name}", **contents))


def _peer_explainer(source: ModuleType, scratch: Path, to_pixels: bool) -> Any:
    """Its explainer over a model with random weights, which always finds the same caption."""
    torch.manual_seed(0)
    build_vgg = source.vgg.vgg16
    vgg = patch.object(source.vgg, "vgg16", lambda pretrained: build_vgg())
    given = patch.object(source, "Encoder", lambda name: GivenFeatures(image_features()))
    with vgg if to_pixels else given, _quiet():
        model = source.AdaptiveAttentionCaptioningModel(UNITS, UNITS, VOCABULARY, "vgg16")
    words = {"<start>": 1, "<end>": 2} | {word: 4 + number for number, word in enumerate(CAPTION)}
    words |= {f"other{number}": number for number in range(VOCABULARY - len(words))}
    model.beam_search = lambda *args, **kwargs: ([" ".join(CAPTION)], [words[word] for word in CAPTION])
    options = argparse.Namespace(height=SIDE, width=SIDE, dataset="peer", save_path=str(scratch))
    return source.ExplainAdaptiveAttention(options, words, model)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def saywhy_explainers(to_pixels: bool) -> dict[str, Explainer]:
    """saywhy's explainers, down to pixels or to features."""
    return {"torch": saywhy_explainer(to_pixels, "paper"), f"torch, {DEFAULT}": saywhy_explainer(to_pixels, DEFAULT)}


def saywhy_explainer(to_pixels: bool, rules: str) -> Explainer:
    """saywhy's explainer with the rules of a composite."""
    torch.manual_seed(0)
    encoder = encoders.build("vgg16", weights=None, size=SIDE) if to_pixels else encoders.build(f"features:{WIDTH}")
    captioner = build("ada-lstm", encoder, VOCABULARY, embedding=UNITS, hidden=UNITS, attention=GRID**2).eval()
    known = (*MARKERS, *CAPTION)
    vocabulary = Vocabulary((*known, *(f"other{number}" for number in range(VOCABULARY - len(known)))))
    x = image_pixels() if to_pixels else image_features().flatten(2).transpose(1, 2)  # (1, 3, S, S) or (1, L, D)
    boxes = None if to_pixels else torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(1, GRID**2, 4)
    targets = Targets.of_captions([CAPTION], None, vocabulary, x.device)

    def explain() -> list[Tensor]:
        _, relevance = run_lrp(captioner, x, boxes, targets, composite(rules), words_per_pass=1)
        values = relevance.features if relevance.pixels is None else relevance.pixels
        return list(values.squeeze(1))

    return explain
