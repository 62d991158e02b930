"""Promotion: candidates, approvals and champions in the ledger, and MLflow's aliases as their picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.adapters.ledger import champions
from tasks.adapters.ledger.chain import Entry, Ledger, artefact, folder_artefacts
from tasks.adapters.registry.server import Registry


def incumbent(entries: Sequence[Entry], plant: str, own: Iterable[str]) -> Entry | None:
    """The champion that a run has to compare with: the one in force before any of the run's own composites.

    A run that is repeated after it promoted its candidate compares with the same champion as before, so that its
    results stay the same.

    Args:
        own: digests of the composites that the run itself could promote.
    """
    own = set(own)
    by_digest = {entry.digest: entry for entry in entries}
    found = champions.champion(entries, plant)
    while found is not None and found.body["composite"] in own:
        found = by_digest.get(found.body["replaces"] or "")
    return found


def dataset_before(entries: Sequence[Entry], plant: str, digest: str) -> dict[str, Any] | None:
    """The dataset of the last champion that learned from another one than `digest`: what drift is measured against."""
    by_digest = {entry.digest: entry for entry in entries}
    found = champions.champion(entries, plant)
    while found is not None:
        dataset: dict[str, Any] = by_digest[found.body["candidate"]].body["dataset"]
        if dataset["digest"] != digest:
            return dataset
        found = by_digest.get(found.body["replaces"] or "")
    return None


def propose(
    candidate: Entry, fallback: str, fallback_stands: bool, current: Entry | None, auto: bool
) -> tuple[Literal["candidate", "fallback"] | None, str]:
    """What a run proposes for promotion, and its verdict.

    A candidate that passed every gate is proposed. Otherwise the plant's own controller is, where it is certified and
    there is no champion; where it is champion already it stays.

    Args:
        candidate: the selected policy's entry.
        fallback: digest of the plant controller's composite.
        fallback_stands: whether that composite is certified.
        current: the promotion in force.
        auto: whether the rule decides, rather than a person.
    """
    in_force = current.body["composite"] if current else None
    again = current is not None and current.body["candidate"] == candidate.digest
    if candidate.body["passed"]:
        if in_force == candidate.body["composite"] and not again:
            return None, "unchanged"
        return "candidate", "promoted" if auto else "waiting"
    if in_force is None and fallback_stands:
        return "fallback", "fallback" if auto else "fallback_waiting"
    return None, "fallback" if in_force == fallback else "refused"


def record_candidate(
    home: Home,
    plant: str,
    body: Mapping[str, Any],
    bundles: Sequence[Path],
    certificate: Path | None,
    dataset: Mapping[str, Any],
) -> Entry:
    """Log a candidate with the files it consists of; the same run key and composite again find the entry.

    Args:
        body: {run_key, composite, version, run_id, url, gates, passed, claim, dataset, config, champion (digest of the
            promotion it was compared with, or None)}.
        bundles: folders of its copies.
        certificate: its certificate's file.
        dataset: reference from `ingest`.
    """
    ledger = Ledger.open(home)
    known = _candidate(ledger.entries("candidate", plant), run_key=body["run_key"], composite=body["composite"])
    if known is not None:
        return known
    store = Path(dataset["path"])
    files = [file for bundle in bundles for file in folder_artefacts(home, bundle, "bundle")]
    files.append(artefact(home, store / "manifests" / f"{dataset['digest']}.json", "dataset manifest"))
    files += [artefact(home, path, "dataset shard") for path in _shards(store, dataset["digest"])]
    if certificate is not None:
        files.append(artefact(home, certificate, "certificate"))
    return ledger.append("candidate", body, plant=plant, artefacts=files)


def decide(home: Home, candidate: Entry, by: str, note: str) -> Entry:
    """Approve a candidate whose gates all passed, and make it champion.

    Returns:
        The promotion; the existing one when it was promoted before.

    Raises:
        Refused: when a gate failed, or another champion came meanwhile.
    """
    ledger = Ledger.open(home)
    plant, body = candidate.plant, candidate.body
    if not body["passed"]:
        failed = ", ".join(gate["name"] for gate in body["gates"] if not gate["passed"])
        raise Refused(
            f"expected a candidate that passed every gate, got version {body['version']} of {plant}, which failed "
            f"{failed}: retrain it, no approval can skip a gate."
        )
    entries = ledger.entries()
    current = champions.champion(entries, plant)
    if current is not None and current.body.get("candidate") == candidate.digest:
        return current
    if current is not None and current.body["composite"] == body["composite"]:
        return current  # it is champion already, whichever run proposed it
    rejected = next((e for e in entries if e.kind == "rejection" and e.body["composite"] == body["composite"]), None)
    if rejected is not None:
        raise Refused(
            f"expected a candidate that was not rejected, got version {body['version']} of {plant}, which "
            f"{rejected.body['by']} rejected: retrain on other data or with another configuration."
        )
    if (current.digest if current else None) != body["champion"]:
        raise Refused(
            f"expected the champion of {plant} that version {body['version']} was compared with, got another one "
            "meanwhile: retrain, so that the two are compared."
        )
    # Before an approval is logged, so that none is left that nothing can use.
    champions.check_certified(entries, plant, body["composite"])
    approval = champions.approve(
        ledger, plant, body["composite"], version=body["version"], by=by, note=note, candidate=candidate.digest
    )
    promotion = {"composite": body["composite"], "version": body["version"], "candidate": candidate.digest}
    return champions.promote(
        ledger,
        plant,
        promotion,
        approval=approval.digest,
        expected_current=body["champion"],
        artefacts=candidate.artefacts,
    )


def turn_down(home: Home, candidate: Entry, by: str, note: str) -> Entry:
    """Log that a candidate was rejected, once."""
    ledger = Ledger.open(home)
    for entry in ledger.entries("rejection", candidate.plant):
        if entry.body.get("candidate") == candidate.digest:
            return entry
    return champions.reject(
        ledger,
        candidate.plant,
        candidate.body["composite"],
        version=candidate.body["version"],
        by=by,
        note=note,
        candidate=candidate.digest,
    )


def waiting(entries: Sequence[Entry], plant: str | None = None) -> list[Entry]:
    """Candidates that passed every gate and have been neither promoted nor rejected, nor overtaken by a champion."""
    promoted = {e.body.get("candidate") for e in entries if e.kind == "promotion"}
    rejected = {e.body["composite"] for e in entries if e.kind == "rejection"}
    open_ones = []
    for entry in entries:
        if (
            entry.kind != "candidate"
            or not entry.body["passed"]
            or entry.digest in promoted
            or entry.body["composite"] in rejected
        ):
            continue
        current = champions.champion(entries, entry.plant)
        if plant in (None, entry.plant) and entry.body["champion"] == (current.digest if current else None):
            open_ones.append(entry)
    return open_ones


def find_candidate(entries: Sequence[Entry], plant: str, version: str) -> Entry:
    """The candidate of a registry version.

    Raises:
        BadInput: when the ledger knows none.
    """
    found = _candidate([e for e in entries if e.kind == "candidate" and e.plant == plant], version=version)
    if found is None:
        known = ", ".join(e.body["version"] for e in entries if e.kind == "candidate" and e.plant == plant) or "none"
        raise BadInput(f"expected a version of {plant} that the ledger knows ({known}), got '{version}': correct it.")
    return found


def reconcile(home: Home, plant: str, registry: Registry) -> dict[str, Any]:
    """Make MLflow's aliases and status tags say what the ledger says: mends a kill between the two.

    Returns:
        {champion, challenger, changes}.
    """
    entries = Ledger.open(home).entries()
    current = champions.champion(entries, plant)
    queue = waiting(entries, plant)
    champion = str(current.body["version"]) if current else None
    challenger = str(queue[-1].body["version"]) if queue else None
    changes = registry.reconcile(plant, champion, challenger)
    promotions = [entry for entry in entries if entry.kind == "promotion" and entry.plant == plant]
    # Only the newest can have changed since the last time, and the newest statement about a version comes last.
    for entry in promotions[-2:]:
        status = "champion" if entry is current else "was champion"
        registry.annotate(plant, str(entry.body["version"]), {"neorl.status": status})
    if queue:
        registry.annotate(plant, str(challenger), {"neorl.status": "waits for approval"})
    rejections = [entry for entry in entries if entry.kind == "rejection" and entry.plant == plant]
    if rejections:
        registry.annotate(plant, str(rejections[-1].body["version"]), {"neorl.status": "rejected"})
    return {"champion": champion, "challenger": challenger, "changes": changes}


def _candidate(entries: Sequence[Entry], **wanted: str) -> Entry | None:
    matching = (e for e in reversed(entries) if all(str(e.body[k]) == v for k, v in wanted.items()))
    return next(matching, None)


def _shards(store: Path, digest: str) -> list[Path]:
    from tasks.adapters.store.reader import Dataset

    dataset = Dataset.open(store, digest, verify=False)
    return [*(dataset.shard_path(record) for record in dataset.manifest.shards), dataset.view_path]
