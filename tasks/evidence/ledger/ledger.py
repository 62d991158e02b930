"""The ledger: an append-only table of signed, hash-chained entries that decides which composite is champion."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sql
from pydantic import BaseModel

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.ledger import client, table
from tasks.evidence.ledger.entry import Entry, read_entry, root_of
from tasks.evidence.ledger.protocol import Answer, Append, Artefact, Ask, Head, Request
from tasks.evidence.ledger.signing import HEAD_TYPE, Pin, TrustRoot
from tasks.evidence.ledger.table import GENESIS, TABLE
from tasks.evidence.ledger.voided import counting
from tasks.files.canonical import format_time, parse_time
from tasks.files.merkle import MerkleTree
from tasks.files.stored import stored_sha256

ENTRY_TYPE = "application/vnd.neorl.ledger-entry.v3+json"
EARLIER = re.compile(rb'"payloadType":"application/vnd\.neorl\.ledger-entry(\.v2)?\+json"')
"""Pattern of entries in older formats of the ledger, which had no witnesses."""
LOST_ANSWERS = 5
"""An append fails after this many lost or late answers of the signer."""


class HeadNow(NamedTuple):
    """State of a ledger: digest of the last entry, Merkle root over all envelopes (RFC 6962), number of entries."""

    last: str
    root: str
    size: int


class Ledger:
    """Reads and verifies entries, and appends entries through the signer.

    An entry is returned only after its signature, its place in the chain and its columns have been verified. Reading
    needs neither the private key nor the signer.
    """

    def __init__(self, home: Home, engine: sql.Engine, trust: TrustRoot, ask: Ask | None) -> None:
        self.home, self.trust, self._engine, self._ask = home, trust, engine, ask
        self._entries, self._counted = list[Entry](), list[Entry]()
        self._tree = MerkleTree()
        self._counted_at: tuple[int, tuple[Pin, ...]] = (0, ())
        self._known = _known_under(engine, trust)

    @staticmethod
    def exists(home: Home) -> bool:
        """Return whether there is a ledger to read: a team's database, or the home's own file."""
        return home.ledger_url != f"sqlite:///{home.ledger}" or home.ledger.exists()

    @classmethod
    def open(cls, home: Home, *, trust: Path | None = None, write: bool = True, ask: Ask | None = None) -> Ledger:
        """Open the ledger of a home.

        Args:
            trust: file of pinned public keys; defaults to the project's file, else to the home's file.
            write: False opens the ledger for reading only: nothing is created, and no signer is needed.
            ask: function that sends requests; defaults to the home's signer process.
        """
        if write:
            ask = ask or partial(client.ask, home)
            ask(client.hello(home))
        elif not cls.exists(home):
            raise BadInput(f"there is no ledger at {home.ledger}: check NEORL_HOME, or retrain a plant first")
        return cls(home, table.connect(home.ledger_url), TrustRoot.locate(home, trust), ask if write else None)

    def entries(self, kind: str | None = None, plant: str | None = None) -> list[Entry]:
        """Return verified entries in order, optionally of one kind or plant; voided entries get the kind `void`."""
        read = self._refresh()
        state = len(read), self.trust.pins
        if self._counted_at != state:
            self._counted, self._counted_at = counting(read, self.trust.pins), state
        return [
            entry
            for entry in self._counted
            if (kind is None or entry.kind == kind) and (plant is None or entry.plant == plant)
        ]

    @property
    def verified(self) -> tuple[Entry, ...]:
        """Entries verified so far; after an error, the entries before the invalid entry."""
        return tuple(self._entries)

    def entry(self, digest: str) -> Entry:
        """Return the entry with this digest; raise BadInput if there is none."""
        found = next((entry for entry in self.entries() if entry.digest == digest), None)
        if found is None:
            raise BadInput(f"no ledger entry has the digest {digest!r}: `neorl history` lists all entries")
        return found

    def append(
        self,
        kind: str,
        body: BaseModel | Callable[[Sequence[Entry]], BaseModel],
        *,
        plant: str = "",
        artefacts: Sequence[Artefact] = (),
    ) -> Entry:
        """Have the signer check, sign and append an entry.

        Args:
            body: the entry's body, or a function that makes the body from all earlier entries. If another writer
                appends first, the function runs again, so it always sees the final history.
            artefacts: files that the entry names, made with `artefact`. Nobody may overwrite these files.

        Raises:
            Refused: if the ledger is invalid or was opened for reading, or if the entry breaks a rule.
        """
        lost, why = list[Append](), ""
        while True:
            history = self.entries()
            # A signer that was killed or is slow may have written the entry without answering.
            found = (entry for entry in self._entries if any(_is_of(entry, request) for request in lost))
            if lost and (ours := next(found, None)) is not None:
                return ours
            if len(lost) == LOST_ANSWERS:
                raise Refused(f"the signer did not answer {LOST_ANSWERS} times ('{why}'): see logs/signer.log")
            made = body(history) if callable(body) else body
            request = Append(
                kind=kind,
                plant=plant,
                # Convert through JSON text, which keeps NaN and infinity.
                body=json.loads(made.model_dump_json()),
                artefacts=tuple(artefacts),
                predecessor=history[-1].digest if history else GENESIS,
            )
            try:
                if not self.request(request).stale:
                    return self._refresh()[len(history)]
            except ConnectionError as error:
                lost.append(request)
                why = str(error)

    def head(self) -> HeadNow:
        self._refresh()
        return self._verified_head()

    def adopt(self, entry: Entry) -> HeadNow:
        """Add an entry that the caller has just signed and written; return the new head."""
        self._take(entry)
        return self._verified_head()

    def signed_head(self) -> str:
        """Return a signed head (ASCII JSON). A copy of the head outside of the home reveals a later truncation."""
        return self.request(Head()).envelope

    def verify(self, heads: Iterable[str] = ()) -> HeadNow:
        """Verify every entry, check that each signed head belongs to this ledger, and return the current head."""
        entries = self._refresh()
        for text in heads:
            self._check_head(entries, HeadNow(**self.trust.unseal(HEAD_TYPE, text.strip().encode())))
        return self._verified_head()

    def request(self, request: Request) -> Answer:
        if self._ask is None:
            raise Refused(f"the ledger of {self.home.root} was opened for reading: sign on the home's own machine")
        return self._ask(request)

    def _refresh(self) -> list[Entry]:
        """Read and verify new entries. The last entry that was read before must still exist."""
        seen = len(self._entries)
        with closing(table.rows_from(self._engine, seen)) as rows:
            if seen:
                row = next(rows, None)
                if row is None or row.envelope != self._entries[-1].envelope.decode():
                    raise Refused(
                        f"ledger entry {seen} changed or disappeared since it was read: restore the newer ledger; to "
                        "use an older ledger on purpose, run `neorl down` first"
                    )
            for row in rows:
                self._take(self._checked(row))
        return self._entries

    def _take(self, entry: Entry) -> None:
        self._tree.append(entry.envelope)
        self._entries.append(replace(entry, root=self._tree.root()))

    def _verified_head(self) -> HeadNow:
        last = self._entries[-1].digest if self._entries else GENESIS
        return HeadNow(last, root_of(self._entries, len(self._entries)).hex(), len(self._entries))

    def _checked(self, row: sql.Row[Any]) -> Entry:
        number = len(self._entries) + 1
        try:
            if not isinstance(row.envelope, str):
                kind = type(row.envelope).__name__
                raise Refused(f"the envelope column must be text, got {kind}: restore the row")
            envelope = row.envelope.encode()
            known = self._known.get(envelope)
            if known is None and (earlier := EARLIER.search(envelope)):
                raise Refused(
                    f"an earlier version of NeoRL wrote this entry ({earlier[0].decode()}): audit this home with that "
                    "version, and start a new home (NEORL_HOME)"
                )
            entry = known or read_entry(self._unsealed(envelope), envelope)
            last = self._entries[-1] if self._entries else None
            expected = {"sequence": number, "predecessor": last.digest if last else GENESIS, "digest": entry.digest}
            for name in TABLE.columns.keys()[:-1]:
                signed, stored = getattr(entry, name), getattr(row, name)
                if stored != signed or signed != expected.get(name, signed):
                    raise Refused(
                        f"{name} must be {expected.get(name, signed)!r}, got {stored!r} in the table and {signed!r} in "
                        "the envelope: restore the row"
                    )
            if last is not None and entry.rules < last.rules:
                raise Refused(
                    f"uses rules version {entry.rules} after an entry of version {last.rules}, and versions never "
                    "decrease: restore the row"
                )
            if format_time(parse_time(entry.timestamp)) != entry.timestamp:
                raise Refused(f"timestamps must be written as 2026-01-31T12:00:00.000000Z, got {entry.timestamp!r}")
            if last is not None and entry.timestamp < last.timestamp:
                raise Refused(
                    f"timestamps must not decrease, got {entry.timestamp} after {last.timestamp}: restore the row"
                )
        except (Refused, KeyError, TypeError, ValueError) as error:
            raise Refused(f"ledger entry {number}: {error}") from error
        self._known[envelope] = entry
        return entry

    def _unsealed(self, envelope: bytes) -> Any:
        try:
            return self.trust.unseal(ENTRY_TYPE, envelope)
        except Refused:
            # The home's key may have been rotated since opening: read the pins again.
            now = TrustRoot.read(self.trust.source)
            if now.keys.keys() == self.trust.keys.keys():
                raise
            self.trust, self._known = now, _known_under(self._engine, now)
            return now.unseal(ENTRY_TYPE, envelope)

    def _check_head(self, entries: Sequence[Entry], head: HeadNow) -> None:
        if head.size > len(entries):
            raise Refused(
                f"the ledger has {len(entries)} entries, but a signed head covers {head.size}: it was truncated, or an "
                "older copy was restored; restore the newer ledger"
            )
        root = root_of(entries, head.size).hex()
        last = entries[head.size - 1].digest if head.size else GENESIS
        if (root, last) != (head.root, head.last):
            raise Refused(
                f"the first {head.size} ledger entries have root {root[:12]}, a signed head states {head.root[:12]}: "
                "entries were altered or replaced; restore the original ledger"
            )


def _known_under(engine: sql.Engine, trust: TrustRoot) -> dict[bytes, Entry]:
    """Return this process's cache of entries with verified signatures, by envelope, for this ledger and these keys.

    Only signatures are cached. Presence, order and columns are checked at each reading.
    """
    return _known(str(engine.url), frozenset((name, key.public_bytes_raw()) for name, key in trust.keys.items()))


@lru_cache(maxsize=1)
def _known(url: str, keys: frozenset[tuple[str, bytes]]) -> dict[bytes, Entry]:
    # With maxsize=1, only the ledger that was opened last has a cache.
    return {}


def insert(engine: sql.Engine, entry: Entry) -> None:
    """Write the row of a signed entry.

    Raises:
        sqlalchemy.exc.IntegrityError: if another writer was first.
        sqlalchemy.exc.DBAPIError: if the database cannot be written.
    """
    columns = {name: getattr(entry, name) for name in TABLE.columns.keys()[:-1]}
    with engine.connect() as connection:
        connection.execute(sql.insert(TABLE), {**columns, "envelope": entry.envelope.decode()})


def artefact(home: Home, path: Path, name: str | None = None) -> Artefact:
    """Return name, relative path and SHA-256 of a file in the home, so that an entry can name the file."""
    relative = path.resolve().relative_to(home.root.resolve())
    return Artefact(name or path.name, relative.as_posix(), stored_sha256(path))


def folder_artefacts(home: Home, folder: Path, name: str) -> list[Artefact]:
    """Return every file in a folder as an artefact, sorted by path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [artefact(home, path, f"{name}/{path.relative_to(folder).as_posix()}") for path in files]


def _is_of(entry: Entry, request: Append) -> bool:
    same = ("predecessor", "kind", "plant", "body", "artefacts")
    return all(getattr(entry, name) == getattr(request, name) for name in same)
