"""The cases of other libraries' files: d3rlpy's, discrete actions, and specs that do not fit."""

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
    """An HDF5 file."""
    image = io.BytesIO()
    with h5py.File(image, "w") as file:
        for key, values in arrays.items():
            file[key] = values
    return image.getvalue()


def flat(**changed: npt.NDArray[Any]) -> Arrays:
    """The sound log as d3rlpy 1 dumps it, in episodes of an hour."""
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
    """The same as d3rlpy 2 dumps it: the arrays of each episode by themselves."""
    whole, found = flat(), dict[str, Any](num_episodes=ROWS // EPISODE, columns="observations", version="2.1")
    for i in range(ROWS // EPISODE):
        rows = slice(EPISODE * i, EPISODE * (i + 1))
        found |= {f"{key}_{i}": np.asarray(whole[key])[rows] for key in ("observations", "actions", "rewards")}
        found[f"terminated_{i}"] = False
    return {**found, **changed}


def chosen(choices: int = 3) -> npt.NDArray[np.int64]:
    """Numbers of choices, all of which are taken."""
    return np.arange(ROWS, dtype=np.int64) % choices


def log(name: str, about: str, arrays: Arrays, says: str = "rows read", spec: str | None = None) -> Case:
    """A case of transitions that becomes a dataset."""
    return Case(name, about, {name: hdf5(arrays)}, None, says, refused=False, spec=spec)


def wrong(name: str, about: str, arrays: Arrays, says: str, spec: str | None = None) -> Case:
    """A case of transitions that becomes a sentence."""
    return Case(name, about, {name: hdf5(arrays)}, None, says, refused=True, spec=spec)


def foreign() -> list[Case]:
    """Files of other libraries, and tables that are no log."""
    parts: Arrays = {key: values for key, values in dumped().items() if key != "observations_0"}
    spoilt = np.asarray(flat()["observations"]).copy()
    spoilt[100, 0] = np.nan
    return [
        log("d3rlpy.h5", "a buffer that d3rlpy 2 dumped", dumped(), "4 lost: no next observation"),
        log("d3rlpy-1.h5", "a dataset that d3rlpy 1 dumped", flat(), "4 lost: no next observation"),
        log("d3rlpy-nan.h5", "the same with a NaN", flat(observations=spoilt), "NaN or infinity in observations .1"),
        wrong(
            "d3rlpy-parts.h5", "observations of several parts", parts | {"observations_0_0": np.ones((60, 2))}, "parts"
        ),
        wrong("d3rlpy-images.h5", "images", dumped(observations_0=np.zeros((60, 8, 8, 1), np.uint8)), "is no vector"),
        wrong(
            "d3rlpy-short.h5", "an episode of fewer actions", dumped(actions_2=np.zeros((9, 1))), "for each of 60 steps"
        ),
        wrong("d3rlpy-many.h5", "more episodes promised", dumped(num_episodes=9), "observations_4"),
        wrong("frame.h5", "a table in HDF5", {"df/values": np.ones((9, 3))}, "D4RL, DSRL, d3rlpy, Minari .*neorl init"),
        refused("unmapped.parquet", "a table without a mapping", parquet(stamped()), "neorl init --from", None),
        refused(
            "unmapped.xlsx", "a workbook without one", sheet([table().columns, *table().rows()]), "init --from", None
        ),
    ]


def discrete() -> list[Case]:
    """Actions that are choices."""
    return [
        log("choices.h5", "a discrete action of three choices", flat(actions=chosen().astype(np.int32))),
        wrong(
            "choices-two.h5", "two discrete actions", flat(actions=np.stack([chosen(), chosen()], 1)), "as one number"
        ),
        wrong("choices-many.h5", "readings of a converter", flat(actions=chosen() + 4000), "1 to 1,000 choices"),
        wrong("choices-bool.h5", "switches", flat(actions=chosen(2) == 1), "discrete action of integers"),
        wrong(
            "choices-none.h5",
            "most actions below the first choice",
            flat(actions=chosen(3) - 1),
            "actions.action_0 is not a choice of 0..1",
        ),
    ]


def declared() -> list[Case]:
    """Specs beside a file of transitions."""
    gear = SPEC.replace("valve: {range: [0, 1]}", "gear: {choices: [idle, low, high]}")
    acted = flat(actions=chosen())
    return [
        log("spec.h5", "a spec that names all", flat(), spec=SPEC),
        log("spec-choices.h5", "a spec that names choices", acted, spec=gear),
        wrong("spec-few.h5", "a signal too few", flat(), "expected 2 observation", SPEC.replace("  pressure", "  #")),
        wrong("spec-unit.h5", "a unit that does not exist", flat(), "did you mean 'bar'", SPEC.replace("bar", "baar")),
        wrong("spec-key.h5", "a key that does not exist", flat(), "limits", SPEC.replace("limits", "limts")),
        wrong("spec-turned.h5", "bounds in the wrong order", flat(), "low bound", SPEC.replace("[0, 1]", "[1, 0]")),
        wrong("spec-gear.h5", "choices of a continuous action", flat(), "but the log's actions are continuous", gear),
        wrong("spec-valve.h5", "a range of a discrete action", acted, "but the log's action is discrete", SPEC),
        wrong(
            "spec-cost.h5",
            "a cost of an unknown signal",
            flat(),
            "cost hot: unknown signal",
            SPEC + 'costs: {hot: {expression: "heat", unit: "1"}}\n',
        ),
    ]
