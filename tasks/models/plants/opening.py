"""A run's file is opened: it is read, and its plant is found in the project, an installed package or the mapping."""

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
    """Read a run's YAML, and find out where its plant comes from.

    Raises:
        BadInput: when the file or the plant cannot be used.
    """
    project = project_of(Path(config))
    return opened_learners(opened(load_run(config), project), project)


def opened_learners(run: OpenedRun, project: Path) -> OpenedRun:
    """The run with its algorithms' names and where those come from; of a discrete plant the defaults are others.

    Args:
        run: as its file says.
        project: the folder in which the algorithms' code is looked up.

    Raises:
        BadInput: when there is no such algorithm, or its code cannot be used.
    """
    told = run.train if plant_of(run).spec.choices is None else run.train.for_discrete_action()
    first = opened_learner(told, project)
    beside = [opened_learner(each, project) for each in told.beside]
    train = told.model_copy(update={"algorithm": first.algorithm, "source": first.source, "beside": beside})
    return run.model_copy(update={"train": train})


def opened(run: OpenedRun, project: Path | None = None) -> OpenedRun:
    """The run with its plant's name and where that comes from; a run that was opened before stays as it is.

    Args:
        run: as its file says.
        project: the folder in which the plant's code is looked up; the working directory when not given.

    Raises:
        BadInput: when the plant or the mapping cannot be used.
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
            raise BadInput(f"expected another name than {run.plant}, which is simulated here: name it as 'plant'.")
        try:
            spec = described_spec(mapping)
        except ValueError as error:
            raise BadInput(f"{error}: correct the mapping of process {run.plant}.") from error
        return run.model_copy(update={"source": Described(spec=canonical_json(spec_record(spec)).decode())})
    return run if run.plant in PLANTS else run.model_copy(update={"source": find_installed(run.plant)})


def mapping_of(run: OpenedRun) -> HistorianMapping | None:
    """The mapping that a run names.

    Raises:
        BadInput: when it cannot be read, or is of another plant.
    """
    if run.data.mapping is None:
        return None
    mapping = load_yaml(run.data.mapping, HistorianMapping)
    # The tags of all sites of a plant may mean the same.
    plant = kind_of(run)
    if mapping.subject != plant:
        raise BadInput(
            f"expected a mapping of plant {plant} in {run.data.mapping}, got one of {mapping.subject}: "
            "name the right mapping in the run's file."
        )
    return mapping


def kind_of(run: OpenedRun) -> str:
    """The plant of an opened run; of a site's, the one that it is a site of."""
    if isinstance(run.source, SiteOf):
        return run.source.plant
    return (run.source.process if isinstance(run.source, Described) else "") or run.plant


def _of_site(run: OpenedRun, site: Site) -> OpenedRun:
    """A run of the plant of which there are several, as the site's own: under its name, and in its lineage.

    Args:
        run: opened, as if the plant stood alone.
        site: what the site differs in.

    Raises:
        BadInput: on a constant or limit that the plant does not have, or of a process.
    """
    if not isinstance(run.source, Described):
        source = SiteOf(site=site, plant=run.plant, code=run.source if isinstance(run.source, UserCode) else None)
        found = run.model_copy(update={"plant": site.name, "site": site, "source": source})
        plant_of(found)
        return found
    if site.constants or site.limits:
        raise BadInput(
            f"expected constants and limits of a simulated plant alone, got some of site {site.name}, a process: give "
            "the site a mapping of its own, with its limits."
        )
    spec = spec_of_record(parse_json(run.source.spec.encode()))._replace(name=site.name)
    described = Described(spec=canonical_json(spec_record(spec)).decode(), process=run.plant)
    return run.model_copy(update={"plant": site.name, "site": site, "source": described})
