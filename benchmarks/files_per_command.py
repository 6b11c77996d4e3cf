"""How many source files a command runs through, and how often it changes package on its way.

    python benchmarks/files_per_command.py --data DIR [--json FILE] [--list]

Each command runs once in a process of its own under a profile function. A file counts if at least one of its functions
runs after its import; what only happens while modules are imported does not count. Package changes are counted along
the order in which files are first entered. DIR is a captioned data set with boxes, such as Flickr8k; 24 of its images
are used.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import saywhy

ROOT = Path(saywhy.__file__).parent
# four of them, in each command, are the parts that need no torch, which the ONNX engine shares
LIMITS = {"caption": 24, "explain": 39, "train": 44, "audit localisation": 44}
RECIPE = """
name = "trace"
[vocabulary]
min_count = 2
[preprocessing]
size = 96
fit = "squash"
[augmentation]
flip = 0.5
[encoder]
name = "efficientnet-lite0"
weights = "none"
finetune_from = "all"
lr = 1e-4
[captioner]
name = "soft-attention"
[training]
epochs = 1
batch = 8
average = 0.9
[decoding]
beam = 2
max_words = 5
"""


def trace() -> None:
    """Run the saywhy command in sys.argv, and print the files it entered as one JSON line on stderr."""
    from saywhy.cli import main

    entered: dict[str, None] = {}
    importing = 0
    root = f"{ROOT}{os.sep}"

    def profile(frame, event, _):
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and code.co_filename.startswith(root):
            entered.setdefault(code.co_filename.removeprefix(root))

    sys.setprofile(profile)
    try:
        main()
    except SystemExit as stop:
        sys.setprofile(None)
        if stop.code:
            raise
    print(json.dumps(list(entered)), file=sys.stderr)


def commands(data: Path, folder: Path) -> dict[str, list[str]]:
    """The command lines that are traced."""
    image = str(next((data / "Images").iterdir()) if (data / "Images").is_dir() else next(data.glob("*.jpg")))
    subset, recipe = folder / "data", folder / "recipe.toml"
    write_subset(data, subset)
    recipe.write_text(RECIPE)
    return {
        "caption": ["caption", image],
        "explain": ["explain", image, "--out", str(folder / "why")],
        "train": ["train", str(recipe), "--data", str(subset), "--out", str(folder / "run")],
        "audit localisation": [
            *("audit", "localisation", "--data", str(data), "--limit", "4"),
            *("--out", str(folder / "audit")),
        ],
    }


def write_subset(data: Path, folder: Path, train: int = 16) -> None:
    """A small data set in the layout of Flickr8k, with links to the images; 8 for dev."""
    from saywhy.data.datasets import read

    (folder / "Images").mkdir(parents=True)
    dataset, rows = read(data), ["image,caption"]
    for split, count in (("train", train), ("dev", 8), ("test", 1)):
        images = dataset.split(split).images[:count]
        (folder / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{image.name}\n" for image in images))
        for image in images:
            (folder / "Images" / image.name).symlink_to(Path(image.path).resolve())
            rows += [f'{image.name},"{caption}"' for caption in image.captions]
    (folder / "captions.txt").write_text("\n".join(rows) + "\n")


def package_changes(files: list[str]) -> int:
    """How often the package changes along the files."""
    packages = [str(Path(file).parent) for file in files]
    return sum(one != other for one, other in itertools.pairwise(packages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true", help="print the files")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in commands(options.data, Path(folder)).items():
            code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
            code += f"sys.argv = {['saywhy', *arguments]!r}; import files_per_command; files_per_command.trace()"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{name} failed: {done.stderr}")
            files = json.loads(done.stderr.splitlines()[-1])
            results[name] = {"files": len(files), "limit": LIMITS[name], "package_changes": package_changes(files)}
            print(f"{name:20} {len(files):3} files (limit {LIMITS[name]}), {package_changes(files)} package changes")
            if options.list:
                print("   ", *files)
            results[name]["list"] = files
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if any(result["files"] > result["limit"] for result in results.values()):
        raise SystemExit("over the limit")


if __name__ == "__main__":
    main()
