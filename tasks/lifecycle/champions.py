"""Withdraw a champion, or roll back to an earlier champion after verifying its certificate, model and bundle."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from configs.code import Origin
from configs.errors import BadInput, NeoRLError, Refused
from configs.home import Home
from configs.load import load_runs
from neorl_core.plants import NAMES
from tasks.evaluation.servability import serve_check
from tasks.evidence.attempts import certificate_file
from tasks.evidence.certificate import verify_certificate
from tasks.evidence.decisions.champions import (
    IN_FORCE,
    RollbackBody,
    WithdrawalBody,
    champion,
    check_allowed,
    leaving,
    promotion_of,
    rollback_content,
    withdrawal_content,
)
from tasks.evidence.decisions.queue import record_of, was_rejected
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Signatory, with_signature
from tasks.evidence.policies import certified_claims
from tasks.files.canonical import file_sha256, folder_differences
from tasks.models.bundles.manifest import MANIFEST, read_manifest
from tasks.models.user_code.loading import find_code, is_code, project_of
from tasks.promote import promote_candidate
from tasks.registry.registry import Registry
from tasks.registry.serving import named_files

RESTORE = "restore it from a backup, or roll back to another version"


class Withdrawn(NamedTuple):
    entry: Entry
    before: bool
    """Whether the champion had already been withdrawn."""
    takes_over: str
    """Description of the controller that takes over."""


def withdraw_champion(
    home: Home, plant: str, version: str, by: str, why: str, signatory: Signatory | None = None
) -> Withdrawn:
    """Take the champion out of service at once; a repeated call changes nothing.

    The plant's own controller takes over. It becomes the champion if one of its versions is certified and needs no
    further approval. Otherwise it only runs at the plant, without NeoRL.

    Args:
        version: version of the champion; any other version is refused, to prevent mistakes.
        signatory: the person who signs; None leaves the withdrawal without a person's signature.
    """
    ledger = Ledger.open(home)

    def body(history: Sequence[Entry]) -> WithdrawalBody:
        now = champion(history, plant)
        if now is None or now.body["version"] != version:
            found = f"version {now.body['version']} is" if now else "no version is"
            raise Refused(f"version {version} of {plant} is not champion, {found}: see 'neorl history {plant}'")
        made = WithdrawalBody(composite=now.body["composite"], promotion=now.digest, version=version, by=by, why=why)
        return with_signature(made, signatory, withdrawal_content(made, plant))

    made, before = _withdrawn(ledger, plant, version), True
    if made is None:
        try:
            made, before = ledger.append("withdrawal", body, plant=plant), False
        except Refused:
            # Another person may have withdrawn the champion while this person signed.
            if (made := _withdrawn(ledger, plant, version)) is None:
                raise
    note = f"takes over from version {version}: {why}"
    return Withdrawn(made, before, _take_over(home, ledger, plant, by, note, signatory))


def _withdrawn(ledger: Ledger, plant: str, version: str) -> Entry | None:
    """Return the withdrawal of a version; None if the version was not withdrawn, or became champion again."""
    turns = (e for e in reversed(ledger.entries()) if e.plant == plant and e.kind in (*IN_FORCE, "withdrawal"))
    last = next((e for e in turns if e.body["version"] == version), None)
    return last if last is not None and last.kind == "withdrawal" else None


def _take_over(home: Home, ledger: Ledger, plant: str, by: str, note: str, signatory: Signatory | None) -> str:
    """Promote a certified version of the plant's own controller if there is one; describe the controller in force."""
    entries = ledger.entries()
    if (now := champion(entries, plant)) is not None:
        record = record_of(ledger.entry(now.body["candidate"]))
        own = "the plant's own controller, " if record.role == "fallback" else ""
        return f"{own}version {now.body['version']}"
    for entry in reversed(entries):
        if (entry.kind, entry.plant) != ("candidate", plant) or was_rejected(entries, plant, entry.body["composite"]):
            continue
        record = record_of(entry)
        if record.role != "fallback" or not record.passed or record.champion is not None:
            continue
        try:
            made = promote_candidate(home, entry, by, note, signatory=signatory)
        except NeoRLError as error:
            return f"the plant's own controller, only at the plant (its version {record.version}: {error})"
        if made.kind == "promotion":
            return f"the plant's own controller, version {record.version}"
        return f"the plant's own controller, only at the plant: its version {record.version} needs more approvals"
    return "the plant's own controller, only at the plant: no version of it is registered"


def roll_back(
    home: Home,
    registry: Registry,
    plant: str,
    version: str,
    by: str,
    why: str,
    signatory: Signatory | None = None,
    *,
    role: str = "",
) -> Entry:
    """Make an earlier champion the champion again; a repeated call changes nothing.

    Args:
        signatory: the person who signs; None leaves the rollback without a person's signature.

    Raises:
        Refused: if the version never was champion, is champion now, was rejected or withdrawn, has no valid
            certificate, does not meet the policy, or lacks a file, or if a file was altered.
        ServiceMissing: if MLflow does not answer; nothing is recorded then.
    """
    ledger = Ledger.open(home)
    head = home.root / "ledger.head"
    ledger.verify([head.read_text(errors="replace")] if head.exists() else [])
    history = ledger.entries()
    now = champion(history, plant)
    if now is not None and now.body["version"] == version:
        if now.kind == "rollback":
            return now
        raise Refused(f"version {version} of {plant} is already champion: choose another from 'neorl history {plant}'")
    promotion = promotion_of(history, plant, version)
    check_allowed(history, plant, version, promotion.body["composite"] if promotion else "")
    assert promotion is not None  # ensured by check_allowed
    candidate = ledger.entry(promotion.body["candidate"])
    _check_certificate(ledger, candidate)
    _check_served(registry, candidate)
    _check_bundle(home, candidate)
    seen = leaving(history, plant)

    def body(history: Sequence[Entry]) -> RollbackBody:
        if leaving(history, plant) != seen:
            raise Refused(
                f"the champion of {plant} changed while version {version} was verified: see 'neorl history {plant}', "
                "and decide again"
            )
        made = RollbackBody(
            composite=promotion.body["composite"],
            candidate=candidate.digest,
            version=version,
            restores=promotion.digest,
            replaces=seen[0],
            leaves=seen[1],
            by=by,
            role=role,
            why=why,
        )
        return with_signature(made, signatory, rollback_content(history, plant, made))

    return ledger.append("rollback", body, plant=plant, artefacts=candidate.artefacts)


def _check_certificate(ledger: Ledger, candidate: Entry) -> None:
    """Check that the version has a valid certificate; the signer checks the certificate's age later."""
    record = record_of(candidate)
    faults = []
    for result, _ in certified_claims(ledger.entries(), candidate.plant, record.composite):
        file = certificate_file(result)
        if file is None:
            continue
        path = ledger.home.root / file.path
        try:
            checks = verify_certificate(path, ledger.trust, artefacts={"composite": record.composite}, ledger=ledger)
        except BadInput as error:
            faults.append(str(error).rstrip("."))
            continue
        # The signer's rule checks witnesses and policy against the ledger.
        wrong = [c for c in checks if c.passed is False and c.name not in ("witnesses", "policy")]
        if not wrong:
            return
        faults.append(f"{file.path}: {wrong[0].name}: {wrong[0].detail}")
    reason = faults[-1] if faults else "there is none"
    raise Refused(f"version {record.version} of {candidate.plant} has no valid certificate ({reason}): {RESTORE}")


def _check_served(registry: Registry, candidate: Entry) -> None:
    record, plant = record_of(candidate), candidate.plant
    tagged = registry.version(plant, record.version).digest
    if tagged != record.composite:
        raise Refused(
            f"version {record.version} of {plant} in MLflow must be composite {record.composite[:12]}, got "
            f"{tagged[:12] or 'no tag'}: {RESTORE}"
        )
    with tempfile.TemporaryDirectory() as folder:
        faults = folder_differences(registry.fetch_model(plant, record.version, Path(folder)), named_files(record))
    if faults:
        raise Refused(f"version {record.version} of {plant} in MLflow differs from the ledger ({faults[0]}): {RESTORE}")


def _check_bundle(home: Home, candidate: Entry) -> None:
    """Check that the bundle's files match the ledger, and that the bundle still computes the recorded actions."""
    record, plant = record_of(candidate), candidate.plant
    name = f"version {record.version} of {plant}"
    for file in candidate.artefacts:
        path = home.root / file.path
        if file.name.startswith("bundle/") and (not path.is_file() or file_sha256(path) != file.sha256):
            fault = "was altered" if path.is_file() else "is missing"
            raise Refused(f"{file.path} of {name} {fault}: {RESTORE}")
    manifest = next((file for file in candidate.artefacts if file.path.endswith(f"/{MANIFEST}")), None)
    if manifest is None:
        raise Refused(f"the candidate of {name} names no bundle: {RESTORE}")
    folder = (home.root / manifest.path).parent
    # Without a time budget: latency depends on the machine's load.
    found = serve_check(folder, record.composite, _code_of(folder), budget_us=math.inf, calls=10)
    if not found.passed:
        raise Refused(f"the bundle {folder} of {name} failed the check ('{found.reasons[0]}'): {RESTORE}")


def _code_of(folder: Path) -> Origin | None:
    """Return the project's plant code with the digest that the bundle names, or None; nothing is executed."""
    manifest = read_manifest(folder)
    if manifest.spec.name in NAMES or not manifest.own_code:
        return None
    for path in sorted(Path("configs").glob("*.yaml")):
        try:
            plants = {run.plant for run in load_runs(path)}
            found = [find_code(plant, project_of(path)) for plant in sorted(plants) if is_code(plant)]
        except NeoRLError:
            continue  # a configuration file that is not a run
        for code in found:
            if code.digest == manifest.own_code:
                return code
    return None
