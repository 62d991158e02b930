"""The audit: everything that the ledger vouches for is looked at again, and what fails is named."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from configs.errors import Refused
from configs.home import Home
from tasks.adapters.files.canonical import file_sha256
from tasks.adapters.ledger.attempts import check_attempt, check_result
from tasks.adapters.ledger.certificate import Check, read_certificate, verify_certificate
from tasks.adapters.ledger.champions import check_promotion
from tasks.adapters.ledger.ledger import Entry, Ledger


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
        _replayed("attempts", "attempts and results", entries, ("attempt", "result"), _attempt_rules),
        _replayed(
            "promotions", "promotions, each with an approval of its own", entries, ("promotion",), _promotion_rules
        ),
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
    return Check("chain", True, f"{head['size']} entries, chained and signed by pinned keys, root {head['root'][:12]}")


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


def _attempt_rules(history: Sequence[Entry], entry: Entry) -> None:
    (check_attempt if entry.kind == "attempt" else check_result)(history, entry)


def _promotion_rules(history: Sequence[Entry], entry: Entry) -> None:
    check_promotion(history, entry.plant, entry.body)


def _replayed(
    name: str,
    what: str,
    entries: Sequence[Entry],
    kinds: tuple[str, ...],
    rule: Callable[[Sequence[Entry], Entry], None],
) -> Check:
    """Apply the rule of writing again to each entry, given only what was known before it."""
    selected = [entry for entry in entries if entry.kind in kinds]
    for entry in selected:
        try:
            rule(entries[: entry.sequence - 1], entry)
        except (Refused, KeyError, TypeError, ValueError) as error:
            return Check(name, False, f"ledger entry {entry.sequence}: {error}")
    return Check(name, True, f"{len(selected)} {what}")


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


def _named_files(entries: Sequence[Entry]) -> Iterator[tuple[int, str, str, str]]:
    seen = set()
    for entry in entries:
        for file in entry.artefacts:
            key = (file["path"], file["sha256"])
            if key not in seen:
                seen.add(key)
                yield entry.sequence, file["name"], *key


def _files(home: Home, entries: Sequence[Entry]) -> list[Check]:
    failures, count = [], 0
    root = home.root.resolve()
    for sequence, name, relative, sha256 in _named_files(entries):
        count += 1
        path = (root / relative).resolve()
        where = f"{relative} ({name}, named by ledger entry {sequence})"
        if not path.is_relative_to(root):
            failures.append(Check("files", False, f"{where}: outside the home"))
        elif not path.is_file():
            failures.append(Check("files", False, f"{where}: missing"))
        elif (found := file_sha256(path)) != sha256:
            failures.append(Check("files", False, f"{where}: expected SHA-256 {sha256[:12]}, got {found[:12]}"))
    return failures or [Check("files", True, f"{count} files named by entries, each with its SHA-256")]


def _certificates(home: Home, ledger: Ledger, entries: Sequence[Entry]) -> list[Check]:
    """Check each certificate that a result names, statistics and all."""
    failures, count = [], 0
    for entry in entries:
        if entry.kind != "result":
            continue
        for file in entry.artefacts:
            if not file["path"].startswith("certificates/"):
                continue
            count += 1
            path = home.root / file["path"]
            wrong = [check for check in verify_certificate(path, ledger.trust, ledger=ledger) if not check.passed]
            failures += [Check("certificates", False, f"{file['path']}: {it.name}: {it.detail}") for it in wrong]
            # A true certificate of another attempt must not stand behind this result.
            if not wrong and _attempt_of(path, ledger) != entry.body["attempt"]:
                detail = f"{file['path']}: a certificate of another attempt than that of ledger entry {entry.sequence}"
                failures.append(Check("certificates", False, detail))
    return failures or [Check("certificates", True, f"{count} certificates: seed, alpha, statistics and claim")]


def _attempt_of(certificate: Path, ledger: Ledger) -> str:
    return str(read_certificate(certificate, ledger.trust)["predicate"]["attempt"]["entry"])
