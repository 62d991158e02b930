"""The audit of an archive: its form, its files' digests, and then everything that an audit of a home looks at."""

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
from tasks.evidence.ledger.ledger import HeadNow, Ledger, read_entry
from tasks.evidence.ledger.signing import TrustRoot, from_base64, heads_in
from tasks.evidence.witness.client import COUNTERSIGNED
from tasks.evidence.witness.pinned import pinned
from tasks.files.canonical import canonical_json, read_json

NAME = "archive"
MADE = ("ledger.db", "mlflow/", "reports/")
"""What an audit reads of a home and no archive brings."""


class Unpacked(Home):
    """A folder that an archive was unpacked into: its ledger is its own, whatever the environment names."""

    @property
    def ledger_url(self) -> str:
        """The ledger that was rebuilt from the archive's entries."""
        return f"sqlite:///{self.ledger}"


def verify_archive(archive: Path, heads: Sequence[str] = (), trust: Path | None = None) -> list[Check]:
    """Check an archive without the home that it comes from; it is unpacked into a folder that is removed again.

    Args:
        archive: from anywhere.
        heads: signed heads that were kept elsewhere.
        trust: file of public keys that you were given by another way; without it those of the archive are taken.

    Raises:
        BadInput: when there is no such file, or no room to unpack it.
        Refused: when it has another form than `neorl audit export` gives it, or no ledger can be made of it.
    """
    with tempfile.TemporaryDirectory(prefix="neorl-audit-") as name:
        home = Unpacked(Path(name))
        # A file too many or too large is seen when its header is read, before the rest of it is.
        contents = _contents(home, archive, list(extract(archive, home.root)))
        _rebuild(home, contents, archive)
        root = trust or home.root / TRUST
        checks = [Check(NAME, True, f"{len(contents.files)} files, each with its SHA-256, and nothing besides")]
        checks.append(_trusted(root, given=trust is not None))
        checks += audit(home, heads, root, frozenset(contents.left_out)).checks
        checks += _strangers(home, contents, root)
        return checks


def _contents(home: Home, archive: Path, members: Sequence[Member]) -> ContentsOf:
    """What the archive says of itself, if that is what is in it."""
    try:
        value = read_json(home.root / CONTENTS)
        found = ContentsOf.model_validate_json(json.dumps(value))
    except (NeoRLError, ValidationError) as error:
        raise Refused(f"expected an archive with a list of its files, got none in {archive}: {CURE}.") from error
    if found.format != FORMAT or (home.root / CONTENTS).read_bytes() != canonical_json(value):
        raise Refused(f"expected an archive of the form {FORMAT}, got '{found.format[:60]}' in {archive}: {CURE}.")
    listed = [Member(file.path, file.size, file.sha256) for file in found.files]
    if members[:1] and members[0].path == CONTENTS and list(members[1:]) == listed:
        told = {path for path in found.left_out if not path.startswith(DATA)}
        brought = [file.path for file in found.files if file.path.startswith(MADE)]
        if not told and not brought:
            return found
        raise Refused(f"expected no {(*told, *brought)[0]!r} in the list of {archive}, got it: {CURE}.")
    pairs = zip([*listed, None], [*members[1:], None], strict=False)
    wrong = next((got or want for want, got in pairs if want != got), None)
    raise Refused(
        f"expected the files of {archive} as its list has them, got {wrong.path if wrong else 'another first file'!r} "
        f"altered, missing or added: {CURE}."
    )


def _rebuild(home: Home, contents: ContentsOf, archive: Path) -> None:
    """Make a ledger's table of the entries, unverified: the audit verifies them."""
    told = [file.path for file in contents.files]
    paths = [path for path in told if path.startswith(f"{ENTRIES}/")]
    if paths != [f"{ENTRIES}/{number:08d}.json" for number in range(1, contents.entries + 1)]:
        raise Refused(f"expected entries 1 to {contents.entries} in {archive}, got others: {CURE}.")
    if HEAD not in told or TRUST not in told:
        raise Refused(f"expected {HEAD} and {TRUST} in {archive}, got none: {CURE}.")
    _check_head(home, contents, archive)
    rows = []
    names = table.TABLE.columns.keys()
    for number, path in enumerate(paths, 1):
        envelope = (home.root / path).read_bytes()
        try:
            entry = read_entry(json.loads(from_base64(json.loads(envelope)["payload"])), envelope)
            rows.append([*(getattr(entry, name) for name in names[:-1]), envelope.decode()])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Refused(f"expected ledger entry {number} in {archive}, got what is none: {CURE}.") from error
    table.create(table.connect(home.ledger_url))
    with closing(sqlite3.connect(home.ledger)) as database, database:
        try:
            database.executemany(f"INSERT INTO ledger VALUES ({', '.join('?' * len(names))})", rows)
        except sqlite3.Error as error:
            raise Refused(f"expected a chain of entries in {archive}, got '{error}': {CURE}.") from error


def _check_head(home: Home, contents: ContentsOf, archive: Path) -> None:
    """Refuse an archive whose head is not of its last entry; whether it is signed the audit says."""
    try:
        (text,) = heads_in((home.root / HEAD).read_text())
        size = HeadNow(**json.loads(from_base64(json.loads(text)["payload"]))).size
    except (ValueError, TypeError, LookupError) as error:
        raise Refused(f"expected a signed head in {HEAD} of {archive}, got none: {CURE}.") from error
    if size != contents.entries:
        raise Refused(f"expected a head of {contents.entries} entries in {archive}, got one of {size}: {CURE}.")


def _trusted(root: Path, *, given: bool) -> Check:
    keys = " and ".join(TrustRoot.read(root).keys)
    if given:
        return Check("trust", True, f"signatures are held against {root}: {keys}")
    told = f"by the keys that the archive brings ({keys}), which say nothing of whose they are: give --trust FILE"
    return Check("trust", None, told)


def _strangers(home: Home, contents: ContentsOf, root: Path) -> Iterator[Check]:
    """Files of the archive that nothing vouches for or explains."""
    ledger = Ledger.open(home, trust=root, write=False)
    try:
        named = {file.path for entry in ledger.entries() for file in entry.artefacts}
    except Refused:
        return  # which the chain has said
    known = {HEAD, TRUST, WITNESSES, COUNTERSIGNED}
    with suppress(NeoRLError):  # which the check of witnesses has said
        witnesses = pinned(home, ledger.trust)
        known |= {witnesses.timestamps.certificate} if witnesses and witnesses.timestamps else set()
    for file in contents.files:
        told = file.path.startswith((f"{ENTRIES}/", f"{POLICIES}/")) or file.path in known
        if not told and file.path not in named:
            yield Check(NAME, False, f"{file.path}: no entry names it")
