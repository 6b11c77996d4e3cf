"""The log of a run: one JSON line per step and evaluation, the same for TensorBoard, and a plot of the curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhy.errors import UserError
from saywhy.files import whole_file, write_text

LOG = "log.jsonl"
CURVES = "curves.png"


@dataclass
class EpochTotals:
    """Sums over an epoch and all processes; in a resumed run, from the checkpoint on."""

    log_loss: float = 0.0
    words: float = 0.0
    reward: float = 0.0
    samples: float = 0.0
    images: int = 0
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """Mean −log p per word."""
        return self.log_loss / max(self.words, 1)

    @property
    def mean_reward(self) -> float:
        """Mean reward of a sampled caption, in percent; 0 without a reward."""
        return 100 * self.reward / max(self.samples, 1)

    @property
    def images_per_second(self) -> float:
        """Images trained on per second."""
        return self.images / max(self.seconds, 1e-9)


class RunLog:
    """Appends events to log.jsonl and, where it is installed, to TensorBoard.

    A resumed run removes the events after its checkpoint, because it repeats them.
    """

    def __init__(self, folder: Path, step: int, epoch: int) -> None:
        self.path = folder / LOG
        events = [event for event in read_log(self.path) if event["step"] <= step] if step else []
        events = [event for event in events if "cider" not in event or event.get("epoch", 0) <= epoch]
        write_text(self.path, "".join(json.dumps(event) + "\n" for event in events))
        self.tensorboard = _tensorboard_writer(folder / "tensorboard", step)

    def write(self, step: int, **values: Any) -> None:
        """Append an event; its numbers also go to TensorBoard."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
            for name, value in values.items():
                if self.tensorboard and isinstance(value, int | float):
                    self.tensorboard.add_scalar(name, value, step)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error.strerror}); free disk space and continue with --resume"
            ) from None

    def close(self) -> None:
        """End the TensorBoard file of a finished run.

        Not for an interrupted one: an interrupt inside TensorBoard's queue can make its writer thread wait for minutes.
        """
        if self.tensorboard:
            self.tensorboard.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The events of a log, up to a line that a crash has cut short."""
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(event, dict) or not isinstance(event.get("step"), int):
            break
        events.append(event)
    return events


def _tensorboard_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder, purge_step=step + 1 if step else None)


def plot_curves(folder: Path) -> Path | None:
    """Plot training loss and dev scores of a run's log; None where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    events = read_log(folder / LOG)
    train = [event for event in events if "loss" in event]
    dev = [event for event in events if "cider" in event]
    figure = Figure(figsize=(10, 3.6))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.07, right=0.98, bottom=0.15, top=0.9, wspace=0.18)
    left, right = figure.subplots(1, 2)
    left.plot(_column(train, "step"), _column(train, "loss"), color="#3b6ea5", lw=1.2)
    left.set(title="training", xlabel="step", ylabel="−log p per word")
    for name, colour, label in (("cider", "#c0504d", "CIDEr"), ("bleu4", "#5b8c5a", "BLEU-4")):
        right.plot(_column(dev, "epoch"), _column(dev, name), color=colour, marker="o", ms=3, label=label)
    right.set(title="dev, free decoding", xlabel="epoch")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    with whole_file(folder / CURVES) as part:
        figure.savefig(part, format="png", dpi=150)
    return folder / CURVES


def _column(events: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [event.get(name, float("nan")) for event in events]
