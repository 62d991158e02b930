"""The cases of other libraries' files: d3rlpy, discrete actions, and wrong specifications."""

from __future__ import annotations

import io
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from benchmarks.nasty.tables import ROWS, Case, parquet, refused, sheet, stamped, table

Arrays = dict[str, npt.NDArray[Any] | int | str]
SPEC = """\
name: kettle
observations:
  temperature: {unit: degC, limits: [null, 80]}
  pressure: {unit: bar}
actions:
  valve: {range: [0, 1]}
"""
EPISODE = 60


def hdf5(arrays: Arrays) -> bytes:
    """Return an HDF5 file."""
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for key, values in arrays.items():
            file[key] = values
    return image.getvalue()


def flat(**changed: npt.NDArray[Any]) -> Arrays:
    """Return the log as d3rlpy 1 writes it, in episodes of an hour."""
    held = table()
    ends = (np.arange(ROWS) % EPISODE == EPISODE - 1).astype(np.float32)
    return {
        "observations": held.select("T", "P").to_numpy().astype(np.float32),
        "actions": held.select("V").to_numpy().astype(np.float32),
        "rewards": -held["T"].to_numpy().astype(np.float32),
        "terminals": np.zeros(ROWS, np.float32),
        "episode_terminals": ends,
        **changed,
    }


def dumped(**changed: npt.NDArray[Any] | int) -> Arrays:
    """Return the log as d3rlpy 2 writes it, with separate arrays for each episode."""
    whole, found = flat(), dict[str, Any](num_episodes=ROWS // EPISODE, columns="observations", version="2.1")
    for i in range(ROWS // EPISODE):
        rows = slice(EPISODE * i, EPISODE * (i + 1))
        found |= {f"{key}_{i}": np.asarray(whole[key])[rows] for key in ("observations", "actions", "rewards")}
        found[f"terminated_{i}"] = False
    return {**found, **changed}


def chosen(choices: int = 3) -> npt.NDArray[np.int64]:
    """Return random choices."""
    return np.arange(ROWS, dtype=np.int64) % choices


def log(name: str, about: str, arrays: Arrays, says: str = "rows read", spec: str | None = None) -> Case:
    """Return a case of transitions that becomes a dataset."""
    return Case(name, about, {name: hdf5(arrays)}, None, says, refused=False, spec=spec)


def wrong(name: str, about: str, arrays: Arrays, says: str, spec: str | None = None) -> Case:
    """Return a case of transitions that is refused."""
    return Case(name, about, {name: hdf5(arrays)}, None, says, refused=True, spec=spec)


def foreign() -> list[Case]:
    """Return files of other libraries, and unsuitable tables."""
    parts: Arrays = {key: values for key, values in dumped().items() if key != "observations_0"}
    spoilt = np.asarray(flat()["observations"]).copy()
    spoilt[100, 0] = np.nan
    return [
        log("d3rlpy.h5", "a buffer of d3rlpy 2", dumped(), "4 lost: no next observation"),
        log("d3rlpy-1.h5", "a dataset of d3rlpy 1", flat(), "4 lost: no next observation"),
        log(
            "d3rlpy-nan.h5",
            "a dataset of d3rlpy 1 with a NaN",
            flat(observations=spoilt),
            "NaN or infinity in observations .1",
        ),
        wrong(
            "d3rlpy-parts.h5", "observations of several parts", parts | {"observations_0_0": np.ones((60, 2))}, "parts"
        ),
        wrong(
            "d3rlpy-images.h5",
            "image observations",
            dumped(observations_0=np.zeros((60, 8, 8, 1), np.uint8)),
            "60, 8, 8, 1",
        ),
        wrong(
            "d3rlpy-short.h5",
            "an episode with too few actions",
            dumped(actions_2=np.zeros((9, 1))),
            "for each of 60 steps",
        ),
        wrong("d3rlpy-many.h5", "fewer episodes than declared", dumped(num_episodes=9), "observations_4"),
        wrong("frame.h5", "a table in HDF5", {"df/values": np.ones((9, 3))}, "D4RL, DSRL, d3rlpy, Minari .*neorl init"),
        refused("unmapped.parquet", "a table without a mapping", parquet(stamped()), "neorl init --from", None),
        refused(
            "unmapped.xlsx",
            "a workbook without a mapping",
            sheet([table().columns, *table().rows()]),
            "init --from",
            None,
        ),
    ]


def discrete() -> list[Case]:
    """Return discrete actions."""
    return [
        log("choices.h5", "a discrete action with three choices", flat(actions=chosen().astype(np.int32))),
        wrong(
            "choices-two.h5", "two discrete actions", flat(actions=np.stack([chosen(), chosen()], 1)), "as one number"
        ),
        wrong("choices-many.h5", "4,003 distinct integer actions", flat(actions=chosen() + 4000), "1,000"),
        wrong("choices-bool.h5", "boolean actions", flat(actions=chosen(2) == 1), "as one number"),
        wrong(
            "choices-none.h5",
            "many invalid choices",
            flat(actions=chosen(3) - 1),
            "actions.action_0 is not a choice of 0..1",
        ),
    ]


def declared() -> list[Case]:
    """Return file specifications beside a file of transitions."""
    gear = SPEC.replace("valve: {range: [0, 1]}", "gear: {choices: [idle, low, high]}")
    acted = flat(actions=chosen())
    return [
        log("spec.h5", "a complete specification", flat(), spec=SPEC),
        log("spec-choices.h5", "a specification with choices", acted, spec=gear),
        wrong(
            "spec-few.h5",
            "a specification with a missing signal",
            flat(),
            "2 observation",
            SPEC.replace("  pressure", "  #"),
        ),
        wrong("spec-unit.h5", "an unknown unit", flat(), "did you mean 'bar'", SPEC.replace("bar", "baar")),
        wrong("spec-key.h5", "an unknown key", flat(), "limits", SPEC.replace("limits", "limts")),
        wrong("spec-turned.h5", "reversed bounds", flat(), "spec.yaml, line", SPEC.replace("[0, 1]", "[1, 0]")),
        wrong("spec-gear.h5", "choices for a continuous action", flat(), "continuous", gear),
        wrong("spec-valve.h5", "a range for a discrete action", acted, "discrete", SPEC),
        wrong(
            "spec-cost.h5",
            "a cost with an unknown signal",
            flat(),
            "cost hot: unknown signal",
            SPEC + 'costs: {hot: {expression: "heat", unit: "1"}}\n',
        ),
    ]
