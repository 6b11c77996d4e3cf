"""The three graphs of a captioner, traced by torch with any number of images, beams and earlier words."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saywhy.captioners.base import Captioner
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.inference.familiarity_model import FEATURES
from saywhy.onnx_engine.graphs import EncoderGraph, Grid, StartGraph, StateLayout, StepGraph
from saywhy.onnx_engine.manifest import ENCODER, START_GRAPH, STEP
from saywhy.onnx_engine.precision import fold_constants


@dataclass(frozen=True)
class GraphTracer:
    """A captioner, and the inputs with which it is traced.

    Attributes:
        captioner: in evaluation mode, without parameters that require a gradient.
        pixels: (B, 3, S, S); B is neither 0 nor 1, which would be taken for constants.
        start: the token that captions begin with.
        features: of the pixels.
        layout: of the decoder's states.
        blocks: the encoder's blocks whose statistics the familiarity needs; None without familiarity.
    """

    captioner: Captioner
    pixels: Tensor
    start: int
    features: Features
    layout: StateLayout
    blocks: tuple[str, ...] | None

    @classmethod
    @torch.no_grad()
    def of(cls, captioner: Captioner, pixels: Tensor, start: int, blocks: tuple[str, ...] | None) -> GraphTracer:
        """A tracer; a `UserError` where the decoder's state cannot be an input of a graph."""
        features = captioner.encode(pixels)
        if features.grid is None:
            raise UserError(f"captioner {captioner.name} has no grid of features, and cannot be exported")
        layout = StateLayout.of(captioner, features, start)
        return cls(captioner, pixels, start, features, layout, blocks)

    @property
    def grid(self) -> Grid:
        """Rows and columns of the features."""
        assert self.features.grid is not None
        return self.features.grid

    @property
    def maps(self) -> tuple[str, ...]:
        """The maps whose statistics the encoder returns."""
        return () if self.blocks is None else (*self.blocks, FEATURES)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of a step before the state."""
        with torch.no_grad():
            step = self.captioner.step(self._tokens, self.captioner.start(self.features))
        return ("log_p", "alpha", *(() if step.attention.beta is None else ("beta",)))

    @torch.no_grad()
    def write(self, folder: Path) -> None:
        """Write the graphs."""
        with _quiet():
            self._write_encoder(folder / ENCODER)
            self._write_start(folder / START_GRAPH)
            self._write_step(folder / STEP)

    def _write_encoder(self, path: Path) -> None:
        graph = EncoderGraph(self.captioner, self.maps, self.blocks or ())
        outputs = ["features", *(f"statistics.{name}" for name in self.maps)]
        self._trace(graph, (self.pixels,), [{0: torch.export.Dim("images")}], ["pixels"], outputs, path)

    def _write_start(self, path: Path) -> None:
        graph = StartGraph(self.captioner, self.layout, self.grid)
        shapes = [{0: torch.export.Dim("images")}]
        self._trace(graph, (self.features.vectors,), shapes, ["features"], self._state, path)

    def _write_step(self, path: Path) -> None:
        state = self.captioner.start(self.features)
        for _ in range(2):  # so that a cache of earlier words is neither empty nor of one word
            state = self.captioner.step(self._tokens, state).state
        layout, beams, words = self.layout, torch.export.Dim("beams"), torch.export.Dim("words")
        shapes = tuple({0: beams} | dict.fromkeys(dimensions, words) for dimensions in layout.growing)
        changed = [f"next.{name}" for name, same in zip(layout.names, layout.constant, strict=True) if not same]
        self._trace(
            StepGraph(self.captioner, layout),
            (self._tokens, *(tensor.clone() for tensor in layout.flatten(state))),
            [{0: beams}, shapes],
            ["tokens", *self._state],
            [*self.outputs, *changed],
            path,
        )

    @property
    def _tokens(self) -> Tensor:
        return torch.full((len(self.pixels),), self.start)

    @property
    def _state(self) -> list[str]:
        return [f"state.{name}" for name in self.layout.names]

    def _trace(
        self,
        graph: nn.Module,
        inputs: tuple[Tensor, ...],
        shapes: Sequence[Any],
        names: Sequence[str],
        outputs: Sequence[str],
        path: Path,
    ) -> None:
        try:
            with torch.enable_grad():  # without gradient, layers keep what they compute, and a trace has no values
                program = torch.export.export(graph.eval(), inputs, dynamic_shapes=tuple(shapes), strict=False)
            options: dict[str, Any] = {"input_names": list(names), "output_names": list(outputs), "verbose": False}
            exported = torch.onnx.export(program, dynamo=True, **options)
            assert exported is not None
            exported.save(path)
            fold_constants(path)
        except OSError:  # a full disk
            raise
        except Exception as error:  # torch has many exceptions for what it cannot trace
            network = f"captioner {self.captioner.name} over {self.captioner.encoder.settings.name}"
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{network} cannot be exported to ONNX ({reason})") from error


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
