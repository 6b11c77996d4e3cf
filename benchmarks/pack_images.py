"""Copy a data set to another machine in parts of a limited size, with its images as small WebP files.

    python benchmarks/pack_images.py DIR --out PARTS [--side 256] [--quality 60] [--megabytes 55] [--names FILE]
    cat PARTS/* | tar -xz -C DIR     # there

Images are squashed to a square, which suits recipes with fit = "squash"; they keep their names, although a .jpg then
holds WebP, which saywhy reads by its contents. Captions, boxes and all other files of DIR are copied as they are.
--names leaves out images that the file does not list. Scores on such images differ from those on the originals: say so
beside them.
"""

from __future__ import annotations

import argparse
import io
import tarfile
from functools import partial
from pathlib import Path

from PIL import Image

from saywhy.data.images import has_image_suffix
from saywhy.data.worker_pool import map_in_workers


class Parts:
    """A file that is written into a folder in parts of at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.count = self.size = 0

    def write(self, contents: bytes) -> int:
        """Append to the last part, and begin new ones."""
        rest = memoryview(contents)
        while rest:
            if self.size == self.limit or not self.count:
                self.count, self.size = self.count + 1, 0
            now, rest = rest[: self.limit - self.size], rest[self.limit - self.size :]
            with open(self.folder / f"{self.count:04}", "ab" if self.size else "wb") as part:
                part.write(now)
            self.size += len(now)
        return len(contents)


def as_webp(path: Path, side: int, quality: int) -> bytes:
    """An image file, squashed to a square and compressed."""
    contents = io.BytesIO()
    with Image.open(path) as image:
        square = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
    square.save(contents, "WEBP", quality=quality, method=2)
    return contents.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--quality", type=int, default=60)
    parser.add_argument("--megabytes", type=int, default=55, help="size of a part")
    parser.add_argument("--names", type=Path, help="file names of the images to pack, one per line")
    options = parser.parse_args()
    names = set(options.names.read_text(encoding="utf-8").split()) if options.names else None
    files = sorted(path for path in options.folder.rglob("*") if path.is_file())
    others = [path for path in files if not has_image_suffix(path.name)]
    images = [path for path in files if has_image_suffix(path.name) and (names is None or path.name in names)]
    options.out.mkdir(parents=True)
    parts = Parts(options.out, options.megabytes * 10**6)
    with tarfile.open(mode="w|gz", fileobj=parts) as tar:  # type: ignore[call-overload]
        for path in others:
            tar.add(path, path.relative_to(options.folder))
        small = map_in_workers(partial(as_webp, side=options.side, quality=options.quality), images)
        for path, webp in zip(images, small, strict=True):
            member = tarfile.TarInfo(str(path.relative_to(options.folder)))
            member.size = len(webp)
            tar.addfile(member, io.BytesIO(webp))
    print(f"{len(others):,} files and {len(images):,} images in {parts.count:,} parts in {options.out}")


if __name__ == "__main__":
    main()
