"""A training run: from a recipe and a data set to a model folder.

Randomness is a function of the seed and the step alone: the order of batches comes from (seed, epoch),
dropout and augmentation from (seed, step, process). So a run that was killed goes on from its checkpoint as
if nothing had happened, and nothing but weights, optimiser and counters has to be kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from saywhy.cache import content_key
from saywhy.captioners import Captioner
from saywhy.captioners.model_folder import WEIGHTS, SavedModel, save_weights
from saywhy.data.batches import Batch, Batches, share
from saywhy.data.datasets import Dataset, digest
from saywhy.data.loading import default_workers, read_ahead
from saywhy.data.region_inputs import GivenRegions, RegionVectors, Where, find_regions
from saywhy.data.tokenizer import tokenize
from saywhy.data.vocabulary import PAD
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.inference.evaluation import caption_split
from saywhy.metrics import bleu, cider
from saywhy.provenance import machine
from saywhy.training.builders import (
    build_captioner,
    build_vocabulary,
    feature_inputs,
    image_inputs,
    load_teacher,
    region_boxes,
)
from saywhy.training.checkpoint import CHECKPOINT, Progress, restore_checkpoint, save_checkpoint
from saywhy.training.fabric import engine, gathered
from saywhy.training.feature_cache import weights_digest
from saywhy.training.log import RunLog, plot_curves
from saywhy.training.objectives import LogLikelihood, as_vector
from saywhy.training.optimisers import WeightAverage, optimisers, parameter_groups, set_rates
from saywhy.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RUN = "run.json"
OnEvent = Callable[[dict[str, Any]], None]


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
    regions: Where = None,
    on_event: OnEvent = lambda event: None,
) -> Progress:
    """Train, and leave the best model on dev in `out`.

    Args:
        recipe: what to train, and how.
        data: captioned images with a train and a dev split.
        out: the run's folder.
        resume: go on from the checkpoint in `out`.
        device: "auto", "cpu", "cuda" or "mps".
        workers: processes that read images.
        cache: a folder to keep decoded images and frozen features in, for other runs to use too. Without
            it, decoded images are not kept and features are kept in the run's folder.
        teachers: model folders to learn from, where the recipe says `distil`.
        regions: the regions' file or folder, where the recipe says `regions`; without it, boxes are those that lie
            beside the data.
        on_event: told of every step, epoch and broken image.
    """
    out = Path(out)
    if not resume and (out / CHECKPOINT).exists():
        raise UserError(f"{out} holds a run already: go on with --resume, or choose another --out")
    if resume and not (out / CHECKPOINT).exists():
        raise UserError(f"{out}: no checkpoint to resume from; start without --resume")
    if bool(recipe.training.distil) != bool(teachers):
        raise UserError("a recipe with distil needs teachers, and teachers a recipe with distil: see --teacher")
    given = find_regions(recipe.regions, regions, f"recipe {recipe.name}", data.root)
    fabric = engine(recipe.training.precision, device)
    workers = default_workers() if workers is None else workers
    run = Trainer(recipe, data, out, fabric, workers, Path(cache) if cache else None, teachers, given, on_event)
    if resume:
        run.restore()
    return run.train()


class Trainer:
    """One run in its folder."""

    def __init__(
        self,
        recipe: Recipe,
        data: Dataset,
        out: Path,
        fabric: Fabric,
        workers: int,
        cache: Path | None,
        teachers: Sequence[str | Path],
        regions: GivenRegions | None,
        on_event: OnEvent,
    ) -> None:
        self.recipe, self.out, self.fabric, self.workers, self.on_event = recipe, out, fabric, workers, on_event
        self.learning, self.dev, self.regions = data.split("train"), data.split("dev"), regions
        self._refuse_what_is_not_there()
        captions = [[tokenize(text) for text in image.captions] for image in self.learning.images]
        paths = [image.path for image in self.learning.images]
        self.vocabulary = build_vocabulary(recipe, captions)
        vectors = self._region_vectors()
        width = vectors.width if vectors else None
        self.captioner = build_captioner(recipe, len(self.vocabulary), width).to(fabric.device)
        self.encoder_digest = weights_digest(self.captioner.encoder)
        features = out / "cache" if cache is None else cache
        self.features = feature_inputs(recipe, self.captioner, paths, features, workers, fabric, on_event)
        inputs = vectors or self.features or image_inputs(recipe, paths, cache)
        boxes = region_boxes(recipe, regions, self.learning.images) if regions else None
        self.batches = Batches(captions, self.vocabulary, inputs, boxes)
        self._set_up([load_teacher(folder, recipe, self.vocabulary, fabric.device) for folder in teachers])
        self.teachers = {Path(folder).name: content_key(Path(folder) / WEIGHTS) for folder in teachers}
        self.data_digest = digest(self.learning, self.dev)
        self.regions_identity = regions.table.identity() if regions else None
        self.progress = Progress()
        self.broken: set[str] = set()

    def _refuse_what_is_not_there(self) -> None:
        for part in (self.learning, self.dev):
            if self.regions:
                self.regions.table.require(image.name for image in part.images)
            if self.regions and self.regions.are_features:
                continue
            if not any(image.path.is_file() for image in part.images):
                first = part.images[0].path
                raise UserError(f"none of the {len(part)} images of {part.images[0].split} is there, such as {first}")

    def _region_vectors(self) -> RegionVectors | None:
        if self.regions is None or not self.regions.are_features:
            return None
        return RegionVectors(self.regions, [image.name for image in self.learning.images])

    def _set_up(self, teachers: list[Captioner]) -> None:
        how = self.recipe.training
        objective = LogLikelihood(
            self.captioner,
            self.recipe.preprocessing.size,
            self.recipe.augmentation,
            how.label_smoothing,
            how.doubly_stochastic,
            teachers,
            how.distil,
            how.drop_image,
        )
        groups = parameter_groups(self.captioner, how.lr, self.recipe.encoder.lr)
        self.optimiser = optimisers[how.optimiser](groups, how.weight_decay)
        self.objective, self.stepper = self.fabric.setup(objective, self.optimiser)
        self.average = WeightAverage(self.captioner, how.average) if how.average else None

    @property
    def saved(self) -> SavedModel:
        """The model as its folder describes it."""
        recipe = self.recipe
        decoding = asdict(recipe.decoding)
        return SavedModel(recipe.name, self.captioner, self.vocabulary, recipe.preprocessing, decoding, recipe.regions)

    def _origin(self) -> dict[str, Any]:
        """What a resumed run must share with the one that began, as JSON gives it back."""
        same: dict[str, Any] = {"data": self.data_digest, "encoder weights": self.encoder_digest}
        same["teachers"] = self.teachers
        if self.regions:
            same["the regions' file"] = self.regions_identity
        told = {key: value for key, value in asdict(self.recipe).items() if key != "regions" or value}
        return json.loads(json.dumps({**told, **same}))  # without regions as it was before there were any

    def restore(self) -> None:
        """Go on from the checkpoint in the run's folder."""
        path = self.out / CHECKPOINT
        self.progress = restore_checkpoint(path, self.captioner, self.optimiser, self.average, self._origin())

    def train(self) -> Progress:
        """Train to the end of the recipe, or until patience ends."""
        progress, how, first = self.progress, self.recipe.training, self.fabric.is_global_zero
        log = RunLog(self.out, progress.step, progress.epoch) if first else None
        if first and not progress.step:
            self.saved.describe_in(self.out)
            self._note()
        while progress.epoch < how.epochs and not progress.finished:
            self._train_epoch(log)
            if log and ((progress.epoch + 1) % how.evaluate_every == 0 or progress.epoch + 1 == how.epochs):
                self._evaluate(log)
            progress.best, progress.best_epoch = self.fabric.broadcast((progress.best, progress.best_epoch))
            progress.improved = self.fabric.broadcast(progress.improved)
            waited = progress.epoch - progress.improved
            progress.epoch, progress.batch = progress.epoch + 1, 0
            progress.finished = progress.epoch == how.epochs or 0 < how.patience <= waited
            self._checkpoint()
        if log:
            log.close()
            plot_curves(self.out)
        return progress

    def _train_epoch(self, log: RunLog | None) -> None:
        progress, how, fabric = self.progress, self.recipe.training, self.fabric
        order = self.batches.order(how.batches, how.batch, self.recipe.seed, progress.epoch)
        steps = -(-len(order) // how.accumulate) * how.epochs
        left = order[progress.batch :]
        mine = share(left, fabric.global_rank, fabric.world_size)
        loader = read_ahead(self.batches, mine, self.workers, pin_memory=fabric.device.type == "cuda")
        self.objective.train()
        began, images = time.monotonic(), 0
        for start in range(0, len(left), how.accumulate):
            group = left[start : start + how.accumulate]
            sums = self._step([next(loader) for _ in group], steps)
            progress.batch += len(group)
            progress.step += 1
            images += sum(len({image for image, _ in pairs}) for pairs in group)
            if log:
                self._tell(log, sums, steps, images / (time.monotonic() - began))
            if how.checkpoint_every and progress.step % how.checkpoint_every == 0:
                progress.seconds += time.monotonic() - began
                self._checkpoint()
                began, images = time.monotonic(), 0
        progress.seconds += time.monotonic() - began
        self._name_broken([line for lines in gathered(sorted(self.broken), fabric.world_size) for line in lines])

    def _tell(self, log: RunLog, sums: torch.Tensor, steps: int, speed: float) -> None:
        loss, log_loss, words, captions = sums.tolist()
        event = {
            "epoch": self.progress.epoch + 1,
            "loss": log_loss / max(words, 1),
            "objective": loss / max(captions, 1),
            "lr": self.optimiser.param_groups[0]["lr"],
            "images_per_second": speed,
        }
        log.write(self.progress.step, **event)
        self.on_event({"kind": "step", "step": self.progress.step, "steps": steps, **event})

    def _step(self, group: list[Batch], steps: int) -> torch.Tensor:
        """One optimiser step over some batches; gives the sums of the loss over all processes."""
        how, fabric, step = self.recipe.training, self.fabric, self.progress.step
        torch.manual_seed(hash((self.recipe.seed, step, fabric.global_rank)) % 2**63)
        set_rates(self.optimiser, how.schedule, step, steps, how.warmup)
        parts = []
        here = sum(int((batch.words != PAD).any(dim=1).sum()) for batch in group)
        captions = self._summed(torch.tensor(here, device=fabric.device))
        for number, batch in enumerate(group):
            self._name_broken(batch.broken)
            batch = batch.to(fabric.device)
            grid = self.features.grid if self.features else None
            with fabric.no_backward_sync(self.objective, enabled=number < len(group) - 1):
                sums = self.objective(batch.inputs, batch.mirror, batch.words, batch.owner, grid, batch.boxes)
                # processes' gradients are averaged, and the loss is a mean over the captions of all of them
                fabric.backward(sums.loss * fabric.world_size / captions.clamp(min=1))
            parts.append(as_vector(sums))
        everywhere = self._summed(torch.stack(parts).sum(dim=0))
        if not bool(everywhere.isfinite().all()):
            raise UserError(f"the loss is no longer a number at step {step + 1}: lower training.lr or clip more")
        if how.clip:
            fabric.clip_gradients(self.objective, self.stepper, max_norm=how.clip)
        self.stepper.step()
        self.stepper.zero_grad()
        if self.average:
            self.average.update(step)
        return everywhere

    def _summed(self, here: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        everywhere = self.fabric.all_reduce(here, reduce_op="sum")
        assert isinstance(everywhere, torch.Tensor)
        return everywhere

    def _name_broken(self, lines: Sequence[str]) -> None:
        for line in lines:
            if line not in self.broken:
                self.broken.add(line)
                self.on_event({"kind": "broken", "line": line, "count": len(self.broken)})

    def _evaluate(self, log: RunLog) -> None:
        """Score dev with the averaged weights, where there are any, and keep the best."""
        progress, how = self.progress, self.recipe.training
        with self.average.swapped() if self.average else nullcontext():
            scores = self._dev_scores()
            score = scores[how.select]
            if score > progress.best:
                progress.improved = progress.epoch
            if score >= progress.best:  # of equals the later one, which has seen more
                progress.best, progress.best_epoch = score, progress.epoch
                save_weights(self.captioner, self.out / WEIGHTS)
        event = {"epoch": progress.epoch + 1, **scores, "best": progress.best}
        progress.history.append(event)
        log.write(progress.step, **event)
        self.on_event(
            {"kind": "epoch", "epochs": how.epochs, "is_best": progress.best_epoch == progress.epoch, **event}
        )

    def _dev_scores(self) -> dict[str, float]:
        """CIDEr and BLEU-4 of freely decoded dev captions, in percent."""
        recipe, images = self.recipe, self.dev.images
        with self.fabric.autocast():
            said = caption_split(
                self.captioner, self.vocabulary, recipe.preprocessing, images, recipe.decoding,
                batch=100, workers=self.workers, regions=self.regions,
            )  # fmt: skip
        candidates = [said.captions[image.name].words for image in images if image.name in said.captions]
        references = [image.captions for image in images if image.name in said.captions]
        return {
            "cider": 100 * cider(candidates, references).cider,
            "bleu4": 100 * bleu(candidates, references).bleu[3],
        }

    def _checkpoint(self) -> None:
        if self.fabric.is_global_zero:
            path, origin = self.out / CHECKPOINT, self._origin()
            save_checkpoint(path, self.captioner, self.optimiser, self.average, self.progress, origin)
            self._note()
        self.fabric.barrier()

    def _note(self) -> None:
        """Say in run.json what was trained, from what, on what."""
        about = {
            "recipe": asdict(self.recipe),
            "teachers": self.teachers,
            "data": {"name": self.learning.name, "train": len(self.learning), "dev": len(self.dev)},
            "regions": self.regions_identity,
            "vocabulary": len(self.vocabulary),
            "parameters": sum(p.numel() for p in self.captioner.parameters()),
            "progress": asdict(self.progress),
            "broken": sorted(self.broken),
            "processes": self.fabric.world_size,
            **machine(self.fabric.device),
        }
        write_text(self.out / RUN, json.dumps(about, indent=2) + "\n")
