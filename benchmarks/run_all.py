"""Run the benchmarks of docs/performance.md one after the other, and print the table of ratios with their bars.

    python benchmarks/run_all.py [--out FOLDER] [--data FOLDER] [--sgrvinod FOLDER] [--ruotianluo FOLDER]
        [--lrp-imagecaptioning FOLDER] [--smoke]

Results go to --out, not to `benchmarks/results/`. It takes about ten minutes on two idle cores. --smoke runs the
smallest sizes only, to see that everything runs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """The arguments of each script."""
    smoke = ["--smoke"] if options.smoke else []
    checkouts = [
        part
        for name in ("sgrvinod", "ruotianluo", "lrp-imagecaptioning")
        if (folder := getattr(options, name.replace("-", "_")))
        for part in (f"--{name}", str(folder))
    ]
    data = ["--data", str(options.data)] if options.data else []
    small = ["--captions", "20", "--rounds", "1"] if options.smoke else ["--rounds", "3"]
    found = {
        "limits": smoke,
        "growth": [*smoke, "--plot", str(options.out / "growth.svg")],
        "peers": [*checkouts, *data, *small],
    }
    if options.data and (options.data / "flickr8k").is_dir() and not options.smoke:
        found["start"] = ["--rounds", "3"]
        found["export"] = ["--data", str(options.data / "flickr8k"), "--images", "50", "--rounds", "3"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench"))
    parser.add_argument("--data", type=Path, help="folder with flickr8k/ in it")
    parser.add_argument("--sgrvinod", type=Path, help="checkout of a-PyTorch-Tutorial-to-Image-Captioning")
    parser.add_argument("--ruotianluo", type=Path, help="checkout of ImageCaptioning.pytorch")
    parser.add_argument("--lrp-imagecaptioning", type=Path, help="checkout of LRP-imagecaptioning-pytorch")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, arguments in commands(options).items():
        print(f"== {name}", flush=True)
        script = [sys.executable, str(HERE / f"{name}.py"), *arguments, "--json", str(options.out / f"{name}.json")]
        if code := subprocess.run(script, check=False).returncode:
            raise SystemExit(code)
    print("== all", flush=True)
    subprocess.run([sys.executable, str(HERE / "report.py"), "--results", str(options.out)], check=True)


if __name__ == "__main__":
    main()
