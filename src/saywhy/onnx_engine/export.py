"""Export of a captioner to a folder that ONNX Runtime reads: `saywhy export`.

torch traces the three modules of `graphs.py` with a dynamic number of images and of beams. Before the folder gets its
name, ONNX Runtime decodes random images with it, and every log p must be close to that of torch.
"""

from __future__ import annotations

import contextlib
import copy
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.decoding.config import log_probabilities
from saywhy.errors import UserError
from saywhy.inference.familiarity_model import FAMILIARITY_FILE, model_digest
from saywhy.inference.image_loading import ImageLoader
from saywhy.inference.model import Model
from saywhy.model_names import VOCABULARY
from saywhy.onnx_engine.graph_tracer import GraphTracer
from saywhy.onnx_engine.manifest import GRAPHS, MANIFEST, PRECISIONS, Manifest, StateTensor
from saywhy.onnx_engine.precision import convert
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
    except OSError as error:
        error.filename, error.filename2 = str(folder), None
        raise
    finally:
        for leftover in (part, part.with_suffix(".old")):
            shutil.rmtree(leftover, ignore_errors=True)


def _write(model: Model, folder: Path, precision: str, photographs: Sequence[np.ndarray]) -> float:
    captioner = copy.deepcopy(model.captioner).cpu().float().eval()  # tracing leaves its tensors in caches of modules
    captioner.requires_grad_(False).attention_mode = model.decoding.attention
    start, familiarity = model.vocabulary.start(model.decoding.style), model.familiarity
    blocks = None if familiarity is None else familiarity.blocks
    tracer = GraphTracer.of(captioner, _noise(TRACED_ROWS, model.preprocessing.size), start, blocks)
    tracer.write(folder)
    for name in GRAPHS:
        convert(folder / name, precision, photographs)
    manifest = _manifest(model, tracer, precision)
    manifest.write(folder, _other_files(model, folder))
    return _check(captioner, OnnxCaptioner(folder, manifest), model, start, precision)


def _other_files(model: Model, folder: Path) -> list[str]:
    """Write what an export holds beside the graphs; the names of all files."""
    model.vocabulary.save(folder / VOCABULARY)
    if model.familiarity is None or model.folder is None:
        return [*GRAPHS, VOCABULARY]
    shutil.copyfile(model.folder / FAMILIARITY_FILE, folder / FAMILIARITY_FILE)
    return [*GRAPHS, VOCABULARY, FAMILIARITY_FILE]


def _manifest(model: Model, tracer: GraphTracer, precision: str) -> Manifest:
    layout = tracer.layout
    return Manifest(
        name=model.name,
        precision=precision,
        captioner=model.captioner.name,
        encoder=model.captioner.encoder.settings.name,
        grid=tracer.grid,
        preprocessing=model.preprocessing,
        decoding=asdict(model.decoding),
        state=tuple(StateTensor(*pair) for pair in zip(layout.names, layout.constant, strict=True)),
        outputs=tracer.outputs,
        maps=tracer.maps,
        model=model_digest(model.folder) if model.folder else "",
    )


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
