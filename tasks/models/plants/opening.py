"""Open runs: read the file, and look up plant and algorithms."""

from __future__ import annotations

from pathlib import Path

from configs.code import Described, Site, SiteOf, UserCode
from configs.errors import BadInput
from configs.load import load_run
from configs.mapping import HistorianMapping
from configs.process import described_spec
from configs.run import OpenedRun
from configs.yaml_files import load_yaml
from neorl_core.plants import PLANTS
from tasks.files.canonical import canonical_json, parse_json
from tasks.files.spec import spec_of_record, spec_record
from tasks.models.plants.known import plant_of, plant_of_code
from tasks.models.user_code.algorithms import opened_learner
from tasks.models.user_code.loading import find_code, find_installed, is_code, project_of


def open_run(config: Path | str) -> OpenedRun:
    """Read a run's file, and look up its plant and algorithms.

    Raises:
        BadInput: if file, plant or algorithm cannot be used.
    """
    project = project_of(Path(config))
    return opened_learners(opened(load_run(config), project), project)


def opened_learners(run: OpenedRun, project: Path) -> OpenedRun:
    """Look up a run's algorithms. If the plant has a discrete action, other defaults apply.

    Raises:
        BadInput: if an algorithm is unknown, or its code cannot be used.
    """
    told = run.train if plant_of(run).spec.choices is None else run.train.for_discrete_action()
    first = opened_learner(told, project)
    beside = [opened_learner(each, project) for each in told.beside]
    train = told.model_copy(update={"algorithm": first.algorithm, "source": first.source, "beside": beside})
    return run.model_copy(update={"train": train})


def opened(run: OpenedRun, project: Path | None = None) -> OpenedRun:
    """Look up a run's plant and add where its code comes from. A run that has this already is returned unchanged.

    Args:
        project: folder with the plant's code. Default: the working directory.

    Raises:
        BadInput: if the plant or the mapping cannot be used.
    """
    if run.source is not None:
        return run
    if run.site is not None:
        return _of_site(opened(run.model_copy(update={"site": None}), project), run.site)
    if is_code(run.plant):
        code = find_code(run.plant, project or Path.cwd())
        return run.model_copy(update={"plant": plant_of_code(code).name, "source": code})
    mapping = mapping_of(run)
    if mapping is not None and mapping.process is not None:
        if run.plant in PLANTS:
            raise BadInput(f"'process' names the built-in plant {run.plant}: use 'plant', or choose another name")
        try:
            spec = described_spec(mapping)
        except ValueError as error:
            raise BadInput(f"{error}: correct the mapping of {run.plant}") from error
        return run.model_copy(update={"source": Described(spec=canonical_json(spec_record(spec)).decode())})
    return run if run.plant in PLANTS else run.model_copy(update={"source": find_installed(run.plant)})


def mapping_of(run: OpenedRun) -> HistorianMapping | None:
    """Return a run's mapping, if any.

    Raises:
        BadInput: if the mapping cannot be read, or is for a different plant.
    """
    if run.data.mapping is None:
        return None
    mapping = load_yaml(run.data.mapping, HistorianMapping)
    # All sites of a plant may share a mapping.
    plant = kind_of(run)
    if mapping.subject != plant:
        raise BadInput(
            f"{run.data.mapping} is a mapping of {mapping.subject}, not of {plant}: correct data.mapping of the run"
        )
    return mapping


def kind_of(run: OpenedRun) -> str:
    """Return the name of an opened run's plant; for a site, the name of the common plant."""
    if isinstance(run.source, SiteOf):
        return run.source.plant
    return (run.source.process if isinstance(run.source, Described) else "") or run.plant


def _of_site(run: OpenedRun, site: Site) -> OpenedRun:
    """Turn a run of the common plant into the site's run, with the site's name and lineage."""
    if not isinstance(run.source, Described):
        source = SiteOf(site=site, plant=run.plant, code=run.source if isinstance(run.source, UserCode) else None)
        found = run.model_copy(update={"plant": site.name, "site": site, "source": source})
        plant_of(found)
        return found
    if site.constants or site.limits:
        raise BadInput(
            f"site {site.name} is log-only and cannot have the keys 'constants' and 'limits': put the limits into the "
            "site's own mapping"
        )
    spec = spec_of_record(parse_json(run.source.spec.encode()))._replace(name=site.name)
    described = Described(spec=canonical_json(spec_record(spec)).decode(), process=run.plant)
    return run.model_copy(update={"plant": site.name, "site": site, "source": described})
