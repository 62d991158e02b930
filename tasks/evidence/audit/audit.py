"""The audit: verify everything that the ledger states; each failure names the entry, file or head."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.evidence import rules
from tasks.evidence.attempts import certificate_file
from tasks.evidence.audit.people import check_people
from tasks.evidence.audit.witnesses import check_clock, check_witnesses
from tasks.evidence.bundle_signature import fault_of, signatures_named
from tasks.evidence.certificate import Check, read_certificate, says_the_same, verify_certificate
from tasks.evidence.decisions.champions import IN_FORCE, before_policy, champion
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Artefact
from tasks.evidence.ledger.signing import TrustRoot
from tasks.evidence.ledger.voided import VOID, before_each, counting, leaves_service
from tasks.evidence.policies import check_pinned, check_recorded, pinned_file, policy_entry
from tasks.evidence.rules import GROUPS
from tasks.files.canonical import files_in, folder_differences
from tasks.files.stored import is_stored, stored_sha256
from tasks.models.bundles.manifest import MANIFEST, has_policy, read_manifest, stored_digest
from tasks.references import CandidateRecord
from tasks.versions.versions import newest


@dataclass(frozen=True)
class AuditReport:
    """Result of an audit: all checks, in the order in which they ran."""

    checks: list[Check]

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[Check]:
        return [check for check in self.checks if check.passed is False]


def audit(
    home: Home, heads: Iterable[str] = (), trust: Path | None = None, left_out: Container[str] = ()
) -> AuditReport:
    """Verify a home's ledger and every file that it names. Nothing is changed; no private key or server is needed.

    Args:
        heads: signed heads from MLflow tags, reports or exports. The home's `ledger.head` is always checked.
        trust: file of pinned public keys; defaults to the project's file, else to the home's file.
        left_out: paths of files that may be missing, because an archive left them out.

    Raises:
        BadInput: if there is no ledger, or no file of pinned public keys.
    """
    ledger = Ledger.open(home, trust=trust, write=False)
    checks = [_table(home), _chain(ledger)]
    entries = ledger.verified
    checks += _heads(ledger, heads) if checks[-1].passed else []
    checks += [
        *_versions(entries),
        *_replayed(entries),
        _champions(entries, ledger.trust),
        *_policies(ledger, counting(entries, ledger.trust.pins)),
        *check_people(entries, ledger.trust),
    ]
    checks += _files(home, entries, left_out)
    checks += _strangers(home, entries)
    checks += _served(home, entries)
    checks += _controllers(home, entries)
    checks += _signatures(home, entries)
    checks += _certificates(home, ledger, counting(entries, ledger.trust.pins))
    checks += [check_clock(entries, datetime.now(UTC)), *check_witnesses(home, ledger, entries)]
    return AuditReport(checks)


def first_broken(home: Home) -> str | None:
    """Return a message about the first entry that is invalid or breaks a rule; None if there is none."""
    ledger = Ledger.open(home, write=False)
    found = [_chain(ledger), *_replayed(ledger.verified)]
    return next((check.detail for check in found if check.passed is False), None)


def _table(home: Home) -> Check:
    """Run SQLite's integrity check on the ledger's file; it also finds damage that no row shows."""
    if not home.ledger.exists():
        return Check("table", True, "kept by a database server")
    try:
        with closing(sqlite3.connect(home.ledger)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(1)")]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        found = [str(error)]
    return Check("table", found == ["ok"], f"{home.ledger.name}: {found[0]}")


def _chain(ledger: Ledger) -> Check:
    try:
        head = ledger.verify()
    except Refused as error:
        return Check("chain", False, str(error))
    return Check("chain", True, f"{head.size} entries, chained and signed by pinned keys, root {head.root[:12]}")


def _heads(ledger: Ledger, heads: Iterable[str]) -> list[Check]:
    named = [(f"head {number}", text) for number, text in enumerate(heads, start=1)]
    own, failures = ledger.home.root / "ledger.head", []
    if own.exists():
        # Invalid bytes become a character that no envelope contains, so the head is refused.
        named.append((own.name, own.read_text(errors="replace")))
    elif ledger.home.ledger.exists():
        # The signer writes this file before the first entry. Whoever truncates the ledger cannot sign a new head.
        lost = f"{own.name} is missing, so truncation cannot be excluded: restore it from a backup"
        failures.append(Check("heads", False, lost))
    for name, text in named:
        try:
            ledger.verify([text])
        except Refused as error:
            failures.append(Check("heads", False, f"{name}: {error}"))
    return failures or [Check("heads", True, f"{len(named)} signed heads are in the ledger's history")]


def _versions(entries: Sequence[Entry]) -> list[Check]:
    counts = Counter(entry.rules for entry in entries)
    named = ", ".join(f"{counts[number]} entries by version {number}" for number in sorted(counts)) or "no entry"
    return [Check("versions", True, f"rules and texts: {named}; this NeoRL writes version {newest()}")]


def _replayed(entries: Sequence[Entry]) -> list[Check]:
    """Apply the rules to each entry again, with only the earlier entries as history."""
    groups = {kind: name for name, kinds in GROUPS.items() for kind in kinds}
    counts = Counter(groups.get(entry.kind, "others") for entry in entries)
    failures = []
    # Keys that were revoked later are still valid here, as they were when the entry was written.
    for history, entry in before_each(entries):
        try:
            rules.check(history, entry)
        except Refused as error:
            name = groups.get(entry.kind, "others")
            failures.append(Check(name, False, f"ledger entry {entry.sequence}: {error}"))
    failed = {check.name for check in failures}
    held = [name for name in (*GROUPS, "others") if name not in failed]
    return [*(Check(name, True, f"{counts[name]} entries, each by the rule of the kind") for name in held), *failures]


def _champions(logged: Sequence[Entry], trust: TrustRoot) -> Check:
    """Check that each plant has exactly one champion, or none after a withdrawal."""
    entries = counting(logged, trust.pins)
    promotions = [entry for entry in entries if entry.kind in IN_FORCE]
    ended = _ended(logged, entries)
    in_force = Counter(entry.plant for entry in promotions if entry.digest not in ended)
    wanted = {entry.plant: int(champion(entries, entry.plant) is not None) for entry in promotions}
    wrong = sorted(plant for plant, count in wanted.items() if in_force[plant] != count)
    if wrong:
        number = ("no champion", "one champion")[wanted[wrong[0]]]
        return Check("champions", False, f"expected {number} of {wrong[0]}, got {in_force[wrong[0]]}")
    withdrawn = "".join(f", none for {plant}, whose was withdrawn" for plant in sorted(wanted) if not wanted[plant])
    return Check("champions", True, f"one champion for each of {sum(wanted.values())} plants{withdrawn}")


def _ended(logged: Sequence[Entry], entries: Sequence[Entry]) -> set[str]:
    """Return digests of promotions and rollbacks that are over: replaced (also by a voided promotion) or withdrawn."""
    before = {e.digest: e.body.get("replaces") for e in logged if e.kind in IN_FORCE}
    counted = {entry.digest for entry in entries if entry.kind in IN_FORCE}
    names = {"promotion": "replaces", "rollback": "replaces", "withdrawal": "promotion"}
    ended = set()
    for entry in entries:
        kind = "rollback" if leaves_service(entry) and entry.kind == VOID else entry.kind
        found = entry.body.get(names[kind]) if kind in names else None
        while isinstance(found, str) and found not in ended:
            ended.add(found)
            found = None if found in counted else before.get(found)
    return ended


def _policies(ledger: Ledger, entries: Sequence[Entry]) -> list[Check]:
    """Compare pinned policies with the ledger; report champions that are older than their plant's policy."""
    plants = sorted({entry.plant for entry in entries if entry.kind in ("policy", "promotion")})
    signed = [plant for plant in plants if policy_entry(entries, plant) is not None]
    if signed and not pinned_file(ledger.trust, signed[0]).parent.is_dir():
        where = f"not compared: no policies are pinned beside {ledger.trust.source}"
        return [Check("policies", None, where)]
    checks = [*_renewals(ledger.home, entries)]
    for plant in plants:
        try:
            if plant in signed:
                check_pinned(entries, ledger.trust, plant)
            if why := before_policy(entries, plant):
                checks.append(Check("policies", None, why))
        except Refused as error:
            checks.append(Check("policies", False, str(error)))
        except (ValidationError, LookupError, TypeError):
            continue  # unreadable entries are reported by the rules
    held = f"{len(signed)} pinned policies agree with the ledger and with the champions' claims"
    return checks or [Check("policies", True, held)]


def _renewals(home: Home, entries: Sequence[Entry]) -> Iterator[Check]:
    """Yield a failed check for each renewed policy whose recorded steps differ from those of the policy before."""
    for place, entry in enumerate(entries):
        try:
            if entry.kind == "policy":
                check_recorded(home, entries[:place], entry)
        except NeoRLError as error:
            yield Check("policies", False, f"ledger entry {entry.sequence}: {error}")
        except (ValidationError, LookupError, TypeError, ValueError):
            continue  # unreadable entries are reported by the rules


def _named_files(entries: Sequence[Entry]) -> Iterator[tuple[int, Artefact]]:
    """Yield each file that entries name once, with the number of the first entry that names it."""
    seen = set()
    for entry in entries:
        for file in entry.artefacts:
            if (file.path, file.sha256) not in seen:
                seen.add((file.path, file.sha256))
                yield entry.sequence, file


def _files(home: Home, entries: Sequence[Entry], left_out: Container[str]) -> list[Check]:
    failures, count, absent = [], 0, 0
    root = home.root.resolve()
    for sequence, file in _named_files(entries):
        count += 1
        path = (root / file.path).resolve()
        where = f"{file.path} ({file.name}, named by ledger entry {sequence})"
        if file.path in left_out and not is_stored(path):
            absent += 1
        elif not path.is_relative_to(root):
            failures.append(Check("files", False, f"{where}: outside the home"))
        elif path.is_dir() or not is_stored(path):
            failures.append(Check("files", False, f"{where}: missing"))
        elif (found := stored_sha256(path)) != file.sha256:
            failures.append(Check("files", False, f"{where}: expected SHA-256 {file.sha256[:12]}, got {found[:12]}"))
    absences = [Check("files", None, f"{absent} files are left out: only their digests are known")]
    held = Check("files", True, f"{count - absent} files named by entries match their SHA-256")
    return [*(failures or [held]), *(absences if absent else [])]


def _strangers(home: Home, entries: Sequence[Entry]) -> list[Check]:
    """Find files that no entry names in folders that the ledger lists completely, such as bundles."""
    folders: dict[str, int] = {}
    named = set()
    for sequence, file in _named_files(entries):
        named.add(file.path)
        tail = file.name.partition("/")[2]
        if tail and file.path.endswith(f"/{tail}"):
            folders.setdefault(file.path.removesuffix(f"/{tail}"), sequence)
    failures = [
        Check("folders", False, f"{path}: no entry names it, but entry {sequence} names all others in {folder}")
        for folder, sequence in folders.items()
        for tail, _ in files_in(home.root / folder)
        if (path := f"{folder}/{tail}") not in named
    ]
    return failures or [Check("folders", True, f"no unnamed files in {len(folders)} folders")]


def _served(home: Home, entries: Sequence[Entry]) -> list[Check]:
    """Verify every file of the models in this home's MLflow, including the code that MLflow executes to load them."""
    kept = home.root / "mlflow" / "artifacts"
    models: dict[str, tuple[CandidateRecord, int]] = {}
    for record, entry in _records(entries):
        models.setdefault(record.served.model, (record, entry.sequence))
    if not kept.is_dir():
        return [Check("served", None, f"{len(models)} models in MLflow, none stored in this home")]
    failures = []
    for model, (record, sequence) in models.items():
        where = f"version {record.version} of {record.dataset.plant} in MLflow (ledger entry {sequence})"
        # Check all folders of this name; otherwise an unchanged copy could hide an altered copy.
        folders = sorted(kept.glob(f"*/models/{model}/artifacts"))
        faults = [fault for folder in folders for fault in folder_differences(folder, _digests(record))]
        faults = faults if folders else ["the model is missing"]
        failures += [Check("served", False, f"{where}: {fault}") for fault in faults]
    return failures or [Check("served", True, f"{len(models)} models in MLflow match their SHA-256")]


def _controllers(home: Home, entries: Sequence[Entry]) -> list[Check]:
    """Check that composites logged as the plant's own controller contain no policy, because they skip most gates."""
    failures, count = [], 0
    for record, entry in _records(entries):
        if record.role != "fallback":
            continue
        count += 1
        folder = next(((home.root / f.path).parent for f in entry.artefacts if f.path.endswith(f"/{MANIFEST}")), None)
        where = f"version {record.version} of {entry.plant} (ledger entry {entry.sequence})"
        try:
            learned = (
                folder is None
                or stored_digest(folder) != record.composite
                or has_policy(read_manifest(folder).structure)
            )
        except NeoRLError as error:
            failures.append(Check("controllers", False, f"{where}: {error}"))
            continue
        if learned:
            detail = f"{where}: logged as the plant's own controller, but the bundle has a policy or another digest"
            failures.append(Check("controllers", False, detail))
    return failures or [Check("controllers", True, f"{count} composites are the plant's own controller, as logged")]


def _signatures(home: Home, entries: Sequence[Entry]) -> list[Check]:
    """Verify the OpenSSF signatures of bundles; older candidates have none."""
    named = {pair for entry in entries if entry.kind == "candidate" for pair in signatures_named(home, entry)}
    failures = [Check("signatures", False, fault) for pair in sorted(named) if (fault := fault_of(*pair)) is not None]
    return failures or [Check("signatures", True, f"{len(named)} OpenSSF signatures of bundles are valid")]


def _records(entries: Sequence[Entry]) -> Iterator[tuple[CandidateRecord, Entry]]:
    for entry in entries:
        if entry.kind == "candidate":
            with suppress(ValidationError):
                yield entry.read(CandidateRecord), entry


def _digests(record: CandidateRecord) -> dict[str, str]:
    return {file.path: file.sha256 for file in record.served.contents}


def _certificates(home: Home, ledger: Ledger, entries: Sequence[Entry]) -> list[Check]:
    failures, count = [], 0
    for entry in entries:
        file = certificate_file(entry) if entry.kind == "result" else None
        if file is None:
            continue
        count += 1
        path = home.root / file.path
        if not path.is_file():
            failures.append(Check("certificates", False, f"{file.path}: missing, so the result has no evidence"))
            continue
        checks = verify_certificate(path, ledger.trust, ledger=ledger)
        # `check_witnesses` compares witnesses. The pinned witnesses may have changed since this certificate.
        wrong = [check for check in checks if check.passed is False and check.name != "witnesses"]
        failures += [Check("certificates", False, f"{file.path}: {it.name}: {it.detail}") for it in wrong]
        # A valid certificate of another attempt must not support this result.
        if not wrong and not says_the_same(entry, read_certificate(path, ledger.trust).predicate):
            detail = f"{file.path}: belongs to another attempt than ledger entry {entry.sequence}"
            failures.append(Check("certificates", False, detail))
    return failures or [Check("certificates", True, f"{count} certificates: seed, alpha, statistics and claim")]
