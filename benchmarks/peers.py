"""Speed compared with other projects, on a CPU, on the same work in one run.

    python benchmarks/peers.py [--sgrvinod FOLDER] [--ruotianluo FOLDER] [--lrp-imagecaptioning FOLDER] [--data FOLDER]
        [--only PART …] [--rounds 5] [--json FILE]

FOLDER is a checkout of the project's source (`peer_captioners.py` and `peer_lrp.py` name them); what is not given is
left out. With --only, some parts are measured, and the others keep their lines in the JSON file.
pycocoevalcap is used where it is installed. Everything has one thread, and times are seconds of the processor, which
other programs on the machine change less than the clock. The programs of one comparison run in turn, round after round;
a ratio is the median over rounds of the peer's time divided by saywhy's. The bars are the project's aims.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from saywhy.provenance import machine

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "images" / "astronaut.jpg"
BATCH_BARS = {1: 3.0, 32: 4.0}
METRIC_BARS = {"CIDEr-D": 20.0, "BLEU": 15.0}
LRP_BAR = 20.0
UPDATE_ROWS = 32


@dataclass(frozen=True)
class Comparison:
    """One line of the table: how many times as fast as a peer, and the bar."""

    work: str
    peer: str
    engine: str
    ratio: float
    bar: float | None
    peer_seconds: float
    seconds: float


def cpu_seconds(programs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of the processor of each program, run in turn after a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for round_number in range(rounds + 1):
        for name, program in programs.items():
            start = time.process_time()
            program()
            if round_number:
                seconds[name].append(time.process_time() - start)
    return seconds


def compare(work: str, ours: dict, peers: dict, rounds: int, bar: float | None) -> list[Comparison]:
    """Each of our engines against each peer."""
    seconds = cpu_seconds({**peers, **{("ours", name): program for name, program in ours.items()}}, rounds)
    lines = []
    for peer in peers:
        for engine in ours:
            mine = seconds["ours", engine]
            ratio = statistics.median(theirs / own for theirs, own in zip(seconds[peer], mine, strict=True))
            medians = (statistics.median(values) for values in (seconds[peer], mine))
            lines.append(Comparison(work, peer, engine, round(ratio, 2), bar, *(round(value, 5) for value in medians)))
    return lines


def on_batch(program: Callable[[list[Path]], object], images: list[Path]) -> Callable[[], object]:
    """The program on these images."""
    return lambda: program(images)


def captioning(options: argparse.Namespace, folder: Path) -> list[Comparison]:
    """Captions from image files with the same network, and a training step with cached features."""
    import peer_captioners as captioners

    folders = {name: getattr(options, name) for name in ("sgrvinod", "ruotianluo") if getattr(options, name)}
    if not folders:
        return []
    image = folder / "image.png"
    Image.open(EXAMPLE).convert("RGB").resize((captioners.SIDE, captioners.SIDE)).save(image)
    model = captioners.saywhy_model()
    ours = captioners.saywhy_captioners(model, image, folder)
    peers = {name: getattr(captioners, name)(path) for name, path in folders.items()}
    lines = []
    for batch in options.batches:
        batch_of = partial(on_batch, images=[image] * batch)
        programs = [{name: batch_of(program) for name, program in part.items()} for part in (ours, peers)]
        rounds = options.rounds if batch == 1 else max(1, options.rounds // 2)
        lines += compare(f"caption, batch {batch}", *programs, rounds, BATCH_BARS.get(batch))
    if "sgrvinod" in folders:
        update = captioners.sgrvinod_update(folders["sgrvinod"], UPDATE_ROWS)
        mine = {"torch": captioners.saywhy_update(model, UPDATE_ROWS)}
        lines += compare(f"training step, {UPDATE_ROWS} captions", mine, {"sgrvinod": update}, options.rounds, None)
    return lines


def relevance(options: argparse.Namespace, folder: Path) -> list[Comparison]:
    """LRP of all words of a caption, down to the features of the image and down to its pixels."""
    if not options.lrp_imagecaptioning:
        return []
    import peer_lrp

    lines = []
    for to_pixels, rounds in ((False, options.rounds), (True, max(1, options.rounds // 2))):
        peer = peer_lrp.lrp_imagecaptioning(options.lrp_imagecaptioning, folder, to_pixels)
        work = f"LRP of {peer_lrp.WORDS} words, {'VGG-16 and decoder' if to_pixels else 'decoder alone'}"
        lines += compare(work, peer_lrp.saywhy_explainers(to_pixels), {"LRP-IC": peer}, rounds, LRP_BAR)
    return lines


def metrics(options: argparse.Namespace, folder: Path) -> list[Comparison]:
    """BLEU, ROUGE-L and CIDEr-D of the same captions."""
    try:
        import pycocoevalcap  # noqa: F401
    except ImportError:
        return []
    from metrics import captions_from, comparisons

    lines = []
    for metric, packages in comparisons(captions_from(options.data, options.captions)).items():
        if metric != "tokeniser":  # whose Java is another process
            ours, theirs = {"numpy": packages["saywhy"]}, {"pycocoevalcap": packages["pycocoevalcap"]}
            lines += compare(
                f"{metric}, {options.captions} captions", ours, theirs, options.rounds, METRIC_BARS.get(metric)
            )
    return lines


PARTS = {"metrics": metrics, "captioning": captioning, "relevance": relevance}


def measured_before(path: Path, lines: list[Comparison]) -> list[Comparison]:
    """The lines of a results file on other work than these."""
    if not path.is_file():
        return []
    before = [Comparison(**line) for line in json.loads(path.read_text(encoding="utf-8"))["lines"]]
    return [line for line in before if line.work not in {new.work for new in lines}]


def print_table(lines: list[Comparison]) -> None:
    print(f"{'work':34} {'peer':14} {'saywhy':16} {'ratio':>7} {'bar':>5}")
    for line in lines:
        bar = "" if line.bar is None else f"{line.bar:g}"
        print(f"{line.work:34} {line.peer:14} {line.engine:16} {line.ratio:7.1f} {bar:>5}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAYWHY_DATA") or HERE.parent.parent / "shared" / "data"
    parser.add_argument("--sgrvinod", type=Path, help="checkout of a-PyTorch-Tutorial-to-Image-Captioning")
    parser.add_argument("--ruotianluo", type=Path, help="checkout of ImageCaptioning.pytorch")
    parser.add_argument("--lrp-imagecaptioning", type=Path, help="checkout of LRP-imagecaptioning-pytorch")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with flickr8k/ in it")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="what is measured")
    parser.add_argument("--captions", type=int, default=1000, help="captions that are scored")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for name in options.only for line in PARTS[name](options, Path(folder))]
    print_table(lines)
    if options.json:
        lines = measured_before(options.json, lines) + lines if len(options.only) < len(PARTS) else lines
        summary = {"machine": machine(torch.device("cpu")), "lines": [asdict(line) for line in lines]}
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
