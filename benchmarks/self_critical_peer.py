"""Steps of self-critical training by self-critical.pytorch (https://github.com/ruotianluo/self-critical.pytorch).

`self_critical.py --peer FOLDER` times them beside saywhy's. The folder has its source in `self-critical.pytorch/` and
that of its submodule (https://github.com/ruotianluo/cider) in `cider/`; both run unchanged, with their own settings.
Only these are ours:

- `six` and the reader of its configuration files, if they cannot be imported, and its BLEU scorer, whose weight is 0
- features stay on the device, where its `train.py` copies each batch to it: this favours the peer
- captions, vocabulary and number of samples, and a learning rate that keeps the weights about as they are
- the last bias: the logarithm of the words' frequencies. The captions of its untrained decoder have 8 to 10 words then,
  a little fewer than those of a trained one, which favours the peer; otherwise all would have 20, whose reward takes
  longer. Sampling goes on until all captions have ended, so the longest decides its time (`longest_sample`)
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pickle
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn import DataParallel

from saywhy.data.tokenizer import END

Groups = list[list[list[int]]]
DECODERS = ("adaatt", "updown", "att2in2")


class Peer:
    """Its steps with the leave-one-out baseline ("new_self_critical"), in float32.

    Args:
        folder: its source, as above.
        decoder: one of `DECODERS`, all with 512 units, its default.
        train: token ids of all training captions, by image, with the marker that each begins with.
        words: number of token ids.
        features: (images, L, D) of the first images of `train`, on the device.
        batch: images per step.
        samples: captions drawn per image.
    """

    def __init__(
        self, folder: Path, decoder: str, train: Groups, words: int, features: Tensor, batch: int, samples: int
    ) -> None:
        provide(folder)
        self.losses = importlib.import_module("captioning.modules.losses")
        self.rewards = importlib.import_module("captioning.utils.rewards")
        self.rewards.__dict__.setdefault("Bleu", lambda order: None)
        self.labels = [labels(group) for group in train]
        self.fill_document_frequencies()
        self.options = settings(decoder, samples, features.shape[-1])
        self.options.vocab_size, self.options.vocab = words - 1, {}
        self.batches = list(features.split(batch))
        self.batch, self.device = batch, features.device
        self.build()

    def build(self) -> None:
        """The decoder, its loss and its optimiser, as in its `train.py`."""
        self.decoder = importlib.import_module("captioning.models").setup(self.options).to(self.device)
        wrapper = importlib.import_module("captioning.modules.loss_wrapper").LossWrapper(self.decoder, self.options)
        self.loss = DataParallel(wrapper, [self.device]) if self.device.type == "cuda" else wrapper
        self.loss.train()
        utilities = importlib.import_module("captioning.utils.misc")
        self.optimiser = utilities.build_optimizer(self.decoder.parameters(), self.options)
        tokens = np.concatenate([row[: np.argmin(row) + 1] for group in self.labels for row in group])
        counts = np.bincount(tokens, minlength=self.options.vocab_size + 1) + 1
        with torch.no_grad():
            self.decoder.logit.bias.copy_(torch.from_numpy(counts / counts.sum()).log())

    def fill_document_frequencies(self) -> None:
        """Those of all captions, from a file as its `prepro_ngrams.py` writes it."""
        scorer = importlib.import_module("pyciderevalcap.ciderD.ciderD_scorer").CiderScorer(df_mode="corpus")
        scorer.document_frequency = defaultdict(float)
        for group in self.labels:
            scorer.cook_append(None, [self.rewards.array_to_str(row) for row in group])
        scorer.compute_doc_freq()
        known = {"document_frequency": scorer.document_frequency, "ref_len": len(scorer.crefs)}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "idxs.p").write_bytes(pickle.dumps(known))
            self.rewards.init_scorer(f"{folder}/idxs")

    @property
    def parameters(self) -> int:
        """Number of weights of the decoder."""
        return sum(weights.numel() for weights in self.decoder.parameters())

    def __call__(self, number: int) -> None:
        """One step, on one of the batches."""
        self.update(self.forward(number % len(self.batches)))

    def forward(self, number: int) -> Tensor:
        """The loss of a batch; what the peer prints at each step is dropped."""
        vectors = self.batches[number]
        references = self.labels[number * self.batch :][: self.batch]
        self.optimiser.zero_grad()
        with contextlib.redirect_stdout(io.StringIO()):
            inputs = vectors.mean(dim=1), vectors, None, None, None, references, torch.arange(len(references))
            loss: Tensor = self.loss(*inputs, False, True, False)["loss"].mean()
        return loss

    def update(self, loss: Tensor) -> None:
        """Backward pass, clipping of gradients and Adam."""
        loss.backward()
        clip = getattr(torch.nn.utils, f"clip_grad_{self.options.grad_clip_mode}_")
        clip(self.decoder.parameters(), self.options.grad_clip_value)
        self.optimiser.step()
        loss.item()

    def scores(self, candidates: Groups) -> np.ndarray:
        """Its rewards of captions of the first images, as many for each, (images · samples,)."""
        tokens = torch.from_numpy(labels([caption for group in candidates for caption in group], marker=False))
        with contextlib.redirect_stdout(io.StringIO()):
            result: np.ndarray = self.rewards.get_scores(self.labels[: len(candidates)], tokens, self.options)
        return result

    def parts(self, steps: int) -> dict[str, float]:
        """Medians of the milliseconds of the parts of a step; the reward's include copies to and from the host."""
        seconds: dict[str, list[float]] = defaultdict(list)

        def timed(name: str, function: Callable) -> Callable:
            def call(*inputs: Any, **named: Any) -> Any:
                self.synchronise()
                start = time.perf_counter()
                result = function(*inputs, **named)
                self.synchronise()
                seconds[name].append(time.perf_counter() - start)
                return result

            return call

        with (
            patch.object(self.decoder, "forward", timed("sampling", self.decoder.forward)),
            patch.object(self.losses, "get_scores", timed("reward", self.losses.get_scores)),
            patch.object(self, "update", timed("backward and update", self.update)),
        ):
            whole = timed("step", self)
            for number in range(steps):
                whole(number)
        return {name: round(1000 * statistics.median(values), 2) for name, values in seconds.items()}

    def sample_lengths(self) -> dict[str, float]:
        """Mean and largest number of words of the samples of the first batch, with the end; it stops at the largest."""
        samples: list[Tensor] = []
        hook = self.decoder.register_forward_hook(lambda _, inputs, output: samples.append(output[0]))
        self.forward(0)
        hook.remove()
        lengths = ((samples[0] > 0).sum(dim=1) + 1).clamp(max=samples[0].shape[1])
        return {"words_per_sample": lengths.float().mean().item(), "longest_sample": int(lengths.max())}

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def labels(captions: list[list[int]], marker: bool = True) -> np.ndarray:
    """Captions as the peer has them: the end is 0, as is padding, and nothing is before the first word."""
    rows = [caption[1:] if marker else caption for caption in captions]
    table = np.zeros((len(rows), max(map(len, rows)) + 1), dtype=np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = [0 if token == END else token for token in row]
    return table


def provide(folder: Path) -> None:
    """Make the peer importable."""
    sources = [folder / "self-critical.pytorch", folder / "cider"]
    for source, package in zip(sources, ("captioning", "pyciderevalcap"), strict=True):
        if not (source / package).is_dir():
            raise SystemExit(f"{source / package}: no such folder; --peer needs self-critical.pytorch/ and cider/")
    sys.path[:0] = [str(source) for source in sources if str(source) not in sys.path]
    try:
        importlib.import_module("six")
    except ImportError:
        moves = add_module("six.moves", cPickle=pickle)
        add_module("six", PY3=True, moves=moves)
    try:
        importlib.import_module("captioning.utils.config")
    except ImportError:
        add_module("captioning.utils.config", CfgNode=NoConfiguration)


def add_module(name: str, **contents: object) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


class NoConfiguration(dict):
    """In place of the peer's reader of configuration files: it reads none."""

    def merge_from_list(self, values: list[str]) -> None:
        """Nothing to add."""


def settings(decoder: str, samples: int, width: int) -> Any:
    """The peer's own options and defaults, with those of its configurations `*_nsc.yml`."""
    chosen = {
        "caption_model": decoder,
        "structure_after": 0,
        "structure_loss_type": "new_self_critical",
        "train_sample_n": samples,
        "learning_rate": 1e-6,
        "fc_feat_size": width,
        "att_feat_size": width,
    }
    with command_line([f"--{name}={value}" for name, value in chosen.items()]):
        return importlib.import_module("captioning.utils.opts").parse_opt()


@contextlib.contextmanager
def command_line(arguments: list[str]) -> Iterator[None]:
    """Within the block, these are the arguments of the program."""
    with patch.object(sys, "argv", [sys.argv[0], *arguments]):
        yield
