"""A log-only plant with known dynamics: a vessel under level control, and its exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

NAME = "buffer_vessel"
PERIOD = 10
"""Seconds."""
SLOWER = 600
"""Seconds; with this period, the log of a monitored plant is two weeks long after 2016 steps."""
KP, KI = 0.6, 0.01
"""Gains of the logged controller, in valve per metre and per metre and second."""
MAPPING = """\
process: {name: buffer_vessel, horizon: 120}
period_seconds: 10
layout: wide
columns: {status: null}
tags:
  LI-1: {role: observation, signal: level, unit: m, interpolation: sloped, range: [0, 6], limits: [0.2, 4]}
  FI-2: {role: observation, signal: outflow, unit: 'm3/h', interpolation: sloped}
  LC-1.SP: {role: set_point, signal: level_set_point, unit: m, interpolation: stepped}
  LV-1: {role: action, signal: valve, unit: '1', interpolation: stepped, range: [0, 1]}
reward: {expression: "-((next.level - level_set_point) / quantity(1, 'm')) ** 2", unit: '1'}
episodes: {max_gap_seconds: 60, max_steps: 120}
"""
RUN = """\
plant: buffer_vessel
seed: 0
data: {{mapping: {mapping}, held_out: 0.3}}
train: {{algorithm: bc, updates: 600, seeds: 2, checkpoint_every: 100, hyperparameters: {{hidden: [32]}}}}
evaluate: {{model_updates: 1500, bootstraps: 100, discount: 0.95}}
gates: {{beat_plant: false}}
fallback:
  kind: pid
  loops: [{{action: valve, measured: level, set_point: level_set_point, kp: 0.6, ki: 0.01}}]
approval: {approval}
"""


def follow(level: float, valve: float, outflow: float) -> float:
    """Return the level one period later: `h' = h + 0.3 * 30^(v - 1) - 0.02 q - 0.02 h^1.5`.

    Equal-percentage inlet valve, pump and weir: no linear model fits the whole range.
    """
    return level + 0.3 * 30.0 ** (valve - 1.0) - 0.02 * outflow - 0.02 * max(level, 0.0) ** 1.5


def history(steps: int, seed: int = 0, gain: float = 1.0) -> dict[str, npt.NDArray[np.float64]]:
    """Simulate the logged controller, with set points of an operator and dither on the valve.

    Args:
        steps: number of periods.
        seed: seed of set points, dither and noise.
        gain: gain of the valve; values other than 1 mean drift.
    """
    draw = np.random.default_rng(seed)
    level, set_point, outflow, applied, before = 1.5, 1.5, 1.0, 0.6, 0.0
    rows = np.zeros((steps, 4))
    for k in range(steps):
        if k % 40 == 0:
            set_point = draw.uniform(0.8, 3.2)
        outflow = float(np.clip(outflow + 0.05 * draw.normal() + 0.05 * (1.0 - outflow), 0.2, 2.0))
        error = set_point - level
        applied = float(np.clip(applied + KP * (error - before) + KI * PERIOD * error, 0.0, 1.0))
        valve = float(np.clip(applied + 0.12 * draw.normal(), 0.0, 1.0))
        rows[k] = level, outflow, set_point, valve
        before, applied = error, valve
        level = follow(level, gain * valve, outflow) + 0.002 * draw.normal()
    return dict(zip(("LI-1", "FI-2", "LC-1.SP", "LV-1"), rows.T, strict=True))


def export(
    path: Path,
    steps: int = 3600,
    seed: int = 0,
    gain: float = 1.0,
    start: str = "2026-01-05",
    period: int = PERIOD,
) -> Path:
    """Write a wide CSV export."""
    first = np.datetime64(start, "s")
    stamps = [f"{first + np.timedelta64(period * k, 's')}Z" for k in range(steps)]
    table = {"timestamp": stamps} | {name: values.tolist() for name, values in history(steps, seed, gain).items()}
    pl.DataFrame(table).write_csv(path)
    return path


def project(folder: Path, approval: str = "auto", period: int = PERIOD) -> Path:
    """Write a run's file beside the mapping. With a longer period, the same plant is as many times slower."""
    folder.mkdir(parents=True, exist_ok=True)
    slower = MAPPING.replace(f"period_seconds: {PERIOD}", f"period_seconds: {period}")
    (folder / "mapping.yaml").write_text(slower.replace("max_gap_seconds: 60", f"max_gap_seconds: {6 * period}"))
    config = folder / f"{NAME}-{approval}.yaml"
    text = RUN.format(mapping="mapping.yaml", approval=approval)
    config.write_text(text.replace(f"ki: {KI}", f"ki: {KI * PERIOD / period:.8f}"))
    return config
