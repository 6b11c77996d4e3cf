"""The files of model folders, and where the shipped models are. Nothing here needs torch."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.json"
SHIPPED = "ada-lstm-coco-flickr8k"


def locate(model: str | Path | None) -> Path:
    """The folder of a shipped model's name, or the folder itself."""
    inside = Path(str(files("saywhy"))) / "models" / str(model or SHIPPED)
    return inside if (inside / CONFIG).is_file() else Path(model or inside)


def shipped() -> list[str]:
    """Names of the models inside the package."""
    return sorted(path.parent.name for path in Path(str(files("saywhy"))).glob(f"models/*/{CONFIG}"))
