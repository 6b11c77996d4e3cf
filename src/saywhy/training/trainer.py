"""A training run: from a recipe and a data set to a model folder.

Random numbers depend on the seed and the position in the run alone: the order of batches on (seed, epoch), dropout
and augmentation on (seed, step, process). So a checkpoint holds weights, optimiser state and counters but no random
state, and a resumed run ends with the weights of an uninterrupted one.

`on_event` gets dictionaries with these fields:

    kind          other fields
    "encode"      done, total: images encoded for the feature cache, before "start"
    "load"        done, total: images read into the device's memory, before "start"
    "start"       captioner, encoder, parameters, trained_parameters, images, captions, epochs, steps, step, out, device
    "step"        step, steps, epoch, loss, objective, lr, images_per_second; on a GPU the events of many steps come
                  together, because a step does not wait for the GPU
    "epoch"       epoch, epochs, loss, images_per_second, seconds_left; after an evaluation also cider, bleu4, best,
                  is_best
    "unreadable"  line, count

With a reward, "step" and "epoch" also have `reward`, its mean over samples in percent, and `loss` is the mean −log p of
the words of samples in place of captions.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.model_folder import WEIGHTS, SavedModel, load, save_weights
from saywhy.data.checks import require_different_data, require_separate_splits
from saywhy.data.datasets import Dataset
from saywhy.data.loading import RegionVectors
from saywhy.data.mixture import Mixture
from saywhy.data.region_files import find_regions
from saywhy.data.regions import RegionSource
from saywhy.data.training_batches import Batches, Pair, ResidentBatches, split_batches
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.inference.batches import default_workers, read_ahead
from saywhy.inference.evaluation import dev_scores
from saywhy.provenance import machine
from saywhy.training.builders import (
    OnEvent,
    build_captioner,
    build_loss,
    build_vocabulary,
    check_images,
    has_fixed_features,
    launch_fabric,
    load_teachers,
    region_boxes,
    source_digests,
    start_from,
    training_captions,
    weights_digest,
)
from saywhy.training.checkpoint import (
    CHECKPOINT,
    CheckpointInfo,
    Progress,
    folder_lock,
    read_info,
    restore_checkpoint,
    save_checkpoint,
)
from saywhy.training.log import EpochTotals, RunLog, plot_curves
from saywhy.training.lost_process import errors_of_lost_processes
from saywhy.training.objectives import CaptionLoss
from saywhy.training.optimisers import WeightAverage, optimisers, parameter_groups, set_learning_rates
from saywhy.training.recipe import Recipe
from saywhy.training.resident import InputSource
from saywhy.training.self_critical import SelfCriticalLoss
from saywhy.training.updates import CapturedUpdate, Update

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RUN = "run.json"
PLOT_INTERVAL = 5.0  # seconds; curves are plotted after each epoch that takes longer
REPORT_INTERVAL = 50  # steps; on a GPU, losses are read after so many


def train(
    recipe: Recipe,
    data: Dataset | Mapping[str, Dataset],
    out: str | Path,
    *,
    resume: bool = False,
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    inputs: str = "auto",
    start: str | Path | None = None,
    teachers: Sequence[str | Path] = (),
    regions: Any = None,
    on_event: OnEvent = lambda event: None,
) -> Progress:
    """Train a captioner, and leave the best model on dev in `out`.

    Args:
        recipe: what to train, and how.
        data: captioned images with a train and a dev split; by name, if the recipe names several data sets.
        out: the run's folder: model, checkpoint, log, curves. A second process is refused while one trains into it.
        resume: continue from the checkpoint in `out`, with the same recipe and data. The number of epochs may be
            larger; the learning-rate schedule is then recomputed for the new number of steps, so the result differs
            from that of a run with this number from the start.
        device: "auto", "cpu", "cuda" or "mps".
        workers: processes that read images.
        cache: a folder for decoded images and frozen features, which several runs can share. Without it, decoded
            images are not cached and features are cached in the run's folder.
        inputs: "files" reads images for every batch; "memory" reads all of them once, into the device's memory;
            "auto" is "memory" on a GPU where they fit, with one process, and "files" elsewhere.
        start: a model folder whose weights and vocabulary the run starts from.
        teachers: model folders to distil from, if the recipe has `distil`.
        regions: the file or folder of regions, if the recipe has `regions`; without it, the boxes beside the data.
        on_event: called with every event (see the module).
    """
    out = Path(out)
    check_run_folder(recipe, out, resume)
    if bool(recipe.training.distil) != bool(teachers):
        raise UserError("a recipe with distil needs teachers, and teachers need a recipe with distil: see --teacher")
    datasets = [data] if isinstance(data, Dataset) else list(data.values())
    require_different_data(datasets)
    require_separate_splits(datasets)
    mixture = Mixture.of(data, recipe.data)
    source = None
    if recipe.regions or regions:
        root = mixture.parts[0].train.root
        source = find_regions(recipe.regions, regions, f"recipe {recipe.name}", root)
    for part in mixture.parts:
        for split in (part.train, part.dev):
            check_images(split, source)
    workers = default_workers() if workers is None else workers
    lock = folder_lock(out) if os.environ.get("RANK", "0") == "0" else nullcontext()
    with lock, errors_of_lost_processes(out):
        checkpoint = check_run_folder(recipe, out, resume)  # again: another run may have ended meanwhile
        fabric = launch_fabric(recipe.training.precision, device)
        cache = Path(cache) if cache else None
        trainer = Trainer(
            recipe, mixture, out, fabric, workers, cache, inputs, start, teachers, source, on_event, checkpoint
        )
        return trainer.train()


def check_run_folder(recipe: Recipe, out: str | Path, resume: bool) -> CheckpointInfo | None:
    """Raise a `UserError` if the run cannot start, or resume, in this folder. Loads no data and no weights."""
    path = Path(out) / CHECKPOINT
    if resume:
        checkpoint = read_info(path)
        checkpoint.check_recipe(_as_json(asdict(recipe)), _as_json(asdict(Recipe())))
        return checkpoint
    if path.exists():
        raise UserError(f"{out} holds a run already: continue it with --resume, or choose another --out")
    return None


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


class Trainer:
    """One run in its folder."""

    def __init__(
        self,
        recipe: Recipe,
        data: Mixture,
        out: Path,
        fabric: Fabric,
        workers: int,
        cache: Path | None,
        inputs: str,
        start: str | Path | None,
        teachers: Sequence[str | Path],
        regions: RegionSource | None,
        on_event: OnEvent,
        checkpoint: CheckpointInfo | None = None,
    ) -> None:
        self.recipe, self.out, self.fabric, self.workers, self.on_event = recipe, out, fabric, workers, on_event
        self.data, self.regions = data, regions
        self.progress, self.unreadable, self.machine = Progress(), set[str](), machine(fabric.device)
        self.sources = _as_json(source_digests(data, start, teachers, regions))
        if checkpoint:
            checkpoint.check_sources(self.sources)  # before anything large is loaded
        captions = training_captions(data.images, recipe.training.max_words)
        initial = load(start) if start else None
        self.vocabulary = (
            start_from(initial, recipe, data.styles)
            if initial
            else build_vocabulary(recipe.vocabulary, captions, data.styles)
        )
        recipe.decoding.with_style_of(self.vocabulary)  # a UserError where the style is unknown
        names = [image.name for image in data.images]
        vectors = RegionVectors(regions, names) if regions and regions.are_features else None
        width = vectors.width if vectors else None
        self.captioner = build_captioner(recipe, len(self.vocabulary), width, initial).to(fabric.device)
        self.captioner.styles = len(self.vocabulary.styles)
        self.sources["encoder weights"] = weights_digest(self.captioner.encoder)
        if checkpoint:
            checkpoint.check_sources(self.sources)
        styles = data.per_image("style") if self.vocabulary.styles else None
        boxes = region_boxes(recipe, regions, data.images) if regions else None
        encoder, accumulate = self.captioner.encoder, recipe.training.accumulate
        source = InputSource(
            recipe, encoder, data.images, fabric, workers, cache, on_event,
            features=has_fixed_features(recipe, encoder), accumulate=accumulate,
        )  # fmt: skip
        in_memory = regions is None and source.in_memory(inputs)
        rows = vectors or (None if in_memory else source.in_batches(out))
        self.batches = Batches(captions, self.vocabulary, rows, boxes, styles, data.per_image("weight"))
        self.resident: ResidentBatches | None = None
        if in_memory:
            tensor, errors = source.on_device()
            self._report_unreadable(list(errors.values()))
            self.resident = ResidentBatches(self.batches, tensor, errors)
            self.resident.fit(self._batch_order(epoch=0))
        self.grid = source.grid
        batches_per_epoch = len(self._batch_order(epoch=0))
        self.steps = -(-batches_per_epoch // recipe.training.accumulate) * recipe.training.epochs
        self._build_update(load_teachers(teachers, recipe, self.vocabulary, fabric.device))
        if checkpoint:
            self._restore(checkpoint)

    def _build_update(self, teachers: Sequence[Any]) -> None:
        training, captioner, captured = self.recipe.training, self.captioner, self._runs_on_gpu and bool(self.resident)
        groups = parameter_groups(captioner, training.lr, self.recipe.encoder.lr, capturable=captured)
        self.optimiser = optimisers[training.optimiser](groups, training.weight_decay, capturable=captured)
        self.loss, _ = self.fabric.setup(self._build_loss(teachers), self.optimiser)
        self.update = Update(self.fabric, self.loss, self.optimiser, training.clip, self.grid)
        self.resident_update = CapturedUpdate(self.update, self.resident) if self.resident else None
        self.average = WeightAverage(captioner, training.average) if training.average else None

    def _build_loss(self, teachers: Sequence[Any]) -> CaptionLoss | SelfCriticalLoss:
        return build_loss(self.recipe, self.captioner, teachers, self.vocabulary, self.batches.token_ids)

    @property
    def _runs_on_gpu(self) -> bool:
        return self.fabric.device.type == "cuda"

    def _restore(self, checkpoint: CheckpointInfo) -> None:
        self.progress = checkpoint.progress
        self.progress.finished = self._is_finished()  # not any more, if the number of epochs has grown
        restore_checkpoint(checkpoint.path, self.captioner, self.optimiser, self.average)

    def _is_finished(self) -> bool:
        progress, training = self.progress, self.recipe.training
        epochs_without_improvement = progress.epoch - 1 - progress.improved
        return progress.epoch >= training.epochs or 0 < training.patience <= epochs_without_improvement

    def train(self) -> Progress:
        """Train to the last epoch of the recipe, or until patience has run out."""
        progress = self.progress
        self._report_start()
        log = RunLog(self.out, progress.step, progress.epoch) if self.fabric.is_global_zero else None
        if log and not progress.step:
            self._saved_model().save_config(self.out)
            self._write_run_json()
            if self.sources["start"] and (self.recipe.reward or self.recipe.relevance):
                self._evaluate_start(log)
        started, first_step, plotted = time.monotonic(), progress.step, -PLOT_INTERVAL
        while not progress.finished:
            totals = self._train_epoch(log)
            scores = self._evaluate(log) if log and self._evaluation_is_due() else {}
            self._end_epoch()
            seconds = time.monotonic() - started
            if log and (progress.finished or seconds - plotted >= PLOT_INTERVAL):
                plot_curves(self.out)
                plotted = seconds
            if log:
                self._report_epoch(totals, seconds / max(1, progress.step - first_step), scores)
        if log:
            log.close()
        return progress

    def _report_start(self) -> None:
        captioner, training = self.captioner, self.recipe.training
        self.on_event(
            {
                "kind": "start",
                "captioner": captioner.name,
                "encoder": captioner.encoder.settings.name,
                "parameters": sum(weight.numel() for weight in captioner.parameters()),
                "trained_parameters": sum(weight.numel() for weight in captioner.parameters() if weight.requires_grad),
                "images": len(self.data.images),
                "captions": sum(map(len, self.batches.token_ids)),
                "epochs": training.epochs,
                "steps": self.steps,
                "step": self.progress.step,
                "out": str(self.out),
                "device": str(self.fabric.device),
            }
        )

    def _report_epoch(self, totals: EpochTotals, seconds_per_step: float, scores: dict[str, Any]) -> None:
        progress = self.progress
        event = {
            "epoch": progress.epoch,
            "epochs": self.recipe.training.epochs,
            "loss": totals.loss,
            "images_per_second": totals.images_per_second,
            "seconds_left": 0.0 if progress.finished else seconds_per_step * (self.steps - progress.step),
        }
        if totals.samples:
            event["reward"] = totals.mean_reward
        self.on_event({"kind": "epoch", **scores, **event})

    def _batch_order(self, epoch: int) -> list[list[Pair]]:
        training = self.recipe.training
        return self.batches.order(training.batches, training.batch, self.recipe.seed, epoch)

    def _train_epoch(self, log: RunLog | None) -> EpochTotals:
        """Train on the batches of the epoch that are left."""
        progress, training = self.progress, self.recipe.training
        batches = self._batch_order(progress.epoch)[progress.batch :]
        updates = self._resident_updates(batches) if self.resident else self._file_updates(batches)
        self.loss.train()
        totals, pending = EpochTotals(), list[tuple[int, float, Tensor]]()
        started, seconds_before = time.monotonic(), progress.seconds
        for start in range(0, len(batches), training.accumulate):
            group = batches[start : start + training.accumulate]
            lr = set_learning_rates(self.optimiser, training.schedule, progress.step, self.steps, training.warmup)
            sums = next(updates)
            if self.average:
                self.average.update(progress.step)
            progress.batch += len(group)
            progress.step += 1
            pending.append((progress.step, lr, sums))
            totals.images += sum(len({image for image, _ in pairs}) for pairs in group)
            checkpoint_is_due = training.checkpoint_every and progress.step % training.checkpoint_every == 0
            is_last = start + training.accumulate >= len(batches)
            if not self._runs_on_gpu or len(pending) == REPORT_INTERVAL or checkpoint_is_due or is_last:
                losses = torch.stack([sums for _, _, sums in pending]).tolist()  # waits for the device
                totals.seconds = time.monotonic() - started
                progress.seconds = seconds_before + totals.seconds
                for (step, lr, _), step_sums in zip(pending, losses, strict=True):
                    self._report_step(log, totals, step, lr, *step_sums)
                pending = []
            if checkpoint_is_due:
                self._save_checkpoint()
        self._share_unreadable()
        return totals

    def _file_updates(self, batches: list[list[Pair]]) -> Iterator[Tensor]:
        """Makes a step with each `next`; worker processes read the images."""
        fabric, accumulate = self.fabric, self.recipe.training.accumulate
        own_batches = split_batches(batches, fabric.global_rank, fabric.world_size)
        loader = read_ahead(self.batches, own_batches, self.workers, pin_memory=self._runs_on_gpu)
        while group := list(islice(loader, accumulate)):
            for batch in group:
                self._report_unreadable(batch.unreadable)
            self._seed_step()
            yield self.update(group)

    def _resident_updates(self, batches: list[list[Pair]]) -> Iterator[Tensor]:
        """Makes a step with each `next`, on inputs in the device's memory."""
        assert self.resident is not None
        assert self.resident_update is not None
        self.resident.fit(batches)
        plans = torch.from_numpy(np.stack([self.resident.plan(pairs) for pairs in batches])).to(self.fabric.device)
        for plan in plans:
            self._seed_step()
            yield self.resident_update(plan)

    def _seed_step(self) -> None:
        """Seed dropout and augmentation, after the data loader has drawn random numbers of its own."""
        torch.manual_seed(hash((self.recipe.seed, self.progress.step, self.fabric.global_rank)) % 2**63)

    def _report_step(
        self,
        log: RunLog | None,
        totals: EpochTotals,
        step: int,
        lr: float,
        loss: float,
        log_loss: float,
        words: float,
        captions: float,
        reward: float = 0.0,
        samples: float = 0.0,
    ) -> None:
        if not math.isfinite(loss + log_loss):
            raise UserError(f"the loss is not finite at step {step}: lower training.lr or training.clip")
        totals.log_loss += log_loss
        totals.words += words
        totals.reward += reward
        totals.samples += samples
        if log is None:
            return
        event = {
            "epoch": self.progress.epoch + 1,
            "loss": log_loss / max(words, 1),
            "objective": loss / max(captions, 1),
            "lr": lr,
            "images_per_second": totals.images_per_second,
        }
        if samples:
            event["reward"] = 100 * reward / samples
        log.write(step, **event)
        self.on_event({"kind": "step", "step": step, "steps": self.steps, **event})

    def _share_unreadable(self) -> None:
        """Make the unreadable images of all processes known to all."""
        lines = [sorted(self.unreadable)] * self.fabric.world_size
        if self.fabric.world_size > 1:
            torch.distributed.all_gather_object(lines, sorted(self.unreadable))
        for process_lines in lines:
            self._report_unreadable(process_lines)

    def _report_unreadable(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self.unreadable:
                self.unreadable.add(line)
                self.on_event({"kind": "unreadable", "line": line, "count": len(self.unreadable)})

    def _evaluation_is_due(self) -> bool:
        epoch, training = self.progress.epoch + 1, self.recipe.training
        return epoch % training.evaluate_every == 0 or epoch == training.epochs

    def _evaluate_start(self, log: RunLog) -> None:
        """Score the model that fine-tuning starts from, as epoch 0 of the log.

        It does not compete with the epochs: fine-tuning and its controls are compared after the same training.
        """
        log.write(0, epoch=0, **self._dev_scores())

    def _evaluate(self, log: RunLog) -> dict[str, Any]:
        """Score dev with the averaged weights, if there are any, and save the weights if they are the best."""
        progress = self.progress
        with self.average.swapped() if self.average else nullcontext():
            scores = self._dev_scores()
            score = scores[self.recipe.training.select]
            if score > progress.best:
                progress.improved = progress.epoch
            if score >= progress.best:  # of equal epochs the last one, which was trained longer
                progress.best, progress.best_epoch = score, progress.epoch
                save_weights(self.captioner, self.out / WEIGHTS)
        event = {"epoch": progress.epoch + 1, **scores, "best": progress.best}
        progress.history.append(event)
        log.write(progress.step, **event)
        return {**event, "is_best": progress.best_epoch == progress.epoch}

    def _dev_scores(self) -> dict[str, Any]:
        recipe = self.recipe
        with self.fabric.autocast():
            return dev_scores(
                self.captioner, self.vocabulary, recipe.preprocessing, self.data, recipe.decoding,
                workers=self.workers, regions=self.regions,
            )  # fmt: skip

    def _end_epoch(self) -> None:
        """Share the first process's scores, move on to the next epoch, and write a checkpoint."""
        progress = self.progress
        scores = (progress.best, progress.best_epoch, progress.improved)
        progress.best, progress.best_epoch, progress.improved = self.fabric.broadcast(scores)
        progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.finished = self._is_finished()
        self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        if self.fabric.is_global_zero:
            state = self.captioner, self.optimiser, self.average, self.progress
            save_checkpoint(self.out / CHECKPOINT, *state, _as_json(asdict(self.recipe)), self.sources)
            self._write_run_json()
        self.fabric.barrier()

    def _saved_model(self) -> SavedModel:
        recipe = self.recipe
        decoding = asdict(recipe.decoding)
        contents = (recipe.name, self.captioner, self.vocabulary, recipe.preprocessing, decoding, recipe.regions)
        return SavedModel(*contents, recipe.training.conditioning_dropout)

    def _write_run_json(self) -> None:
        """Record in run.json what was trained, on what, and how far."""
        parts = self.data.parts
        record = {
            "recipe": asdict(self.recipe),
            "start": self.sources["start"],
            "teachers": self.sources["teachers"],
            "data": [part.record(with_style=bool(self.vocabulary.styles)) for part in parts],
            "regions": self.sources["regions"],
            "vocabulary": len(self.vocabulary),
            "parameters": sum(weight.numel() for weight in self.captioner.parameters()),
            "progress": asdict(self.progress),
            "unreadable": sorted(self.unreadable),
            "processes": self.fabric.world_size,
            **self.machine,
        }
        write_text(self.out / RUN, json.dumps(record, indent=2) + "\n")
