"""Generate a fleet: sites of a simulated plant with different constants, a log for each site, and the fleet file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from configs.code import Site, SiteOf
from configs.errors import BadInput
from configs.load import load_fleet
from configs.yaml_files import read_yaml
from tasks.data.store.records import Record
from tasks.data.synthetic.reactor_history import HISTORIES
from tasks.files.canonical import make_folder, write_atomic
from tasks.models.plants.known import KnownPlant, plant_of, plant_of_site
from tasks.models.plants.opening import open_run

FILE = "fleet.yaml"
MAPPING = "mapping.yaml"
FOLDER = "{site}"
"""Folder of a site's log, beside the fleet file."""
EPISODES = 60
"""Episodes per site, for plants without a historian export."""
WEEKS = 0.5
HEAD = "# A generated fleet: {sites} sites of {plant}, whose constants differ by up to {spread:g} %.\n"


class GeneratedFleet(Record):
    fleet: str
    plant: str
    path: Path
    sites: tuple[str, ...]
    broken: tuple[str, ...]
    constants: tuple[str, ...]


def make_fleet(
    folder: Path,
    like: Path,
    sites: int = 20,
    *,
    spread: float = 0.03,
    broken: int = 0,
    constants: tuple[str, ...] = (),
    seed: int = 0,
    weeks: float = WEEKS,
    episodes: int = EPISODES,
    progress: Callable[[int, int, str], None] | None = None,
) -> GeneratedFleet:
    """Write a fleet file and a log for each site; equal arguments give equal bytes.

    Each constant is drawn uniformly from 1 - `spread` to 1 + `spread` times the plant's value.

    Args:
        folder: created if missing; the fleet gets the folder's name.
        like: a run file of the plant; all sites use its settings.
        spread: largest relative difference of a constant from the plant's value.
        broken: number of sites with a truncated log, to test failures; the last sites are taken.
        constants: names of the constants that differ; by default, the constants that vary in the operating domain.
        weeks: length of each log of a reactor in weeks.
        episodes: episodes in each log of any other plant.

    Raises:
        BadInput: the plant has no simulator or is defined in a project, or the disk is full.
    """
    from neorl_core.plants.site import varied_constants

    run = open_run(like)
    known = plant_of(run)
    plant, value = known.simulator(), read_yaml(like)
    if known.code:
        raise BadInput(f"{known.name} in {like} is not a plant of NeoRL: write the fleet file of your plant yourself.")
    varied = constants or varied_constants(plant)
    if not varied:
        raise BadInput(f"no constant of {known.name} varies in its operating domain: name some by --constant.")
    make_folder(folder)
    if run.data.mapping is not None:
        write_atomic(folder / MAPPING, run.data.mapping.read_bytes())
        value["data"] = {**value["data"], "mapping": MAPPING}
    as_history = known.name in HISTORIES and run.data.mapping is not None
    value["logs"] = [f"{FOLDER}/{'historian.parquet' if as_history else 'episodes.hdf5'}"]
    names = [f"site_{number:02d}" for number in range(1, sites + 1)]
    drawn = np.random.default_rng([seed, sites]).uniform(-spread, spread, (sites, len(varied)))
    value["sites"] = {
        name: {"constants": _constants(plant.params, varied, shares)} for name, shares in zip(names, drawn, strict=True)
    }
    head = HEAD.format(sites=sites, plant=known.name, spread=100 * spread)
    write_atomic(folder / FILE, (head + _yaml({"fleet": folder.name, **value})).encode())
    load_fleet(folder / FILE)
    cut = tuple(names[len(names) - broken :]) if broken else ()
    for number, name in enumerate(names):
        site = Site(name=f"{folder.name}_{name}", constants=value["sites"][name]["constants"])
        at = plant_of_site(SiteOf(site=site, plant=known.name))
        log = _log(at, folder / name, seed + number, weeks if as_history else None, episodes)
        if name in cut:
            data = log.read_bytes()
            log.write_bytes(data[: len(data) // 2])
        if progress:
            progress(number + 1, sites, "sites")
    return GeneratedFleet(
        fleet=folder.name, plant=known.name, path=folder / FILE, sites=tuple(names), broken=cut, constants=tuple(varied)
    )


def _constants(params: Any, names: tuple[str, ...], shares: np.ndarray) -> dict[str, float]:
    """Return a site's constants, rounded to seven digits; `shares` are the relative changes of the plant's values."""
    known = params._asdict()
    for name in names:
        if name not in known or not isinstance(known[name], int | float):
            raise BadInput(f"'{name}' is not a numeric constant: choose from {', '.join(known)}.")
    return {name: float(f"{known[name] * (1 + share):.7g}") for name, share in zip(names, shares, strict=True)}


def _log(site: KnownPlant, folder: Path, seed: int, weeks: float | None, episodes: int) -> Path:
    from tasks.data.synthetic.episodes import generate as play
    from tasks.data.synthetic.reactor_history import generate as write

    if weeks is not None:
        return write(HISTORIES[0], folder, seed, weeks, nominal=site.simulator().params).path
    out = folder / "episodes.hdf5"
    out.unlink(missing_ok=True)
    return play(site, "pid", episodes, seed, out).path


def _yaml(value: dict[str, Any]) -> str:
    stream, yaml = io.StringIO(), YAML()
    yaml.width = 4096
    yaml.dump(value, stream)
    return stream.getvalue()
