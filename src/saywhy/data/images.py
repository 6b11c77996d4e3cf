"""Images from files of any make: always upright 8-bit RGB, or one line that says why not.

Everything after this module may assume mode RGB, no rotation left in EXIF, and sane sizes.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import stat
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from saywhy.errors import UnreadableImage, UserError

MIN_SIDE = 8
"""Shortest side in pixels that is worth a caption."""

MAX_PIXELS = 178_956_970
"""Most pixels decoded: where Pillow itself suspects a decompression bomb (512 MiB as RGB)."""

IMAGE_SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "gif", "bmp", "tif", "tiff"),
        *("webp", "avif", "ppm", "pgm", "pbm", "pnm"),
    )
)
"""File names that count as images when a folder is searched."""

# A list of formats, because Pillow knows others that run programs (EPS starts Ghostscript).
_FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM")

_ORIENTATION = 0x0112  # EXIF's number for it; from 5 on, an image lies on its side

# Pillow warns and logs about odd files while it reads them; the image that comes out, or the UnreadableImage,
# says all there is to say. One filter for good, since warnings.catch_warnings is not safe between threads.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Header:
    """What an image's file says about itself before any pixel is decoded."""

    format: str
    mode: str
    width: int
    height: int


def open_image(path: str | Path, at_least: int | None = None) -> Image.Image:
    """Read an image as upright 8-bit RGB; of an animation, the first frame.

    With `at_least`, a JPEG may come back smaller (by 2, 4 or 8, which decodes faster), its shortest side
    still at least that many pixels. Raises `UnreadableImage` with one line for whatever cannot be read.
    """
    with _opened(path) as image:
        if at_least:
            _draft(image, at_least)
        return _decoded(path, image)


def as_rgb_image(image: Image.Image) -> Image.Image:
    """What `open_image` makes of a file, made of a Pillow image: a copy, upright and in 8-bit RGB."""
    _refuse_odd_sizes("an image", image)
    return _decoded("an image", image)


def _decoded(path: str | Path, image: Image.Image) -> Image.Image:
    try:
        image.load()
        upright = _upright(image)
    except Exception as error:  # decoders raise whatever a broken file leads them to
        raise _broken(path, f"damaged ({error})", "copy or download it again") from None
    try:
        return _as_rgb(upright)
    except ValueError as error:
        raise _broken(path, f"unusual colours ({error})", "save it as an RGB JPEG or PNG") from None


def image_header(path: str | Path) -> Header:
    """Read format, mode and size only; raises `UnreadableImage` as `open_image` does."""
    with _opened(path) as image:
        return Header(image.format or "", image.mode, *image.size)


def upright_size(path: str | Path) -> tuple[int, int]:
    """Width and height of an image as `open_image` gives it, read from its header."""
    with _opened(path) as image:
        try:
            lying = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
        except Exception:  # as in `_upright`
            lying = False
        return (image.height, image.width) if lying else (image.width, image.height)


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """List images: files as they are, folders searched to the bottom in natural order.

    Hidden files and folders are passed over. A path that is not there, or a folder without images,
    is a `UserError`.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += _in_folder(path)
        elif path.exists():
            found.append(path)
        else:
            raise UserError(f"{path}: no such file or folder; check the spelling")
    return found


def natural_order(name: str | Path) -> list[tuple[int, int, str]]:
    """Sort key in which numbers count as numbers.

    >>> sorted(["10.jpg", "9.jpg", "B.jpg", "a.jpg"], key=natural_order)
    ['9.jpg', '10.jpg', 'a.jpg', 'B.jpg']
    """
    parts = re.split(r"(\d+)", str(name).casefold())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


def _in_folder(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be searched ({error.strerror}); check its permissions")

    found = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if _is_image_name(name)]
    if not found:
        raise UserError(f"{folder}: no images in this folder; looked for {' '.join(sorted(IMAGE_SUFFIXES))}")
    return sorted(found, key=lambda path: [natural_order(part) for part in path.relative_to(folder).parts])


def _is_image_name(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES


class _opened:
    """An image whose header is read and found fit to decode; closes its file at the end."""

    def __init__(self, path: str | Path) -> None:
        _refuse_what_is_no_file(path)
        try:
            self.image = Image.open(path, formats=_formats())
        except UnidentifiedImageError:
            raise _broken(path, "not an image in a format that is known", "save it as JPEG or PNG") from None
        except Image.DecompressionBombError as error:  # Pillow refuses twice its own limit before it tells the size
            pixels = int(next(iter(re.findall(r"\d+", str(error))), MAX_PIXELS))
            raise _too_large(path, f"{pixels:,} pixels; the limit is {MAX_PIXELS:,}") from None
        except Exception as error:  # as above: header parsers are no tamer than decoders
            raise _broken(path, f"unreadable ({error})", "copy or download it again") from None
        try:
            _refuse_odd_sizes(path, self.image)
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


def _refuse_what_is_no_file(path: str | Path) -> None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise _broken(path, "no such file", "check the spelling") from None
    except (OSError, ValueError) as error:
        raise _broken(path, f"unreadable ({error})", "check its name and permissions") from None
    if stat.S_ISDIR(status.st_mode):
        raise _broken(path, "a folder, not an image", "name a file in it")
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
        raise _broken(path, "not an ordinary file", "copy the image into one")
    if status.st_size == 0:
        raise _broken(path, "empty (0 bytes)", "copy or download it again")


def _refuse_odd_sizes(path: str | Path, image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise _too_large(path, f"{width * height:,} pixels; the limit is {MAX_PIXELS:,}")
    if min(width, height) < MIN_SIDE:
        wrong = f"too small to caption ({width}×{height} pixels; the minimum side is {MIN_SIDE})"
        raise _broken(path, wrong, "use a larger image")


def _too_large(path: str | Path, detail: str) -> UnreadableImage:
    return _broken(path, f"too large to decode safely ({detail})", "make it smaller first")


def _broken(path: str | Path, wrong: str, advice: str) -> UnreadableImage:
    return UnreadableImage(" ".join(f"{path}: {wrong}; {advice}".split()))


def _draft(image: Image.Image, at_least: int) -> None:
    """Let the JPEG decoder shrink the image; other formats take no notice."""
    factor = at_least / min(image.size)
    if factor < 1:
        image.draft(image.mode, (math.ceil(image.width * factor), math.ceil(image.height * factor)))


def _upright(image: Image.Image) -> Image.Image:
    image.seek(0)
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # EXIF that cannot be read spoils no pixel: show the image as stored
        return image


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return _deep_grey(image).convert("RGB")
    if image.has_transparency_data:
        return _on_white(image.convert("RGBA"))
    return image.convert("RGB")  # of RGB, a copy that no longer holds the file


def _on_white(image: Image.Image) -> Image.Image:
    """Lay a transparent image on white: cut-outs and drawings are made to be seen on a white page.

    Black, which `convert("RGB")` may bring to light, would swallow dark lines.
    """
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def _deep_grey(image: Image.Image) -> Image.Image:
    """Scale grey values of more than 8 bits to 8; Pillow's own conversion would clip them at 255."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float32), posinf=0.0, neginf=0.0)
    black, white = _black_and_white(values, image)
    scaled = (values - black) * (255.0 / (white - black))
    return Image.fromarray(np.round(scaled).astype(np.uint8))


def _black_and_white(values: np.ndarray, image: Image.Image) -> tuple[float, float]:
    """Which values stand for black and white: the full scale of the type, where it can be told.

    32-bit integers and floats say nothing about their scale: the smallest usual one that holds all
    values is taken (1 for floats, 8 bits, 16 bits), and failing those the values' own range.
    """
    low, high = float(values.min()), float(values.max())
    usual = [65535.0]
    if image.mode == "F":
        usual = [1.0, 255.0, 65535.0]
    elif image.mode == "I" and image.format != "PNG":  # older Pillow opens 16-bit PNG as "I"
        usual = [255.0, 65535.0]
    fitting = [scale for scale in usual if low >= 0 and high <= scale]
    if fitting:
        return 0.0, fitting[0]
    return low, high if high > low else low + 1.0
