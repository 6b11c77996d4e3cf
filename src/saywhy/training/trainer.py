"""A training run: from a recipe and a data set to a model folder.

Random numbers depend on the seed and the position in the run alone: the order of batches on (seed, epoch), dropout
and augmentation on (seed, step, process). So a checkpoint holds weights, optimiser state and counters but no random
state, and a resumed run ends with the weights of an uninterrupted one.

`on_event` gets dictionaries with these fields:

    kind          other fields
    "encode"      done, total: images encoded for the feature cache, before "start"
    "start"       captioner, encoder, parameters, trained_parameters, images, captions, epochs, steps, step, out, device
    "step"        step, steps, epoch, loss, objective, lr, images_per_second
    "epoch"       epoch, epochs, loss, images_per_second, seconds_left; after an evaluation also cider, bleu4, best,
                  is_best
    "unreadable"  line, count
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saywhy.captioners.model_folder import WEIGHTS, SavedModel, save_weights
from saywhy.data.datasets import Dataset
from saywhy.data.loading import RegionVectors
from saywhy.data.region_files import find_regions
from saywhy.data.regions import RegionSource
from saywhy.data.tokenizer import PAD, tokenize
from saywhy.data.training_batches import Batch, Batches, Pair, split_batches
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.inference.batches import default_workers, read_ahead
from saywhy.inference.evaluation import caption_split
from saywhy.metrics import bleu, cider
from saywhy.provenance import machine
from saywhy.training.builders import (
    OnEvent,
    build_captioner,
    build_loss,
    build_vocabulary,
    check_images,
    feature_inputs,
    image_inputs,
    launch_fabric,
    load_teacher,
    region_boxes,
    source_digests,
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
from saywhy.training.optimisers import WeightAverage, optimisers, parameter_groups, set_learning_rates
from saywhy.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RUN = "run.json"
PLOT_INTERVAL = 5.0  # seconds; curves are plotted after each epoch that takes longer


def train(
    recipe: Recipe,
    data: Dataset,
    out: str | Path,
    *,
    resume: bool = False,
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    teachers: Sequence[str | Path] = (),
    regions: Any = None,
    on_event: OnEvent = lambda event: None,
) -> Progress:
    """Train a captioner, and leave the best model on dev in `out`.

    Args:
        recipe: what to train, and how.
        data: captioned images with a train and a dev split.
        out: the run's folder: model, checkpoint, log, curves. A second process is refused while one trains into it.
        resume: continue from the checkpoint in `out`, with the same recipe and data. The number of epochs may be
            larger; the learning-rate schedule is then recomputed for the new number of steps, so the result differs
            from that of a run with this number from the start.
        device: "auto", "cpu", "cuda" or "mps".
        workers: processes that read images.
        cache: a folder for decoded images and frozen features, which several runs can share. Without it, decoded
            images are not cached and features are cached in the run's folder.
        teachers: model folders to distil from, if the recipe has `distil`.
        regions: the file or folder of regions, if the recipe has `regions`; without it, the boxes beside the data.
        on_event: called with every event (see the module).
    """
    out = Path(out)
    check_run_folder(recipe, out, resume)
    if bool(recipe.training.distil) != bool(teachers):
        raise UserError("a recipe with distil needs teachers, and teachers need a recipe with distil: see --teacher")
    source = None
    if recipe.regions or regions:
        source = find_regions(recipe.regions, regions, f"recipe {recipe.name}", data.root)
    splits = data.train_and_dev()
    for split in splits:
        check_images(split, source)
    workers = default_workers() if workers is None else workers
    with folder_lock(out) if os.environ.get("RANK", "0") == "0" else nullcontext():
        checkpoint = check_run_folder(recipe, out, resume)  # again: another run may have ended meanwhile
        fabric = launch_fabric(recipe.training.precision, device)
        cache = Path(cache) if cache else None
        return Trainer(recipe, *splits, out, fabric, workers, cache, teachers, source, on_event, checkpoint).train()


def check_run_folder(recipe: Recipe, out: str | Path, resume: bool) -> CheckpointInfo | None:
    """Raise a `UserError` if the run cannot start, or resume, in this folder. Loads no data and no weights."""
    path = Path(out) / CHECKPOINT
    if resume:
        checkpoint = read_info(path)
        checkpoint.check_recipe(_as_json(asdict(recipe)))
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
        train_data: Dataset,
        dev_data: Dataset,
        out: Path,
        fabric: Fabric,
        workers: int,
        cache: Path | None,
        teachers: Sequence[str | Path],
        regions: RegionSource | None,
        on_event: OnEvent,
        checkpoint: CheckpointInfo | None = None,
    ) -> None:
        self.recipe, self.out, self.fabric, self.workers, self.on_event = recipe, out, fabric, workers, on_event
        self.train_data, self.dev_data, self.regions = train_data, dev_data, regions
        self.progress, self.unreadable, self.machine = Progress(), set[str](), machine(fabric.device)
        self.sources = _as_json(source_digests(train_data, dev_data, teachers, regions))
        if checkpoint:
            checkpoint.check_sources(self.sources)  # before anything large is loaded
        captions = [[tokenize(text) for text in image.captions] for image in train_data.images]
        self.vocabulary = build_vocabulary(recipe, captions)
        names, paths = [image.name for image in train_data.images], [image.path for image in train_data.images]
        vectors = RegionVectors(regions, names) if regions and regions.are_features else None
        width = vectors.width if vectors else None
        self.captioner = build_captioner(recipe, len(self.vocabulary), width).to(fabric.device)
        encoder = self.captioner.encoder
        self.sources["encoder weights"] = weights_digest(encoder)
        if checkpoint:
            checkpoint.check_sources(self.sources)
        self.features = feature_inputs(recipe, encoder, paths, cache or out / "cache", workers, fabric, on_event)
        inputs = vectors or self.features or image_inputs(recipe, paths, cache)
        boxes = region_boxes(recipe, regions, train_data.images) if regions else None
        self.batches = Batches(captions, self.vocabulary, inputs, boxes)
        batches_per_epoch = len(self._batch_order(epoch=0))
        self.steps = -(-batches_per_epoch // recipe.training.accumulate) * recipe.training.epochs
        self._build_loss_and_optimiser(
            [load_teacher(folder, recipe, self.vocabulary, fabric.device) for folder in teachers]
        )
        if checkpoint:
            self._restore(checkpoint)

    def _build_loss_and_optimiser(self, teachers: Sequence[Any]) -> None:
        training = self.recipe.training
        groups = parameter_groups(self.captioner, training.lr, self.recipe.encoder.lr)
        self.optimiser = optimisers[training.optimiser](groups, training.weight_decay)
        loss = build_loss(self.recipe, self.captioner, teachers)
        self.loss, self.fabric_optimiser = self.fabric.setup(loss, self.optimiser)
        self.average = WeightAverage(self.captioner, training.average) if training.average else None

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
                "images": len(self.train_data),
                "captions": sum(len(image.captions) for image in self.train_data.images),
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
        self.on_event({"kind": "epoch", **scores, **event})

    def _batch_order(self, epoch: int) -> list[list[Pair]]:
        training = self.recipe.training
        return self.batches.order(training.batches, training.batch, self.recipe.seed, epoch)

    def _train_epoch(self, log: RunLog | None) -> EpochTotals:
        """Train on the batches of the epoch that are left."""
        progress, training, fabric = self.progress, self.recipe.training, self.fabric
        batches = self._batch_order(progress.epoch)[progress.batch :]
        own_batches = split_batches(batches, fabric.global_rank, fabric.world_size)
        loader = read_ahead(self.batches, own_batches, self.workers, pin_memory=fabric.device.type == "cuda")
        self.loss.train()
        totals = EpochTotals()
        for start in range(0, len(batches), training.accumulate):
            started = time.monotonic()
            group = batches[start : start + training.accumulate]
            sums = self._step([next(loader) for _ in group])
            progress.batch += len(group)
            progress.step += 1
            seconds = time.monotonic() - started
            progress.seconds += seconds
            totals.seconds += seconds
            totals.images += sum(len({image for image, _ in pairs}) for pairs in group)
            self._report_step(log, totals, *sums.tolist())
            if training.checkpoint_every and progress.step % training.checkpoint_every == 0:
                self._save_checkpoint()
        self._share_unreadable()
        return totals

    def _report_step(
        self, log: RunLog | None, totals: EpochTotals, loss: float, log_loss: float, words: float, captions: float
    ) -> None:
        totals.log_loss += log_loss
        totals.words += words
        if log is None:
            return
        event = {
            "epoch": self.progress.epoch + 1,
            "loss": log_loss / max(words, 1),
            "objective": loss / max(captions, 1),
            "lr": self.optimiser.param_groups[0]["lr"],
            "images_per_second": totals.images_per_second,
        }
        log.write(self.progress.step, **event)
        self.on_event({"kind": "step", "step": self.progress.step, "steps": self.steps, **event})

    def _step(self, group: list[Batch]) -> Tensor:
        """One optimiser step over a group of batches; returns the sums of the loss over all processes."""
        training, fabric, step = self.recipe.training, self.fabric, self.progress.step
        torch.manual_seed(hash((self.recipe.seed, step, fabric.global_rank)) % 2**63)
        set_learning_rates(self.optimiser, training.schedule, step, self.steps, training.warmup)
        own_captions = sum(int((batch.tokens != PAD).any(dim=1).sum()) for batch in group)
        captions = self._sum_over_processes(torch.tensor(own_captions, device=fabric.device))
        grid = self.features.grid if self.features else None
        own_sums = []
        for number, batch in enumerate(group):
            self._report_unreadable(batch.unreadable)
            batch = batch.to(fabric.device)
            with fabric.no_backward_sync(self.loss, enabled=number < len(group) - 1):
                sums = self.loss(batch.inputs, batch.may_flip, batch.tokens, batch.image_index, grid, batch.boxes)
                # gradients are averaged over processes, and the loss is a mean over the captions of all processes
                fabric.backward(sums.loss * fabric.world_size / captions.clamp(min=1))
            own_sums.append(sums.as_vector())
        total = self._sum_over_processes(torch.stack(own_sums).sum(dim=0))
        if not bool(total.isfinite().all()):
            raise UserError(f"the loss is not finite at step {step + 1}: lower training.lr or training.clip")
        if training.clip:
            fabric.clip_gradients(self.loss, self.fabric_optimiser, max_norm=training.clip)
        self.fabric_optimiser.step()
        self.fabric_optimiser.zero_grad()
        if self.average:
            self.average.update(step)
        return total

    def _sum_over_processes(self, tensor: Tensor) -> Tensor:
        total = self.fabric.all_reduce(tensor, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

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

    def _dev_scores(self) -> dict[str, float]:
        """CIDEr and BLEU-4 of freely decoded dev captions, in percent."""
        recipe, images = self.recipe, self.dev_data.images
        with self.fabric.autocast():
            captions = caption_split(
                self.captioner, self.vocabulary, recipe.preprocessing, images, recipe.decoding,
                batch_size=100, workers=self.workers, regions=self.regions,
            ).captions  # fmt: skip
        candidates = [captions[image.name].words for image in images if image.name in captions]
        references = [image.captions for image in images if image.name in captions]
        return {
            "cider": 100 * cider(candidates, references).cider,
            "bleu4": 100 * bleu(candidates, references).bleu[3],
        }

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
        return SavedModel(recipe.name, self.captioner, self.vocabulary, recipe.preprocessing, decoding, recipe.regions)

    def _write_run_json(self) -> None:
        """Record in run.json what was trained, on what, and how far."""
        record = {
            "recipe": asdict(self.recipe),
            "teachers": self.sources["teachers"],
            "data": {"name": self.train_data.name, "train": len(self.train_data), "dev": len(self.dev_data)},
            "regions": self.sources["regions"],
            "vocabulary": len(self.vocabulary),
            "parameters": sum(weight.numel() for weight in self.captioner.parameters()),
            "progress": asdict(self.progress),
            "unreadable": sorted(self.unreadable),
            "processes": self.fabric.world_size,
            **self.machine,
        }
        write_text(self.out / RUN, json.dumps(record, indent=2) + "\n")
