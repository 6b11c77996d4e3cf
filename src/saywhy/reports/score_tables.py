"""Tables of scores and costs: all captioners, the encoder study, and one row per seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from saywhy.encoders.registry import encoders
from saywhy.reports.results_files import STUDY, ModelResults, Result, mean_and_deviation
from saywhy.viz.tables import MISSING, Table, code, decimal, escape_markdown, markdown

BLEU = ("B1", "B2", "B3", "B4")
NO_PENALTY = ("B1′", "B2′", "B3′", "B4′")
OTHER_METRICS = ("METEOR", "ROUGE-L", "CIDEr")
COST = ("par. M", "train s", "GPU", "cap/s")
SHARED = "† Measured while other runs used the same GPU.\n"
ORACLE = (
    "‡ Oracle regions: boxes that people drew for these captions. Such a row is not comparable with scores on unseen "
    "images.\n"
)
UNAVAILABLE = "weights not available"
STUDY_TEXT = "Soft attention with frozen encoders: only the encoder and its usual input size differ."


def captioner_section(models: Sequence[ModelResults], recipe_files: Mapping[str, str]) -> str:
    """All models outside the encoder study; `recipe_files` maps names of recipes to file names."""
    head = ("model", *BLEU, *NO_PENALTY, *OTHER_METRICS, *COST)
    rows = [(_marked(model), *_scores(model, no_penalty=True), *_cost(model)) for model in models]
    table = markdown(Table(head, rows))
    return "\n".join(["### Captioners\n", table, *_notes(models), _provenance(models, recipe_files), *_seeds(models)])


def encoder_section(models: Sequence[ModelResults], recipe_files: Mapping[str, str], complete: bool) -> str:
    """The encoder study; if `complete`, recipes of the study without a result get a row of dashes."""
    head = ("encoder", "grid", "px", *BLEU, *OTHER_METRICS, *COST)
    rows: list[Sequence[object]] = [(*_encoder(model), *_scores(model), *_cost(model)) for model in models]
    measured = {model.recipe for model in models}
    missing = [name for name in recipe_files if complete and name.startswith(STUDY) and name not in measured]
    rows += [(f"{name.removeprefix(STUDY)}: {UNAVAILABLE}", *[MISSING] * (len(head) - 1)) for name in missing]
    table = markdown(Table(head, rows, caption=STUDY_TEXT))
    return "\n".join(["### Encoders\n", table, *_notes(models), _provenance(models, recipe_files)])


def _marked(model: ModelResults) -> str:
    return model.name + (" ‡" if model.oracle_regions else "")


def _scores(model: ModelResults, no_penalty: bool = False) -> list[str]:
    columns = zip(*(_values(result, no_penalty) for result in model.results), strict=True)
    return [mean_and_deviation(column) for column in columns]


def _values(result: Result, no_penalty: bool = False) -> list[float | None]:
    scores = result.scores
    bleu = (*scores.bleu, *(scores.bleu_no_penalty if no_penalty else ()))
    return [*bleu, scores.meteor, scores.rouge_l, scores.cider]


def _cost(model: ModelResults) -> list[str]:
    """Parameters, seconds of training, device and speed: means over seeds."""
    parameters = _mean(training.parameters for training in model.training)
    seconds = _mean(training.seconds for training in model.training)
    shared = any(training.shared_gpu for training in model.training)
    return [
        decimal(None if parameters is None else parameters / 1e6, 1),
        decimal(seconds, 0) + (" †" if shared and seconds is not None else ""),
        _devices(training.device for training in model.training) or MISSING,
        _speed(model),
    ]


def _speed(model: ModelResults) -> str:
    """Captions per second, and the device."""
    speed = _mean(result.captions_per_second for result in model.results)
    if speed is None:
        return MISSING
    shared = " †" if any(result.shared_gpu for result in model.results) else ""
    return f"{speed:.{1 if speed < 100 else 0}f} {_devices(result.device for result in model.results)}".strip() + shared


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values."""
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _devices(names: Iterable[str]) -> str:
    """Devices in short: "NVIDIA H200" is "H200", "x86_64 CPU" is "CPU"."""
    short = {"CPU" if name.endswith(" CPU") else name.removeprefix("NVIDIA ") for name in names if name}
    return "/".join(sorted(short))


def _encoder(model: ModelResults) -> tuple[str, str, object]:
    """An encoder's name, its grid, and the side of its input in pixels."""
    name = (model.training[0].encoder if model.training else "") or model.recipe.removeprefix(STUDY)
    size = model.training[0].input_size if model.training else None
    usual = name in encoders and encoders[name].size == size
    return name, f"{encoders[name].side} × {encoders[name].side}" if usual else MISSING, size or MISSING


def _notes(models: Sequence[ModelResults]) -> list[str]:
    """The footnotes that the rows need."""
    shared = any(training.shared_gpu for model in models for training in model.training)
    shared |= any(result.shared_gpu for model in models for result in model.results)
    notes = [SHARED] * shared + [ORACLE] * any(model.oracle_regions for model in models)
    cpus = sorted(
        {
            f"{result.device} with {result.threads} thread{'s' * (result.threads != 1)}"
            for model in models
            for result in model.results
            if result.device.endswith("CPU") and None not in (result.threads, result.captions_per_second)
        }
    )
    return notes + ([f"Speed on a CPU: {escape_markdown(', '.join(cpus))}.\n"] if cpus else [])


def _provenance(models: Sequence[ModelResults], recipe_files: Mapping[str, str]) -> str:
    """How each model was trained, and the signatures of the scores."""
    lines = ["How each model was trained:\n"]
    lines += [f"- {escape_markdown(model.name)}: {_origin(model, recipe_files)}" for model in models]
    signatures: dict[str, list[str]] = {}
    for model in models:
        for signature in sorted({result.scores.signature for result in model.results}):
            signatures.setdefault(signature, []).append(model.name)
    lines.append("")
    for signature, names in signatures.items():
        owners = f" of {escape_markdown(', '.join(names))}" if len(signatures) > 1 else ""
        lines.append(f"Signature{owners}: {code(signature)}\n")
    return "\n".join(lines)


def _origin(model: ModelResults, recipe_files: Mapping[str, str]) -> str:
    """The recipe, the seeds, the encoder's weights and the teachers of a model, in Markdown."""
    if not model.training or not model.training[0].recipe:
        return "its training is not recorded"
    file = recipe_files.get(model.recipe)
    parts = [code(f"recipes/{file}.toml") if file else f"recipe {escape_markdown(model.recipe)}"]
    if len(model.seeds) > 1:
        parts.append(f"mean ± standard deviation over the seeds {', '.join(map(str, model.seeds))}")
    if model.training[0].data:
        parts.append(escape_markdown(f"trained on {' and '.join(model.training[0].data)}"))
    weights = model.training[0].weights
    if weights != "imagenet":
        origin = "encoder with random initial weights" if weights == "none" else f"encoder weights from {weights}"
        parts.append(escape_markdown(origin))
    teachers = sorted({teacher for training in model.training for teacher in training.teachers})
    if teachers:
        parts.append(escape_markdown(f"distilled from {', '.join(teachers)}"))
    if teachers and len(model.seeds) > 1:
        parts.append("seeds that share their teachers differ in the student's seed only")
    return "; ".join(parts)


def _seeds(models: Sequence[ModelResults]) -> list[str]:
    """One row per seed, for models with several."""
    rows = []
    for model in models:
        for result in model.results if len(model.results) > 1 else ():
            seed = result.training.seed if result.training else None
            seconds = result.training.seconds if result.training else None
            cells = [decimal(value, 2) for value in _values(result)]
            rows.append((model.name, MISSING if seed is None else seed, *cells, decimal(seconds, 0)))
    head = ("model", "seed", *BLEU, *OTHER_METRICS, "train s")
    return ["#### Each seed\n", markdown(Table(head, rows))] if rows else []
