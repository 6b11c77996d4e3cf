"""Writing a loaded model as a folder, with a model card: `Model.save_pretrained`."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhy.captioners.model_folder import CONFIG, FORMAT, SavedModel
from saywhy.decoding.config import Decoding
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.hallucination.risk_model import OBJECTS_FILE, Risk
from saywhy.inference.familiarity_model import Familiarity
from saywhy.pretrained import ADAPTER, HUB, HubSource
from saywhy.provenance import saywhy_version

CARD, RUN = "README.md", "run.json"


@dataclass(frozen=True)
class ModelParts:
    """What a folder of a model holds.

    Attributes:
        saved: the captioner with its vocabulary, preprocessing and decoding.
        risk: its risk model, if it has one.
        familiarity: its familiarity, if it has one.
        source: where a model of transformers came from: the folder then refers to it, and has no weights.
        folder: where it was loaded from, if from a folder.
    """

    saved: SavedModel
    risk: Risk | None = None
    familiarity: Familiarity | None = None
    source: HubSource | None = None
    folder: Path | None = None

    def save(self, folder: Path) -> None:
        """Write the model, its risk model and familiarity, and a model card."""
        if self.folder is not None and self.folder.resolve() == folder.resolve():
            raise UserError(f"{folder}: the model is in this folder already; choose another")
        folder.mkdir(parents=True, exist_ok=True)
        if self.source is None:
            self.saved.save(folder)
            self._copy(folder, RUN)
            if self.familiarity is not None:
                self.familiarity.save(folder)
        else:
            write_text(folder / CONFIG, json.dumps(_reference(self.source), indent=2) + "\n")
        self._copy(folder, OBJECTS_FILE)
        if self.risk is not None:
            self.risk.save(folder)
        write_text(folder / CARD, self.card())

    def _copy(self, folder: Path, name: str) -> None:
        if self.folder is not None and (self.folder / name).is_file():
            shutil.copyfile(self.folder / name, folder / name)

    def card(self) -> str:
        """A model card: what the model is, how to use it, and what its estimates were fitted to."""
        captioner, preprocessing = self.saved.captioner, self.saved.preprocessing
        side, how = preprocessing.size, "resized" if preprocessing.fit == "squash" else "cropped"
        rows = {
            "architecture": f"{captioner.name} over {captioner.encoder.settings.name}",
            "input": f"an RGB image, {how} to {side} × {side}",
            "vocabulary": f"{len(self.saved.vocabulary):,} tokens",
            "weights": f"{sum(parameter.numel() for parameter in captioner.parameters()) / 1e6:.2f} million",
            "decoding": f"`{Decoding.from_config(self.saved.decoding)}`",
        }
        if self.source is not None:
            rows["weights of"] = f"`{self.source.model}`, which this folder refers to and does not contain"
        for name, fitted in (("risk", self.risk), ("familiarity", self.familiarity)):
            if fitted is not None:
                rows[f"{name} fitted to"] = f"`{json.dumps(fitted.about, sort_keys=True)}`"
        table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
        return _CARD.format(name=self.saved.name, table=table)


def changed_settings(decoding: Decoding) -> dict[str, Any]:
    """The decoding settings that are not the defaults, as config.json has them."""
    names = Decoding.__dataclass_fields__
    values = {name: getattr(decoding, name) for name in names}
    return {name: value for name, value in values.items() if value != getattr(Decoding, name)}


def _reference(source: HubSource) -> dict[str, Any]:
    """The contents of config.json of a folder that refers to a model of transformers."""
    path = Path(source.model.removeprefix(HUB))
    return {
        "format": FORMAT,
        "saywhy": saywhy_version(),
        "kind": ADAPTER,
        "model": str(path.resolve()) if path.is_dir() else source.model,
        "prompt": source.prompt,
    }


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
