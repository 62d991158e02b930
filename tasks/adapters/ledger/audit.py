"""The audit: everything that the ledger vouches for is looked at again, and what fails is named."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from configs.errors import Refused
from configs.home import Home
from tasks.adapters.files.canonical import file_sha256
from tasks.adapters.ledger import rules
from tasks.adapters.ledger.attempts import certificate_file
from tasks.adapters.ledger.certificate import Check, read_certificate, says_the_same, verify_certificate
from tasks.adapters.ledger.ledger import Entry, Ledger
from tasks.adapters.ledger.protocol import Artefact
from tasks.adapters.ledger.rules import GROUPS


@dataclass(frozen=True)
class AuditReport:
    """What was checked, in order."""

    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether every check held."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> list[Check]:
        """The checks that did not hold."""
        return [check for check in self.checks if not check.passed]


def audit(home: Home, heads: Iterable[str] = (), trust: Path | None = None) -> AuditReport:
    """Check a home's ledger and every file that it names. Reads only; needs no private key and no server.

    Args:
        heads: signed heads that survive elsewhere (MLflow tags, reports, exports); the home's own `ledger.head` is
            compared as well.
        trust: file of pinned public keys, in place of the project's or the home's.

    Returns:
        A report whose failures name the record: a ledger entry, a file or a head.

    Raises:
        BadInput: when there is no ledger or no trust root.
    """
    ledger = Ledger.open(home, trust=trust, write=False)
    checks = [_table(home), _chain(ledger)]
    entries = ledger.verified
    checks += _heads(ledger, heads, home.root / "ledger.head") if checks[-1].passed else []
    checks += [
        *_replayed(entries),
        _champions(entries),
    ]
    checks += _files(home, entries)
    checks += _certificates(home, ledger, entries) if all(check.passed for check in checks) else []
    return AuditReport(checks)


def _table(home: Home) -> Check:
    """SQLite's own check, which sees damage to pages and indices that no query of the rows touches."""
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


def _heads(ledger: Ledger, heads: Iterable[str], own: Path) -> list[Check]:
    named = [(f"head {number}", text) for number, text in enumerate(heads, start=1)]
    if own.exists():
        # An odd byte becomes a character that no envelope has, and is then refused like any other.
        named.append((own.name, own.read_text(errors="replace")))
    failures = []
    for name, text in named:
        try:
            ledger.verify([text])
        except Refused as error:
            failures.append(Check("heads", False, f"{name}: {error}"))
    return failures or [Check("heads", True, f"{len(named)} signed heads are in the ledger's history")]


def _replayed(entries: Sequence[Entry]) -> list[Check]:
    """Apply the rules of writing again to each entry, given only what was known before it."""
    groups = {kind: name for name, kinds in GROUPS.items() for kind in kinds}
    counts = Counter(groups.get(entry.kind, "others") for entry in entries)
    failures = []
    for entry in entries:
        try:
            rules.check(entries[: entry.sequence - 1], entry)
        except Refused as error:
            name = groups.get(entry.kind, "others")
            failures.append(Check(name, False, f"ledger entry {entry.sequence}: {error}"))
    failed = {check.name for check in failures}
    held = [name for name in (*GROUPS, "others") if name not in failed]
    return [*(Check(name, True, f"{counts[name]} entries, each by the rule of its kind") for name in held), *failures]


def _champions(entries: Sequence[Entry]) -> Check:
    """A promotion that no other replaces is a champion: there must be one per plant that ever had any."""
    promotions = [entry for entry in entries if entry.kind == "promotion"]
    replaced = {entry.body.get("replaces") for entry in promotions}
    in_force = Counter(entry.plant for entry in promotions if entry.digest not in replaced)
    plants = {entry.plant for entry in promotions}
    wrong = sorted(plant for plant in plants if in_force[plant] != 1)
    if wrong:
        return Check("champions", False, f"expected one champion of {wrong[0]}, got {in_force[wrong[0]]}")
    return Check("champions", True, f"one champion for each of {len(plants)} plants")


def _named_files(entries: Sequence[Entry]) -> Iterator[tuple[int, Artefact]]:
    """Each file once, with the first entry that names it."""
    seen = set()
    for entry in entries:
        for file in entry.artefacts:
            if (file.path, file.sha256) not in seen:
                seen.add((file.path, file.sha256))
                yield entry.sequence, file


def _files(home: Home, entries: Sequence[Entry]) -> list[Check]:
    failures, count = [], 0
    root = home.root.resolve()
    for sequence, file in _named_files(entries):
        count += 1
        path = (root / file.path).resolve()
        where = f"{file.path} ({file.name}, named by ledger entry {sequence})"
        if not path.is_relative_to(root):
            failures.append(Check("files", False, f"{where}: outside the home"))
        elif not path.is_file():
            failures.append(Check("files", False, f"{where}: missing"))
        elif (found := file_sha256(path)) != file.sha256:
            failures.append(Check("files", False, f"{where}: expected SHA-256 {file.sha256[:12]}, got {found[:12]}"))
    return failures or [Check("files", True, f"{count} files named by entries, each with its SHA-256")]


def _certificates(home: Home, ledger: Ledger, entries: Sequence[Entry]) -> list[Check]:
    """Check each certificate that a result names, statistics and all."""
    failures, count = [], 0
    for entry in entries:
        file = certificate_file(entry) if entry.kind == "result" else None
        if file is None:
            continue
        count += 1
        path = home.root / file.path
        wrong = [check for check in verify_certificate(path, ledger.trust, ledger=ledger) if not check.passed]
        failures += [Check("certificates", False, f"{file.path}: {it.name}: {it.detail}") for it in wrong]
        # A true certificate of another attempt must not stand behind this result.
        if not wrong and not says_the_same(entry, read_certificate(path, ledger.trust).predicate):
            detail = f"{file.path}: a certificate of another attempt than that of ledger entry {entry.sequence}"
            failures.append(Check("certificates", False, detail))
    return failures or [Check("certificates", True, f"{count} certificates: seed, alpha, statistics and claim")]
