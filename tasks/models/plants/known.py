"""Look up plants: built-in, user code, installed packages, or described by a mapping."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from configs.code import Described, Origin, SiteOf, UserCode
from configs.errors import BadInput, Refused, nearest
from configs.strict import NAME
from neorl_core.plants import LOGGED, PLANTS
from neorl_core.plants.base import LoggedSignals, trace_once
from neorl_core.plants.site import site_plant, site_signals
from neorl_core.types import Panel, Plant, PlantSpec, Process
from tasks.files.canonical import digest_json, parse_json
from tasks.files.provenance import modules_of, sources_digest
from tasks.files.spec import spec_of_record
from tasks.models.plants.contract import logged_signals, read_plant
from tasks.models.user_code.loading import find_code, find_installed, import_code, installed, is_code, tree_of

if TYPE_CHECKING:
    # For type checkers only, so that a new key of a run does not change source digests of plants.
    from configs.run import OpenedRun


class KnownPlant(NamedTuple):
    """A plant, and where its code comes from."""

    spec: PlantSpec
    plant: Plant | None
    """Simulator; None for a log-only plant."""
    logged: LoggedSignals | None
    """Functions that compute reward and margins of logs; None if logs must contain rewards and costs."""
    about: str = ""
    """First line of the module's docstring."""
    modules: tuple[str, ...] = ()
    """Built-in modules of the plant, or those that its code imports."""
    code: str = ""
    """Digest of the modules of user code or package; empty for a built-in plant."""
    source: Origin | None = None
    """Where the code comes from; None for a built-in plant."""

    @property
    def name(self) -> str:
        """Name of the plant in lineages, registered models and folders of the home."""
        return self.spec.name

    def sources(self, *modules: str) -> str:
        """Return one digest of the plant's code, the given built-in modules, and all that they import."""
        ours = sources_digest(*modules, *self.modules) if modules or self.modules else ""
        return digest_json([ours, self.code]) if self.code else ours

    @property
    def controlled(self) -> Plant | Process:
        """The simulator, or the spec of a log-only plant, to run composites with."""
        return Process(self.spec) if self.plant is None else self.plant

    @property
    def drawn(self) -> tuple[Panel, ...]:
        return () if self.plant is None else self.plant.drawn

    def simulator(self) -> Plant:
        """Return the simulator.

        Raises:
            Refused: if there is none.
        """
        if self.plant is None:
            raise Refused(
                f"{self.name} is a log-only plant without simulator: name a file that builds a simulator as 'plant'"
            )
        return self.plant


def plant_of(run: OpenedRun) -> KnownPlant:
    """Return the plant of a run that `open_run` has opened.

    Raises:
        BadInput: if the name is unknown, or the code cannot be used.
        Refused: if the code has changed since the run was opened.
    """
    if isinstance(run.source, UserCode):
        return _same_name(plant_of_code(run.source), run.plant)
    if isinstance(run.source, SiteOf):
        return plant_of_site(run.source)
    if isinstance(run.source, Described):
        return KnownPlant(spec_of_record(parse_json(run.source.spec.encode())), None, None, source=run.source)
    return plant_named(run.plant)


def plant_named(name: str) -> KnownPlant:
    """Return a built-in or installed plant.

    Raises:
        BadInput: if the name is unknown.
    """
    if name in PLANTS:
        return _ours(name)
    if re.fullmatch(NAME, name, re.ASCII) and (offered := find_installed(name)) is not None:
        return _same_name(plant_of_code(offered), name)
    raise BadInput(
        f"unknown plant '{name[:80]}': {nearest(name, [*PLANTS, *installed()])}; for your own plant, name its file, or "
        "describe the plant under 'process' in a mapping"
    )


def plant_at(reference: str) -> KnownPlant:
    """Return a plant by name, or by code in the working directory.

    Raises:
        BadInput: if there is none.
    """
    return plant_of_code(find_code(reference, Path.cwd())) if is_code(reference) else plant_named(reference)


@cache
def plant_of_code(code: UserCode) -> KnownPlant:
    """Load a user's plant, after verifying the digest of its code and the contract.

    Raises:
        BadInput: if the plant violates the contract, or has the name of a built-in plant.
        Refused: if the code has changed.
    """
    module, tree = import_code(code), tree_of(code)
    file = tree.file(code.module)
    plant = trace_once(read_plant(module, code.attribute, str(file)))
    reached = (name for name in modules_of(code.module, tree=tree) if tree.file(name) is None)
    return KnownPlant(
        plant.spec, plant, logged_signals(module, plant, str(file)), _about(module), tuple(reached), code.digest, code
    )


def site_record(of: SiteOf) -> dict[str, object]:
    """Return a site's data for a bundle, from which the site is rebuilt."""
    record: dict[str, object] = {"plant": of.plant, "constants": of.site.constants, "limits": of.site.limits}
    return record | ({"code": of.code.digest} if of.code else {})


def plant_of_site(of: SiteOf) -> KnownPlant:
    """Return a site: the plant's simulator with the site's constants, limits and name.

    Raises:
        BadInput: if a constant or limit is unknown, or the site has the name of a built-in plant.
        Refused: if the plant's code has changed.
    """
    return _of_site(of.model_dump_json())


# JAX compiles once per simulator object, so each site has one object. The key is text, because mappings have no hash.
@cache
def _of_site(text: str) -> KnownPlant:
    of = SiteOf.model_validate_json(text)
    known = plant_of_code(of.code) if of.code else plant_named(of.plant)
    name, limits = of.site.name, {limit: (low, high) for limit, (low, high) in of.site.limits.items()}
    if name in PLANTS:
        raise BadInput(f"'{name}' (fleet_site) is the name of a built-in plant: rename the fleet or the site")
    try:
        plant = site_plant(known.simulator(), name, of.site.constants, limits)
    except ValueError as error:
        raise BadInput(f"in site {name}: {str(error).rstrip('.')}") from error
    logged = known.logged and site_signals(known.logged, known.spec, plant.spec)
    code, modules = digest_json(site_record(of)), (*known.modules, site_plant.__module__)
    return KnownPlant(plant.spec, plant, logged, known.about, modules, code, of)


def run_sources(run: OpenedRun, *modules: str) -> str:
    """Return the digest of built-in modules and of a run's plant, if it is known."""
    if isinstance(run.source, UserCode | SiteOf) or run.plant in PLANTS:
        return plant_of(run).sources(*modules)
    return sources_digest(*modules)


@cache
def _ours(name: str) -> KnownPlant:
    plant = PLANTS[name]
    module = PLANTS.module(name)
    return KnownPlant(plant.spec, plant, LOGGED[name], _about(import_module(module)), (module,))


def _about(module: ModuleType) -> str:
    return next(iter((module.__doc__ or "").strip().splitlines()), "")


def _same_name(found: KnownPlant, name: str) -> KnownPlant:
    if found.name != name:
        raise BadInput(
            f"plant {name} of {found.source.module if isinstance(found.source, UserCode) else name} has the name "
            f"'{found.name}' in its spec: give both the same name"
        )
    return found
