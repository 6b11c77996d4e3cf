"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DECODING, METHOD, METRICS = "Decoding", "How to explain it", "Metrics"  # panels of the help text
OUTPUT, MACHINE, MANY, CHANGES = "Output", "Machine", "Many images", "Instead of the recipe's values"
MOST_IMAGES, MOST_WORKERS = 100_000, 256
FLAG = ""  # the metavar of a flag: newer versions of typer would print <bool>

Images = Annotated[
    list[str] | None,
    typer.Argument(metavar="IMAGE", help="Image files, or folders of images.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|DIR",
        help="Name or folder of a model, or hf:NAME for one of Hugging Face; see saywhy models.",
        show_default="the shipped model",
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import your own captioner, encoder or audit first: a module name or a .py file. Repeatable.",
        show_default=False,
    ),
]
Data = Annotated[
    Path,
    typer.Option(metavar="DIR|FILE", help="Dataset: its folder or its captions file.", show_default=False),
]
Reader = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Dataset layout: coco, flickr8k, folder or karpathy.",
        show_default="detected",
    ),
]
ImageFolder = Annotated[
    Path | None,
    typer.Option(
        "--images",
        metavar="DIR",
        help="Folder of the images, if it is not where the layout has it.",
        show_default=False,
    ),
]
Split = Annotated[str, typer.Option(metavar="train|dev|test", help="Split of the dataset.")]
Limit = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Use N images, evenly spaced.", show_default="all images"),
]
Regions = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Regions for a region-based model: a folder of .npz or .npy files, a bottom-up TSV, or boxes.jsonl.gz.",
        show_default=False,
    ),
]
Beam = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Beam width.", show_default="the model's", rich_help_panel=DECODING),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        metavar="A",
        min=0,
        help="Rank captions by log p / length^A; a larger A favours longer captions.",
        show_default="the model's",
        rich_help_panel=DECODING,
    ),
]
NoRepeat = Annotated[
    bool | None,
    typer.Option(
        "--no-repeat/--repeat",
        metavar=FLAG,
        help="Never repeat a trigram.",
        show_default="the model's",
        rich_help_panel=DECODING,
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="Mode of hard attention: expected, sampled or argmax.",
        show_default="the model's",
        rich_help_panel=DECODING,
    ),
]
Guidance = Annotated[
    float | None,
    typer.Option(
        metavar="G",
        help="Guidance: above 1, captions are more specific to their image; 1 turns it off.",
        show_default="the model's",
        rich_help_panel=DECODING,
    ),
]
LanguageModel = Annotated[
    str | None,
    typer.Option(
        "--lm",
        metavar="PATH",
        help="Language model for guidance: with --guidance, it replaces the captioner without an image; "
        "with --lm-weight, it is added.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
LanguageModelWeight = Annotated[
    str | None,
    typer.Option(
        "--lm-weight",
        metavar="A,B",
        help="Language-model guidance, with --lm: log q + A log p(word | image) - B log p(word).",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
LanguageModelPrompt = Annotated[
    Path | None,
    typer.Option(
        "--lm-prompt",
        metavar="FILE",
        help="Example captions, one per line, that a Hugging Face --lm reads before each caption.",
        show_default=False,
        rich_help_panel=DECODING,
    ),
]
Style = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Style of the captions, for a model that has several; see saywhy models.",
        show_default="the model's",
        rich_help_panel=DECODING,
    ),
]
NoMeteor = Annotated[
    bool, typer.Option("--no-meteor", metavar=FLAG, help="Skip METEOR, which needs Java.", rich_help_panel=METRICS)
]
Clip = Annotated[
    str | None,
    typer.Option(
        metavar="CLIP",
        help="Add CLIPScore, RefCLIPScore and the share of captions that find their image in the split (R@1, 5, "
        "10), by this CLIP model: a folder or hf:NAME of Hugging Face, or open_clip:ARCH/PRETRAINED.",
        show_default=False,
        rich_help_panel=METRICS,
    ),
]
JudgeFolder = Annotated[
    Path | None,
    typer.Option(
        "--judge",
        metavar="DIR",
        help="Add a judge's recall, the share of captions that find their image, beside that of human captions; "
        "see saywhy train-judge.",
        show_default=False,
        rich_help_panel=METRICS,
    ),
]
Score = Annotated[
    str | None,
    typer.Option(
        metavar="logp|logit",
        help="What LRP explains: log p, what makes the word likelier than others, or the logit, as in the paper.",
        show_default="the composite's",
        rich_help_panel=METHOD,
    ),
]
Map = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Map of LRP: why, what makes it say this word; seen, finest detail; features, coarse; apart or centred, "
        "less the mean of the caption's other words.",
        show_default="the composite's",
        rich_help_panel=METHOD,
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print one JSON object.", rich_help_panel=OUTPUT)]
JsonLines = Annotated[
    bool, typer.Option("--json", metavar=FLAG, help="Print one JSON object per line.", rich_help_panel=OUTPUT)
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="Compute device.", rich_help_panel=MACHINE)]
CaptionEngine = Annotated[
    str,
    typer.Option(
        metavar="torch|onnx|ray",
        help="What computes: torch; onnx, which starts faster, on the CPU and by beam search (a folder of saywhy "
        "export, or the model is exported once); or, with --in, torch on the machines of a Ray cluster.",
        rich_help_panel=MACHINE,
    ),
]
BatchSize = Annotated[
    int, typer.Option(metavar="N", min=1, max=MOST_IMAGES, help="Images per batch.", rich_help_panel=MACHINE)
]
AutoBatchSize = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=MOST_IMAGES,
        help="Images per batch.",
        show_default="1 on a CPU, 8 on a GPU",
        rich_help_panel=MACHINE,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=MOST_WORKERS,
        help="Processes that read images; 0 reads them in the main process.",
        show_default="automatic",
        rich_help_panel=MACHINE,
    ),
]

TrainingData = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="DIR|NAME=DIR",
        help="Captioned images. Each data set as NAME=DIR, if the recipe names several.",
        show_default=False,
    ),
]
Exclude = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Names of training images to leave out, one per line, as `saywhy data overlap --out` writes them. "
        "Repeatable.",
        show_default=False,
    ),
]
Epochs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of epochs.", rich_help_panel=CHANGES)]
Seed = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Seed of all random numbers.", rich_help_panel=CHANGES)
]
RecipeChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.KEY=VALUE",
        help="Another value for a key of the recipe, such as training.lr=1e-4. Repeatable.",
        show_default=False,
        rich_help_panel=CHANGES,
    ),
]
InputSource = Annotated[
    str,
    typer.Option(
        "--inputs",
        metavar="auto|files|memory",
        help="Read images for every batch, or all of them once into the device's memory (auto: on a GPU, if they fit).",
        rich_help_panel=MACHINE,
    ),
]

Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--in",
        metavar="PATH",
        help="Many images: a folder, a quoted pattern, a Parquet file or a tar shard. Repeatable; see --out.",
        show_default=False,
        rich_help_panel=MANY,
    ),
]
ImageColumn = Annotated[
    str | None,
    typer.Option(
        "--column",
        metavar="NAME",
        help="Column of the images in Parquet files.",
        show_default="found by name and type",
        rich_help_panel=MANY,
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="torch|ray",
        help="What computes: torch on this machine, or ray on the machines of a Ray cluster, with --in.",
        rich_help_panel=MACHINE,
    ),
]
PartSize = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Images per part of the output of --in; a killed run repeats at most one part.",
        show_default="1024; 64 for explain",
        rich_help_panel=MANY,
    ),
]


def examples(*commands: str) -> str:
    """The epilog of a help text: example commands, one per line."""
    return "\n".join(("[dim]Examples[/dim]", *commands))
