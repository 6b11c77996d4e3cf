"""The precision of an exported graph: single precision, weights in half precision, or weights as 8-bit integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SMALLEST = 1024
"""Tensors of fewer numbers stay in single precision: they are a small share of the file."""


def convert(path: Path, precision: str) -> None:
    """Convert the weights of a graph that is in single precision."""
    if precision == "fp16":
        store_half(path)


def fold_constants(path: Path) -> None:
    """Compute what depends on weights alone once, such as batch norms folded into convolutions."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    folded = path.with_suffix(".folded.onnx")
    options.optimized_model_filepath = str(folded)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    folded.replace(path)


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
