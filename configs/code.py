"""Origins of a run's plant and algorithms: user code, an installed package, or a mapping alone."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from configs.strict import NAME, ConstantName, FilePath, Name, Strict

REFERENCE = re.compile(rf"{NAME}|[\w.]+:\w+|[^:]+\.py(:\w+)?", re.ASCII)


def _reference(text: str) -> str:
    if not REFERENCE.fullmatch(text):
        raise ValueError(f"'{text[:80]}' is no name, file such as plants/tank.py, or package.module:NAME: correct it")
    return text


CodeReference = Annotated[str, AfterValidator(_reference)]
"""Name of a built-in or installed plant or algorithm, or the location of user code."""


class UserCode(Strict):
    """User code of a plant or an algorithm, pinned by the digest of its sources."""

    module: str
    """Full module name, such as `plants.tank`."""
    attribute: str
    """Name in the module, such as `PLANT`."""
    project: FilePath | None = None
    """Folder from which the module is loaded; None for an entry point of an installed package."""
    digest: str
    """Digest of module, attribute, and every module of the project or package that the module imports."""


class Described(Strict):
    """A log-only plant: a mapping describes it."""

    spec: str
    """`neorl_core.types.PlantSpec` as canonical JSON."""
    process: str = ""
    """For a fleet's site: the plant's name in the mapping, because `spec` has the site's name. Else empty."""


class Site(Strict):
    """Differences between a fleet's site and the plant that all sites share."""

    name: Name
    """The site's name as a plant: in lineages, registered models and folders of the home."""
    constants: dict[ConstantName, float] = Field(default_factory=dict)
    """Nominal constants, in the plant's units. Constants that are not listed have the value of the plant's file."""
    limits: dict[str, Annotated[list[float | None], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    """[low, high] by the limit's name, inside the plant's limits; null keeps the plant's value."""


class SiteOf(Strict):
    """Origin of a site's plant: the fleet's simulator with the site's constants and limits."""

    site: Site
    plant: str
    """Name of the plant that all sites share."""
    code: UserCode | None = None
    """The plant's code; None for a built-in plant."""


Origin = UserCode | Described | SiteOf
"""Origin of a plant that is not built in."""
