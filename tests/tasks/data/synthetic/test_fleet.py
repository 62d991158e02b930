"""Generated fleets: constants within the spread, logs of each site's simulator, reproducible bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from configs.errors import BadInput
from configs.load import load_fleet, site_logs
from neorl_core.plants import PLANTS
from tasks.data.synthetic.fleet import make_fleet
from tasks.models.plants.known import plant_of
from tasks.models.plants.opening import mapping_of, open_run

CONFIGS = Path(__file__).parents[4] / "configs"
HOUR = 1 / (7 * 24)


def made(folder: Path, sites: int = 2, broken: int = 0) -> Path:
    found = make_fleet(folder, CONFIGS / "chemical_reactor.yaml", sites, broken=broken, weeks=6 * HOUR)
    return found.path


def test_sites_differ_within_the_spread(tmp_path: Path) -> None:
    path = made(tmp_path / "reactors", 3, broken=1)
    fleet, nominal = load_fleet(path), PLANTS["chemical_reactor"].params
    shares = [
        value / getattr(nominal, name) - 1.0
        for site in fleet.sites.values()
        if site is not None
        for name, value in site.constants.items()
    ]
    assert len(set(shares)) == 6
    assert max(map(abs, shares)) <= 0.03
    runs = [open_run(f"{path}#{site}") for site in fleet.sites]
    assert [run.plant for run in runs] == ["reactors_site_01", "reactors_site_02", "reactors_site_03"]
    assert {mapping.subject for run in runs if (mapping := mapping_of(run))} == {"chemical_reactor"}
    for run in runs:
        assert run.site is not None
        assert plant_of(run).simulator().params.cooling_rate == run.site.constants["cooling_rate"]
    logs = [Path(site_logs(path, site)[0]) for site in fleet.sites]
    one, other = (pl.read_parquet(log) for log in logs[:2])
    assert not one.equals(other)
    with pytest.raises(pl.exceptions.ComputeError, match="end with PAR1"):
        pl.read_parquet(logs[2])


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a" / "reactors"), made(tmp_path / "b" / "reactors")
    names = sorted(path.relative_to(first.parent) for path in first.parent.rglob("*") if path.is_file())
    assert len(names) == 6
    assert all((first.parent / name).read_bytes() == (second.parent / name).read_bytes() for name in names)


def test_plants_without_varying_constants_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no constant of double_mass varies"):
        make_fleet(tmp_path / "masses", CONFIGS / "double_mass.yaml", 2)
    with pytest.raises(BadInput, match="is not a numeric constant"):
        make_fleet(tmp_path / "reactors", CONFIGS / "chemical_reactor.yaml", 2, constants=("volume",))


def test_sites_of_other_plants_have_episodes(tmp_path: Path) -> None:
    from tasks.data.formats.sources import recognise

    found = make_fleet(tmp_path / "masses", CONFIGS / "double_mass.yaml", 1, constants=("stiffness",), episodes=2)
    (log,) = site_logs(found.path, "site_01")
    assert recognise(Path(log), None).rows >= 2
    assert np.isfinite(next(iter(load_fleet(found.path).sites.values())).constants["stiffness"])  # type: ignore[union-attr]
