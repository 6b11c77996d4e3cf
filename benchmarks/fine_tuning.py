"""Fine-tuning against hallucination with all its controls: the runs of the section "Fine-tuning" of docs/results.md.

    python benchmarks/fine_tuning.py NAME --data DIR --out RUNS [--weights FILE] [--seeds 0,1,2] [--jobs 1] [--dry-run]

NAME is flickr8k or coco, the beginning of the recipes' names, and DIR that data set. For Ada-LSTM and MH-FC over
VGG-16 and each seed, `recipes/NAME-CAPTIONER-vgg16.toml` trains the start, and `-lrp-ift.toml` with one or two keys
changed each fine-tuned model, by cross-entropy or by self-critical training. RUNS gets the model folders and
RUNS/results one file per model, as `saywhy evaluate --hallucination` writes it: copy these to results/fine-tuning.
`--jobs` runs share the machine. The same command continues: a model with a results file is left out, and an
interrupted run resumes.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
CAPTIONERS = ("ada-lstm", "mh-fc")
SELF_CRITICAL = ("reward.metric=cider", "reward.samples=5", "reward.baseline=others", "reward.weight=1")
WEIGHTS = {
    "plain": ("relevance.cross_entropy=1",),
    "lrp": (),
    "random": ("relevance.weights=random",),
    "sharpened": ("relevance.weights=sharpened",),
}
"""What ω is; plain fine-tuning has none."""
CROSS_ENTROPY_ONLY = {
    "attention": ("relevance.weights=attention",),
    **{f"lambda{share}": (f"relevance.cross_entropy={share}",) for share in ("0", "0.25", "0.75")},
}
VARIANTS: dict[str, tuple[str, ...]] = {
    **{f"ce-{name}": changes for name, changes in (WEIGHTS | CROSS_ENTROPY_ONLY).items()},
    **{f"scst-{name}": (*SELF_CRITICAL, *changes) for name, changes in WEIGHTS.items()},
}
"""The keys of the recipe that each fine-tuned model changes."""


@dataclass(frozen=True)
class Experiment:
    """A model to train and to evaluate."""

    name: str
    recipe: str
    seed: int
    changes: Sequence[str] = ()
    start: str | None = None

    def commands(self, options: argparse.Namespace) -> Iterator[list[str]]:
        """The commands that are still to be run."""
        folder, results = options.out / self.name, options.out / "results" / f"{self.name}.json"
        if results.exists():
            return
        machine = ["--data", str(options.data), "--device", options.device]
        train = ["train", str(RECIPES / f"{self.recipe}.toml"), "--out", str(folder), "--seed", str(self.seed)]
        train += ["--start", str(options.out / self.start)] if self.start else []
        train += ["--weights", options.weights] if options.weights and not self.start else []
        train += ["--cache", str(options.cache)] if options.cache else []
        train += ["--resume"] if (folder / "checkpoint.safetensors").exists() else []
        yield [*train, *machine, *(part for change in self.changes for part in ("--set", change))]
        evaluate = ["evaluate", "--model", str(folder), "--split", "test", "--hallucination", "--out", str(results)]
        yield [*evaluate, *machine, *(["--style", options.style] if options.style else [])]


def experiments(name: str, captioner: str, seed: int) -> Iterator[Experiment]:
    """The start model, and the models that are fine-tuned from it."""
    recipe = f"{name}-{captioner}-vgg16"
    start = f"{recipe}-start-seed{seed}"
    yield Experiment(start, recipe, seed)
    for variant, changes in VARIANTS.items():
        yield Experiment(f"{recipe}-{variant}-seed{seed}", f"{recipe}-lrp-ift", seed, changes, start)


def run(experiment: Experiment, options: argparse.Namespace) -> bool:
    """Run what is still to be run of an experiment; whether it succeeded."""
    for command in experiment.commands(options):
        print(shlex.join(["saywhy", *command]), flush=True)
        if options.dry_run:
            continue
        log = options.out / f"{experiment.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as output:
            done = subprocess.run([sys.executable, "-m", "saywhy", *command], stdout=output, stderr=output)
        if done.returncode:
            print(f"{experiment.name}: {command[0]} failed, see {log}", file=sys.stderr)
            return False
    return True


def main() -> int:
    """Run all experiments: the start models first, then what begins with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("flickr8k", "coco"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", help="VGG-16's weights: a file, or imagenet")
    parser.add_argument("--captioners", type=lambda text: text.split(","), default=CAPTIONERS)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--only", default="", help="only the models whose name contains this, and their starts")
    parser.add_argument("--style", default="", help="of the captions, for models that have several")
    parser.add_argument("--cache", type=Path, help="of frozen features")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    options = parser.parse_args()
    groups = [
        list(experiments(options.name, captioner, seed)) for captioner in options.captioners for seed in options.seeds
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        starts = list(pool.map(lambda group: run(group[0], options), groups))
        trained = [group for group, succeeded in zip(groups, starts, strict=True) if succeeded]
        wanted = [experiment for group in trained for experiment in group[1:] if options.only in experiment.name]
        done = list(pool.map(lambda experiment: run(experiment, options), wanted))
    return 0 if all([*starts, *done]) else 1


if __name__ == "__main__":
    sys.exit(main())
