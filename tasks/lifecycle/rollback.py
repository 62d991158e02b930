"""Bring an earlier champion back into service, once everything that it rests on has been looked at again."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from configs.code import Origin
from configs.errors import BadInput, NeoRLError, Refused
from configs.home import Home
from configs.load import load_runs
from neorl_core.plants import NAMES
from tasks.evaluation.servability import serve_check
from tasks.evidence.attempts import certificate_file
from tasks.evidence.certificate import verify_certificate
from tasks.evidence.decisions.champions import (
    RollbackBody,
    champion,
    check_allowed,
    leaving,
    promotion_of,
    rollback_content,
)
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.people.statement import Signatory, read_payload
from tasks.evidence.policies import certified_claims
from tasks.files.canonical import file_sha256, folder_differences
from tasks.models.bundles.manifest import MANIFEST, read_manifest
from tasks.models.user_code.loading import find_code, is_code, project_of
from tasks.registry.registry import Registry
from tasks.registry.serving import named_files

RESTORE = "bring it back from a backup, or go back to another version"


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
    """Make an earlier champion champion again; giving the same command again changes nothing.

    Args:
        home: of the ledger.
        registry: MLflow, which serves the version.
        plant: the plant's name.
        version: that was champion before.
        by: who decides.
        why: for the record.
        signatory: the person with their key; in the home's name without one.
        role: as what they decide.

    Returns:
        The rollback's entry.

    Raises:
        Refused: when the version never was champion, is it now, was ruled out, its certificate does not hold or has
            expired, the plant's policy asks for more, or a file of it is missing or another.
        ServiceMissing: when MLflow does not answer; nothing is recorded then.
    """
    ledger = Ledger.open(home)
    head = home.root / "ledger.head"
    ledger.verify([head.read_text(errors="replace")] if head.exists() else [])
    history = ledger.entries()
    now = champion(history, plant)
    if now is not None and now.body["version"] == version:
        if now.kind == "rollback":
            return now
        raise Refused(
            f"expected an earlier champion of {plant} to go back to, got version {version}, which is in force: see "
            f"'neorl history {plant}'."
        )
    promotion = promotion_of(history, plant, version)
    check_allowed(history, plant, version, promotion.body["composite"] if promotion else "")
    assert promotion is not None  # or it would have been refused
    candidate = ledger.entry(promotion.body["candidate"])
    _check_certificate(ledger, candidate)
    _check_served(registry, candidate)
    _check_bundle(home, candidate)
    seen = leaving(history, plant)

    def body(history: Sequence[Entry]) -> RollbackBody:
        if leaving(history, plant) != seen:
            raise Refused(
                f"expected the champion of {plant} to stay the same while version {version} was looked at, got another "
                f"one meanwhile: see 'neorl history {plant}', and decide again."
            )
        said = RollbackBody(
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
        if signatory is None:
            return said
        envelope = signatory.sign(rollback_content(history, plant, said))
        return said.model_copy(update={"signature": envelope, "signed": read_payload(envelope)["signed"]})

    return ledger.append("rollback", body, plant=plant, artefacts=candidate.artefacts)


def _check_certificate(ledger: Ledger, candidate: Entry) -> None:
    """Refuse a version none of whose certificates holds as it lies in the home; the rule looks at their age."""
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
        # What witnesses and policy are now is asked of the ledger, by the rule.
        wrong = [c for c in checks if c.passed is False and c.name not in ("witnesses", "policy")]
        if not wrong:
            return
        faults.append(f"{file.path}: {wrong[0].name}: {wrong[0].detail}")
    got = faults[-1] if faults else "none"
    raise Refused(
        f"expected a certificate of version {record.version} of {candidate.plant} that holds, got {got}: {RESTORE}."
    )


def _check_served(registry: Registry, candidate: Entry) -> None:
    """Refuse a version that MLflow would serve with other files than the ledger names."""
    record, plant = record_of(candidate), candidate.plant
    tagged = registry.version(plant, record.version).digest
    if tagged != record.composite:
        raise Refused(
            f"expected composite {record.composite[:12]} as version {record.version} of {plant} in MLflow, got "
            f"{tagged[:12] or 'no tag'}: {RESTORE}."
        )
    with tempfile.TemporaryDirectory() as folder:
        faults = folder_differences(registry.fetch_model(plant, record.version, Path(folder)), named_files(record))
    if faults:
        expected = f"expected version {record.version} of {plant} in MLflow as the ledger names it"
        raise Refused(f"{expected}, got {faults[0]}: {RESTORE}.")


def _check_bundle(home: Home, candidate: Entry) -> None:
    """Refuse a version whose files in the home are not those of its candidate, or whose bundle does not answer."""
    record, plant = record_of(candidate), candidate.plant
    expected = f"expected version {record.version} of {plant} as it was certified, got"
    for file in candidate.artefacts:
        path = home.root / file.path
        if file.name.startswith("bundle/") and (not path.is_file() or file_sha256(path) != file.sha256):
            got = "another" if path.is_file() else "no"
            raise Refused(f"{expected} {got} {file.path}: {RESTORE}.")
    manifest = next((file for file in candidate.artefacts if file.path.endswith(f"/{MANIFEST}")), None)
    if manifest is None:
        raise Refused(f"{expected} an entry that names no bundle: {RESTORE}.")
    folder = (home.root / manifest.path).parent
    # How long an action takes depends on what else this machine does now: what it answers does not.
    found = serve_check(folder, record.composite, _code_of(folder), budget_us=math.inf, calls=10)
    if not found.passed:
        raise Refused(f"{expected} a bundle in {folder} with '{found.reasons[0]}': {RESTORE}.")


def _code_of(folder: Path) -> Origin | None:
    """The code of a plant of the user's own, where this project has it as the bundle names it; nothing is executed."""
    manifest = read_manifest(folder)
    if manifest.spec.name in NAMES or not manifest.own_code:
        return None
    for path in sorted(Path("configs").glob("*.yaml")):
        try:
            plants = {run.plant for run in load_runs(path)}
            found = [find_code(plant, project_of(path)) for plant in sorted(plants) if is_code(plant)]
        except NeoRLError:
            continue  # another file of the project's, which is no run
        for code in found:
            if code.digest == manifest.own_code:
                return code
    return None
