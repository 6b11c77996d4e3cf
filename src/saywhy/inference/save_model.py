"""Writing a loaded model as a folder, with a model card: `Model.save_pretrained`."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhy.captioners.model_folder import CONFIG, FORMAT, SavedModel
from saywhy.decoding.config import Decoding
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.hallucination.risk_model import OBJECTS_FILE
from saywhy.pretrained import ADAPTER, HUB
from saywhy.provenance import saywhy_version

if TYPE_CHECKING:
    from saywhy.inference.model import Model

CARD, RUN = "README.md", "run.json"


def save_pretrained(model: Model, folder: Path) -> None:
    """Write the model, its risk model and familiarity, and a model card."""
    if model.folder is not None and model.folder.resolve() == folder.resolve():
        raise UserError(f"{folder}: the model is in this folder already; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    if model.source is None:
        _saved(model).save(folder)
        _copy(model, folder, RUN)
        if model.familiarity_error is None and model.familiarity is not None:
            model.familiarity.save(folder)
    else:
        write_text(folder / CONFIG, json.dumps(_reference(model), indent=2) + "\n")
    _copy(model, folder, OBJECTS_FILE)
    if model.risk is not None:
        model.risk.save(folder)
    write_text(folder / CARD, model_card(model))


def _saved(model: Model) -> SavedModel:
    decoding = {name: value for name, value in asdict(model.decoding).items() if value != getattr(Decoding(), name)}
    return SavedModel(
        model.name,
        model.captioner,
        model.vocabulary,
        model.preprocessing,
        decoding,
        model.regions,
        model.conditioning_dropout,
    )


def _reference(model: Model) -> dict[str, Any]:
    """The contents of config.json of a folder that refers to a model of transformers."""
    assert model.source is not None
    location, path = model.source.model, Path(model.source.model.removeprefix(HUB))
    return {
        "format": FORMAT,
        "saywhy": saywhy_version(),
        "kind": ADAPTER,
        "model": str(path.resolve()) if path.is_dir() else location,
        "prompt": model.source.prompt,
    }


def _copy(model: Model, folder: Path, name: str) -> None:
    if model.folder is not None and (model.folder / name).is_file():
        shutil.copyfile(model.folder / name, folder / name)


def model_card(model: Model) -> str:
    """A model card: what the model is, how to use it, and what its estimates were fitted to."""
    encoder, side = model.captioner.encoder, model.preprocessing.size
    rows = {
        "architecture": f"{model.captioner.name} over {encoder.settings.name}",
        "input": f"an RGB image, {'resized' if model.preprocessing.fit == 'squash' else 'cropped'} to {side} × {side}",
        "vocabulary": f"{len(model.vocabulary):,} tokens",
        "weights": f"{sum(parameter.numel() for parameter in model.captioner.parameters()) / 1e6:.1f} million",
        "decoding": f"`{model.decoding}`",
    }
    if model.source is not None:
        rows["weights of"] = f"`{model.source.model}`, which this folder refers to and does not contain"
    for name, fitted in (("risk", model.risk), ("familiarity", model.familiarity if model.source is None else None)):
        if fitted is not None:
            rows[f"{name} fitted to"] = f"`{json.dumps(fitted.about, sort_keys=True)}`"
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return _CARD.format(name=model.name, table=table)


_CARD = """---
library_name: saywhy
pipeline_tag: image-to-text
---

# {name}

An image captioner for [saywhy](https://pypi.org/project/saywhy/), which shows for each word of a caption the pixels and
the earlier words that support it.

```python
import saywhy

model = saywhy.load("PATH_OR_NAME")
caption = model.caption("photo.jpg")
model.explain("photo.jpg").save("explanation/")
```

| | |
| --- | --- |
{table}
"""
