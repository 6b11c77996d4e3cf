"""Read images: upright 8-bit RGB from files, bytes, Pillow images, arrays and tensors, or a one-line error.

All other modules may assume mode RGB, no EXIF rotation left to apply, and a size within limits.
"""

from __future__ import annotations

import functools
import io
import logging
import math
import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from saywhy.errors import ImageTooLarge, UnreadableImage, UserError

MIN_SIDE = 8
"""Least number of pixels of an image's shorter side."""

MAX_PIXELS = 178_956_970
"""Largest number of pixels that is decoded; Pillow, too, suspects a decompression bomb above it (512 MiB as RGB)."""

IMAGE_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "tif", "tiff"),
        *("webp", "avif", "ppm", "pgm", "pbm", "pnm"),
    )
)
"""Suffixes of the files that count as images when a folder is searched."""

# An explicit list, because some of Pillow's other formats run programs (EPS starts Ghostscript).
_FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM")

_ORIENTATION = 0x0112  # EXIF tag; values 5 to 8 mean that width and height are exchanged

# Pillow warns and logs about irregular files while it reads them. The result, an image or an UnreadableImage, is
# enough. The filter is permanent because warnings.catch_warnings is not thread-safe.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Header:
    """Format, colour mode and size from a file's header, before any pixel is decoded."""

    format: str
    mode: str
    width: int
    height: int


@dataclass(frozen=True)
class EncodedImage:
    """The bytes of an image file, and the name that error messages give it."""

    name: str
    contents: bytes = field(repr=False)


def open_image(path: str | Path, min_side: int | None = None) -> Image.Image:
    """Read an image file as upright 8-bit RGB; of an animation, the first frame.

    With `min_side`, a JPEG may be returned at 1/2, 1/4 or 1/8 of its size, which decodes faster; its shorter side
    still has at least that many pixels. Raises `UnreadableImage` with one line for everything that cannot be read.
    """
    _require_regular_file(path)
    return _read(path, path, min_side)


def to_image(source: Any, min_side: int | None = None) -> Image.Image:
    """Upright 8-bit RGB from anything that holds one image.

    Args:
        source: a path; the bytes of an image file, an `EncodedImage`, or a binary file object; a Pillow image; a numpy
            array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); or a torch tensor (H, W), (1, H, W), (3, H, W) or
            (4, H, W). Arrays and tensors are uint8 in 0–255 or floating point in 0–1.
        min_side: as for `open_image`; for paths, bytes and file objects.
    """
    if isinstance(source, str | os.PathLike):
        return open_image(Path(source), min_side)
    if isinstance(source, Image.Image):
        return _from_pillow(source, "an image")
    if isinstance(source, EncodedImage):
        return _read(io.BytesIO(source.contents), source.name, min_side)
    if hasattr(source, "detach") and hasattr(source, "cpu"):  # a torch tensor, channels first
        return _from_array(_tensor_values(source), f"a tensor of shape {tuple(source.shape)}")
    if hasattr(source, "__array__"):
        return _from_array(np.asarray(source), f"an array of shape {np.shape(source)}")
    if isinstance(source, bytes | bytearray | memoryview):
        return _read(io.BytesIO(source), f"{len(source)} bytes", min_side)
    if hasattr(source, "read"):
        contents, name = source.read(), _name(source)
        if not isinstance(contents, bytes):
            raise UserError(f"{name}: opened as text; open an image file in binary mode, open(path, 'rb')")
        return _read(io.BytesIO(contents), name, min_side)
    raise UserError(
        f"not an image: {type(source).__name__}; give a path, bytes, a binary file, a Pillow image, array or tensor"
    )


def _name(source: Any) -> str | Path:
    return source if isinstance(source, str | Path) else str(getattr(source, "name", "a file object"))


def _read(file: str | Path | BinaryIO, name: str | Path, min_side: int | None) -> Image.Image:
    with _opened(file, name) as image:
        if min_side:
            _draft(image, min_side)
        return _decoded(name, image)


def _from_pillow(image: Image.Image, name: str) -> Image.Image:
    """A copy in upright 8-bit RGB."""
    _check_size(name, image)
    return _decoded(name, image)


def _tensor_values(tensor: Any) -> np.ndarray:
    """A torch tensor as a numpy array with the channels last."""
    values = tensor.detach().cpu()
    values = (values.float() if values.is_floating_point() else values).numpy()
    return values.transpose(1, 2, 0) if values.ndim == 3 else values


def _from_array(values: np.ndarray, name: str) -> Image.Image:
    """Pixels (H, W) or (H, W, channels), uint8 or floating point in 0–1, as an image."""
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim != 2 and not (values.ndim == 3 and values.shape[2] in (3, 4)):
        shapes = "arrays are (H, W) or (H, W, 3), tensors (H, W) or (3, H, W)"
        raise UserError(f"{name}: not the shape of one image; {shapes}")
    if np.issubdtype(values.dtype, np.floating):
        if not (values.size and values.min() >= 0 and values.max() <= 1):  # also false for NaN
            raise UserError(f"{name}: floating-point pixels must be in 0–1; divide them by their maximum, such as 255")
        values = np.round(values * 255.0).astype(np.uint8)
    if values.dtype != np.uint8:
        raise UserError(f"{name}: pixels must be uint8 or floating point, not {values.dtype}")
    if not values.size:
        raise UserError(f"{name}: an empty array; give the pixels of one image")
    return _from_pillow(Image.fromarray(np.ascontiguousarray(values)), name)


def _decoded(name: str | Path, image: Image.Image) -> Image.Image:
    try:
        image.load()
        upright = _upright(image)
    except Exception as error:  # decoders raise exceptions of any type for broken files
        raise _unreadable(name, f"damaged ({error})", "copy or download it again") from None
    try:
        return _as_rgb(upright)
    except ValueError as error:
        raise _unreadable(name, f"unusual colours ({error})", "save it as an RGB JPEG or PNG") from None


def image_header(path: str | Path) -> Header:
    """Read format, mode and size only; raises `UnreadableImage` as `open_image` does."""
    _require_regular_file(path)
    with _opened(path, path) as image:
        return Header(image.format or "", image.mode, *image.size)


def upright_size(source: str | Path | BinaryIO | EncodedImage) -> tuple[int, int]:
    """Width and height of an image as `to_image` returns it, read from the header of a file."""
    if isinstance(source, str | Path):
        _require_regular_file(source)
    file = io.BytesIO(source.contents) if isinstance(source, EncodedImage) else source
    with _opened(file, _name(source)) as image:
        try:
            exchanged = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
        except Exception:  # as in `_upright`
            exchanged = False
        return (image.height, image.width) if exchanged else (image.width, image.height)


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """List images: files as given, folders searched recursively in natural order.

    Hidden files and folders are skipped. A path that does not exist, or a folder without images, is a `UserError`.
    """
    images: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            images += _images_in(path)
        elif path.exists():
            images.append(path)
        else:
            raise UserError(f"{path}: no such file or folder; check the spelling")
    return images


def names_of(image: str) -> Iterator[str]:
    """The names under which other files may refer to an image, the most exact first.

    The last is the number at the end of the stem, as in COCO's ids; digits that are part of a word are not a number.

    >>> list(names_of("val2014/COCO_val2014_000000123.jpg"))
    ['val2014/COCO_val2014_000000123.jpg', 'COCO_val2014_000000123.jpg', 'COCO_val2014_000000123', '123']
    >>> list(names_of("1001773457_577c3a7d70.jpg"))
    ['1001773457_577c3a7d70.jpg', '1001773457_577c3a7d70']
    """
    path = PurePosixPath(image.replace("\\", "/"))
    yield image
    if path.name != image:
        yield path.name
    if path.stem != path.name:
        yield path.stem
    if number := re.search(r"(?<![A-Za-z0-9])\d+$", path.stem):
        yield str(int(number[0]))


def natural_order(name: str | Path) -> list[tuple[int, int, str]]:
    """Sort key that compares digits as numbers and letters without case.

    >>> sorted(["10.jpg", "9.jpg", "B.jpg", "a.jpg"], key=natural_order)
    ['9.jpg', '10.jpg', 'a.jpg', 'B.jpg']
    """
    parts = re.split(r"(\d+)", str(name).casefold())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


def _images_in(folder: Path) -> list[Path]:
    def fail(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be searched ({error.strerror}); check its permissions")

    images = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        images += [Path(parent, name) for name in names if not name.startswith(".") and has_image_suffix(name)]
    if not images:
        raise UserError(f"{folder}: no images in this folder; it was searched for {' '.join(sorted(IMAGE_SUFFIXES))}")
    return sorted(images, key=lambda path: [natural_order(part) for part in path.relative_to(folder).parts])


def has_image_suffix(name: str) -> bool:
    """Whether a file counts as an image when a folder is searched."""
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES


class _opened:
    """A Pillow image with its header read and its size checked; closes its file at the end."""

    def __init__(self, file: str | Path | BinaryIO, name: str | Path) -> None:
        try:
            self.image = Image.open(file, formats=_formats())
        except UnidentifiedImageError:
            raise _unreadable(name, "not an image in a known format", "save it as JPEG or PNG") from None
        except Image.DecompressionBombError as error:  # raised above twice Pillow's limit, before the size is known
            pixels = int(next(iter(re.findall(r"\d+", str(error))), MAX_PIXELS))
            raise _too_large(name, pixels) from None
        except Exception as error:  # header parsers, too, raise exceptions of any type
            raise _unreadable(name, f"unreadable ({error})", "copy or download it again") from None
        try:
            _check_size(name, self.image)
        except UnreadableImage:
            self.image.close()
            raise

    def __enter__(self) -> Image.Image:
        return self.image

    def __exit__(self, *error: object) -> None:
        self.image.close()


@functools.cache
def _formats() -> list[str]:
    Image.init()
    return [name for name in _FORMATS if name in Image.OPEN]


def _require_regular_file(path: str | Path) -> None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise _unreadable(path, "no such file", "check the spelling") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"unreadable ({error})", "check its name and permissions") from None
    if stat.S_ISDIR(status.st_mode):
        raise _unreadable(path, "a folder, not an image", "name a file in it")
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
        raise _unreadable(path, "not an ordinary file", "copy the image into one")
    if status.st_size == 0:
        raise _unreadable(path, "empty (0 bytes)", "copy or download it again")


def _check_size(name: str | Path, image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _too_large(name, width * height)
    if min(width, height) < MIN_SIDE:
        problem = f"too small to caption ({width}×{height} pixels; the minimum side is {MIN_SIDE})"
        raise _unreadable(name, problem, "use a larger image")


def _too_large(name: str | Path, pixels: int) -> UnreadableImage:
    problem = f"too large to decode safely ({pixels:,} pixels; the limit is {MAX_PIXELS:,})"
    return ImageTooLarge(str(_unreadable(name, problem, "make it smaller first")))


def _unreadable(name: str | Path, problem: str, advice: str) -> UnreadableImage:
    return UnreadableImage(" ".join(f"{name}: {problem}; {advice}".split()))


def _draft(image: Image.Image, min_side: int) -> None:
    """Let the JPEG decoder shrink the image; other formats are not affected."""
    factor = min_side / min(image.size)
    if factor < 1:
        image.draft(image.mode, (math.ceil(image.width * factor), math.ceil(image.height * factor)))


def _upright(image: Image.Image) -> Image.Image:
    image.seek(0)
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the pixels are intact if only EXIF is broken: use the image as stored
        return image


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return _deep_grey(image).convert("RGB")
    if image.has_transparency_data:
        return _on_white(image.convert("RGBA"))
    return image.convert("RGB")  # a copy, also of RGB, which does not keep the file open


def _on_white(image: Image.Image) -> Image.Image:
    """Composite a transparent image on white, the usual background of cut-outs and drawings.

    `convert("RGB")` alone may show black where an image is transparent, and dark lines disappear in it.
    """
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def _deep_grey(image: Image.Image) -> Image.Image:
    """Scale grey values of more than 8 bits to 8 bits; Pillow's conversion would clip them at 255."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float32), posinf=0.0, neginf=0.0)
    black, white = _black_and_white(values, image)
    scaled = (values - black) * (255.0 / (white - black))
    return Image.fromarray(np.round(scaled).astype(np.uint8))


def _black_and_white(values: np.ndarray, image: Image.Image) -> tuple[float, float]:
    """The values of black and white: the full scale of the type, where the type defines one.

    For 32-bit integers and floats it is the smallest usual scale that contains all values (1 for floats, 8 bits,
    16 bits), and otherwise the range of the values.
    """
    low, high = float(values.min()), float(values.max())
    scales = [65535.0]
    if image.mode == "F":
        scales = [1.0, 255.0, 65535.0]
    elif image.mode == "I" and image.format != "PNG":  # older Pillow opens 16-bit PNG as "I"
        scales = [255.0, 65535.0]
    scales = [scale for scale in scales if low >= 0 and high <= scale]
    if scales:
        return 0.0, scales[0]
    return low, high if high > low else low + 1.0
