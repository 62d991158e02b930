"""Load runs and fleets. Each site of a fleet is a run with the fleet's common keys and the site's own keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from configs.code import Site
from configs.errors import BadInput, nearest
from configs.fleet import Fleet, SiteRun
from configs.run import OpenedRun, RunFile, Shared
from configs.strict import MARK
from configs.yaml_files import document, load_yaml, read_text, validation_message

DIGEST = re.compile(r"[0-9a-f]{64}")
"""Digest of a dataset."""
PLACEHOLDER = "{site}"
"""Replaced by the site's name in common keys, such as `logs: [logs/{site}.parquet]`."""


def load_run(path: Path | str) -> OpenedRun:
    """Read a run's file, or one site of a fleet's file (`fleet.yaml#east`).

    The path of a mapping is relative to the run's file.

    Returns:
        The run. `tasks.models.plants.opening` then locates the code of plant and algorithms.

    Raises:
        BadInput: if the file is missing, is not YAML, or does not fit the model.
    """
    path = Path(path)
    fleet, mark, site = str(path).rpartition(MARK)
    if mark and not path.exists():
        return site_run(Path(fleet), site)
    return _with_mapping(_opened(load_yaml(path, RunFile)), path)


def load_runs(path: Path) -> list[OpenedRun]:
    """Read a run's file, or the runs of all sites of a fleet's file.

    Raises:
        BadInput: if the file is no valid run and no valid fleet.
    """
    return [site_run(path, site) for site in load_fleet(path).sites] if is_fleet(path) else [load_run(path)]


def is_fleet(path: Path) -> bool:
    """Whether a YAML file has the key `fleet`. Other keys are not checked.

    Raises:
        BadInput: if the file cannot be read.
    """
    value = document(read_text(path), path)[0]
    return isinstance(value, dict) and "fleet" in value


def load_fleet(path: Path | str) -> Fleet:
    """Read a fleet's file, and check the run of every site.

    Raises:
        BadInput: if the file is missing, is not YAML, or has a wrong key or value; the message names the site.
    """
    path = Path(path)
    fleet = load_yaml(path, Fleet)
    for site in fleet.sites:
        site_run(path, site)
    return fleet


def site_run(path: Path, site: str) -> OpenedRun:
    """Read the run of one site from a fleet's file.

    Args:
        path: the fleet's file.
        site: the site's name in the file.

    Raises:
        BadInput: if the fleet has no site of this name, or a key or value is wrong.
    """
    fleet, keys = load_yaml(path, Fleet), _site_keys(path, site)
    own = Site(name=fleet.plant_name(site), constants=keys.pop("constants", {}), limits=keys.pop("limits", {}))
    keys.pop("logs", None)
    try:
        run = _opened(RunFile.model_validate(keys))
    except ValidationError as error:
        raise BadInput(validation_message(Path(f"{path}{MARK}{site}"), RunFile, error, {})) from error
    shared = None if fleet.shared is None else Shared(**dict(fleet.shared), fleet=fleet.fleet)
    return _with_mapping(run.model_copy(update={"site": own, "shared": shared, "concurrency": "wait"}), path)


def site_logs(path: Path, site: str) -> tuple[str, ...]:
    """Return the absolute paths of a site's log files, or digests of datasets; empty if the fleet's file names no logs.

    Raises:
        BadInput: if the fleet has no site of this name.
    """
    logs = _site_keys(path, site).get("logs") or []
    return tuple(name if DIGEST.fullmatch(name) else str((path.parent / name).resolve()) for name in logs)


def _opened(file: RunFile) -> OpenedRun:
    # Keys that are not in the file must stay unset, because the defaults of a discrete action replace only unset keys.
    return OpenedRun.model_validate(file.model_dump(exclude_unset=True))


def _with_mapping(run: OpenedRun, path: Path) -> OpenedRun:
    """Resolve the run's mapping relative to the file that names it."""
    if run.data.mapping is None:
        return run
    mapping = (path.parent / run.data.mapping).resolve()
    if not mapping.is_file():
        raise BadInput(f"{path} names the mapping {mapping}, which does not exist: give a path from {path.name}")
    return run.model_copy(update={"data": run.data.model_copy(update={"mapping": mapping})})


def _site_keys(path: Path, site: str) -> dict[str, Any]:
    """Return the keys of all sites, overridden by the site's own keys."""
    fleet = load_yaml(path, Fleet)
    if site not in fleet.sites:
        raise BadInput(f"{path} has no site '{site[:80]}': {nearest(site, fleet.sites)}")
    value = document(read_text(path), path)[0]
    common = {key: item for key, item in value.items() if key in SiteRun.model_fields}
    keys: dict[str, Any] = filled_in(merged(common, value["sites"][site] or {}), site)
    return keys


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Override common values by a site's values: mappings key by key, any other value as a whole.

    Example:
        >>> merged({"train": {"updates": 10, "seeds": 2}, "seed": 0}, {"train": {"updates": 20}})
        {'train': {'updates': 20, 'seeds': 2}, 'seed': 0}
    """
    result = dict(common)
    for key, value in own.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result


def filled_in(value: Any, site: str) -> Any:
    """Replace `{site}` by the site's name in every string of a value.

    Example:
        >>> filled_in({"logs": ["logs/{site}.csv"]}, "east")
        {'logs': ['logs/east.csv']}
    """
    if isinstance(value, Mapping):
        return {key: filled_in(item, site) for key, item in value.items()}
    if isinstance(value, list):
        return [filled_in(item, site) for item in value]
    return value.replace(PLACEHOLDER, site) if isinstance(value, str) else value
