"""The exported graphs in ONNX Runtime: arrays in, arrays out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from saywhy.errors import UserError
from saywhy.onnx_engine.manifest import ENCODER, START_GRAPH, STEP, Manifest

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class DecoderState:
    """The decoder's state of R rows.

    Attributes:
        image: (R,), the image of each row.
        per_image: constant tensors, (B, …), one row per image.
        constant: the same for each row, (R, …).
        changing: the tensors that change with each word, (R, …).
    """

    image: np.ndarray
    per_image: Arrays
    constant: Arrays
    changing: Arrays

    def select(self, rows: np.ndarray) -> DecoderState:
        """The states of these rows. Constant tensors are copied only where rows change their image."""
        image = self.image[rows]
        if np.array_equal(image, self.image[: len(image)]):
            constant = {name: values[: len(image)] for name, values in self.constant.items()}
        else:
            constant = {name: values[image] for name, values in self.per_image.items()}
        return DecoderState(image, self.per_image, constant, {name: v[rows] for name, v in self.changing.items()})


@dataclass(frozen=True)
class DecoderStep:
    """The result of decoding one word: log p (R, V) of the next, the attention α (R, …, L) and β (R,), the state."""

    log_p: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray | None
    state: DecoderState


class OnnxCaptioner:
    """The encoder and the decoder of an exported model.

    Args:
        folder: that `saywhy export` wrote.
        manifest: of the folder.
        threads: of ONNX Runtime; None for `default_threads`.
    """

    def __init__(self, folder: Path, manifest: Manifest, threads: int | None = None) -> None:
        self.manifest = manifest
        self._encoder, self._start, self._step = (
            _session(folder / name, threads or default_threads()) for name in (ENCODER, START_GRAPH, STEP)
        )
        self._changing = [tensor.name for tensor in manifest.state if not tensor.constant]
        self._constant = [tensor.name for tensor in manifest.state if tensor.constant]
        self._read = {node.name for node in self._step.get_inputs()}
        self._outputs = [*manifest.outputs, *(f"next.{name}" for name in self._changing)]
        self._check(folder)

    def _check(self, folder: Path) -> None:
        state = {f"state.{tensor.name}" for tensor in self.manifest.state}
        (pixels,), size = self._encoder.get_inputs(), self.manifest.preprocessing.size
        fits = (
            pixels.shape[1:] == [3, size, size]
            and len(self._encoder.get_outputs()) == 1 + len(self.manifest.maps)
            and {node.name for node in self._start.get_outputs()} == state
            and self._read <= {"tokens", *state}
            and [node.name for node in self._step.get_outputs()] == self._outputs
        )
        if not fits:
            raise UserError(
                f"{folder}: its graphs do not fit its manifest; export the model again with `saywhy export`"
            )

    def encode(self, pixels: np.ndarray) -> tuple[np.ndarray, Arrays]:
        """Features (B, L, D) of pixels (B, 3, S, S) uint8, and the statistics (B, 2C) of the encoder's maps."""
        features, *statistics = self._encoder.run(None, {"pixels": pixels})
        return features, dict(zip(self.manifest.maps, statistics, strict=True))

    def start(self, features: np.ndarray) -> DecoderState:
        """The state before the first word, one row per image."""
        names = [tensor.name for tensor in self.manifest.state]
        values = self._start.run([f"state.{name}" for name in names], {"features": features})
        state = dict(zip(names, values, strict=True))
        constant, changing = ({name: state[name] for name in part} for part in (self._constant, self._changing))
        return DecoderState(np.arange(len(features)), constant, constant, changing)

    def step(self, tokens: np.ndarray, state: DecoderState) -> DecoderStep:
        """Read the previous words (R,)."""
        inputs = {"tokens": tokens}
        for name, value in (*state.constant.items(), *state.changing.items()):
            inputs[f"state.{name}"] = value
        read = {name: value for name, value in inputs.items() if name in self._read}
        results = dict(zip(self._outputs, self._step.run(self._outputs, read), strict=True))
        changing = {name: results[f"next.{name}"] for name in self._changing}
        next_state = DecoderState(state.image, state.per_image, state.constant, changing)
        return DecoderStep(results["log_p"], results["alpha"], results.get("beta"), next_state)


def import_runtime() -> ModuleType:
    """onnxruntime, or one line that names the extra."""
    try:
        import onnxruntime
    except ImportError:
        raise UserError('--engine onnx needs onnxruntime: pip install "saywhy[onnx]"') from None
    return onnxruntime


def _session(path: Path, threads: int) -> Any:
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    try:
        return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has an exception class for each of its failures
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: cannot be read by ONNX Runtime ({reason}); export the model again") from None


def default_threads() -> int:
    """OMP_NUM_THREADS where it is set, as torch reads it too; else the number of usable cores."""
    number = os.environ.get("OMP_NUM_THREADS", "")
    if number.isdecimal() and int(number):
        return int(number)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
