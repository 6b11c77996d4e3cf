"""`saywhy sweep guidance`: caption a split with several strengths of guidance, and measure the trade-off."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli.common import (
    Failures,
    check_writable,
    json_line,
    number_pair,
    output_console,
    plain_table,
    print_error,
    printable,
    progress_of_stages,
    warn_if_guidance_is_untrained,
)
from saywhy.cli.options import (
    OUTPUT,
    BatchSize,
    Beam,
    Clip,
    Data,
    Device,
    ImageFolder,
    Json,
    JudgeFolder,
    LanguageModel,
    LanguageModelPrompt,
    LengthPenalty,
    Limit,
    Model,
    NoMeteor,
    Reader,
    Split,
    Style,
    Workers,
    examples,
)
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.audits.context import AuditContext
    from saywhy.audits.guidance_sweep import SweptCaptions
    from saywhy.cli.embedding_scores import EmbeddingScorer
    from saywhy.cli.judge_scores import JudgeScorer
    from saywhy.cli.object_scores import ObjectScorer
    from saywhy.data.datasets import Dataset
    from saywhy.decoding import Decoding

GAMMAS = "1,1.2,1.5,2,3,4"
EPILOG = examples(
    "saywhy sweep guidance --data coco --judge runs/judge --out sweep",
    "saywhy sweep guidance --data flickr8k --style flickr8k --gamma 1,1.5,2 --limit 200 --out sweep",
    "saywhy sweep guidance --data coco --lm runs/lm-lstm --lm-weight 5,2.5 --out sweep",
)

app = typer.Typer(no_args_is_help=True)


@app.callback()
def sweep_options() -> None:
    """Caption a split with several settings, and measure what they change."""


@app.command("guidance", epilog=EPILOG)
def guidance(
    data: Data,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Write the scores, captions and a plot here.", show_default=False),
    ],
    model: Model = None,
    reader: Reader = None,
    image_folder: ImageFolder = None,
    split: Split = "test",
    limit: Limit = None,
    gamma: Annotated[str, typer.Option(metavar="G,G,…", help="Strengths of guidance; 1 is plain decoding.")] = GAMMAS,
    lm: LanguageModel = None,
    lm_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A,B",
            help="Language-model guidance, with --lm: log q + A log p(word | image) - B log p(word). Repeatable.",
            show_default=False,
        ),
    ] = None,
    lm_prompt: LanguageModelPrompt = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    style: Style = None,
    explain: Annotated[
        int, typer.Option(metavar="N", min=0, help="Images whose captions are explained, for the image's share.")
    ] = 500,
    no_meteor: NoMeteor = False,
    clip: Clip = None,
    judge: JudgeFolder = None,
    as_json: Json = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Cache captions here; an interrupted sweep continues from it.",
            show_default="OUT/cache",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    batch_size: BatchSize = 16,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Caption a split with several strengths of guidance, and measure likelihood against specificity.

    With --lm, each strength is used twice: with the captioner without an image, and with the language model instead.
    A model that was trained without conditioning dropout is guided by the language model only.
    """
    check_writable("--out", out, folder=True)
    check_writable("--cache", cache, folder=True)
    if (lm_weight or lm_prompt) and lm is None:
        raise UserError(f"{'--lm-weight' if lm_weight else '--lm-prompt'} is for a language model: add --lm PATH")
    gammas = _gammas(gamma)
    weights = [_weights(text) for text in lm_weight or ()]
    failures = Failures()

    from saywhy.audits.context import AuditContext
    from saywhy.audits.guidance_sweep import settings_of, sweep
    from saywhy.cli.embedding_scores import EmbeddingScorer
    from saywhy.cli.judge_scores import JudgeScorer
    from saywhy.cli.object_scores import ObjectScorer
    from saywhy.data.datasets import read, split_name
    from saywhy.data.phrases import find_phrases
    from saywhy.inference.model import load

    dataset = read(data, reader=reader, image_folder=image_folder)
    whole = dataset.split(split_name(split))
    images = whole.evenly_spaced(limit)
    objects = ObjectScorer.read(dataset, images, False, find_phrases(images.root) is not None)
    judge_scorer = JudgeScorer.read(judge, images, device, batch_size, workers)
    if judge:
        judge_scorer.require_other_encoder(model)
    scorers = (objects, EmbeddingScorer.load(clip, None, True, device).once(), judge_scorer.once())
    loaded = load(model, device)
    changes = {"beam": beam, "length_penalty": length_penalty, "style": style}
    loaded.decoding = loaded.decoding_with(**{name: value for name, value in changes.items() if value is not None})
    settings = settings_of(loaded.decoding, gammas, lm or "", weights, str(lm_prompt or ""))
    settings = _possible(loaded, settings)
    context = AuditContext(
        loaded, images, cache or out / "cache", batch_size=batch_size, workers=workers, on_unreadable=failures,
        split_images=len(whole),
    )  # fmt: skip
    with progress_of_stages() as report:
        context.on_progress = lambda event: report(event.stage, event.done, event.total, event.finished)
        swept = sweep(context, settings, explain)
    result = SweepScores(context, images, scorers, not no_meteor).as_dict(swept)
    path = _write(out, result, swept)
    if as_json:
        typer.echo(json_line(result))
    else:
        _show(path)
    raise typer.Exit(failures.exit_code)


def _gammas(text: str) -> list[float]:
    try:
        gammas = sorted({float(number) for number in text.split(",")})
    except ValueError:
        raise UserError(f"--gamma {text}: give numbers separated by commas, such as {GAMMAS}") from None
    if not all(math.isfinite(gamma) and gamma >= 0 for gamma in gammas):
        raise UserError(f"--gamma {text}: strengths of guidance are 0 or more, such as {GAMMAS}")
    return gammas


def _weights(text: str) -> tuple[float, float]:
    pair = number_pair(text)
    if len(pair) != 2:
        raise UserError(f"--lm-weight {text}: give two numbers, such as 5,2.5")
    return pair[0], pair[1]


def _possible(model: Any, settings: Sequence[Decoding]) -> list[Decoding]:
    """The settings that the model can decode with; without conditioning dropout only those with a language model."""
    if model.conditioning_dropout == 0 and any(setting.lm for setting in settings):
        settings = [setting for setting in settings if not setting.needs_no_image]
    for setting in settings:
        model.decoding_with(**vars(setting))
    for setting in settings:
        if setting.needs_no_image:
            warn_if_guidance_is_untrained(model, setting)
            break
    return [*settings]


@dataclass(frozen=True)
class SweepScores:
    """Scores the captions of a sweep.

    Attributes:
        context: the model and how it was run.
        images: the images that were to be captioned, with their references.
        scorers: of hallucination, if the data set has boxes, of diversity, and by the models that the user named.
        meteor: whether to compute METEOR.
    """

    context: AuditContext
    images: Dataset
    scorers: tuple[ObjectScorer, EmbeddingScorer, JudgeScorer]
    meteor: bool

    def as_dict(self, swept: Sequence[SweptCaptions]) -> dict[str, Any]:
        """The contents of the results file."""
        from saywhy.provenance import machine

        context = self.context
        return {
            "sweep": "guidance",
            "model": context.model.name,
            "captioner": context.captioner.name,
            "encoder": context.captioner.encoder.settings.name,
            "conditioning_dropout": context.model.conditioning_dropout,
            "data": context.data.name,
            "split": context.data.images[0].split,
            "images": len(swept[0].words),
            "split_images": context.split_images,
            "explained_images": len(swept[0].image_share),
            "decoding": str(context.model.decoding),
            "settings": [{**captions.as_dict(), **self._scores(captions)} for captions in swept],
            "digests": {"model": context.model.digest()},
            **machine(context.device),
        }

    def _scores(self, captions: SweptCaptions) -> dict[str, Any]:
        from saywhy.metrics.score import score
        from saywhy.metrics.signature import Signature

        images = [image for image in self.images.images if image.name in captions.words]
        split = f"{self.images.name}/{images[0].split}"
        scores = score(
            [captions.words[image.name] for image in images],
            [image.captions for image in images],
            meteor="auto" if self.meteor else False,
            signature=Signature(tok="ptb", split=split, decode=str(captions.decoding)),
        ).as_dict()
        for note in scores.pop("notes"):
            print_error(note)
        objects, embeddings, judge = self.scorers
        others = (
            objects.score(captions.words),
            embeddings.score(self.images, captions.words),
            judge.score(captions.words),
        )
        return {"scores": scores, **{name: fields for part in others for name, fields in part.as_dict().items()}}


def _write(out: Path, result: dict[str, Any], swept: Sequence[SweptCaptions]) -> Path:
    """Write the results, the captions of each setting, and the plot; the path of the results."""
    from saywhy.cli.caption_files import write_captions
    from saywhy.files import write_text
    from saywhy.reports.guidance_tables import read_sweep, sweep_plot

    stem = re.sub(r"[^\w.-]+", "-", f"{result['model']}-{result['data']}-{result['split']}")
    path = out / f"{stem}.json"
    for number, captions in enumerate(swept):
        name = re.sub(r"[^\w.,-]+", "-", ",".join(captions.label.split()))
        write_captions(out / "captions" / f"{stem}-{number}-{name}.jsonl", captions.words)
    write_text(path, json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    try:
        write_text(path.with_suffix(".svg"), sweep_plot(read_sweep(path)))
    except UserError as error:  # matplotlib is an extra
        print_error(error)
    return path


def _show(path: Path) -> None:
    from saywhy.reports.guidance_tables import read_sweep, sweep_table

    table = sweep_table(read_sweep(path))
    output_console().print(plain_table(table.head, [[*map(str, row)] for row in table.rows]))
    typer.echo(f"written: {printable(path)}")
