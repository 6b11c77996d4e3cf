"""Training of a judge: from a recipe and captioned images to a judge's folder.

An epoch goes through all training images, with one of the captions of each. The order of images and the captions depend
on (seed, epoch), crops and dropout on (seed, step). After each epoch, the first caption of each dev image is ranked
against all dev images; the weights with the best recall@1 are kept. There is no checkpoint to resume from: a run takes
minutes on a GPU.

`on_event` gets dictionaries with these fields:

    kind          other fields
    "load"        done, total: images read into the device's memory, before "start"
    "start"       encoder, parameters, trained_parameters, images, captions, dev_images, epochs, steps, out, device
    "step"        step, steps, epoch, loss (per caption), accuracy (share of captions whose image is the first of the
                  batch), images_per_second; on a GPU many steps together
    "epoch"       epoch, epochs, loss, accuracy, recall_at_1, recall_at_5, recall_at_10, median_rank, similarity (on
                  dev, recall in percent), best, is_best, images_per_second, seconds_left
    "unreadable"  line, count
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.model_folder import WEIGHTS, save_weights
from saywhy.data.checks import require_different_data, require_images, require_separate_splits
from saywhy.data.datasets import Dataset
from saywhy.data.mixture import Mixture
from saywhy.data.tokenizer import Vocabulary
from saywhy.data.training_batches import Batches, Pair, ResidentBatches
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.inference.batches import default_workers, read_ahead
from saywhy.judges.dual_encoder import DualEncoder
from saywhy.judges.judge_folder import SavedJudge
from saywhy.provenance import machine
from saywhy.training.builders import (
    OnEvent,
    build_vocabulary,
    launch_fabric,
    pretrained_encoder,
    training_captions,
    weights_digest,
)
from saywhy.training.checkpoint import folder_lock, require_no_model
from saywhy.training.contrastive_loss import ContrastiveLoss
from saywhy.training.judge_dev_images import LEAST_IMAGES, DevImages
from saywhy.training.judge_recipe import JudgeRecipe
from saywhy.training.log import RunLog
from saywhy.training.optimisers import WeightAverage, optimisers, parameter_groups, set_learning_rates
from saywhy.training.resident import InputSource
from saywhy.training.trainer import REPORT_INTERVAL, RUN
from saywhy.training.updates import CapturedUpdate, Update

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass
class JudgeProgress:
    """How far a run has come; `best` is the highest recall@1 on dev in percent, of epoch `best_epoch` (from 1)."""

    epoch: int = 0
    step: int = 0
    best: float = -1.0
    best_epoch: int = 0
    seconds: float = 0.0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


def train_judge(
    recipe: JudgeRecipe,
    data: Dataset | Mapping[str, Dataset],
    out: str | Path,
    *,
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    inputs: str = "auto",
    on_event: OnEvent = lambda event: None,
) -> JudgeProgress:
    """Train a judge, and leave the one with the best recall@1 on dev in `out`.

    Args:
        recipe: what to train, and how.
        data: captioned images with a train and a dev split; by name, if the recipe names several data sets.
        out: the run's folder: judge, log, run.json.
        device: "auto", "cpu", "cuda" or "mps".
        workers: processes that read images.
        cache: a folder for decoded images, which several runs can share.
        inputs: "files" reads images for every batch; "memory" reads all of them once, into the device's memory;
            "auto" is "memory" on a GPU where they fit, and "files" elsewhere.
        on_event: called with every event (see the module).
    """
    out = Path(out)
    require_no_model(out)
    datasets = [data] if isinstance(data, Dataset) else list(data.values())
    require_different_data(datasets)
    require_separate_splits(datasets)
    mixture = Mixture.of(data, recipe.data)
    for part in mixture.parts:
        for split in (part.train, part.dev):
            require_images(split)
            if len(split) < LEAST_IMAGES:
                raise UserError(
                    f"{split.root}: {len(split)} image in {split.images[0].split}, and a judge learns to tell images "
                    f"apart: give at least {LEAST_IMAGES}"
                )
    workers = default_workers() if workers is None else workers
    with folder_lock(out):
        require_no_model(out)  # again: another run may have ended meanwhile
        fabric = launch_fabric(recipe.training.precision, device)
        if fabric.world_size > 1:
            raise UserError("judges are trained by one process: start it without torchrun")
        folder = Path(cache) if cache else None
        return _Trainer(recipe, mixture, out, fabric, workers, folder, inputs, on_event).train()


class _Trainer:
    def __init__(
        self,
        recipe: JudgeRecipe,
        data: Mixture,
        out: Path,
        fabric: Fabric,
        workers: int,
        cache: Path | None,
        inputs: str,
        on_event: OnEvent,
    ) -> None:
        self.recipe, self.data, self.out, self.fabric, self.on_event = recipe, data, out, fabric, on_event
        self.workers, self.progress, self.machine = workers, JudgeProgress(), machine(fabric.device)
        self.unreadable = set[str]()
        captions = training_captions(data.images, recipe.training.max_words)
        vocabulary = build_vocabulary(recipe.vocabulary, captions)
        self.model = self._build_model(vocabulary)
        self.encoder_weights = weights_digest(self.model.encoder)
        self.saved = SavedJudge(recipe.name, self.model, vocabulary, recipe.preprocessing)
        source = InputSource(recipe, self.model.encoder, data.images, fabric, workers, cache, on_event)
        in_memory = source.in_memory(inputs)
        rows = None if in_memory else source.in_batches(out)
        self.batches = Batches(captions, vocabulary, rows, weights=data.per_image("weight"))
        self.resident: ResidentBatches | None = None
        if in_memory:
            pixels, errors = source.on_device()
            self._report_unreadable(list(errors.values()))
            self.resident = ResidentBatches(self.batches, pixels, errors)
        self.dev = DevImages(
            [part.dev for part in data.parts], recipe.preprocessing, recipe.training.dev_images, fabric.device, workers
        )
        self._report_unreadable(self.dev.unreadable)
        self.steps = len(self._batch_order(epoch=0)) * recipe.training.epochs
        self._build_update()

    def _build_model(self, vocabulary: Vocabulary) -> DualEncoder:
        torch.manual_seed(self.recipe.seed)
        encoder = pretrained_encoder(self.recipe.encoder, self.recipe.preprocessing.size)
        return DualEncoder(encoder, len(vocabulary), self.recipe.judge).to(self.fabric.device)

    def _build_update(self) -> None:
        recipe, training, fabric = self.recipe, self.recipe.training, self.fabric
        captured = bool(self.resident) and self._runs_on_gpu
        groups = parameter_groups(self.model, training.lr, recipe.encoder.lr, capturable=captured)
        self.optimiser = optimisers[training.optimiser](groups, training.weight_decay, capturable=captured)
        loss = ContrastiveLoss(self.model, recipe.preprocessing.size, recipe.augmentation)
        self.loss, _ = fabric.setup(loss, self.optimiser)
        self.update = Update(fabric, self.loss, self.optimiser, training.clip)
        self.resident_update = CapturedUpdate(self.update, self.resident) if self.resident else None
        self.average = WeightAverage(self.model, training.average) if training.average else None

    @property
    def _runs_on_gpu(self) -> bool:
        return self.fabric.device.type == "cuda"

    def train(self) -> JudgeProgress:
        progress, training = self.progress, self.recipe.training
        self._report_start()
        self.saved.save_config(self.out)
        self._write_run_json()
        log = RunLog(self.out, 0, 0)
        started = time.monotonic()
        while not progress.finished:
            totals = self._train_epoch(log)
            progress.epoch += 1
            scores = self._evaluate()
            progress.seconds = time.monotonic() - started
            without_improvement = progress.epoch - progress.best_epoch
            progress.finished = progress.epoch >= training.epochs or 0 < training.patience <= without_improvement
            event = {"epoch": progress.epoch, **totals, **scores, "best": progress.best}
            progress.history.append(event)
            log.write(progress.step, **event)
            self._write_run_json()
            left = progress.seconds / progress.step * (self.steps - progress.step)
            is_best, left = progress.best_epoch == progress.epoch, 0.0 if progress.finished else left
            shown = {"epochs": training.epochs, "is_best": is_best, "seconds_left": left}
            self.on_event({"kind": "epoch", **event, **shown})
        log.close()
        return progress

    def _batch_order(self, epoch: int) -> list[list[Pair]]:
        return self.batches.order("one-caption", self.recipe.training.batch, self.recipe.seed, epoch)

    def _train_epoch(self, log: RunLog) -> dict[str, float]:
        """Train on every image once: loss and accuracy per caption, and images per second."""
        progress, training = self.progress, self.recipe.training
        batches = self._batch_order(progress.epoch)
        updates = self._resident_updates(batches) if self.resident else self._file_updates(batches)
        self.loss.train()
        started, images, total, pending = time.monotonic(), 0, np.zeros(3), list[Tensor]()
        for number, pairs in enumerate(batches):
            set_learning_rates(self.optimiser, training.schedule, progress.step, self.steps, training.warmup)
            pending.append(next(updates))
            if self.average:
                self.average.update(progress.step)
            progress.step += 1
            images += len(pairs)
            if not self._runs_on_gpu or len(pending) == REPORT_INTERVAL or number + 1 == len(batches):
                sums = torch.stack(pending).sum(dim=0).double().cpu().numpy()  # waits for the device
                total, pending = total + sums, []
                self._report_step(log, sums, images / (time.monotonic() - started))
        return {**_per_caption(total), "images_per_second": images / (time.monotonic() - started)}

    def _resident_updates(self, batches: list[list[Pair]]) -> Iterator[Tensor]:
        """Makes a step with each `next`, on images in the device's memory."""
        assert self.resident is not None
        assert self.resident_update is not None
        self.resident.fit(batches)
        plans = torch.from_numpy(np.stack([self.resident.plan(pairs) for pairs in batches])).to(self.fabric.device)
        for plan in plans:
            self._seed_step()
            yield self.resident_update(plan)

    def _file_updates(self, batches: list[list[Pair]]) -> Iterator[Tensor]:
        """Makes a step with each `next`; worker processes read the images."""
        for batch in read_ahead(self.batches, batches, self.workers, pin_memory=self._runs_on_gpu):
            self._report_unreadable(batch.unreadable)
            self._seed_step()
            yield self.update([batch])

    def _seed_step(self) -> None:
        torch.manual_seed(hash((self.recipe.seed, self.progress.step)) % 2**63)

    def _evaluate(self) -> dict[str, Any]:
        """Rank the dev images with the averaged weights, if there are any; the best weights are saved."""
        progress = self.progress
        self.model.eval()
        with self.average.swapped() if self.average else nullcontext():
            with self.fabric.autocast():
                scores = self.dev.scores(self.model, self.saved.vocabulary)
            if scores["recall_at_1"] > progress.best:
                progress.best, progress.best_epoch = scores["recall_at_1"], progress.epoch
                save_weights(self.model, self.out / WEIGHTS)
        return scores

    def _report_unreadable(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self.unreadable:
                self.unreadable.add(line)
                self.on_event({"kind": "unreadable", "line": line, "count": len(self.unreadable)})

    def _report_step(self, log: RunLog, sums: np.ndarray, images_per_second: float) -> None:
        step = self.progress.step
        if not math.isfinite(sums[0]):
            raise UserError(f"the loss is not finite at step {step}: lower training.lr or encoder.lr")
        event = {"epoch": self.progress.epoch + 1, **_per_caption(sums), "images_per_second": images_per_second}
        log.write(step, **event)
        self.on_event({"kind": "step", "step": step, "steps": self.steps, **event})

    def _report_start(self) -> None:
        parameters = list(self.model.parameters())
        self.on_event(
            {
                "kind": "start",
                "encoder": self.saved.encoder,
                "parameters": sum(weight.numel() for weight in parameters),
                "trained_parameters": sum(weight.numel() for weight in parameters if weight.requires_grad),
                "images": len(self.data.images),
                "captions": sum(map(len, self.batches.token_ids)),
                "dev_images": sum(self.dev.counts.values()),
                "epochs": self.recipe.training.epochs,
                "steps": self.steps,
                "out": str(self.out),
                "device": str(self.fabric.device),
            }
        )

    def _write_run_json(self) -> None:
        """Record in run.json what was trained, on what, how far, and the recall on dev."""
        record = {
            "kind": "judge",
            "recipe": asdict(self.recipe),
            "encoder_weights": self.encoder_weights,
            "data": [part.record(with_style=False) for part in self.data.parts],
            "dev_images": self.dev.counts,
            "vocabulary": len(self.saved.vocabulary),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "progress": asdict(self.progress),
            "unreadable": sorted(self.unreadable),
            **self.machine,
        }
        write_text(self.out / RUN, json.dumps(record, indent=2) + "\n")


def _per_caption(sums: np.ndarray) -> dict[str, float]:
    """Loss and accuracy from the fields of `ContrastiveSums`."""
    loss, correct, captions = sums.tolist()
    return {"loss": loss / max(captions, 1), "accuracy": correct / max(captions, 1)}
