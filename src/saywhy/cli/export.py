"""`saywhy export`: write a model as ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saywhy.cli.common import check_writable, import_plugins, output_console, plain_table, printable
from saywhy.cli.options import Model, Plugins, examples
from saywhy.errors import UserError, did_you_mean

PHOTOGRAPHS = 200
EPILOG = examples(
    "saywhy export --out captioner-onnx/",
    "saywhy export --precision int8 --calibrate photos/ --out captioner-int8/",
    "saywhy caption photo.jpg --engine onnx --model captioner-onnx/",
)


def export(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.", show_default=False)],
    model: Model = None,
    precision: Annotated[
        str,
        typer.Option(
            metavar="fp32|fp16|int8",
            help="Precision: fp32 gives the captions of torch; fp16 stores the weights in half the space and computes "
            "as fp32; int8 computes the decoder in 8 bits and, with --calibrate, the encoder too.",
        ),
    ] = "fp32",
    calibrate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|DIR",
            help=f"With int8: photographs by which the encoder is quantised; {PHOTOGRAPHS} of them, evenly spaced. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Export a model to ONNX: a folder that captions images without torch.

    The folder holds the encoder, the decoder's first state and one step, and all else that captioning needs.
    The graphs take any number of images and beams.
    Exporting needs onnx, onnxscript and onnxruntime: pip install "saywhy\\[onnx]".
    """
    from saywhy.data.images import find_images
    from saywhy.onnx_engine.manifest import PRECISIONS

    if precision not in PRECISIONS:
        raise UserError(f"unknown --precision {precision!r}: {did_you_mean(precision, PRECISIONS)}")
    check_writable("--out", out, folder=True)
    import_plugins(plugins)
    if calibrate and precision != "int8":
        raise UserError("--calibrate is for --precision int8")
    _export(model, out, precision, _evenly_spaced(find_images(calibrate or ())))


def _evenly_spaced(images: list[Path]) -> list[Path]:
    count = min(len(images), PHOTOGRAPHS)
    return [images[number * len(images) // count] for number in range(count)]


def _export(model: str | None, out: Path, precision: str, calibrate: list[Path]) -> None:
    from saywhy.inference.model import load
    from saywhy.onnx_engine.export import check_destination, export_model

    check_destination(out)
    exported = export_model(load(model, "cpu"), out, precision, calibrate)
    console = output_console()
    console.print(plain_table(("graph", "MB"), [(name, f"{size / 1e6:.1f}") for name, size in exported.sizes.items()]))
    console.print(f"largest difference of a log-probability from torch: {exported.difference:.1g}")
    console.print(f"saywhy caption photo.jpg --engine onnx --model {printable(out)}")
