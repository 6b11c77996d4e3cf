"""The precision of an exported graph: single precision, weights in half precision, or weights as 8-bit integers.

In int8, products of matrices of the decoder are of 8-bit integers, with one scale per output of the weights, and one
per call for the other factor; embeddings are stored in 8 bits. The encoder's convolutions need the range of each map,
which comes from photographs (`calibrate`); without them the encoder stays in single precision. Its first block and its
last convolution always do: in 8 bits, they cost most of the loss in CIDEr (`benchmarks/results/export.json`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from saywhy.onnx_engine.manifest import ENCODER

FIRST_BLOCK = 3  # convolutions of the stem and of EfficientNet-Lite's first block
SMALLEST = 1024
"""Tensors of fewer numbers stay in single precision: they are a small share of the file."""


def convert(path: Path, precision: str, photographs: Sequence[np.ndarray] = ()) -> None:
    """Convert the weights of a graph in single precision; `photographs` are pixels (3, S, S) for the encoder."""
    if precision == "fp16":
        store_half(path)
    elif precision == "int8" and path.name != ENCODER:
        quantise(path)
    elif precision == "int8" and photographs:
        quantise_convolutions(path, photographs)


def fold_constants(path: Path) -> None:
    """Compute what depends on weights alone once, such as batch norms folded into convolutions."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    folded = path.with_suffix(".folded.onnx")
    options.optimized_model_filepath = str(folded)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    model = onnx.load(folded)
    del model.graph.value_info[:]  # shapes of before the folding
    opsets = [opset for opset in model.opset_import if opset.domain == ""]
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    folded.unlink()


def store_half(path: Path) -> None:
    """Keep weights in half precision; a `Cast` makes them single again when ONNX Runtime loads the graph."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    casts = []
    for tensor in list(model.graph.initializer):
        if tensor.data_type != onnx.TensorProto.FLOAT or np.prod(tensor.dims) < SMALLEST:
            continue
        half = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), f"{tensor.name}.half")
        casts.append(onnx.helper.make_node("Cast", [half.name], [tensor.name], to=onnx.TensorProto.FLOAT))
        model.graph.initializer.remove(tensor)
        model.graph.initializer.append(half)
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)


def quantise(path: Path) -> None:
    """Products of matrices in 8 bits, with the scale of the left factor computed at each call."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            onnx.load(path),
            path,
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )


def quantise_convolutions(path: Path, photographs: Sequence[np.ndarray]) -> None:
    """Convolutions in 8 bits but for the first block and the last; the range of each map is that of these images."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_static

    model = onnx.load(path)
    convolutions = [node.name for node in model.graph.node if node.op_type == "Conv"]
    with _quiet():
        quantize_static(
            model,
            path,
            _Photographs(photographs),
            op_types_to_quantize=["Conv", "Add", "Clip", "Relu", "MaxPool"],
            nodes_to_exclude=[*convolutions[:FIRST_BLOCK], convolutions[-1]],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


class _Photographs:
    """Inputs for a calibration, as onnxruntime reads them."""

    def __init__(self, photographs: Sequence[np.ndarray]) -> None:
        self._rest = iter(photographs)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next input, or None at the end."""
        pixels = next(self._rest, None)
        return None if pixels is None else {"pixels": pixels[None]}


@contextmanager
def _quiet() -> Iterator[None]:
    """onnxruntime recommends a preparation that has been done."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
