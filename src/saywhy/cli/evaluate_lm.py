"""`saywhy evaluate-lm`: the perplexity of a language model on the captions of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from saywhy.cli.common import json_line, output_console, plain_table, progress_of
from saywhy.cli.options import (
    Data,
    Device,
    Json,
    Limit,
    Reader,
    Split,
    examples,
)

EPILOG = examples(
    "saywhy evaluate-lm runs/lm-lstm --data flickr8k",
    "saywhy evaluate-lm SmolLM2-135M-Instruct.Q4_1.gguf --data flickr8k --prompt captions.txt --limit 200",
)


def evaluate_lm(
    language_model: Annotated[
        str,
        typer.Argument(
            metavar="LM",
            help="A folder that saywhy train-lm wrote, the folder or .gguf file of a Hugging Face causal model, or "
            "hf:NAME.",
            show_default=False,
        ),
    ],
    data: Data,
    split: Split = "dev",
    reader: Reader = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|DIR", help="The captioner whose words are scored.", show_default="the shipped model"
        ),
    ] = None,
    prompt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Example captions for a Hugging Face model, one per line.", show_default=False
        ),
    ] = None,
    lookahead: Annotated[
        bool, typer.Option("--lookahead", metavar="", help="Charge the end of a word with the word itself.")
    ] = False,
    limit: Limit = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Report the perplexity per word of a language model on captions.

    "as guidance sees it" scores the captioner's words, and leaves out captions with other words.
    "own vocabulary" scores all captions; unknown words count as one word. It needs a model of saywhy train-lm.
    """
    from saywhy.captioners.model_folder import VOCABULARY, read_config
    from saywhy.data.datasets import read, split_name
    from saywhy.data.tokenizer import Vocabulary, tokenize
    from saywhy.inference.model import choose_device, locate
    from saywhy.language_models.load_scorer import load_scorer, read_prompt
    from saywhy.language_models.word_scorer import VocabularyScorer, scorer_perplexity

    captioner = locate(vocabulary)
    read_config(captioner)
    words = Vocabulary.load(captioner / VOCABULARY)
    lines = read_prompt(prompt) if prompt else []
    target = choose_device(device)
    images = read(data, reader=reader).split(split_name(split)).evenly_spaced(limit).images
    captions = [tokenize(caption) for image in images for caption in image.captions]
    scorer = load_scorer(language_model, words, target, lines, lookahead=lookahead)
    with progress_of("captions") as progress:
        results = {"as guidance sees it": scorer_perplexity(scorer, words, captions, target, progress=progress)}
    if isinstance(scorer, VocabularyScorer):
        from saywhy.training.language_model_trainer import TokenTable, model_perplexity

        table = TokenTable(captions, scorer.vocabulary, target)
        results["own vocabulary"] = model_perplexity(scorer.model, table)
    if as_json:
        record: dict[str, Any] = {"language_model": language_model, "split": split, "images": len(images)}
        names = {"as guidance sees it": "guidance", "own vocabulary": "own_vocabulary"}
        typer.echo(json_line(record | {names[name]: vars(result) for name, result in results.items()}))
        return
    rows = [
        (name, f"{result.perplexity:.2f}", result.captions, result.words, result.left_out)
        for name, result in results.items()
    ]
    output_console().print(plain_table(("", "perplexity", "captions", "words", "left out"), rows))
