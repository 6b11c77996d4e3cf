"""Familiarity: how much an image is like the photographs that a model was trained on.

The encoder computes feature maps while it encodes an image. Of its maps of stride 8 and 16, and of its features, this
takes the mean and the standard deviation of each channel over the image: a vector x_m per map m, scaled to variance 1.
With the mean μ_m and the covariance Σ_m of x_m over training photographs (Lee et al. 2018, with simple statistics),

    d_m = (x_m − μ_m)ᵀ (Σ_m + λI)⁻¹ (x_m − μ_m)            a squared Mahalanobis distance
    distance = mean over m of (log d_m − centre_m) / spread_m    standardised on dev photographs
    familiarity = share of dev photographs with a larger distance

Only photographs are used to fit it. Σ_m is stored by its largest principal components; the remaining ones share their
mean variance. Beyond the 99 % quantile of dev photographs, the share is that of an exponential tail.

`map_statistics.py` reads the maps; nothing here needs torch. A model's folder holds the familiarity in
`familiarity.safetensors`, with a digest of the weights and the encoder's settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from saywhy.errors import UserError
from saywhy.files import read_json, whole_file
from saywhy.model_names import CONFIG, WEIGHTS

FAMILIARITY_FILE = "familiarity.safetensors"
FORMAT = "1"
THRESHOLD = 0.02
"""Images of a lower familiarity are reported as unlike the training photographs: 2 % of dev photographs."""
FEATURES = "features"
"""The name of the encoder's output among the maps."""
SHRINKAGE = 0.05
"""λ, as a share of the mean variance."""
MATRIX_NUMBERS = 330_000
"""Most numbers of a matrix of principal components: 128 components of 2 × 1280 channels."""
LEVELS = np.linspace(0, 0.99, 100)
"""The quantiles of dev photographs that are stored."""

Statistics = Mapping[str, np.ndarray]
"""By map, the statistics of its channels, (N, 2C)."""


@dataclass(frozen=True)
class MapDistance:
    """The distance of one map's statistics from those of training photographs.

    Attributes:
        mean: μ, (D,).
        scale: the standard deviation of each number, (D,).
        components: the K principal components, (K, D) float16.
        weights: 1 / (variance + λ) of each component, (K,).
        residual_weight: the same for what the components leave out; 0 if they leave nothing out.
        centre: the mean of log d over dev photographs.
        spread: the standard deviation of log d over dev photographs.
    """

    mean: np.ndarray
    scale: np.ndarray
    components: np.ndarray
    weights: np.ndarray
    residual_weight: float
    centre: float = 0.0
    spread: float = 1.0

    @classmethod
    def fit(cls, train: np.ndarray, dev: np.ndarray) -> MapDistance:
        """Fit to the statistics of training photographs (N, D), and standardise on dev photographs (M, D)."""
        mean, scale = train.mean(axis=0), train.std(axis=0)
        scale = np.where(scale > 1e-6, scale, 1.0)
        scaled = ((train - mean) / scale).astype(np.float64)
        variances, vectors = np.linalg.eigh(scaled.T @ scaled / len(scaled))  # in ascending order
        size = scaled.shape[1]
        count = max(1, min(size, len(scaled) - 1, MATRIX_NUMBERS // size))
        kept, rest = variances[::-1][:count], variances[::-1][count:]
        ridge = SHRINKAGE * variances.mean() + 1e-12
        residual = 0.0 if not len(rest) else 1 / (max(rest.mean(), 0.0) + ridge)
        components = vectors.T[::-1][:count].astype(np.float16)
        raw = cls(mean, scale, components, 1 / (np.maximum(kept, 0) + ridge), residual)
        log_distances = raw(dev)
        return cls(
            mean,
            scale,
            components,
            raw.weights,
            residual,
            float(log_distances.mean()),
            float(log_distances.std()) or 1.0,
        )

    def __call__(self, statistics: np.ndarray) -> np.ndarray:
        """The standardised log distance of N images, (N, D) ↦ (N,)."""
        scaled = (statistics - self.mean) / self.scale
        projected = scaled @ self.components.astype(np.float32).T  # (N, K)
        rest = np.maximum((scaled**2).sum(axis=1) - (projected**2).sum(axis=1), 0)
        distance = (projected**2 * self.weights).sum(axis=1) + rest * self.residual_weight
        return (np.log(distance + 1e-12) - self.centre) / self.spread


@dataclass(frozen=True)
class Familiarity:
    """The familiarity of images to one model.

    Attributes:
        maps: by block, and `FEATURES`, the distance of its statistics.
        quantiles: of the distances of dev photographs, at `LEVELS`.
        tail: the mean excess of dev photographs over the last quantile.
        threshold: images of a lower familiarity are reported.
        about: what it was fitted to: data, numbers of images.
    """

    maps: Mapping[str, MapDistance]
    quantiles: np.ndarray
    tail: float
    threshold: float = THRESHOLD
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(cls, train: Statistics, dev: Statistics, about: dict[str, Any] | None = None) -> Familiarity:
        """Fit to the statistics of training photographs and of dev photographs."""
        maps = {name: MapDistance.fit(values, dev[name]) for name, values in train.items()}
        distances = _mean_distance(maps, dev)
        quantiles = np.quantile(distances, LEVELS)
        excess = distances[distances > quantiles[-1]] - quantiles[-1]
        tail = float(excess.mean()) if len(excess) else 0.0
        return cls(maps, quantiles, tail or 1e-3, about=about or {})

    @property
    def blocks(self) -> tuple[str, ...]:
        """The encoder's blocks whose maps it needs."""
        return tuple(name for name in self.maps if name != FEATURES)

    def distances(self, statistics: Statistics) -> np.ndarray:
        """The distance of N images from the training photographs, (N,)."""
        return _mean_distance(self.maps, statistics)

    def __call__(self, statistics: Statistics) -> np.ndarray:
        """The familiarity of N images, from 0 to 1, (N,)."""
        return self.shares(self.distances(statistics))

    def shares(self, distances: np.ndarray) -> np.ndarray:
        """The share of dev photographs with a larger distance."""
        beyond = np.exp(-np.maximum(distances - self.quantiles[-1], 0) / self.tail)
        return np.interp(distances, self.quantiles, 1 - LEVELS) * beyond

    def save(self, folder: str | Path) -> None:
        """Write it into the folder of its model."""
        tensors = {"quantiles": self.quantiles.astype(np.float32)}
        for name, part in self.maps.items():
            tensors[f"{name} mean"] = part.mean.astype(np.float32)
            tensors[f"{name} scale"] = part.scale.astype(np.float32)
            tensors[f"{name} components"] = np.ascontiguousarray(part.components)
            tensors[f"{name} weights"] = part.weights.astype(np.float32)
            tensors[f"{name} standard"] = np.array([part.residual_weight, part.centre, part.spread], np.float64)
        metadata = {
            "format": FORMAT,
            "model": model_digest(folder),
            "maps": json.dumps(list(self.maps)),
            "tail": repr(self.tail),
            "threshold": repr(self.threshold),
            "about": json.dumps(self.about),
        }
        with whole_file(Path(folder) / FAMILIARITY_FILE) as path:
            save_file(tensors, path, metadata)

    @classmethod
    def read(cls, folder: str | Path, digest: str | None = None) -> Familiarity | None:
        """Read the file of a model's folder; None where it has none. That of another model is refused.

        `digest` is the model's `model_digest`, for a folder that has no weights of its own.
        """
        path = Path(folder) / FAMILIARITY_FILE
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            if metadata.get("format") != FORMAT:
                raise ValueError("its format is that of another version of saywhy")
            familiarity = cls._of(tensors, metadata)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not a familiarity model of saywhy ({error}); delete it or fit it again") from None
        if metadata.get("model") != (digest or model_digest(folder)):
            raise UserError(f"{path}: was fitted to other weights than {WEIGHTS} beside it; delete it or fit it again")
        return familiarity

    @classmethod
    def _of(cls, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Familiarity:
        if not all(np.isfinite(values).all() for values in tensors.values()):
            raise ValueError("a value is not finite")
        maps = {}
        for name in json.loads(metadata["maps"]):
            mean, scale, components, weights = (
                tensors[f"{name} {part}"] for part in ("mean", "scale", "components", "weights")
            )
            if scale.shape != mean.shape or components.shape != (len(weights), len(mean)):
                raise ValueError(f"the shapes of {name} do not fit")
            maps[name] = MapDistance(mean, scale, components, weights, *tensors[f"{name} standard"].tolist())
        threshold, tail = float(metadata["threshold"]), float(metadata["tail"])
        if tensors["quantiles"].shape != LEVELS.shape or not tail > 0 or not 0 <= threshold <= 1:
            raise ValueError("its quantiles or threshold are out of range")
        return cls(maps, tensors["quantiles"], tail, threshold, json.loads(metadata["about"]))


def _mean_distance(maps: Mapping[str, MapDistance], statistics: Statistics) -> np.ndarray:
    return np.mean([part(statistics[name]) for name, part in maps.items()], axis=0)


def model_digest(folder: str | Path) -> str:
    """A hash of the weights in a model's folder and of the settings of its encoder and its preprocessing."""
    config = read_json(Path(folder) / CONFIG)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([config.get(name) for name in ("encoder", "preprocessing")], sort_keys=True).encode())
    with (Path(folder) / WEIGHTS).open("rb") as file:
        digest.update(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest())  # type: ignore[arg-type]
    return digest.hexdigest()
