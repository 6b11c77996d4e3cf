"""What a run writes down: a JSON line an event, TensorBoard beside it, and a plot at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from saywhy.files import whole_file, write_text

LOG = "log.jsonl"
CURVES = "curves.png"


class RunLog:
    """Appends events to log.jsonl and, where it is installed, to TensorBoard.

    On resuming, events after the checkpoint are cut off: they are about to happen again.
    """

    def __init__(self, folder: Path, step: int, epoch: int) -> None:
        self.path = folder / LOG
        before = [event for event in read_log(self.path) if event["step"] <= step] if step else []
        kept = [event for event in before if "cider" not in event or event["epoch"] <= epoch]
        write_text(self.path, "".join(json.dumps(event) + "\n" for event in kept))
        self.file = self.path.open("a", encoding="utf-8")
        self.board = _tensorboard(folder / "tensorboard", step)

    def write(self, step: int, **values: Any) -> None:
        """Note an event; numbers go to TensorBoard too."""
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()
        if self.board:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.board.add_scalar(name, value, step)

    def close(self) -> None:
        """Finish both."""
        self.file.close()
        if self.board:
            self.board.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Events of a log; a line that a crash cut off is left out."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder, purge_step=step + 1 if step else None)


def plot_curves(folder: Path) -> Path | None:
    """Draw loss, rate and dev scores of a log; None where matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    events = read_log(folder / LOG)
    train = [event for event in events if "loss" in event]
    dev = [event for event in events if "cider" in event]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    left.plot([e["step"] for e in train], [e["loss"] for e in train], color="#3b6ea5", lw=1.2)
    left.set(title="training", xlabel="step", ylabel="−log p of a word")
    for name, colour, label in (("cider", "#c0504d", "CIDEr"), ("bleu4", "#5b8c5a", "BLEU-4")):
        right.plot([e["epoch"] for e in dev], [e[name] for e in dev], color=colour, marker="o", ms=3, label=label)
    right.set(title="dev, freely decoded", xlabel="epoch")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    with whole_file(folder / CURVES) as part:
        figure.savefig(part, format="png", dpi=150)
    pyplot.close(figure)
    return folder / CURVES
