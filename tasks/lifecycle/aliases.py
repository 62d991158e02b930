"""Keep MLflow's aliases and pages equal to the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from configs.home import Home
from tasks.evidence.certificate import Check
from tasks.evidence.decisions import champions, shadows
from tasks.evidence.decisions.queue import waiting
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import exclusive
from tasks.lifecycle.pages import of_this_ledger, wanted_pages
from tasks.references import Aliases
from tasks.registry.reading import TOLD_ONCE, Page, split
from tasks.registry.registry import CHALLENGER, CHAMPION, SHADOW, Registry
from tasks.registry.upload import COMPOSITE, STATUS_TAG
from tasks.versions.versions import VERSIONS, newest, version_of


def wanted_aliases(entries: Sequence[Entry], plant: str) -> dict[str, str]:
    """Return the aliases that MLflow must have according to the ledger: alias -> version."""
    queue, watched = waiting(entries, plant), shadows.shadow(entries, plant)
    found = {CHAMPION: champions.champion(entries, plant), CHALLENGER: queue[-1] if queue else None}
    if watched is not None and watched.runs(datetime.now(UTC)):
        found[SHADOW] = watched.entry
    return {alias: str(entry.body["version"]) for alias, entry in found.items() if entry is not None}


def reconcile(home: Home, plant: str, registry: Registry) -> Aliases:
    """Make MLflow's aliases and pages agree with the ledger; neither the home's key nor the signer is needed."""
    # Locked, so that a process with an older view of the ledger never writes last.
    with exclusive(home.folder("locks") / f"pages-{plant}.lock"):
        entries = Ledger.open(home, write=False).entries() if Ledger.exists(home) else []
        wanted = wanted_aliases(entries, plant)
        champion, challenger, shadow = (wanted.get(alias) for alias in (CHAMPION, CHALLENGER, SHADOW))
        changes = registry.reconcile(plant, champion, challenger, shadow)
        found = registry.pages(plant) if any(e.kind == "candidate" and e.plant == plant for e in entries) else {}
        for version, (now, page) in stale_pages(entries, plant, found).items():
            registry.annotate(plant, version, page.tags, status=page.description)
            before = now.tags.get(STATUS_TAG, "nothing")
            if before != page.tags[STATUS_TAG]:
                changes.append(f"version {version}: {before} -> {page.tags[STATUS_TAG]}")
    return Aliases(champion=champion, challenger=challenger, shadow=shadow, changes=tuple(changes))


def check_pages(entries: Sequence[Entry], plant: str, found: Mapping[str, Page]) -> list[Check]:
    """Compare MLflow's pages of a plant with the ledger.

    A page with the wording of an earlier NeoRL does not fail the check; the next command writes the page again.
    """
    stale = stale_pages(entries, plant, found)
    old: dict[str, int] = {}
    for number in sorted(VERSIONS, reverse=True):
        altered = stale_pages(entries, plant, {name: found[name] for name in stale.keys() - old.keys()}, number)
        old |= dict.fromkeys(stale.keys() - old.keys() - altered.keys(), number)
    checks = [
        Check(
            "pages",
            False,
            f"MLflow's page of version {version} of {plant} differs from the ledger "
            f"(status {page.tags[STATUS_TAG]!r}): the next `neorl candidates`, `approve` or `retrain` corrects it; ask "
            "who changed it",
        )
        for version, (_, page) in stale.items()
        if version not in old
    ]
    if old:
        named = ", ".join(f"{name} (text version {old[name]})" for name in sorted(old))
        detail = f"MLflow's pages of {plant} in the wording of an earlier NeoRL: versions {named}; unaltered"
        checks.append(Check("pages", None, f"{detail}, the next command renders them again"))
    return checks


def stale_pages(
    entries: Sequence[Entry], plant: str, found: Mapping[str, Page], rules: int | None = None
) -> dict[str, tuple[Page, Page]]:
    """Find the pages in MLflow that differ from the ledger: version -> (page in MLflow, page by the ledger)."""
    wanted = wanted_pages(entries, plant, datetime.now(UTC), version_of(rules or newest()).texts)
    stale = {}
    for version, current_page in found.items():
        page = wanted.get(version)
        if page is None or not of_this_ledger(entries, plant, version, current_page.tags.get(COMPOSITE, "")):
            continue
        same = split(current_page.description)[0] == page.description and page.tags.items() <= current_page.tags.items()
        if not same or current_page.tags.keys() & set(TOLD_ONCE):
            stale[version] = (current_page, page)
    return stale
