"""Verify an archive: its format, the digests of its files, and everything that the audit of a home checks."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from pydantic import ValidationError

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.evidence.archive.export import (
    CONTENTS,
    DATA,
    ENTRIES,
    FORMAT,
    HEAD,
    POLICIES,
    TRUST,
    WITNESSES,
    ContentsOf,
)
from tasks.evidence.archive.tar import CURE, Member, extract
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import Check
from tasks.evidence.ledger import table
from tasks.evidence.ledger.entry import read_entry
from tasks.evidence.ledger.ledger import HeadNow, Ledger
from tasks.evidence.ledger.signing import TrustRoot, from_base64, heads_in
from tasks.evidence.witness.client import COUNTERSIGNED
from tasks.evidence.witness.pinned import pinned
from tasks.files.canonical import canonical_json, read_json

NAME = "archive"
HOME_ONLY = ("ledger.db", "mlflow/", "reports/")
"""Paths that an audit reads in a home. No archive may contain these paths."""


class Unpacked(Home):
    """A home in the folder of an unpacked archive. It ignores NEORL_LEDGER_URL and reads the archive's own ledger."""

    @property
    def ledger_url(self) -> str:
        """URL of the ledger rebuilt from the archive's entries."""
        return f"sqlite:///{self.ledger}"


def verify_archive(archive: Path, heads: Sequence[str] = (), trust: Path | None = None) -> list[Check]:
    """Unpack an archive into a temporary folder and audit it; the home is not needed.

    Args:
        heads: signed heads that the auditor kept; they must belong to the archive's ledger.
        trust: file of trusted public keys; defaults to the file in the archive, which proves no identity.

    Raises:
        BadInput: if the archive does not exist, or the disk is full.
        Refused: if `neorl audit export` did not write the archive, or its entries do not form a ledger.
    """
    with tempfile.TemporaryDirectory(prefix="neorl-audit-") as name:
        home = Unpacked(Path(name))
        contents = _contents(home, archive, list(extract(archive, home.root)))
        _rebuild(home, contents, archive)
        root = trust or home.root / TRUST
        checks = [Check(NAME, True, f"{len(contents.files)} files match their SHA-256, no others")]
        checks.append(_trusted(root, given=trust is not None))
        checks += audit(home, heads, root, frozenset(contents.left_out)).checks
        checks += _strangers(home, contents, root)
        return checks


def _contents(home: Home, archive: Path, members: Sequence[Member]) -> ContentsOf:
    """Read `archive.json` and check that it lists exactly the unpacked files."""
    try:
        value = read_json(home.root / CONTENTS)
        found = ContentsOf.model_validate_json(json.dumps(value))
    except (NeoRLError, ValidationError) as error:
        raise Refused(f"{archive} has no valid list of files ({CONTENTS}): {CURE}") from error
    if found.format != FORMAT or (home.root / CONTENTS).read_bytes() != canonical_json(value):
        raise Refused(f"{archive} must have the exact format {FORMAT}, got '{found.format[:60]}': {CURE}")
    listed = [Member(file.path, file.size, file.sha256) for file in found.files]
    if members[:1] and members[0].path == CONTENTS and list(members[1:]) == listed:
        left_out = {path for path in found.left_out if not path.startswith(DATA)}
        foreign = [file.path for file in found.files if file.path.startswith(HOME_ONLY)]
        if not left_out and not foreign:
            return found
        raise Refused(f"{CONTENTS} of {archive} must not list {(*left_out, *foreign)[0]!r}: {CURE}")
    pairs = zip([*listed, None], [*members[1:], None], strict=False)
    wrong = next((got or want for want, got in pairs if want != got), None)
    name = repr(wrong.path) if wrong else "the first file"
    raise Refused(f"{name} of {archive} was altered, removed or added: {CURE}")


def _rebuild(home: Home, contents: ContentsOf, archive: Path) -> None:
    """Write the archive's entries into a ledger's table; the audit verifies the entries later."""
    listed = [file.path for file in contents.files]
    paths = [path for path in listed if path.startswith(f"{ENTRIES}/")]
    if paths != [f"{ENTRIES}/{number:08d}.json" for number in range(1, contents.entries + 1)]:
        raise Refused(f"{archive} must contain entries 1 to {contents.entries}, got {len(paths)} entry files: {CURE}")
    if missing := {HEAD, TRUST} - set(listed):
        raise Refused(f"{archive} lacks {' and '.join(sorted(missing))}: {CURE}")
    _check_head(home, contents, archive)
    rows = []
    names = table.TABLE.columns.keys()
    for number, path in enumerate(paths, 1):
        envelope = (home.root / path).read_bytes()
        try:
            entry = read_entry(json.loads(from_base64(json.loads(envelope)["payload"])), envelope)
            rows.append([*(getattr(entry, name) for name in names[:-1]), envelope.decode()])
        except Refused as error:
            raise Refused(f"ledger entry {number} of {archive}: {error}") from error
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Refused(f"ledger entry {number} of {archive} cannot be read: {CURE}") from error
    table.create(table.connect(home.ledger_url))
    with closing(sqlite3.connect(home.ledger)) as database, database:
        try:
            database.executemany(f"INSERT INTO ledger VALUES ({', '.join('?' * len(names))})", rows)
        except sqlite3.Error as error:
            raise Refused(f"the entries of {archive} do not form a chain ('{error}'): {CURE}") from error


def _check_head(home: Home, contents: ContentsOf, archive: Path) -> None:
    """Check that the head covers all entries; the audit verifies the head's signature later."""
    try:
        (text,) = heads_in((home.root / HEAD).read_text())
        size = HeadNow(**json.loads(from_base64(json.loads(text)["payload"]))).size
    except (ValueError, TypeError, LookupError) as error:
        raise Refused(f"{HEAD} of {archive} is not a signed head: {CURE}") from error
    if size != contents.entries:
        raise Refused(f"the head of {archive} covers {size} entries, but {CONTENTS} lists {contents.entries}: {CURE}")


def _trusted(root: Path, *, given: bool) -> Check:
    keys = " and ".join(TrustRoot.read(root).keys)
    if given:
        return Check("trust", True, f"signatures are verified with the keys of {root}: {keys}")
    detail = f"verified with the archive's own keys ({keys}), which prove no identity: give --trust FILE"
    return Check("trust", None, detail)


def _strangers(home: Home, contents: ContentsOf, root: Path) -> Iterator[Check]:
    """Yield a failed check for each file that no entry names and the archive format does not require."""
    ledger = Ledger.open(home, trust=root, write=False)
    try:
        named = {file.path for entry in ledger.entries() for file in entry.artefacts}
    except Refused:
        return  # reported by the check of the chain
    known = {HEAD, TRUST, WITNESSES, COUNTERSIGNED}
    with suppress(NeoRLError):  # reported by the check of witnesses
        witnesses = pinned(home, ledger.trust)
        known |= {witnesses.timestamps.certificate} if witnesses and witnesses.timestamps else set()
    for file in contents.files:
        required = file.path.startswith((f"{ENTRIES}/", f"{POLICIES}/")) or file.path in known
        if not required and file.path not in named:
            yield Check(NAME, False, f"{file.path}: no entry names it")
