"""Training of a language model: from a recipe, caption texts and a vocabulary to a model folder.

All captions are one table of token ids on the device. A batch holds captions of nearly the same length, so that little
padding is computed; the order of batches depends on (seed, epoch), dropout on (seed, step). The weights with the lowest
perplexity on the dev captions are kept. There is no checkpoint to resume from: a run takes minutes on a GPU.

`on_event` gets dictionaries with these fields:

    kind       other fields
    "start"    language_model, parameters, captions, unknown (share of words outside the vocabulary), dev_captions,
               epochs, steps, out, device
    "step"     step, steps, epoch, loss (mean −log q per word), captions_per_second; many steps together
    "epoch"    epoch, epochs, loss, perplexity (on dev), best, is_best, captions_per_second, seconds_left
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from saywhy.captioners.model_folder import WEIGHTS, save_weights
from saywhy.data.tokenizer import MARKERS, PAD, UNK, Vocabulary
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.language_models import LanguageModel, SavedLanguageModel, build
from saywhy.language_models.word_scorer import Perplexity
from saywhy.provenance import machine
from saywhy.training.builders import OnEvent, launch_fabric
from saywhy.training.checkpoint import folder_lock, require_no_model
from saywhy.training.language_model_recipe import LanguageModelRecipe
from saywhy.training.log import RunLog
from saywhy.training.optimisers import WeightAverage, optimisers, set_learning_rates
from saywhy.training.trainer import RUN

SORTED_BATCHES = 50  # captions of so many batches are sorted by length together
REPORT_INTERVAL = 50  # steps between two reads of the loss, which waits for the device
DEV_TOKENS = 2**13  # tokens per batch of an evaluation


@dataclass
class LanguageModelProgress:
    """How far a run has come; `best` is the lowest perplexity on dev, reached in epoch `best_epoch` (from 1)."""

    epoch: int = 0
    step: int = 0
    best: float = math.inf
    best_epoch: int = 0
    seconds: float = 0.0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


class TokenTable:
    """Captions as one table (N, T) of token ids, from `<start>` to `<end>`, padded; the shortest first."""

    def __init__(self, captions: Sequence[Sequence[str]], vocabulary: Vocabulary, device: torch.device) -> None:
        encoded = sorted((vocabulary.encode(words) for words in captions), key=len)
        self.lengths = np.array([len(ids) for ids in encoded])
        rows = np.full((len(encoded), int(self.lengths.max())), PAD, dtype=np.int32)
        for row, ids in zip(rows, encoded, strict=True):
            row[: len(ids)] = ids
        self.words = int(self.lengths.sum()) - len(encoded)  # predicted ones: `<end>` is, `<start>` is not
        self.unknown = int((rows == UNK).sum())
        self.tokens = torch.from_numpy(rows).to(device)

    def __len__(self) -> int:
        return len(self.lengths)

    def batches(self, size: int, seed: int, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch, in random order; rows of a batch have nearly the same length."""
        random = np.random.default_rng((seed, epoch))
        order = random.permutation(len(self))
        chunks = [order[start : start + SORTED_BATCHES * size] for start in range(0, len(order), SORTED_BATCHES * size)]
        rows = [chunk[np.argsort(self.lengths[chunk], kind="stable")] for chunk in chunks]
        batches = [chunk[start : start + size] for chunk in rows for start in range(0, len(chunk), size)]
        return [batches[number] for number in random.permutation(len(batches))]

    def batches_in_order(self, tokens: int) -> Iterator[Tensor]:
        """All captions, the shortest first, in batches (n, T) of about so many tokens."""
        start = 0
        while start < len(self):
            stop = min(len(self), start + max(1, tokens // int(self.lengths[start])))
            yield self.tokens[start:stop, : self.lengths[stop - 1]]
            start = stop


def word_losses(model: LanguageModel, tokens: Tensor) -> Tensor:
    """The sum of −log q over all words of captions (n, T), `<end>` included."""
    tokens = tokens.long()
    logits = model(tokens[:, :-1])  # (n, T − 1, W)
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), ignore_index=PAD, reduction="sum")


@torch.inference_mode()
def model_perplexity(
    model: LanguageModel, table: TokenTable, progress: Callable[[int, int], None] = lambda done, total: None
) -> Perplexity:
    """The perplexity of captions over the model's own vocabulary, in which `<unk>` is a word like any other."""
    was_training = model.training
    model.eval()
    total, done = 0.0, 0
    for tokens in table.batches_in_order(DEV_TOKENS):
        total += float(word_losses(model, tokens))
        done += len(tokens)
        progress(done, len(table))
    model.train(was_training)
    return Perplexity(math.exp(min(700.0, total / table.words)), len(table), table.words)


def plain_vocabulary(vocabulary: Vocabulary) -> Vocabulary:
    """The words of a captioner without the markers of its styles."""
    return Vocabulary((*MARKERS, *vocabulary.words[vocabulary.markers :]))


def train_language_model(
    recipe: LanguageModelRecipe,
    captions: Sequence[Sequence[str]],
    dev: Sequence[Sequence[str]],
    vocabulary: Vocabulary,
    out: str | Path,
    *,
    sources: dict[str, Any] | None = None,
    device: str = "auto",
    on_event: OnEvent = lambda event: None,
) -> LanguageModelProgress:
    """Train a language model, and leave the one with the lowest perplexity on dev in `out`.

    Args:
        recipe: what to train, and how.
        captions: the words of the training captions.
        dev: the words of the dev captions.
        vocabulary: usually that of the captioner that the language model will guide.
        out: the run's folder: model, log, run.json.
        sources: where the captions come from, for run.json.
        device: "auto", "cpu", "cuda" or "mps".
        on_event: called with every event (see the module).
    """
    out = Path(out)
    require_no_model(out)
    kept = [words for words in captions if 0 < len(words) <= recipe.training.max_words]
    if not kept or not dev:
        raise UserError(
            "there are no captions to train on, or none for dev; check --text, --data, --exclude and training.max_words"
        )
    with folder_lock(out):
        fabric = launch_fabric(recipe.training.precision, device)
        if fabric.world_size > 1:
            raise UserError("language models are trained by one process: start it without torchrun")
        trainer = _Trainer(recipe, kept, dev, plain_vocabulary(vocabulary), out, fabric, sources or {}, on_event)
        return trainer.train()


class _Trainer:
    def __init__(
        self,
        recipe: LanguageModelRecipe,
        captions: Sequence[Sequence[str]],
        dev: Sequence[Sequence[str]],
        vocabulary: Vocabulary,
        out: Path,
        fabric: Any,
        sources: dict[str, Any],
        on_event: OnEvent,
    ) -> None:
        self.recipe, self.out, self.fabric, self.sources, self.on_event = recipe, out, fabric, sources, on_event
        self.table = TokenTable(captions, vocabulary, fabric.device)
        self.dev = TokenTable(dev, vocabulary, fabric.device)
        self.progress, self.machine = LanguageModelProgress(), machine(fabric.device)
        torch.manual_seed(recipe.seed)
        model = build(recipe.language_model.name, len(vocabulary), **recipe.language_model.settings)
        self.model = model.to(fabric.device)
        self.saved = SavedLanguageModel(recipe.name, self.model, vocabulary)
        training, on_gpu = recipe.training, fabric.device.type == "cuda"
        lr = torch.tensor(training.lr, device=fabric.device) if on_gpu else training.lr
        groups = [{"params": list(self.model.parameters()), "lr": lr, "base": training.lr}]
        self.optimiser = optimisers[training.optimiser](groups, training.weight_decay, capturable=on_gpu)
        self.average = WeightAverage(self.model, training.average) if training.average else None
        self.steps = -(-len(self.table) // training.batch) * training.epochs

    def train(self) -> LanguageModelProgress:
        progress, training = self.progress, self.recipe.training
        self._report_start()
        self.saved.save(self.out)
        self._write_run_json()
        log = RunLog(self.out, 0, 0)
        started = time.monotonic()
        while not progress.finished:
            loss, rate = self._train_epoch(log)
            progress.epoch += 1
            perplexity = self._evaluate()
            progress.seconds = time.monotonic() - started
            epochs_without_improvement = progress.epoch - progress.best_epoch
            progress.finished = progress.epoch >= training.epochs or 0 < training.patience <= epochs_without_improvement
            event = {"epoch": progress.epoch, "loss": loss, "perplexity": perplexity, "best": progress.best}
            progress.history.append(event)
            log.write(progress.step, **event)
            self._write_run_json()
            left = progress.seconds / progress.step * (self.steps - progress.step)
            self.on_event(
                {
                    "kind": "epoch",
                    **event,
                    "epochs": training.epochs,
                    "is_best": progress.best_epoch == progress.epoch,
                    "captions_per_second": rate,
                    "seconds_left": 0.0 if progress.finished else left,
                }
            )
        log.close()
        return progress

    def _train_epoch(self, log: RunLog) -> tuple[float, float]:
        """Train on all captions once: the mean −log q per word, and captions per second."""
        self.model.train()
        progress, batches = (
            self.progress,
            self.table.batches(self.recipe.training.batch, self.recipe.seed, self.progress.epoch),
        )
        started, total, total_words, captions = time.monotonic(), 0.0, 0, 0
        pending: list[Tensor] = []
        words = 0
        for number, rows in enumerate(batches):
            pending.append(self._update(rows))
            words += int(self.table.lengths[rows].sum()) - len(rows)
            captions += len(rows)
            progress.step += 1
            if len(pending) == REPORT_INTERVAL or number + 1 == len(batches):
                loss = float(torch.stack(pending).sum())  # waits for the device
                if not math.isfinite(loss):
                    raise UserError(f"the loss is not finite at step {progress.step}: lower training.lr")
                total, total_words = total + loss, total_words + words
                rate = captions / (time.monotonic() - started)
                event = {"epoch": progress.epoch + 1, "loss": loss / words, "captions_per_second": rate}
                log.write(progress.step, **event)
                self.on_event({"kind": "step", "step": progress.step, "steps": self.steps, **event})
                pending, words = [], 0
        return total / total_words, captions / (time.monotonic() - started)

    def _update(self, rows: np.ndarray) -> Tensor:
        """One optimiser step; the sum of −log q over the words, on the device."""
        training, step = self.recipe.training, self.progress.step
        torch.manual_seed(hash((self.recipe.seed, step)) % 2**63)
        set_learning_rates(self.optimiser, training.schedule, step, self.steps, training.warmup)
        lengths = self.table.lengths[rows]
        index = torch.from_numpy(rows).to(self.fabric.device, non_blocking=True)
        tokens = self.table.tokens[index, : int(lengths.max())]
        with self.fabric.autocast():
            loss = word_losses(self.model, tokens)
        (loss / int(lengths.sum() - len(rows))).backward()
        if training.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average:
            self.average.update(step)
        return loss.detach()

    def _evaluate(self) -> float:
        """The perplexity on dev with the averaged weights, if there are any; the best weights are saved."""
        progress = self.progress
        with self.average.swapped() if self.average else nullcontext():
            perplexity = model_perplexity(self.model, self.dev).perplexity
            if perplexity < progress.best:
                progress.best, progress.best_epoch = perplexity, progress.epoch
                save_weights(self.model, self.out / WEIGHTS)
        return perplexity

    def _report_start(self) -> None:
        self.on_event(
            {
                "kind": "start",
                "language_model": self.model.name,
                "parameters": sum(weight.numel() for weight in self.model.parameters()),
                "captions": len(self.table),
                "unknown": self.table.unknown / self.table.words,
                "dev_captions": len(self.dev),
                "epochs": self.recipe.training.epochs,
                "steps": self.steps,
                "out": str(self.out),
                "device": str(self.fabric.device),
            }
        )

    def _write_run_json(self) -> None:
        """Record in run.json what was trained, on what, how far, and the perplexity on dev."""
        progress = asdict(self.progress)
        best = self.progress.best if math.isfinite(self.progress.best) else None
        record = {
            "kind": "language-model",
            "recipe": asdict(self.recipe),
            "sources": self.sources,
            "captions": len(self.table),
            "words": self.table.words,
            "unknown_words": self.table.unknown,
            "vocabulary": len(self.saved.vocabulary),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "dev": {
                "captions": len(self.dev),
                "words": self.dev.words,
                "unknown_words": self.dev.unknown,
                "perplexity": best,
            },
            "progress": progress | {"best": best},
            **self.machine,
        }
        write_text(self.out / RUN, json.dumps(record, indent=2) + "\n")
