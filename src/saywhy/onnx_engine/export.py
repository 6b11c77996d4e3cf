"""Export of a captioner to a folder that ONNX Runtime reads: `saywhy export`.

torch traces the three modules of `graphs.py` with a dynamic number of images and of beams. Before the folder gets its
name, ONNX Runtime decodes random images with it, and every log p must be close to that of torch.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saywhy.captioners.base import Captioner
from saywhy.decoding.config import log_probabilities
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.inference.familiarity_model import FAMILIARITY_FILE, model_digest
from saywhy.inference.image_loading import ImageLoader
from saywhy.inference.model import Model
from saywhy.model_names import VOCABULARY
from saywhy.onnx_engine.graphs import EncoderGraph, StartGraph, StateLayout, StepGraph
from saywhy.onnx_engine.manifest import (
    ENCODER,
    GRAPHS,
    MANIFEST,
    PRECISIONS,
    START_GRAPH,
    STEP,
    Manifest,
    StateTensor,
)
from saywhy.onnx_engine.precision import convert, fold_constants
from saywhy.onnx_engine.runtime import OnnxCaptioner

TRACED_ROWS = 3  # 0 and 1 would be taken for constants
CHECKED_WORDS = 4
TOLERANCE = 1e-2
"""Largest difference of a log p from torch's, in single precision; other precisions are only reported."""


@dataclass(frozen=True)
class Exported:
    """An exported folder.

    Attributes:
        folder: where it is.
        sizes: bytes of each graph.
        difference: the largest difference of a log p from torch's, over a few words of random images.
    """

    folder: Path
    sizes: dict[str, int]
    difference: float


def export_model(model: Model, folder: str | Path, precision: str = "fp32", calibrate: Sequence[Path] = ()) -> Exported:
    """Write a model as ONNX graphs; a `UserError` where its architecture cannot be exported.

    Args:
        model: to export.
        folder: to write; an earlier export is replaced.
        precision: "fp32", "fp16" or "int8".
        calibrate: photographs by which the encoder is quantised in int8; without them it stays in single precision.
    """
    folder = Path(folder)
    check_destination(folder)
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}: use one of {', '.join(PRECISIONS)}")
    if model.regions is not None:
        raise UserError(f"model {model.name} attends to regions, and only models of a grid can be exported")
    if calibrate and precision != "int8":
        raise UserError(f"photographs for a calibration are for int8, not for {precision}")
    _require_onnx()
    photographs = [ImageLoader(model.preprocessing)(*numbered)[1] for numbered in enumerate(calibrate)]
    with _finished_folder(folder) as part:
        difference = _write(model, part, precision, photographs)
    return Exported(folder, {name: (folder / name).stat().st_size for name in GRAPHS}, difference)


def check_destination(folder: Path) -> None:
    """Raise a `UserError` where a folder of other files, or a file, would be overwritten."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is a folder of other files: choose another name for the export")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another name for the export")


def _require_onnx() -> None:
    try:
        import onnx
        import onnxruntime
        import onnxscript
    except ImportError as error:
        raise UserError(f'export needs {error.name}: pip install "saywhy[onnx]"') from None
    del onnx, onnxruntime, onnxscript


@contextlib.contextmanager
def _finished_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder`, in place of an earlier export, if the block raises nothing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:40]}.", suffix=".part"))
    try:
        yield part
        part.chmod(0o755)
        if folder.exists():
            folder.rename(part.with_suffix(".old"))
        part.rename(folder)
    finally:
        for leftover in (part, part.with_suffix(".old")):
            shutil.rmtree(leftover, ignore_errors=True)


def _write(model: Model, folder: Path, precision: str, photographs: Sequence[np.ndarray]) -> float:
    captioner = copy.deepcopy(model.captioner).cpu().float().eval()  # tracing leaves its tensors in caches of modules
    captioner.requires_grad_(False).attention_mode = model.decoding.attention
    start = model.vocabulary.start(model.decoding.style)
    pixels = _noise(TRACED_ROWS, model.preprocessing.size)
    familiarity = model.familiarity
    maps = tuple(familiarity.maps) if familiarity else ()
    with torch.no_grad(), _quiet():
        features = captioner.encode(pixels)
        if features.grid is None:
            raise UserError(f"model {model.name} has no grid of features, and cannot be exported")
        layout = StateLayout.of(captioner, features, start)
        outputs = _trace_all(captioner, layout, pixels, features, start, folder, (maps, familiarity))
    for name in GRAPHS:
        convert(folder / name, precision, photographs)
    names = [*GRAPHS, VOCABULARY]
    model.vocabulary.save(folder / VOCABULARY)
    if familiarity and model.folder:
        shutil.copyfile(model.folder / FAMILIARITY_FILE, folder / FAMILIARITY_FILE)
        names.append(FAMILIARITY_FILE)
    manifest = Manifest(
        name=model.name,
        precision=precision,
        captioner=captioner.name,
        encoder=captioner.encoder.settings.name,
        grid=features.grid,
        preprocessing=model.preprocessing,
        decoding=asdict(model.decoding),
        state=tuple(StateTensor(*pair) for pair in zip(layout.names, layout.constant, strict=True)),
        outputs=outputs,
        maps=maps,
        model=model_digest(model.folder) if model.folder else "",
    )
    manifest.write(folder, names)
    return _check(captioner, OnnxCaptioner(folder, manifest), model, start, precision)


def _trace_all(
    captioner: Captioner,
    layout: StateLayout,
    pixels: Tensor,
    features: Features,
    start: int,
    folder: Path,
    familiarity: tuple[tuple[str, ...], Any],
) -> tuple[str, ...]:
    """Write the three graphs; the outputs of a step before the state."""
    assert features.grid is not None
    maps, model = familiarity
    encoder = EncoderGraph(captioner, maps, model.blocks if model else ())
    rows = {0: torch.export.Dim("images")}
    statistics = [f"statistics.{name}" for name in maps]
    _trace(captioner, encoder, (pixels,), [rows], ["pixels"], ["features", *statistics], folder / ENCODER)

    vectors = features.vectors
    names = [f"state.{name}" for name in layout.names]
    start_graph = StartGraph(captioner, layout, features.grid)
    _trace(captioner, start_graph, (vectors,), [rows], ["features"], names, folder / START_GRAPH)

    tokens = torch.full((len(pixels),), start)
    state = captioner.start(features)
    for _ in range(2):
        step = captioner.step(tokens, state)
        state = step.state
    outputs = ("log_p", "alpha", *(() if step.attention.beta is None else ("beta",)))
    changed = [f"next.{name}" for name, constant in zip(layout.names, layout.constant, strict=True) if not constant]
    beams, words = torch.export.Dim("beams"), torch.export.Dim("words")
    shapes = [{0: beams} | dict.fromkeys(dimensions, words) for dimensions in layout.growing]
    inputs = (tokens, *(tensor.clone() for tensor in layout.flatten(state)))
    step_graph = StepGraph(captioner, layout)
    _trace(
        captioner,
        step_graph,
        inputs,
        [{0: beams}, tuple(shapes)],
        ["tokens", *names],
        [*outputs, *changed],
        folder / STEP,
    )
    return outputs


def _trace(
    captioner: Captioner,
    graph: nn.Module,
    inputs: tuple[Tensor, ...],
    shapes: Sequence[Any],
    names: Sequence[str],
    outputs: Sequence[str],
    path: Path,
) -> None:
    try:
        with torch.enable_grad():  # without gradient, layers keep what they compute, and tracing has no values to keep
            program = torch.export.export(graph.eval(), inputs, dynamic_shapes=tuple(shapes), strict=False)
        exported = torch.onnx.export(
            program, dynamo=True, input_names=list(names), output_names=list(outputs), verbose=False
        )
        assert exported is not None
        exported.save(path)
        fold_constants(path)
    except Exception as error:  # torch has many exceptions for what it cannot trace
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"captioner {captioner.name} over {captioner.encoder.settings.name} cannot be exported to ONNX ({reason})"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter writes about its progress, and warns of what the check of the result would find."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(disabled)


def _noise(images: int, side: int) -> Tensor:
    return torch.randint(0, 256, (images, 3, side, side), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


@torch.no_grad()
def _check(captioner: Captioner, exported: OnnxCaptioner, model: Model, start: int, precision: str) -> float:
    """The largest difference of a log p over a few words of random images, alone and in a batch."""
    difference = 0.0
    for images in (1, 2):
        pixels = _noise(images, model.preprocessing.size)
        state = captioner.start(captioner.encode(pixels))
        features, _ = exported.encode(pixels.numpy())
        onnx_state, tokens = exported.start(features), torch.full((images,), start)
        for _ in range(CHECKED_WORDS):
            step, onnx_step = captioner.step(tokens, state), exported.step(tokens.numpy(), onnx_state)
            log_p = log_probabilities(step.logits, captioner.styles)
            possible = log_p.isfinite().numpy()  # the markers have −∞
            difference = max(difference, float(np.abs(log_p.numpy()[possible] - onnx_step.log_p[possible]).max()))
            tokens, state, onnx_state = log_p.argmax(dim=-1), step.state, onnx_step.state
    if precision == "fp32" and not difference <= TOLERANCE:  # also for NaN
        raise UserError(
            f"captioner {captioner.name} cannot be exported to ONNX: log p differs from torch's by {difference:.2g}"
        )
    return difference
