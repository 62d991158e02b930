"""`neorl ingest FILE --spec SPEC.yaml`: names, units, limits and costs for files of every library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.errors import BadInput
from configs.home import Home
from configs.process import FileSpec
from configs.yaml_files import load_yaml
from tasks.data.formats.exports import export
from tasks.data.formats.sources import SourceOptions
from tasks.data.store.cards.card import read_card
from tasks.ingest import ingest_file
from tests.benchmark_files import Arrays, walk, with_choices, write_d3rlpy, write_d3rlpy_1, write_d4rl, write_dsrl
from tests.small_archives import archive, opened, save

SPEC = """\
name: kettle
period_seconds: 2
horizon: 500
observations:
  pressure: {unit: bar, limits: [-0.5, 0.5]}
  speed: {unit: rpm, range: [-100, 100]}
  level: {}
actions:
  valve: {unit: '%', range: [-2, 2]}
costs:
  surge: {expression: "next.speed - speed - quantity(0.25, 'rpm')", unit: rpm}
"""


def spec_file(folder: Path, text: str = SPEC) -> Path:
    path = folder / "kettle.yaml"
    path.write_text(text)
    return path


def excess_by_hand(arrays: Arrays) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the excess of the pressure over its limits, and of the speed's increase over 0.25 rpm."""
    after = arrays["next_observations"].astype(float)
    gain = after[:, 1] - arrays["observations"][:, 1]
    return np.maximum(np.abs(after[:, 0]) - 0.5, 0), np.maximum(gain - 0.25, 0)


def test_a_spec_gives_names_units_limits_and_costs(tmp_path: Path, home: Path) -> None:
    arrays = walk(200)
    reference = ingest_file(
        Home(home), write_d4rl(tmp_path / "a.hdf5", arrays), SourceOptions(spec=spec_file(tmp_path))
    )
    held = opened(reference)
    assert reference.plant == "kettle"
    assert (held.spec.observation.names, held.spec.observation.units) == (
        ("pressure", "speed", "level"),
        ("bar", "rpm", ""),
    )
    assert (held.spec.action.names, held.spec.action.low, held.spec.action.high) == (("valve",), (-2.0,), (2.0,))
    # Undeclared bounds are derived from the data.
    seen = np.concatenate([arrays["observations"], arrays["next_observations"]])[:, 2]
    assert (held.spec.observation.low[2], held.spec.observation.high[2]) == (seen.min(), seen.max())
    assert (held.spec.observation.low[1], held.spec.dt, held.spec.time_unit, held.spec.horizon) == (-100, 2, "s", 500)
    assert [(limit.name, limit.unit, limit.low, limit.high) for limit in held.spec.constraints] == [
        ("pressure", "bar", -0.5, 0.5),
        ("surge", "rpm", -np.inf, 0.0),
    ]
    rows = held.arrays()
    pressure, surge = excess_by_hand(arrays)
    np.testing.assert_allclose(rows["constraint_costs"], np.stack([pressure, surge], axis=1), atol=1e-6)
    np.testing.assert_array_equal(rows["costs"], (pressure > 0) | (surge > 0))
    assert 0 < rows["costs"].mean() < 1
    assert reference.notes[-2:] == (
        "  costs: excess over each limit, by the formulas of kettle.yaml",
        "  read as kettle: names, units and limits of kettle.yaml",
    )
    card = read_card(held.root, held.digest)
    assert card.limits["pressure"].violated_rows == int((pressure > 0).sum())
    (entry,) = held.manifest.provenance
    assert entry.model_extra is not None
    assert entry.model_extra["declared"]["observations"]["speed"] == {"range": [-100.0, 100.0], "unit": "rpm"}


def test_every_format_accepts_a_spec(tmp_path: Path, home: Path) -> None:
    arrays = walk(200)
    arrays["timeouts"][-1] = True
    spec = spec_file(tmp_path)
    flat = ingest_file(Home(home), write_d4rl(tmp_path / "a.hdf5", arrays), SourceOptions(spec=spec))
    files = [write_d3rlpy(tmp_path / "b.h5", arrays), write_d3rlpy_1(tmp_path / "c.h5", arrays)]
    for to in ("minari", "neorl", "neorl2"):
        export(opened(flat), to, tmp_path / f"{to}-v0")
        files.append(tmp_path / f"{to}-v0")
    for file in files:
        made = opened(ingest_file(Home(tmp_path / "other"), file, SourceOptions(spec=spec)))
        assert made.spec.constraints == opened(flat).spec.constraints, file.name
        assert made.spec.observation.names == ("pressure", "speed", "level"), file.name
        assert "constraint_costs" in made.keys, file.name
    # A file's own costs are kept, and the excess over the limits is added.
    own = opened(ingest_file(Home(home), write_dsrl(tmp_path / "d.hdf5", arrays), SourceOptions(spec=spec))).arrays()
    np.testing.assert_array_equal(own["costs"], arrays["observations"][:, 0] > 1)
    assert own["constraint_costs"].shape == (200, 2)


def test_signals_keep_the_order_of_the_file(tmp_path: Path, home: Path) -> None:
    arrays = walk(200, observations=12, actions=11)
    path = write_d4rl(tmp_path / "a.hdf5", arrays)
    plain = opened(ingest_file(Home(home), path))
    assert plain.spec.observation.names == tuple(f"obs_{i}" for i in range(12))
    order = [f"observation obs_{i}" for i in range(12)] + [f"action action_{i}" for i in range(11)]
    assert list(read_card(plain.root, plain.digest).order) == order
    page = (plain.root / "cards" / f"{plain.digest}.md").read_text()
    assert page.index("| observation obs_2 |") < page.index("| observation obs_10 |")
    names = [f"z{11 - i}" for i in range(12)]
    text = "observations:\n" + "".join(f"  {name}: {{}}\n" for name in names)
    text += "actions:\n" + "".join(f"  u{i}: {{}}\n" for i in range(11))
    made = opened(ingest_file(Home(home), path, SourceOptions(spec=spec_file(tmp_path, text))))
    assert made.spec.observation.names == tuple(names)
    assert made.spec.constraints == ()
    np.testing.assert_array_equal(made.arrays()["observations"], plain.arrays()["observations"])


def test_a_spec_may_declare_a_clock(tmp_path: Path, home: Path) -> None:
    path = write_d4rl(tmp_path / "a.hdf5", walk(100))
    timed = spec_file(tmp_path, SPEC.replace("observations:", "ends: {level: 20}\nobservations:"))
    spec = opened(ingest_file(Home(home), path, SourceOptions(spec=timed))).spec
    assert spec.clock == ("level", 20.0)
    for wrong, message in (
        ("{valve: 1}", "'ends' names 'valve', which is no observation"),
        ("{a: 1, b: 2}", "at most 1 item"),
    ):
        again = SourceOptions(spec=spec_file(tmp_path, SPEC.replace("observations:", f"ends: {wrong}\nobservations:")))
        with pytest.raises(BadInput, match=message):
            ingest_file(Home(home), path, again)


def test_a_spec_names_choices(tmp_path: Path, home: Path) -> None:
    text = SPEC.replace("valve: {unit: '%', range: [-2, 2]}", "gear: {choices: [idle, low, high, reverse]}")
    arrays = with_choices(walk(100), 3)
    held = opened(
        ingest_file(Home(home), write_d3rlpy(tmp_path / "a.h5", arrays), SourceOptions(spec=spec_file(tmp_path, text)))
    )
    assert (held.spec.action.names, held.spec.choices) == (("gear",), ("idle", "low", "high", "reverse"))
    card = read_card(held.root, held.digest)
    shares = np.bincount(held.arrays(["actions"])["actions"][:, 0], minlength=4) / held.rows
    assert [card.choices[name] for name in ("idle", "low", "high", "reverse")] == pytest.approx(shares.tolist())
    assert "Choice 'reverse' is never taken: its effect cannot be learned." in card.cannot_learn
    fewer = text.replace("idle, low, high, reverse", "idle, low")
    with pytest.raises(BadInput, match="but the log's actions are continuous"):
        ingest_file(
            Home(home), write_d4rl(tmp_path / "b.hdf5", walk(100)), SourceOptions(spec=spec_file(tmp_path, fewer))
        )
    with pytest.raises(BadInput, match="but the log's action is discrete"):
        ingest_file(Home(home), write_d3rlpy(tmp_path / "a.h5", arrays), SourceOptions(spec=spec_file(tmp_path)))


WRONG = [
    (("speed:", "pressure:"), "pressure"),
    (
        ("  level: {}\n", ""),
        r"the log has 3 observation\(s\), but 2 are declared: pressure, speed: correct kettle.yaml",
    ),
    (("unit: bar", "unit: baar"), "did you mean 'bar'"),
    (("limits: [-0.5, 0.5]", "limits: [0.5, -0.5]"), "the first bound must be below the second, got .0.5, -0.5."),
    (("limits:", "limit:"), "limit"),
    (("next.speed - speed", "next.sped - speed"), "cost surge: unknown signal 'next.sped': choose from pressure"),
    (("- quantity(0.25, 'rpm')", "- quantity(1, 'bar')"), "mixes a frequency and a pressure"),
    (("surge:", "pressure:"), "'pressure' is the name of a limit and of a cost"),
    (("name: kettle", "name: double_mass"), "declares double_mass, the name of a built-in plant"),
    (("valve: {unit: '%',", "valve: {choices: [a, b],"), "cannot also have a unit or a range"),
    (("valve: {unit: '%', range: [-2, 2]}", "valve: {choices: [a, a]}"), "have a duplicate"),
    (("actions:", "actions:\n  other: {choices: [a, b]}"), "a discrete action must be the only action"),
    (("period_seconds: 2", "period_seconds: 0"), "period_seconds"),
    (("observations:", "obs:"), "observations"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_invalid_specs_are_refused(tmp_path: Path, home: Path, change: tuple[str, str], message: str) -> None:
    path = write_d4rl(tmp_path / "a.hdf5", walk(60))
    with pytest.raises(BadInput, match=message) as error:
        ingest_file(Home(home), path, SourceOptions(spec=spec_file(tmp_path, SPEC.replace(*change, 1))))
    assert "\n" not in str(error.value)
    assert not list(home.rglob("manifests/*"))


def test_a_spec_excludes_a_plant(tmp_path: Path, home: Path) -> None:
    path = save(tmp_path / "a.npz", archive())
    with pytest.raises(BadInput, match=r"--plant double_mass and --spec kettle\.yaml cannot be used together"):
        ingest_file(Home(home), path, SourceOptions("double_mass", spec=spec_file(tmp_path)))
    with pytest.raises(BadInput, match="the log has 6 observation"):
        ingest_file(Home(home), path, SourceOptions(spec=spec_file(tmp_path)))


def test_examples_of_the_docs_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "how-to" / "import-datasets.md").read_text()
    for block in page.split("```yaml\n")[1:]:
        load_yaml(spec_file(tmp_path, block.split("```")[0]), FileSpec)
