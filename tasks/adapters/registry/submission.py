"""What goes into the registry with a candidate, laid out on disk and in rows; nothing here needs MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neorl_core.types import PlantSpec
from tasks.adapters.files.provenance import ROOT, modules_of, source_file

CURVE_POINTS = 200
REQUIREMENTS = ("mlflow", "numpy", "pandas", "jax", "jaxtyping", "flax")


@dataclass(frozen=True)
class Submission:
    """A candidate as it goes into the registry."""

    plant: str
    run_key: str
    """Names the retraining by content (dataset, configuration, code)."""
    digest: str
    """The composite's."""
    bundle: Path
    dataset: Mapping[str, Any]
    """{"digest", "path", "rows", "episodes", ...}."""
    describe: Callable[[str], str]
    """run id -> the version's Markdown description."""
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """metric -> (steps (L,), values (L,))."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Every digest, by its tag's name."""
    artifacts: Mapping[str, Path] = field(default_factory=dict)
    """Folder in the run ("" for its root) or "folder/..." -> local file or folder."""


def loadable_code(folder: Path) -> list[Path]:
    """Copy the code that a model needs into a folder, so that it loads where the project is not installed."""
    shutil.copytree(ROOT / "neorl_core", folder / "neorl_core", ignore=shutil.ignore_patterns("__pycache__"))
    for module in modules_of("tasks.adapters.models.bundle"):
        source = source_file(module)
        copy = folder / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return [folder / name for name in ("neorl_core", "configs", "tasks")]


def example_row(bundle: Path) -> np.ndarray:
    """The first recorded observation (1, O), in physical units."""
    with np.load(bundle / "examples.npz", allow_pickle=False) as examples:
        return np.asarray(examples["observations"][:1], float)


def units(spec: PlantSpec) -> dict[str, str]:
    """The unit of every signal."""
    spaces = (spec.observation, spec.action)
    return {name: unit for space in spaces for name, unit in zip(space.names, space.units, strict=True)}


def curve_points(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Sequence[tuple[str, float, int]]:
    """Learning curves as (metric, value, step), thinned for MLflow's charts."""
    return [
        (key, value, step)
        for key, (steps, values) in curves.items()
        for step, value in _thinned(np.asarray(steps), np.asarray(values))
    ]


def _thinned(steps: np.ndarray, values: np.ndarray) -> Iterator[tuple[int, float]]:
    """At most CURVE_POINTS points, the last among them; MLflow's charts choke on more, the run's folder has all."""
    keep = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), CURVE_POINTS)).round().astype(int))
    for i in keep:
        if np.isfinite(values[i]):
            yield int(steps[i]), float(values[i])
