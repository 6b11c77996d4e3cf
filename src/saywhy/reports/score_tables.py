"""What captioners score and what they cost: a table of them all, one of encoders, and one of seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from saywhy.encoders.catalogue import encoders
from saywhy.reports.markdown import MISSING, number, table
from saywhy.reports.results_files import STUDY, Model, Result, spread

BLEU = ("B1", "B2", "B3", "B4")
NO_PENALTY = ("B1′", "B2′", "B3′", "B4′")
OTHERS = ("METEOR", "ROUGE-L", "CIDEr")
COST = ("par. M", "train s", "GPU", "cap/s")
SHARED = "† Measured with other runs on the same GPU.\n"
ORACLE = "‡ Oracle regions: boxes that people drew for these captions. Such a row is no score on unseen images.\n"
UNAVAILABLE = "weights not available here"


def captioners(found: Sequence[Model], files: Mapping[str, str]) -> str:
    """Every model outside the encoder study; `files` has the files of recipes by their names."""
    head = ("model", *BLEU, *NO_PENALTY, *OTHERS, *COST)
    rows = [(_marked(model), *_scores(model, "bleu", "bleu_no_penalty"), *_cost(model)) for model in found]
    return "\n".join(["### Captioners\n", table(head, rows), *_notes(found), _made(found, files), *_seeds(found)])


def encoder_study(found: Sequence[Model], files: Mapping[str, str], complete: bool) -> str:
    """The encoders; if `complete`, also those with a recipe and no result, as rows without a number."""
    head = ("encoder", "grid", "px", *BLEU, *OTHERS, *COST)
    rows: list[Sequence[object]] = [(*_encoder(model), *_scores(model, "bleu"), *_cost(model)) for model in found]
    measured = {model.recipe_name for model in found}
    missing = [name for name in files if complete and name.startswith(STUDY) and name not in measured]
    rows += [(f"{name.removeprefix(STUDY)}: {UNAVAILABLE}", *[MISSING] * (len(head) - 1)) for name in missing]
    text = "Soft attention over frozen encoders: the encoder and its usual size are all that differs.\n"
    return "\n".join(["### Encoders\n", text, table(head, rows), *_notes(found), _made(found, files)])


def _marked(model: Model) -> str:
    return model.name + (" ‡" if model.oracle else "")


def _scores(model: Model, *bleus: str) -> list[str]:
    columns = zip(*(_values(run, *bleus) for run in model.runs), strict=True)
    return [spread(column) for column in columns]


def _values(run: Result, *bleus: str) -> list[float | None]:
    scores = run["scores"]
    return [*(value for bleu in bleus for value in scores[bleu]), scores["meteor"], scores["rouge_l"], scores["cider"]]


def _cost(model: Model) -> list[str]:
    """Parameters, training and speed; means over seeds without their spread, which says little of a cost."""
    training = model.training
    parameters = _mean(training, lambda run: run["parameters"] / 1e6)
    seconds = _mean(training, lambda run: run["progress"]["seconds"])
    shared = " †" if any(run.get("shared_gpu") for run in training) else ""
    devices = sorted({_short(run["device"]) for run in training if "device" in run})
    speed = _mean(model.runs, lambda run: run["captions_per_second"])
    crowded = " †" if any(run.get("shared_gpu") for run in model.runs) else ""
    spoken_on = "/".join(sorted({_short(run["device"]) for run in model.runs if "device" in run}))
    return [
        number(parameters),
        number(seconds, 0) + (shared if seconds is not None else ""),
        "/".join(devices) or MISSING,
        f"{speed:.{1 if speed < 100 else 0}f} {spoken_on}".strip() + crowded if speed is not None else MISSING,
    ]


def _mean(runs: Iterable[Result], value: Callable[[Result], float]) -> float | None:
    """The mean over the runs that have it."""
    found = []
    for run in runs:
        try:
            found.append(value(run))
        except KeyError:
            continue
    return mean(found) if found else None


def _short(device: str) -> str:
    """A device as it fits in a column: "NVIDIA H200" is "H200", "x86_64 CPU" is "CPU"."""
    return "CPU" if device.endswith(" CPU") else device.removeprefix("NVIDIA ")


def _encoder(model: Model) -> tuple[str, str, object]:
    """An encoder's name, its grid, and the side of its images."""
    recipe: dict[str, Any] = model.recipe
    name = recipe.get("encoder", {}).get("name", model.recipe_name.removeprefix(STUDY))
    size = recipe.get("preprocessing", {}).get("size", MISSING)
    usual = name in encoders and encoders[name].size == size
    return name, f"{encoders[name].side} × {encoders[name].side}" if usual else MISSING, size


def _notes(found: Sequence[Model]) -> list[str]:
    shared = any(run.get("shared_gpu") for model in found for run in (*model.training, *model.runs))
    notes = [SHARED] * shared + [ORACLE] * any(model.oracle for model in found)
    threads = sorted(
        {
            f"{run['device']} with {run['threads']} thread{'s' * (run['threads'] != 1)}"
            for model in found
            for run in model.runs
            if run.get("device", "").endswith("CPU") and "threads" in run
        }
    )
    return notes + ([f"Speed on a CPU: {', '.join(threads)}.\n"] if threads else [])


def _made(found: Sequence[Model], files: Mapping[str, str]) -> str:
    """How each row was made, and the signatures of the scores, each with its models if there are several."""
    lines = ["How each row was made:\n", *(f"- {model.name}: {_origin(model, files)}" for model in found)]
    signatures: dict[str, list[str]] = {}
    for model in found:
        for each in sorted({run["scores"]["signature"] for run in model.runs}):
            signatures.setdefault(each, []).append(model.name)
    lines.append("")
    for each, names in signatures.items():
        of = f" of {', '.join(names)}" if len(signatures) > 1 else ""
        lines.append(f"Signature{of}: `{each}`\n")
    return "\n".join(lines)


def _origin(model: Model, files: Mapping[str, str]) -> str:
    """The recipe, the seeds, and what else came in: a file of weights, teachers."""
    if not model.recipe:
        return "not trained here, or it is not known how"
    file = files.get(model.recipe_name)
    parts = [f"`recipes/{file}.toml`" if file else f"recipe {model.recipe_name}"]
    if len(model.seeds) > 1:
        parts.append(f"mean ± standard deviation over the seeds {', '.join(map(str, model.seeds))}")
    weights = model.recipe.get("encoder", {}).get("weights", "imagenet")
    if weights != "imagenet":
        parts.append("random weights at first" if weights == "none" else f"weights from {weights}")
    teachers = sorted({each for run in model.training for each in run.get("teachers", [])})
    if teachers:
        parts.append(f"taught by {', '.join(teachers)}")
    if teachers and len(model.seeds) > 1:
        parts.append("where seeds share their teachers, the spread is over the student's seed alone")
    return "; ".join(parts)


def _seeds(found: Sequence[Model]) -> list[str]:
    """Every run by itself of the models that have several."""
    rows = []
    for model in found:
        for run in model.runs if len(model.runs) > 1 else ():
            training = run.get("training", {})
            cells = [number(value, 2) for value in _values(run, "bleu")]
            seconds = training.get("progress", {}).get("seconds")
            rows.append((model.name, training.get("recipe", {}).get("seed", MISSING), *cells, number(seconds, 0)))
    return ["#### Seed by seed\n", table(("model", "seed", *BLEU, *OTHERS, "train s"), rows)] if rows else []
