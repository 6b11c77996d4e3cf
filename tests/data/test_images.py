"""Images from files and objects of all kinds, and one line for those that cannot be read."""

from __future__ import annotations

import contextlib
import io
import os
import random
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from saywhy.data.images import MIN_SIDE, find_images, image_header, open_image, to_image
from saywhy.errors import UnreadableImage, UserError

# pytest removes the filter of Pillow's warnings; a test below checks it in another process.
pytestmark = pytest.mark.filterwarnings(r"ignore::UserWarning:PIL\.")

SIZE = (24, 16)


def scene() -> Image.Image:
    """Left half red, right half blue."""
    image = Image.new("RGB", SIZE, (200, 30, 30))
    image.paste((30, 30, 200), (12, 0, 24, 16))
    return image


def near(image: Image.Image, position: tuple[int, int], colour: tuple[int, int, int], tolerance: int = 12) -> bool:
    pixel = image.getpixel(position)
    assert isinstance(pixel, tuple)
    return all(abs(a - b) <= tolerance for a, b in zip(pixel, colour, strict=True))


def refusal(path: Path) -> str:
    """The error line of a file."""
    with pytest.raises(UnreadableImage) as caught:
        open_image(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert "; " in line, "no advice"
    return line


def png_header(width: int, height: int) -> bytes:
    """A valid black PNG with one bit per pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = zlib.compress(bytes(height * (1 + width // 8)), 1)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "gif", "tif", "webp", "ppm"])
def test_all_usual_formats_open_as_rgb(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    scene().save(path)
    image = open_image(path)
    assert image.mode == "RGB"
    assert image.size == SIZE
    assert near(image, (4, 8), (200, 30, 30))
    assert near(image, (20, 8), (30, 30, 200))


MODES = {
    "tif": ["1", "L", "P", "YCbCr", "CMYK"],
    "png": ["1", "L", "P"],
    "jpg": ["1", "L", "YCbCr", "CMYK"],
    "gif": ["1", "L", "P"],
}


@pytest.mark.parametrize(("suffix", "mode"), [(suffix, mode) for suffix in MODES for mode in MODES[suffix]])
def test_all_colour_modes_of_a_format_open_as_rgb(tmp_path: Path, suffix: str, mode: str) -> None:
    path = tmp_path / f"a.{suffix}"
    scene().convert(mode).save(path)
    image = open_image(path)
    assert image.mode == "RGB"
    red, _, blue = image.getpixel((4, 8))  # type: ignore[misc]
    assert red > blue or mode in {"1", "L"}


def test_a_cmyk_jpeg_keeps_its_colours_and_is_not_inverted(tmp_path: Path) -> None:
    path = tmp_path / "print.jpg"
    scene().convert("CMYK").save(path, quality=95)
    assert b"Adobe" in path.read_bytes(), "not the inverted kind that Photoshop writes"
    image = open_image(path)
    assert near(image, (4, 8), (200, 30, 30))
    assert near(image, (20, 8), (30, 30, 200))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"deep.{suffix}"
    ramp = np.tile(np.linspace(0, 65535, 24).astype(np.uint16), (16, 1))
    Image.fromarray(ramp).save(path)
    grey = np.asarray(open_image(path))[0, :, 0]
    assert np.allclose(grey, np.linspace(0, 255, 24), atol=1)


def test_a_dark_sixteen_bit_image_stays_dark(tmp_path: Path) -> None:
    Image.fromarray(np.full((16, 24), 2570, np.uint16)).save(tmp_path / "night.png")
    assert open_image(tmp_path / "night.png").getpixel((0, 0)) == (10, 10, 10)


@pytest.mark.parametrize(
    ("values", "first", "last"),
    [
        (np.linspace(0, 1, 24, dtype=np.float32), 0, 255),
        (np.linspace(0, 200, 24, dtype=np.float32), 0, 200),
        (np.linspace(-5, 70000, 24, dtype=np.float32), 0, 255),
        (np.linspace(0, 100, 24).astype(np.int32), 0, 100),
        (np.linspace(0, 60000, 24).astype(np.int32), 0, 233),
        (np.linspace(-(2**31), 2**31 - 1, 24).astype(np.int32), 0, 255),
    ],
)
def test_grey_values_of_32_bits_are_scaled_by_the_smallest_usual_scale(
    tmp_path: Path, values: np.ndarray, first: int, last: int
) -> None:
    Image.fromarray(np.tile(values, (16, 1))).save(tmp_path / "wide.tif")
    grey = np.asarray(open_image(tmp_path / "wide.tif"))[0, :, 0].astype(int)
    assert (grey[0], grey[-1]) == (first, last)
    assert (np.diff(grey) >= 0).all()
    assert len(set(grey)) == 24, "clipped"


def test_nan_and_infinite_pixels_are_black(tmp_path: Path) -> None:
    values = np.full((16, 24), 0.5, np.float32)
    values[0, 0], values[0, 1] = np.nan, np.inf
    Image.fromarray(values).save(tmp_path / "nan.tif")
    assert open_image(tmp_path / "nan.tif").getpixel((0, 0)) == (0, 0, 0)


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    clear = Image.new("RGBA", SIZE, (0, 0, 0, 0))
    clear.paste((200, 30, 30, 255), (0, 0, 12, 16))
    clear.save(tmp_path / "rgba.png")
    Image.new("LA", SIZE, (0, 0)).save(tmp_path / "la.png")
    palette = Image.new("P", SIZE, 1)
    palette.putpalette([0, 0, 0, 9, 9, 9])
    palette.save(tmp_path / "palette.png", transparency=b"\xff\x00")
    palette.save(tmp_path / "palette.gif", transparency=1)
    Image.new("RGB", SIZE, (1, 2, 3)).save(tmp_path / "key.png", transparency=(1, 2, 3))
    assert near(open_image(tmp_path / "rgba.png"), (4, 8), (200, 30, 30), tolerance=0)
    for name in ("rgba.png", "la.png", "palette.png", "palette.gif", "key.png"):
        assert open_image(tmp_path / name).getpixel((20, 8)) == (255, 255, 255), name


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_images_are_rotated_as_exif_says(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate clockwise by 90°: the left side becomes the top
    scene().save(tmp_path / f"phone.{suffix}", exif=exif)
    image = open_image(tmp_path / f"phone.{suffix}")
    assert image.size == (16, 24)
    assert near(image, (8, 4), (200, 30, 30))
    assert near(image, (8, 20), (30, 30, 200))


def test_invalid_exif_is_ignored(tmp_path: Path) -> None:
    scene().save(tmp_path / "odd.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert open_image(tmp_path / "odd.jpg").size == SIZE


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif"])
def test_an_animation_is_read_as_its_first_frame(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", SIZE, colour) for colour in ((250, 0, 0), (0, 250, 0), (0, 0, 250))]
    frames[0].save(tmp_path / f"moving.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
    assert near(open_image(tmp_path / f"moving.{suffix}"), (8, 8), (250, 0, 0))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "gone.jpg")
    assert "a folder, not an image" in refusal(tmp_path)


def test_text_named_jpg_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("Dear diary, today I saw a dog.\n")
    assert "not an image" in refusal(tmp_path / "notes.jpg")


def test_an_eps_file_is_not_executed(tmp_path: Path) -> None:
    scene().save(tmp_path / "page.eps")
    assert "not an image" in refusal(tmp_path / "page.eps")


def test_a_truncated_jpeg_is_refused(tmp_path: Path) -> None:
    complete = tmp_path / "complete.jpg"
    Image.effect_noise((300, 200), 80).save(complete)
    cut = tmp_path / "cut.jpg"
    cut.write_bytes(complete.read_bytes()[: complete.stat().st_size // 2])
    assert "damaged" in refusal(cut)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "void.png").touch()
    assert "0 bytes" in refusal(tmp_path / "void.png")


def test_a_pipe_is_refused_without_blocking(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "pipe.jpg")
    assert "not an ordinary file" in refusal(tmp_path / "pipe.jpg")


def test_an_image_below_the_minimum_side_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    line = refusal(tmp_path / "dot.png")
    assert "too small to caption (1×1 pixels; the minimum side is 8)" in line
    Image.new("RGB", (MIN_SIDE, MIN_SIDE)).save(tmp_path / "least.png")
    assert open_image(tmp_path / "least.png").size == (MIN_SIDE, MIN_SIDE)


def test_a_decompression_bomb_is_refused_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(20_000, 20_000))
    code = (
        "import resource, sys\n"
        "from saywhy.data.images import open_image\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: open_image(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    line, kilobytes = run.stdout.splitlines()
    assert line.startswith("ImageTooLarge")
    assert "too large" in line
    assert int(kilobytes) < 30_000, "decoding takes 50 MB at one bit per pixel"
    start = time.process_time()
    refusal(path)
    assert time.process_time() - start < 0.5


def test_the_limit_does_not_depend_on_pillows_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(20_000, 20_000))
    assert "400,000,000 pixels" in refusal(path)


def test_a_large_image_below_the_limit_opens_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(png_header(9_600, 9_600))  # Pillow warns from here on
    palette = Image.new("P", SIZE)
    palette.save(tmp_path / "palette.png", transparency=b"\x00\xff")
    code = (
        "import sys\nfrom saywhy.data.images import open_image\nfor path in sys.argv[1:]: print(open_image(path).size)"
    )
    files = [path, tmp_path / "palette.png"]
    run = subprocess.run([sys.executable, "-W", "error", "-c", code, *files], capture_output=True, text=True)
    assert run.stderr == ""
    assert run.stdout == "(9600, 9600)\n(24, 16)\n"


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "webp", "tif", "bmp"])
def test_files_with_random_damage_give_an_image_or_one_line(tmp_path: Path, suffix: str) -> None:
    original = tmp_path / f"original.{suffix}"
    scene().resize((60, 40)).save(original)
    rng = random.Random(5)
    for _ in range(60):
        data = bytearray(original.read_bytes())
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        damaged = tmp_path / f"damaged.{suffix}"
        damaged.write_bytes(data[: rng.randint(1, len(data))] if rng.random() < 0.3 else data)
        with contextlib.suppress(UnreadableImage):  # any other exception fails the test
            assert open_image(damaged).mode == "RGB"


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    scene().resize((1600, 1200)).save(path)
    assert open_image(path, min_side=256).size == (400, 300)
    assert open_image(path, min_side=301).size == (800, 600)
    assert open_image(path, min_side=5000).size == (1600, 1200)
    assert open_image(path).size == (1600, 1200)


def test_the_header_has_the_mode_before_conversion(tmp_path: Path) -> None:
    scene().convert("CMYK").save(tmp_path / "print.jpg")
    header = image_header(tmp_path / "print.jpg")
    assert (header.format, header.mode, header.width, header.height) == ("JPEG", "CMYK", 24, 16)


def test_folders_are_searched_recursively_in_natural_order(tmp_path: Path) -> None:
    names = ["10.jpg", "9.JPG", "b/2.png", "b/10.png", ".hidden.jpg", ".git/x.jpg", "notes.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    paths = [path.relative_to(tmp_path).as_posix() for path in find_images([tmp_path])]
    assert paths == ["9.JPG", "10.jpg", "b/2.png", "b/10.png"]
    assert find_images([tmp_path / "notes.txt"]) == [tmp_path / "notes.txt"]


def test_a_folder_without_images_and_a_missing_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no images in this folder"):
        find_images([tmp_path])
    with pytest.raises(UserError, match="no such file or folder"):
        find_images([tmp_path / "gone"])


@pytest.mark.data
def test_two_hundred_real_photographs_open(flickr8k: Path) -> None:
    for path in find_images([flickr8k / "Images"])[::40]:
        assert open_image(path).mode == "RGB"


def test_a_pillow_image_is_converted_like_its_file(tmp_path: Path) -> None:
    grey = Image.fromarray(np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30))
    grey.save(tmp_path / "deep.png")
    clear = Image.new("RGBA", (20, 30), (200, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    turned = Image.new("RGB", (30, 20), "red")
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    for name in ("deep.png", "clear.png", "turned.jpg"):
        path = tmp_path / name
        assert np.array_equal(to_image(Image.open(path)), open_image(path)), name
    with pytest.raises(UnreadableImage, match="too small"):
        to_image(Image.new("RGB", (1, 1)))


def test_paths_bytes_and_file_objects_give_the_same_image(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    scene().save(path)
    contents = path.read_bytes()
    expected = np.asarray(open_image(path))
    with path.open("rb") as file:
        sources = [str(path), path, contents, bytearray(contents), memoryview(contents), io.BytesIO(contents), file]
        for source in sources:
            image = to_image(source)
            assert image.mode == "RGB"
            assert np.array_equal(image, expected), type(source)


def test_large_jpegs_given_as_bytes_are_decoded_at_a_fraction_of_their_size() -> None:
    buffer = io.BytesIO()
    scene().resize((1600, 1200)).save(buffer, "JPEG")
    assert to_image(buffer.getvalue(), min_side=256).size == (400, 300)


PIXELS = np.asarray(scene())


@pytest.mark.parametrize(
    "source",
    [
        PIXELS,
        PIXELS[:, ::-1][:, ::-1],
        PIXELS / 255,
        (PIXELS / 255).astype(np.float32),
        np.dstack([PIXELS, np.full(PIXELS.shape[:2], 255, np.uint8)]),
        torch.from_numpy(PIXELS.copy()).permute(2, 0, 1),
        torch.from_numpy(PIXELS / 255).permute(2, 0, 1).requires_grad_(),
        torch.from_numpy(PIXELS / 255).permute(2, 0, 1).half(),
    ],
    ids=["uint8", "strides", "float64", "float32", "RGBA", "tensor", "float tensor", "half tensor"],
)
def test_arrays_and_tensors_give_their_pixels(source) -> None:
    image = to_image(source)
    assert image.mode == "RGB"
    assert np.array_equal(image, PIXELS)


@pytest.mark.parametrize("source", [PIXELS[..., 0], PIXELS[..., :1], torch.from_numpy(PIXELS[None, ..., 0].copy())])
def test_arrays_with_one_channel_are_grey(source) -> None:
    assert np.array_equal(to_image(source), np.repeat(PIXELS[..., :1], 3, axis=2))


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        (None, "not an image: NoneType; give a path"),
        (3, "not an image: int"),
        (["a.jpg"], "not an image: list"),
        (PIXELS.astype(np.float32), "floating-point pixels must be in 0–1"),
        (np.full((16, 16), np.nan), "floating-point pixels must be in 0–1"),
        (PIXELS.astype(np.int64), "must be uint8 or floating point, not int64"),
        (PIXELS[None], "an array of shape (1, 16, 24, 3): not the shape of one image"),
        (PIXELS.transpose(2, 0, 1), "not the shape of one image"),
        (torch.from_numpy(PIXELS.copy()), "a tensor of shape (16, 24, 3): not the shape of one image"),
        (np.zeros((0, 0, 3), np.uint8), "empty array"),
        (np.zeros((4, 4, 3), np.uint8), "too small to caption (4×4 pixels"),
        (b"", "0 bytes: not an image in a known format"),
        (b"not an image", "12 bytes: not an image in a known format"),
        (io.StringIO("text"), "opened as text"),
    ],
)
def test_other_objects_are_refused_in_one_line(source, detail: str) -> None:
    with pytest.raises(UserError) as caught:
        to_image(source)
    assert detail in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reading_an_image_does_not_import_torch() -> None:
    code = "import sys, numpy; from saywhy.data.images import to_image; "
    code += "to_image(numpy.zeros((9, 9), 'uint8')); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
