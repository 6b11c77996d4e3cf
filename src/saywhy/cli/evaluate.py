"""`saywhy evaluate`: caption a split of a dataset and score the captions."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhy.cli.common import (
    check_writable,
    guidance_settings,
    import_plugins,
    json_line,
    output_console,
    plain_table,
    print_error,
    printable,
    progress_of,
    warn_if_guidance_is_untrained,
)
from saywhy.cli.options import (
    FLAG,
    METRICS,
    OUTPUT,
    Attention,
    BatchSize,
    Beam,
    Clip,
    Data,
    Device,
    Guidance,
    ImageFolder,
    Json,
    JudgeFolder,
    LanguageModel,
    LanguageModelPrompt,
    LanguageModelWeight,
    LengthPenalty,
    Limit,
    Model,
    NoMeteor,
    Plugins,
    Reader,
    Regions,
    Split,
    Style,
    Workers,
    examples,
)
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.cli.embedding_scores import EmbeddingScores
    from saywhy.cli.judge_scores import JudgeScores
    from saywhy.cli.object_scores import ObjectScores
    from saywhy.data.datasets import Dataset
    from saywhy.metrics.score import Scores

EPILOG = examples(
    "saywhy evaluate --data flickr8k",
    "saywhy evaluate --data coco --limit 200 --no-meteor",
    "saywhy evaluate --data flickr8k --model runs/soft --split dev --beam 5 --json",
    "saywhy evaluate --data flickr8k --guidance 1.5",
    "saywhy evaluate --data flickr8k --captions captions.jsonl",
    "saywhy evaluate --data coco --objects --hallucination",
    "saywhy evaluate --data flickr8k --clip hf:openai/clip-vit-base-patch32 --diversity",
    "saywhy evaluate --data coco --judge runs/judge",
    "saywhy evaluate --data flickr8k --captions mine.jsonl --rescore soft.json",
)
ORACLE = "oracle regions, drawn by annotators for these very captions: not the scores of a captioner on unseen images"


def evaluate(
    data: Data,
    reader: Reader = None,
    image_folder: ImageFolder = None,
    split: Split = "test",
    limit: Limit = None,
    model: Model = None,
    plugins: Plugins = None,
    regions: Regions = None,
    captions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Score these captions instead of a model's: JSON lines from caption --json, or COCO's results JSON.",
        ),
    ] = None,
    no_meteor: NoMeteor = False,
    spice: Annotated[
        bool,
        typer.Option(
            "--spice",
            metavar=FLAG,
            help="Add SPICE, which needs Java, pycocoevalcap and, in pycocoevalcap/spice/lib, the two jars "
            "stanford-corenlp-3.6.0.jar and stanford-corenlp-3.6.0-models.jar.",
            rich_help_panel=METRICS,
        ),
    ] = False,
    objects: Annotated[
        bool,
        typer.Option(
            "--objects",
            metavar=FLAG,
            help="Add the recall of object words, for COCO's 80 categories, and the share of images without a person "
            "whose caption names one.",
            rich_help_panel=METRICS,
        ),
    ] = False,
    hallucination: Annotated[
        bool,
        typer.Option(
            "--hallucination",
            metavar=FLAG,
            help="Add CHAIR, the share of objects that the image does not have, which needs boxes in the data set; "
            "precision (mAP) and recall of frequent object words; and the share of captions with a bad ending.",
            rich_help_panel=METRICS,
        ),
    ] = False,
    clip: Clip = None,
    judge: JudgeFolder = None,
    bert_score: Annotated[
        str | None,
        typer.Option(
            metavar="BERT[@LAYER]",
            help="Add BERTScore (idf, best reference) by this text encoder: a folder or hf:NAME of Hugging Face.",
            show_default=False,
            rich_help_panel=METRICS,
        ),
    ] = None,
    diversity: Annotated[
        bool,
        typer.Option(
            "--diversity",
            metavar=FLAG,
            help="Add distinct words, the share of unique captions, words per caption and self-BLEU.",
            rich_help_panel=METRICS,
        ),
    ] = False,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    attention: Attention = None,
    style: Style = None,
    guidance: Guidance = None,
    lm: LanguageModel = None,
    lm_weight: LanguageModelWeight = None,
    lm_prompt: LanguageModelPrompt = None,
    as_json: Json = False,
    save_captions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the captions, one JSON object per line.", rich_help_panel=OUTPUT),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the scores with everything they depend on: model, decoding, versions, machine.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    rescore: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Score --captions again and update the results file they belong to.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    batch_size: BatchSize = 32,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Caption a split of a dataset and score the captions.

    Metrics, in percent: BLEU with and without brevity penalty, METEOR, ROUGE-L, CIDEr-D and, with --spice, SPICE.
    A metric that is not available on this machine is left out with a note.
    Captions are generated freely, not by teacher forcing; a signature records all settings.
    """
    decoding = {"beam": beam, "length_penalty": length_penalty, "attention": attention, "style": style}
    decoding |= guidance_settings(guidance, lm, lm_weight, lm_prompt)
    decoding = {name: value for name, value in decoding.items() if value is not None}
    if captions and (model or decoding or regions):
        raise UserError(
            "--captions scores a file; --model, --beam, --length-penalty, --attention, --style, --guidance, --lm, "
            "--lm-weight, --lm-prompt and --regions generate captions: give one or the other"
        )
    if rescore and (out or save_captions or limit or not captions):
        raise UserError("--rescore needs --captions FILE, and excludes --out, --save-captions and --limit")
    check_writable("--save-captions", save_captions, other_than=(data, captions, lm_prompt))
    check_writable("--out", out, other_than=(data, captions, lm_prompt, save_captions))
    check_writable("--rescore", rescore)
    import_plugins(plugins)

    from saywhy.cli.caption_files import read_captions, write_captions
    from saywhy.cli.embedding_scores import EmbeddingScorer
    from saywhy.cli.judge_scores import JudgeScorer
    from saywhy.cli.object_scores import ObjectScorer
    from saywhy.data.datasets import read, split_name

    dataset = read(data, reader=reader, image_folder=image_folder)
    images = dataset.split(split_name(split)).evenly_spaced(limit)
    metrics = {"meteor": not no_meteor, "spice": spice}
    object_scorer = ObjectScorer.read(dataset, images, objects, hallucination)
    embedding_scorer = EmbeddingScorer.load(clip, bert_score, diversity, device)
    judge_scorer = JudgeScorer.read(judge, images, device, batch_size, workers)
    if judge and not captions:
        judge_scorer.require_other_encoder(model)
    if captions:
        generated = GeneratedCaptions(captions.name, "given", read_captions(captions, images))
    else:
        generated = _generate(model, device, images, decoding, batch_size, workers, regions)
    object_scores = object_scorer.score(generated.words)
    embedding_scores = embedding_scorer.score(images, generated.words)
    judge_scores = judge_scorer.score(generated.words)
    added = (object_scores, embedding_scores, judge_scores)
    others = {name: fields for part in added for name, fields in part.as_dict().items()}
    if rescore:
        generated, scores = _rescore(rescore, generated, images, metrics, others)
    else:
        scores = _score(generated, images, metrics)
    scores = replace(scores, notes=(*scores.notes, *object_scores.notes))
    if save_captions:
        write_captions(save_captions, generated.words)
    if out:
        _save_results(out, generated, images, scores, others)
    for note in scores.notes:
        print_error(note)
    if as_json:
        typer.echo(json_line({**scores.as_dict(), **others}))
    else:
        _show(generated, images, scores, added)


@dataclass(frozen=True)
class GeneratedCaptions:
    """Captions of a split, and how they were generated.

    Attributes:
        source: name of the model, or of the captions file.
        decoding: as signatures write it.
        words: the words of each image's caption.
        unreadable: one line for each image that could not be read.
        details: the machine, attention statistics, regions, and how the model was trained.
    """

    source: str
    decoding: str
    words: Mapping[str, Sequence[str]]
    unreadable: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def _generate(
    model: str | None,
    device: str,
    data: Dataset,
    decoding: dict[str, Any],
    batch_size: int,
    workers: int | None,
    regions: Path | None,
) -> GeneratedCaptions:
    """Caption all images; a region-based model reads its regions from `regions`, or from beside the data."""
    from saywhy.decoding import Decoding
    from saywhy.inference.evaluation import caption_split
    from saywhy.inference.model import load, locate
    from saywhy.metrics.attention_stats import attention_stats
    from saywhy.provenance import machine

    Decoding(**decoding)  # values out of range are refused before a model is loaded
    loaded = load(model, device)
    settings = loaded.decoding_with(**decoding)
    warn_if_guidance_is_untrained(loaded, settings)
    captioner = loaded.captioner
    source, language_model = (
        loaded.region_source(regions, data.root),
        loaded.language_model(settings.lm, settings.lm_prompt),
    )
    began = time.monotonic()
    with progress_of("captioning") as report:
        result = caption_split(
            captioner, loaded.vocabulary, loaded.preprocessing, data.images, settings,
            batch_size=batch_size, workers=workers, regions=source, lm=language_model, progress=report,
        )  # fmt: skip
    statistics = attention_stats(result.captions.values())
    beta_admits = captioner.beta_admits if statistics.gate else None
    details = {
        "captions_per_second": len(result.captions) / (time.monotonic() - began),
        **machine(captioner.device),
        "attention": {**statistics.as_dict(), "beta_admits": beta_admits},
        **({"regions": source.describe()} if source else {}),
        **_training_details(locate(model)),
    }
    words = {name: loaded.vocabulary.as_reference(caption.words) for name, caption in result.captions.items()}
    unreadable = tuple(line.removeprefix(f"{data.root}{os.sep}") for line in result.unreadable)
    return GeneratedCaptions(loaded.name, str(settings), words, unreadable, details)


def _training_details(folder: Path) -> dict[str, Any]:
    """The contents of run.json, where the model has one; paths are reduced to file names."""
    from saywhy.files import read_json

    path = folder / "run.json"
    if not path.is_file():
        return {}
    run = read_json(path)
    try:
        encoder = run["recipe"]["encoder"]
        encoder["weights"] = Path(encoder["weights"]).name
        run["unreadable"] = [Path(line).name for line in run["unreadable"]]  # "folder/name: reason"
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not as `saywhy train` writes it ({error!r}); remove or correct it") from None
    return {"training": run}


def _score(generated: GeneratedCaptions, data: Dataset, metrics: dict[str, bool]) -> Scores:
    """Score the captions against all references; a metric that is not available becomes a note."""
    from saywhy.metrics.score import score
    from saywhy.metrics.signature import Signature

    images = [image for image in data.images if image.name in generated.words]
    scores = score(
        [generated.words[image.name] for image in images],
        [image.captions for image in images],
        meteor="auto" if metrics["meteor"] else False,
        spice="auto" if metrics["spice"] else False,
        signature=Signature(tok="ptb", split=f"{data.name}/{images[0].split}", decode=generated.decoding),
    )
    notes = [ORACLE] if generated.details.get("regions", {}).get("oracle") else []
    if generated.unreadable:
        notes.append(f"skipped {len(generated.unreadable)} unreadable images, the first: {generated.unreadable[0]}")
    return replace(scores, notes=(*notes, *scores.notes))


def _save_results(
    path: Path, generated: GeneratedCaptions, data: Dataset, scores: Scores, others: dict[str, Any]
) -> None:
    """Write a results file: the scores and everything they depend on. Notes are about this machine: left out."""
    from saywhy.files import write_text

    split = data.images[0].split
    settings = {"model": generated.source, "data": data.name, "split": split, "decoding": generated.decoding}
    results = {**settings, "scores": _without_notes(scores), **others, **generated.details}
    write_text(path, json.dumps(results, indent=2) + "\n")


def _without_notes(scores: Scores) -> dict[str, Any]:
    return {name: value for name, value in scores.as_dict().items() if name != "notes"}


def _rescore(
    path: Path, generated: GeneratedCaptions, data: Dataset, metrics: dict[str, bool], others: dict[str, Any]
) -> tuple[GeneratedCaptions, Scores]:
    """Score captions again and write the scores into the results file of the evaluation they come from."""
    from saywhy.cli.results_update import read_results, update_results

    results = read_results(path, data.name, data.images[0].split)
    generated = replace(generated, source=results["model"], decoding=results["decoding"])
    scores = _score(generated, data, metrics)
    update_results(path, results, _without_notes(scores), others)
    return generated, scores


def _show(
    generated: GeneratedCaptions,
    data: Dataset,
    scores: Scores,
    others: Sequence[ObjectScores | EmbeddingScores | JudgeScores],
) -> None:
    console = output_console()
    split = f"{data.name} {data.images[0].split}, {scores.n:,} images"
    console.print(printable(f"{generated.source} on {split}"), soft_wrap=True)
    percent = scores.as_dict()
    metrics = {"METEOR": percent["meteor"], "ROUGE-L": percent["rouge_l"], "CIDEr": percent["cider"]}
    if percent["spice"] is not None:
        metrics["SPICE"] = percent["spice"]
    head = ("", "BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", *metrics)
    values = ["–" if value is None else f"{value:.1f}" for value in (*percent["bleu"], *metrics.values())]
    no_penalty = [f"{value:.1f}" for value in percent["bleu_no_penalty"]]
    console.print(plain_table(head, [("", *values), ("no penalty", *no_penalty)]))
    for tables in others:
        tables.show()
    console.print(printable(scores.signature), soft_wrap=True)
