"""Where a run's plant and algorithms come from: code of a user's own, an installed package, or a mapping alone."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from configs.strict import NAME, ConstantName, FilePath, Name, Strict

REFERENCE = re.compile(rf"{NAME}|[\w.]+:\w+|[^:]+\.py(:\w+)?", re.ASCII)


def _reference(text: str) -> str:
    if not REFERENCE.fullmatch(text):
        raise ValueError(
            f"expected a name, a file such as plants/tank.py or package.module:NAME, got '{text[:80]}': correct it"
        )
    return text


CodeReference = Annotated[str, AfterValidator(_reference)]
"""A name of one of ours or of an installed package's, or where the user's own code is."""


class UserCode(Strict):
    """Python that builds a plant or an algorithm of the user's own, pinned by the digest of its sources."""

    module: str
    """Its full name, such as `plants.tank`."""
    attribute: str
    """What is meant in it, such as `PLANT`."""
    project: FilePath | None = None
    """The only folder that it is loaded from; None where an installed package offers it as an entry point."""
    digest: str
    """Of module and attribute, and of every module of the project, or of the package, that it imports."""


class Described(Strict):
    """A process that a mapping alone describes, without a simulator."""

    spec: str
    """Its `neorl_core.types.PlantSpec` as canonical JSON."""
    process: str = ""
    """What the mapping calls it, where it is a site's and has the site's name; empty otherwise."""


class Site(Strict):
    """What a site of a fleet differs in from the plant of which there are several."""

    name: Name
    """Of the site as a plant: in lineages, registered models and folders of the home."""
    constants: dict[ConstantName, float] = Field(default_factory=dict)
    """Nominal values, in the plant's own units; the others are those of the plant's file."""
    limits: dict[str, Annotated[list[float | None], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    """Low and high by the limit's name, inside the plant's own; null where that stands."""


class SiteOf(Strict):
    """A site with a simulator: the plant's, with what the site differs in."""

    site: Site
    plant: str
    """Of which there are several."""
    code: UserCode | None = None
    """Where that comes from; None of one of ours."""


Origin = UserCode | Described | SiteOf
"""Where a plant that is not ours comes from."""
