"""The one place where a plant is looked up: ours, a user's own, an installed package's, or one of a mapping alone."""

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
from neorl_core.plants.base import LoggedSignals
from neorl_core.plants.site import site_plant, site_signals
from neorl_core.types import Panel, Plant, PlantSpec, Process
from tasks.files.canonical import digest_json, parse_json
from tasks.files.provenance import modules_of, sources_digest
from tasks.files.spec import spec_of_record
from tasks.models.plants.contract import logged_signals, read_plant
from tasks.models.user_code.loading import find_code, find_installed, import_code, installed, is_code, tree_of

if TYPE_CHECKING:
    # For type checkers alone: a new key of a run changes nothing of how a plant is found.
    from configs.run import OpenedRun


class KnownPlant(NamedTuple):
    """What is known of a plant."""

    spec: PlantSpec
    plant: Plant | None
    """Its simulator; None of a process that a mapping alone describes."""
    logged: LoggedSignals | None
    """What its logs can be scored with; None where they must bring rewards and costs themselves."""
    about: str = ""
    """The first line of what its module says of itself."""
    modules: tuple[str, ...] = ()
    """Those of ours that it is made of, or that its own code imports."""
    code: str = ""
    """Digest of the user's or the package's modules; empty where it has none."""
    source: Origin | None = None
    """As a run names it."""

    @property
    def name(self) -> str:
        """Of the plant: in lineages, registered models and folders of the home."""
        return self.spec.name

    def sources(self, *modules: str) -> str:
        """Digest of the plant's code together with modules of ours, and of all that these import."""
        ours = sources_digest(*modules, *self.modules) if modules or self.modules else ""
        return digest_json([ours, self.code]) if self.code else ours

    @property
    def controlled(self) -> Plant | Process:
        """What a composite is run with: the simulator, or of a process its spec alone."""
        return Process(self.spec) if self.plant is None else self.plant

    @property
    def drawn(self) -> tuple[Panel, ...]:
        """What the plant says that pictures show."""
        return () if self.plant is None else self.plant.drawn

    def simulator(self) -> Plant:
        """The plant in JAX.

        Raises:
            Refused: when there is none.
        """
        if self.plant is None:
            raise Refused(
                f"expected a simulator of {self.name}, got a process that its mapping alone describes: name a file as "
                "'plant' that builds one."
            )
        return self.plant


def plant_of(run: OpenedRun) -> KnownPlant:
    """The plant of an opened run.

    Raises:
        BadInput: when there is none of its name, or its code cannot be used.
        Refused: when its code has changed since the run was opened.
    """
    if isinstance(run.source, UserCode):
        return _same_name(plant_of_code(run.source), run.plant)
    if isinstance(run.source, SiteOf):
        return plant_of_site(run.source)
    if isinstance(run.source, Described):
        return KnownPlant(spec_of_record(parse_json(run.source.spec.encode())), None, None, source=run.source)
    return plant_named(run.plant)


def plant_named(name: str) -> KnownPlant:
    """One of our plants, or one that an installed package offers.

    Raises:
        BadInput: when there is none.
    """
    if name in PLANTS:
        return _ours(name)
    if re.fullmatch(NAME, name, re.ASCII) and (offered := find_installed(name)) is not None:
        return _same_name(plant_of_code(offered), name)
    raise BadInput(
        f"expected a known plant, got '{name[:80]}': {nearest(name, [*PLANTS, *installed()])} A plant that is "
        "not simulated here is a file of your own, or is described by the mapping's 'process'."
    )


def plant_at(reference: str) -> KnownPlant:
    """A plant as the command line names it: by its name, or by its code in the working directory.

    Raises:
        BadInput: when there is none.
    """
    return plant_of_code(find_code(reference, Path.cwd())) if is_code(reference) else plant_named(reference)


@cache
def plant_of_code(code: UserCode) -> KnownPlant:
    """A user's own plant, once its code has been held against its digest, and the plant against the contract.

    Raises:
        BadInput: when the plant does not keep the contract, or has the name of one of ours.
        Refused: when its code has changed.
    """
    module, tree = import_code(code), tree_of(code)
    file = tree.file(code.module)
    plant = read_plant(module, code.attribute, str(file))
    reached = (name for name in modules_of(code.module, tree=tree) if tree.file(name) is None)
    return KnownPlant(
        plant.spec, plant, logged_signals(module, plant, str(file)), _about(module), tuple(reached), code.digest, code
    )


def site_record(of: SiteOf) -> dict[str, object]:
    """What a bundle says of the site that it is for: data, from which the site is built again, and no code."""
    record: dict[str, object] = {"plant": of.plant, "constants": of.site.constants, "limits": of.site.limits}
    return record | ({"code": of.code.digest} if of.code else {})


def plant_of_site(of: SiteOf) -> KnownPlant:
    """A site of a plant: its simulator with the site's constants and limits, under the site's name.

    Raises:
        BadInput: when a constant or a limit is none of the plant's, or it has the name of one of ours.
        Refused: when the plant's code has changed.
    """
    return _of_site(of.model_dump_json())


# By its text, for a mapping has no hash: one simulator object for all who ask, so that programs are compiled once.
@cache
def _of_site(text: str) -> KnownPlant:
    of = SiteOf.model_validate_json(text)
    known = plant_of_code(of.code) if of.code else plant_named(of.plant)
    name, limits = of.site.name, {limit: (low, high) for limit, (low, high) in of.site.limits.items()}
    if name in PLANTS:
        raise BadInput(f"expected another name than that of a plant of NeoRL, got site '{name}': rename the fleet.")
    try:
        plant = site_plant(known.simulator(), name, of.site.constants, limits)
    except ValueError as error:
        raise BadInput(f"in site {name}: {str(error).rstrip('.')}.") from error
    logged = known.logged and site_signals(known.logged, known.spec, plant.spec)
    code, modules = digest_json(site_record(of)), (*known.modules, site_plant.__module__)
    return KnownPlant(plant.spec, plant, logged, known.about, modules, code, of)


def run_sources(run: OpenedRun, *modules: str) -> str:
    """Digest of modules of ours and of a run's plant; a plant that is not known adds nothing."""
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
            f"expected plant {name} of {found.source.module if isinstance(found.source, UserCode) else name} to have "
            f"that name in its spec, got '{found.name}': give both the same name."
        )
    return found
