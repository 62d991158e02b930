"""Effects of mappings: stale values, derived quantities, rewards, limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from configs.errors import BadInput
from configs.home import Home
from configs.mapping import converted
from configs.process import described_spec
from configs.run import Data, OpenedRun
from neorl_core.types import Constraint
from tasks.data.store.reader import StoredDataset
from tasks.ingest import ingest
from tests.small_tank import MAPPING, STEPS, long, mapping, read, wide
from tests.tasks.data.historian.whole import read_historian


def test_values_become_stale_by_the_limit_of_the_tag(tmp_path: Path) -> None:
    frame = long().filter((pl.col("tag") != "FV-3") | (pl.col("value") < 5) | (pl.col("value") >= 20))
    frame = frame.filter((pl.col("tag") != "LI-1") | (pl.col("value") < 110) | (pl.col("value") >= 113))
    frame.write_parquet(tmp_path / "gaps.parquet")
    tags = MAPPING["tags"]
    # The valve holds from 40 s to 200 s, the level is interpolated over 40 s: too far by default.
    assert read(tmp_path / "gaps.parquet").account.gap == 4
    longer = tags | {"LI-1": tags["LI-1"] | {"stale_seconds": 40}}
    assert read(tmp_path / "gaps.parquet", tags=longer).account.gap == 0
    shorter = longer | {"FV-3": tags["FV-3"] | {"stale_seconds": 60}}
    # Steps whose middle lies more than 60 s after 40 s and before 200 s: those from 100 to 190 s.
    log = read(tmp_path / "gaps.parquet", tags=shorter)
    assert log.account.gap == 10
    assert sorted(set(range(STEPS - 1)) - set(log.rows["numbers"].tolist())) == list(range(10, 20))


def test_derived_quantities_rewards_and_limits(tmp_path: Path) -> None:
    long().write_parquet(tmp_path / "long.parquet")
    changed: dict[str, Any] = {
        "derived": {
            # The head over a pipe of 0.5 m: in cm, so that its limit is.
            "head": {"expression": "level - quantity(0.5, 'm')", "unit": "cm", "limits": [None, 60.5]},
            "power": {"expression": "inflow * head * quantity(9810, 'N/m3')", "unit": "W", "role": "input"},
        },
        "reward": {
            "expression": "-next.power / quantity(1, 'W') + level / quantity(1, 'm') - valve",
            "unit": "1",
        },
        "episodes": MAPPING["episodes"] | {"end_at_trip": True},
    }
    it = mapping(**changed)
    spec = described_spec(it)
    assert spec.observation.names == ("level", "head")
    assert spec.observation.units == ("m", "cm")
    assert [(c.name, c.unit, c.high) for c in spec.constraints] == [("head", "cm", 60.5)]
    log = read(tmp_path / "long.parquet", **changed)
    # The head is above 60.5 cm from step 11 on, whose beginning is outside.
    assert log.rows["numbers"].tolist() == list(range(11))
    k = np.arange(11)
    level = 1.0 + k / 100
    np.testing.assert_allclose(log.rows["observations"], np.stack([level, 50.0 + k], axis=1), rtol=1e-12)
    reward = -0.005 * (level + 0.01 - 0.5) * 9810 + level - k / 100
    np.testing.assert_allclose(log.rows["rewards"], reward, rtol=1e-6)
    np.testing.assert_allclose(log.rows["constraint_costs"][:, 0], [0] * 10 + [0.5], atol=1e-5)
    assert log.rows["terminals"].tolist() == [False] * 10 + [True]


def test_derived_quantities_without_a_value_are_rejected(tmp_path: Path) -> None:
    # Zero inflow at 70 and 80 s makes the quotient infinite; from 200 to 230 s no inflow is archived.
    k = np.arange(STEPS)
    inflow = pl.Series(np.where((k == 7) | (k == 8), 0.0, 5.0)).set(pl.Series((k >= 20) & (k <= 23)), None)
    frame = long(wide().with_columns(inflow.alias("FI-2"))).drop_nulls("value")
    frame.write_parquet(tmp_path / "quotient.parquet")
    derived = {
        "specific": {"expression": "level / inflow", "unit": "m*s/L"},
        "twice": {"expression": "2 * specific", "unit": "m*s/L"},
    }
    log = read(tmp_path / "quotient.parquet", derived=derived)
    # A step needs signals at both ends.
    rejected = log.rows["numbers"][log.rows["rejected"] != ""].tolist()
    assert rejected == [6, 7, 8]
    assert set(log.rows["rejected"][[6, 7, 8]]) == {"derived specific is not finite"}
    assert sorted(set(range(STEPS - 1)) - set(log.rows["numbers"].tolist())) == [19, 20, 21, 22, 23]
    assert (log.account.rows, log.account.rejected, log.account.gap) == (STEPS - 1 - 3 - 5, 3, 5)


def test_a_mapping_may_declare_a_clock() -> None:
    batches = MAPPING["process"] | {"ends": {"level": 2.0}}
    assert described_spec(mapping(process=batches)).clock == ("level", 2.0)
    assert described_spec(mapping()).clock is None
    with pytest.raises(ValueError, match="'ends' names 'valve', which is no observation"):
        described_spec(mapping(process=batches | {"ends": {"valve": 2.0}}))


def test_the_clock_ends_episodes(tmp_path: Path) -> None:
    long().write_parquet(tmp_path / "long.parquet")
    plain = read(tmp_path / "long.parquet").rows
    seen = plain["next_observations"][:, 0]
    batches = MAPPING["process"] | {"ends": {"level": float(seen[4])}}
    cut = read(tmp_path / "long.parquet", process=batches).rows
    np.testing.assert_array_equal(cut["timeouts"], plain["timeouts"] | (np.abs(seen - seen[4]) < 1e-6))
    assert cut["timeouts"][4]
    assert not plain["timeouts"][4]
    # The clock ends the episode without a trip, so that the record has a timeout.
    assert not cut["terminals"].any()


def test_limited_quantities_must_be_measured_or_derived(tmp_path: Path) -> None:
    long().write_parquet(tmp_path / "long.parquet")
    spec = described_spec(mapping())
    limited = spec._replace(constraints=(Constraint("inflow", "L/s", 0.0, 4.0),))
    log = read_historian(tmp_path / "long.parquet", mapping(), limited, None)
    np.testing.assert_allclose(log.rows["constraint_costs"], 1.0)
    # Actions are known at the middle of a step, and limits are checked at both ends.
    for name in ("valve", "pressure"):
        limited = spec._replace(constraints=(Constraint(name, "1", 0.0, 1.0),))
        with pytest.raises(BadInput, match=f"plant tank has a limit for '{name}', which the mapping neither measures"):
            read_historian(tmp_path / "long.parquet", mapping(), limited, None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"reward": {"expression": "level + valve", "unit": "1"}},
            "mixes a length and a ratio",
        ),
        ({"reward": {"expression": "pressure", "unit": "1"}}, "reward: unknown signal"),
        ({"derived": {"x": {"expression": "level", "unit": "K"}}}, "derived x: 'level' must be a temperature"),
        ({"derived": {"x": {"expression": "valve", "unit": "1"}}}, "derived x: unknown signal"),
    ],
)
def test_invalid_formulas_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    long().write_parquet(tmp_path / "long.parquet")
    with pytest.raises(BadInput, match=message):
        read(tmp_path / "long.parquet", **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"plant": "kettle"}, "the mapping has both 'plant' and 'process'"),
        ({"process": None}, "the mapping has neither 'plant' nor 'process'"),
        ({"reward": None}, "has no 'reward'"),
        ({"derived": {"level": {"expression": "inflow", "unit": "L/s"}}}, "signal 'level' occurs twice"),
    ],
)
def test_a_mapping_describes_one_plant(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mapping(**changed)


HEAD = {"expression": "level - quantity(0.5, 'm')", "unit": "cm"}
MODE = {"role": "mode", "interpolation": "stepped", "running": [1]}


@pytest.mark.parametrize(
    ("tag", "changed", "message"),
    [
        ("LI-1", {"limits": [90, 20]}, "the first bound must be below the second, got [90, 20]: correct them"),
        ("LI-1", {"range": [150, 0]}, "the first bound must be below the second, got [150, 0]: correct them"),
        ("LI-1", {"alarms": [7, 7]}, "the first bound must be below the second, got [7, 7]: correct them"),
        (
            "XS-4",
            MODE | {"limits": [0, 1]},
            "role mode cannot have 'limits', only a measured signal can: delete 'limits'",
        ),
        ("FV-3", {"limits": [0, 50]}, "only a measured signal can: delete 'limits', or use 'range'"),
    ],
)
def test_invalid_bounds_are_refused(tag: str, changed: dict[str, Any], message: str) -> None:
    tags = MAPPING["tags"] | {tag: MAPPING["tags"].get(tag, {}) | changed}
    with pytest.raises(ValueError, match=re.escape(message)):
        mapping(tags=tags)


def test_bounds_of_derived_quantities_are_checked() -> None:
    head = HEAD | {"limits": [60, None]}
    assert described_spec(mapping(derived={"head": head})).constraints == (Constraint("head", "cm", 60.0, np.inf),)
    with pytest.raises(ValueError, match=r"first bound must be below the second, got \[60, 0\]: correct them"):
        mapping(derived={"head": head | {"limits": [60, 0]}})


def test_negative_scales_swap_the_bounds() -> None:
    # The conversion v -> 1 - 2 v maps [20, 90] to [-179, -39], and an open upper side to an open lower one.
    assert converted((20.0, 90.0), -2.0, 1.0) == (-179.0, -39.0)
    assert converted((20.0, None), -2.0, 1.0) == (-np.inf, -39.0)
    assert converted((None, 90.0), -2.0, 1.0) == (-179.0, np.inf)


@pytest.mark.parametrize("where", ["tags", "derived"])
def test_limits_for_a_simulated_plant_are_refused(where: str) -> None:
    limits = {"limits": [0, 60]}
    given = {"LI-1": MAPPING["tags"]["LI-1"] | limits} if where == "tags" else {"x": HEAD | limits}
    changed = {where: MAPPING[where] | given if where in MAPPING else given}
    assert mapping(**changed).process is not None
    message = f"'{next(iter(given))}' has 'limits', but a simulated plant has limits already"
    with pytest.raises(ValueError, match=re.escape(message)):
        mapping(plant="chemical_reactor", process=None, **changed)


def test_a_tag_cannot_be_mapped_and_ignored() -> None:
    message = "tag 'FI-2' is under 'tags' and under 'ignore': delete one of the two"
    with pytest.raises(ValueError, match=message):
        mapping(ignore=["X", "FI-2"])
    # A pattern matches only tags without a role.
    assert mapping(ignore=["F*"]).ignores("FX-9")


@pytest.mark.parametrize("layout", ["long", "wide"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_tag_may_be_ignored_twice(tmp_path: Path, layout: str, suffix: str) -> None:
    frame = wide().with_columns(X=pl.lit(7.0))
    if layout == "long":
        others = frame.select("timestamp", tag=pl.lit("X"), value=pl.col("X"), status=pl.lit(0, pl.UInt32))
        frame = pl.concat([long(), others]).sort("timestamp")
    path = tmp_path / f"log.{suffix}"
    frame.write_parquet(path) if suffix == "parquet" else frame.write_csv(path)
    columns = {"status": "status" if layout == "long" else None}
    log = read(path, layout=layout, columns=columns, ignore=["X", "X"])
    assert log.account.rows == STEPS - 1
    assert log.account.raw.ignored == (STEPS if layout == "long" else 0)


def test_ingesting_the_log_of_a_log_only_plant(tmp_path: Path, home: Path) -> None:
    from ruamel.yaml import YAML

    frame = long().with_columns(value=pl.when(pl.col("value") == 107.0).then(9e9).otherwise("value"))
    frame.write_parquet(tmp_path / "long.parquet")
    tags = MAPPING["tags"] | {"LI-1": MAPPING["tags"]["LI-1"] | {"range": [0, 300]}}
    file = tmp_path / "mapping.yaml"
    with file.open("w") as stream:
        YAML(typ="safe").dump(MAPPING | {"tags": tags}, stream)
    run = OpenedRun(plant="tank", data=Data(mapping=file))
    reference = ingest(Home(home), run, [tmp_path / "long.parquet"])
    held = StoredDataset.open(reference.store, reference.digest)
    held.verify()
    assert held.rows == STEPS - 1
    (part,) = held.manifest.provenance[0].sources[0].raw_quarantine
    kept = pl.read_parquet(held.root / part.file).to_dicts()
    assert [(row["row"], row["reason"]) for row in kept] == [(21, "value is outside the instrument's range")]
    assert ingest(Home(home), run, [tmp_path / "long.parquet"]) == reference
    (held.root / part.file).write_bytes(b"")
    assert ingest(Home(home), run, [tmp_path / "long.parquet"]) == reference
    held.verify()
    with pytest.raises(BadInput, match="describe the plant under 'process' in a mapping"):
        ingest(Home(home), OpenedRun(plant="tonk"), [tmp_path / "long.parquet"])
