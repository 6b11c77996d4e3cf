"""Pictures that clients send: read within limits, partly erased, and prepared for a model's encoder."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import PureWindowsPath
from threading import Lock

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from saywhy.audits.patches import mask_pixels
from saywhy.data.images import to_image, upright_size
from saywhy.data.preprocess import Crop, Preprocessing
from saywhy.errors import ImageTooLarge, UnreadableImage, UserError
from saywhy.explain.occlusion import MEAN
from saywhy.files import printable
from saywhy.web.limits import Limits

LONGEST_NAME = 80
MASK_BYTES, MASK_SIDE = 1_000_000, 4096
DISPLAY_SIDE = 1024  # as `inference.batches` keeps images for figures


@dataclass(frozen=True)
class Upload:
    """The contents of an image file, with a name to call it by and its digest, by which clients refer to it."""

    name: str
    content: bytes
    id: str

    @classmethod
    def of(cls, content: bytes, name: str) -> Upload:
        """An upload; only the last part of its name is kept. An empty file is a `UserError`."""
        name = printable(PureWindowsPath(name or "image").name)[-LONGEST_NAME:] or "image"
        if not content:
            raise UnreadableImage(f"{name}: empty (0 bytes); choose another file")
        named = name.encode(errors="replace") + b"\0" + content  # answers have the name of their own upload
        return cls(name, content, hashlib.sha256(named).hexdigest())

    def file(self) -> io.BytesIO:
        """The contents as a file that errors name by the upload's name."""
        file = io.BytesIO(self.content)
        file.name = self.name
        return file


@dataclass(frozen=True, eq=False)
class Picture:
    """An upload, ready for one model.

    Attributes:
        key: of the upload and of what is erased from it.
        name: of the upload.
        pixels: the encoder's input, (3, S, S) uint8.
        size: width and height of the upright image.
        crop: the part of it that the encoder sees.
        image: a copy for figures.
        image_crop: the part of that copy that the encoder sees.
    """

    key: tuple[str, str]
    name: str
    pixels: Tensor
    size: tuple[int, int]
    crop: Crop
    image: Image.Image
    image_crop: Crop


_one_large_image = Lock()


def prepare(upload: Upload, preprocessing: Preprocessing, limits: Limits, erased: bytes = b"") -> Picture:
    """Decode an upload as `saywhy caption` reads a file, without what a mask erases (a PNG, white where erased)."""
    size = upright_size(upload.file())
    pixels = size[0] * size[1]
    if pixels > limits.pixels:
        raise ImageTooLarge(
            f"{upload.name}: {pixels:,} pixels, and the limit is {limits.pixels:,}; make the image smaller first"
        )
    if pixels > limits.large_pixels:
        with _one_large_image:
            image = to_image(upload.file(), preprocessing.min_side)
    else:
        image = to_image(upload.file(), preprocessing.min_side)
    inputs = torch.from_numpy(preprocessing(image))
    image.thumbnail((DISPLAY_SIDE, DISPLAY_SIDE))
    digest = ""
    if erased:
        mask = read_mask(erased)
        digest = hashlib.sha256(erased).hexdigest()
        inputs = _erase_inputs(inputs, mask.resize(image.size, Image.Resampling.NEAREST), preprocessing)
        image = _erase_image(image, mask)
    crop, image_crop = preprocessing.crop(*size), preprocessing.crop(*image.size)
    return Picture((upload.id, digest), upload.name, inputs, size, crop, image, image_crop)


def read_mask(content: bytes) -> Image.Image:
    """A mask over the whole image, in grey; white is erased."""
    if len(content) > MASK_BYTES:
        raise ImageTooLarge(f"the mask has {len(content):,} bytes, and the limit is {MASK_BYTES:,}; send a smaller one")
    try:
        mask = Image.open(io.BytesIO(content), formats=["PNG"])
        if max(mask.size) > MASK_SIDE:
            raise ImageTooLarge(f"the mask is {mask.width} × {mask.height} pixels; send at most {MASK_SIDE} on a side")
        return mask.convert("L")
    except UserError:
        raise
    except Exception:  # decoders raise exceptions of any type for broken files
        raise UnreadableImage("the mask is not a PNG image: send one that is white where the image is erased") from None


def _erase_inputs(inputs: Tensor, mask: Image.Image, preprocessing: Preprocessing) -> Tensor:
    """The encoder's input with erased pixels in the mean colour, as the audit image-ablation masks them."""
    selected = torch.from_numpy(preprocessing(mask.convert("RGB"))[:1] > 127)  # (1, S, S)
    return mask_pixels(inputs[None], selected)[0]


def _erase_image(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The copy for figures with the same part erased."""
    selected = np.asarray(mask.resize(image.size, Image.Resampling.NEAREST)) > 127
    return Image.fromarray(np.where(selected[..., None], np.array(MEAN, np.uint8), np.asarray(image)))
