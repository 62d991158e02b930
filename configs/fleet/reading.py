"""Reads a fleet's file: each site is a run, of what all have in common and what the site says for itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.bounded import document, read_text
from configs.code import Site
from configs.errors import BadInput, nearest
from configs.fleet.fleet_file import Fleet, SiteRun
from configs.load import load_run, load_yaml, sentence, with_mapping
from configs.run import RunConfig
from configs.strict import MARK

DIGEST = re.compile(r"[0-9a-f]{64}")
"""Of a dataset."""
SITE = "{site}"
"""Stands for the site's name in what all sites have in common, such as `logs: [logs/{site}.parquet]`."""


def load_runs(path: Path) -> list[RunConfig]:
    """The run of a file, or those of all sites of a fleet's.

    Raises:
        BadInput: when it is neither.
    """
    if not is_fleet(path):
        return [load_run(path)]
    return [site_run(path, site) for site in load_fleet(path).sites]


def is_fleet(path: Path) -> bool:
    """Whether a YAML file is a fleet's rather than a run's; nothing else of it is checked.

    Raises:
        BadInput: when it cannot be read.
    """
    value = document(read_text(path), path)[0]
    return isinstance(value, dict) and "fleet" in value


def load_fleet(path: Path | str) -> Fleet:
    """Read a fleet's YAML, and hold every site of it against what a run may say.

    Raises:
        BadInput: when the file is missing, is not YAML, or does not fit the model; it names the site.
    """
    path = Path(path)
    fleet = load_yaml(path, Fleet)
    for site in fleet.sites:
        site_run(path, site)
    return fleet


def site_run(path: Path, site: str) -> RunConfig:
    """The run of one site: what the sites have in common, with what the site says for itself.

    Args:
        path: the fleet's file.
        site: its name in it.

    Raises:
        BadInput: when there is no such site, or the two together do not fit the model.
    """
    fleet, value = load_yaml(path, Fleet), _said(path, site)
    told = Site(name=fleet.plant_name(site), constants=value.pop("constants", {}), limits=value.pop("limits", {}))
    value.pop("logs", None)
    try:
        run = RunConfig.model_validate(value)
    except ValidationError as error:
        raise BadInput(sentence(Path(f"{path}{MARK}{site}"), RunConfig, error, {})) from error
    shared = fleet.shared and fleet.shared.model_copy(update={"fleet": fleet.fleet})
    return with_mapping(run.model_copy(update={"site": told, "shared": shared, "concurrency": "wait"}), path)


def site_logs(path: Path, site: str) -> tuple[str, ...]:
    """Where a site's logs are: its files, found from the fleet's file, or digests of datasets; nothing when not told.

    Raises:
        BadInput: when there is no such site.
    """
    found = _said(path, site).get("logs") or []
    return tuple(name if DIGEST.fullmatch(name) else str((path.parent / name).resolve()) for name in found)


def _said(path: Path, site: str) -> dict[str, Any]:
    """What a fleet's file says of one site, as it stands there."""
    fleet = load_yaml(path, Fleet)
    if site not in fleet.sites:
        raise BadInput(f"expected a site of {path}, got '{site[:80]}': {nearest(site, fleet.sites)}")
    value = document(read_text(path), path)[0]
    common = {key: item for key, item in value.items() if key in SiteRun.model_fields}
    found: dict[str, Any] = written(merged(common, value["sites"][site] or {}), site)
    return found


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What all have in common with what one says for itself: mappings key by key, anything else whole.

    Example:
        >>> merged({"train": {"updates": 10, "seeds": 2}, "seed": 0}, {"train": {"updates": 20}})
        {'train': {'updates': 20, 'seeds': 2}, 'seed': 0}
    """
    found = dict(common)
    for key, value in own.items():
        below = found.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        found[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return found


def written(value: Any, site: str) -> Any:
    """A value of what all have in common, with the site's name in place of `{site}`.

    Example:
        >>> written({"logs": ["logs/{site}.csv"]}, "east")
        {'logs': ['logs/east.csv']}
    """
    if isinstance(value, Mapping):
        return {key: written(item, site) for key, item in value.items()}
    if isinstance(value, list):
        return [written(item, site) for item in value]
    return value.replace(SITE, site) if isinstance(value, str) else value
