"""The ledger: an append-only SQL table of signed, hash-chained entries, the truth about promotion."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.schema import CreateTable

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.adapters.files.canonical import file_sha256, sha256_hex, write_atomic
from tasks.adapters.files.merkle import MerkleTree, merkle_root
from tasks.adapters.ledger.signing import Signer, TrustRoot, open_keys

ENTRY_TYPE = "application/vnd.neorl.ledger-entry+json"
HEAD_TYPE = "application/vnd.neorl.ledger-head+json"
GENESIS = "0" * 64
"""Predecessor of the first entry."""

# The canonical envelope of a head: its keys in their one order, and nothing but base64 within the strings.
HEAD = re.compile(
    r'\{"payload":"[A-Za-z0-9+/=]+","payloadType":"application/vnd\.neorl\.ledger-head\+json",'
    r'"signatures":\[\{"keyid":"[0-9a-f]+","sig":"[A-Za-z0-9+/=]+"\}\]\}'
)

METADATA = sql.MetaData()
TABLE = sql.Table(
    "ledger",
    METADATA,
    sql.Column("sequence", sql.Integer, primary_key=True, autoincrement=False),
    # Unique, so that two writers cannot both follow the same entry: appending is compare-and-set.
    sql.Column("predecessor", sql.String(64), nullable=False, unique=True),
    sql.Column("digest", sql.String(64), nullable=False, unique=True),
    sql.Column("timestamp", sql.String(27), nullable=False),
    sql.Column("kind", sql.String(32), nullable=False),
    sql.Column("plant", sql.String(64), nullable=False),
    sql.Column("envelope", sql.Text, nullable=False),
)
SQLITE_TRIGGERS = (
    "CREATE TRIGGER IF NOT EXISTS ledger_no_update BEFORE UPDATE ON ledger "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER IF NOT EXISTS ledger_no_delete BEFORE DELETE ON ledger "
    "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    # Also stops INSERT OR REPLACE, which deletes without firing the trigger above.
    "CREATE TRIGGER IF NOT EXISTS ledger_next_only BEFORE INSERT ON ledger "
    "WHEN NEW.sequence IS NOT (SELECT COALESCE(MAX(sequence), 0) + 1 FROM ledger) "
    f"OR NEW.predecessor IS NOT COALESCE((SELECT digest FROM ledger ORDER BY sequence DESC LIMIT 1), '{GENESIS}') "
    "BEGIN SELECT RAISE(ABORT, 'the ledger only takes the next entry'); END",
)


@dataclass(frozen=True)
class Entry:
    """One verified row of the ledger."""

    sequence: int
    predecessor: str
    timestamp: str
    kind: str
    plant: str
    body: dict[str, Any]
    artefacts: list[dict[str, str]]
    """Files that the entry vouches for: name, path relative to the home, sha256."""
    digest: str
    """SHA-256 of the envelope: the entry's name for its successor and for other entries."""
    envelope: bytes


class Ledger:
    """Reads are verified: no entry is returned whose signature, chain or columns do not hold."""

    def __init__(
        self, home: Home, engine: sql.Engine, trust: TrustRoot, signer: Signer | None, clock: Callable[[], datetime]
    ) -> None:
        self.home, self.trust = home, trust
        self._engine, self._signer, self._clock = engine, signer, clock
        self._entries: list[Entry] = []
        self._tree = MerkleTree()

    @staticmethod
    def exists(home: Home) -> bool:
        """Whether there is a ledger to read: a team's, or this home's own."""
        return bool(os.environ.get("NEORL_LEDGER_URL")) or home.ledger.exists()

    @classmethod
    def open(
        cls,
        home: Home,
        *,
        trust: Path | None = None,
        url: str | None = None,
        write: bool = True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> Ledger:
        """Open the ledger of a home.

        Args:
            trust: file of pinned public keys, in place of the project's or the home's.
            url: SQLAlchemy URL; else `NEORL_LEDGER_URL`, else SQLite in the home.
            write: False only reads: nothing is created, and no private key is needed.
            clock: tells the time in UTC.

        Raises:
            BadInput: when there is no ledger to read, or the trust root is missing.
            Refused: when the signing key is not pinned, or the database cannot be read.
        """
        url = url or os.environ.get("NEORL_LEDGER_URL") or f"sqlite:///{home.ledger}"
        if not write and url == f"sqlite:///{home.ledger}" and not home.ledger.exists():
            raise BadInput(f"expected a ledger at {home.ledger}, got none: check NEORL_HOME, or retrain a plant first.")
        home.folder()
        engine = _engine(url)
        if not write:
            return cls(home, engine, TrustRoot.locate(home, trust), None, clock)
        try:
            with engine.connect() as connection:
                connection.execute(CreateTable(TABLE, if_not_exists=True))
                if engine.dialect.name == "sqlite":
                    for trigger in SQLITE_TRIGGERS:
                        connection.exec_driver_sql(trigger)
                first_use = connection.execute(sql.select(TABLE.c.sequence).limit(1)).first() is None
        except DBAPIError as error:
            raise Refused(
                f"expected a database at {engine.url}, got '{error.orig}': restore it from its backup."
            ) from error
        signer, root = open_keys(home, first_use=first_use, trust=trust)
        return cls(home, engine, root, signer, clock)

    def entries(self, kind: str | None = None, plant: str | None = None) -> list[Entry]:
        """Verified entries in order, all or those of a kind and a plant.

        Raises:
            Refused: naming the first entry that does not hold.
        """
        return [
            entry
            for entry in self._refresh()
            if (kind is None or entry.kind == kind) and (plant is None or entry.plant == plant)
        ]

    @property
    def verified(self) -> tuple[Entry, ...]:
        """The entries read so far, all of which hold: those before the broken one when reading was refused."""
        return tuple(self._entries)

    def entry(self, digest: str) -> Entry:
        """The entry with a digest.

        Raises:
            BadInput: when there is none.
        """
        found = next((entry for entry in self._refresh() if entry.digest == digest), None)
        if found is None:
            raise BadInput(f"expected the digest of a ledger entry, got {digest!r}: `neorl history` lists them.")
        return found

    def append(
        self,
        kind: str,
        body: Mapping[str, Any] | Callable[[Sequence[Entry]], Mapping[str, Any]],
        *,
        plant: str = "",
        artefacts: Sequence[Mapping[str, str]] = (),
    ) -> Entry:
        """Sign an entry and append it.

        Args:
            kind: what happened.
            body: a JSON object; or a function that makes it of all earlier entries, or refuses. The function runs
                again whenever another writer was first, so what it checked still holds in the entry (compare-and-set).
            artefacts: files vouched for, from `artefact`; they must never be overwritten later.

        Raises:
            Refused: when the ledger does not verify, cannot be written, or was opened to read.
        """
        while True:
            history = list(self._refresh())
            payload: dict[str, Any] = {
                "artefacts": [dict(artefact) for artefact in artefacts],
                "body": dict(body(history) if callable(body) else body),
                "kind": kind,
                "plant": plant,
                "predecessor": history[-1].digest if history else GENESIS,
                "sequence": len(history) + 1,
                # Never before the last entry, whatever the clock does: "champion at a date" relies on the order.
                "timestamp": max(_timestamp(self._clock()), history[-1].timestamp if history else ""),
            }
            envelope = self.seal(ENTRY_TYPE, payload)
            row = {key: payload[key] for key in ("sequence", "predecessor", "timestamp", "kind", "plant")}
            try:
                with self._engine.connect() as connection:
                    connection.execute(
                        sql.insert(TABLE), {**row, "digest": sha256_hex(envelope), "envelope": envelope.decode()}
                    )
            except IntegrityError as error:
                if len(self._refresh()) == len(history):
                    raise Refused(
                        f"expected the ledger to take entry {len(history) + 1}, got '{error.orig}': verify it with "
                        "`neorl audit verify`."
                    ) from error
                continue
            except DBAPIError as error:
                raise BadInput(
                    f"expected to write ledger entry {len(history) + 1} to {self._engine.url}, got '{error.orig}': "
                    "make room or allow writing there, then run the same command again."
                ) from error
            entry = self._refresh()[len(history)]
            write_atomic(self.home.root / "ledger.head", self.signed_head().encode())
            return entry

    def head(self) -> dict[str, Any]:
        """Size, last digest and Merkle root (RFC 6962 over the envelopes) of the ledger now."""
        entries = self._refresh()
        last = entries[-1].digest if entries else GENESIS
        return {"last": last, "root": self._tree.root().hex(), "size": len(entries)}

    def signed_head(self) -> str:
        """The head as a small signed envelope (ASCII JSON): keep it elsewhere and truncation will be seen."""
        return self.seal(HEAD_TYPE, self.head()).decode()

    def verify(self, heads: Iterable[str] = ()) -> dict[str, Any]:
        """Check every entry, and that every signed head is one that this ledger has had.

        Returns:
            The head, and how many heads were compared.

        Raises:
            Refused: naming the entry that does not hold, or the head that the ledger contradicts.
        """
        entries, compared = self._refresh(), 0
        for text in heads:
            self._check_head(entries, self.trust.unseal(HEAD_TYPE, text.strip().encode()))
            compared += 1
        return {**self.head(), "heads": compared}

    def seal(self, payload_type: str, payload: Any) -> bytes:
        """Sign a JSON value with this home's key.

        Raises:
            Refused: when the ledger was opened to read.
        """
        if self._signer is None:
            raise Refused("expected a ledger opened to write, got one opened to read: sign on the home's own machine.")
        return self._signer.seal(payload_type, payload)

    def _refresh(self) -> list[Entry]:
        """Read and verify what was appended since the last look."""
        for row in self._rows():
            entry = self._checked(row)
            self._entries.append(entry)
            self._tree.append(entry.envelope)
        return self._entries

    def _rows(self) -> Iterator[sql.Row[Any]]:
        query = sql.select(TABLE).order_by(TABLE.c.sequence)
        # Without a filter at first: a row whose sequence was altered must not slip below it.
        if self._entries:
            query = query.where(TABLE.c.sequence > len(self._entries))
        try:
            with self._engine.connect() as connection:
                yield from connection.execute(query)
        except DBAPIError as error:
            raise Refused(
                f"expected ledger entry {len(self._entries) + 1} to be readable, got '{error.orig}': restore the "
                "database from its backup."
            ) from error

    def _checked(self, row: sql.Row[Any]) -> Entry:
        number = len(self._entries) + 1
        try:
            if not isinstance(row.envelope, str):
                raise Refused("expected text in the envelope column, got another type: restore the row.")
            envelope = row.envelope.encode()
            payload = self.trust.unseal(ENTRY_TYPE, envelope)
            entry = Entry(**payload, digest=sha256_hex(envelope), envelope=envelope)
            last = self._entries[-1] if self._entries else None
            expected = {"sequence": number, "predecessor": last.digest if last else GENESIS, "digest": entry.digest}
            for name in TABLE.columns.keys()[:-1]:
                signed, stored = getattr(entry, name), getattr(row, name)
                if stored != signed or signed != expected.get(name, signed):
                    raise Refused(
                        f"expected {name} {expected.get(name, signed)!r}, got {stored!r} beside a signed {signed!r}: "
                        "restore the row."
                    )
            if last is not None and entry.timestamp < last.timestamp:
                raise Refused(f"expected a time from {last.timestamp} on, got {entry.timestamp}: restore the row.")
        except (Refused, TypeError, ValueError) as error:
            raise Refused(f"ledger entry {number}: {error}") from error
        return entry

    def _check_head(self, entries: Sequence[Entry], head: Mapping[str, Any]) -> None:
        size = head["size"]
        if size > len(entries):
            raise Refused(
                f"expected at least the {size} ledger entries that a signed head has seen, got {len(entries)}: the "
                "ledger was truncated or an older one restored, so bring back the newer one."
            )
        root = merkle_root(entry.envelope for entry in entries[:size]).hex()
        last = entries[size - 1].digest if size else GENESIS
        if (root, last) != (head["root"], head["last"]):
            raise Refused(
                f"expected the first {size} ledger entries to have root {head['root'][:12]}, as a signed head says, "
                f"got {root[:12]}: this is another history, so bring back the original ledger."
            )


def artefact(home: Home, path: Path, name: str | None = None) -> dict[str, str]:
    """Name a file under the home by its SHA-256, for an entry to vouch for."""
    relative = path.resolve().relative_to(home.root.resolve())
    return {"name": name or path.name, "path": relative.as_posix(), "sha256": file_sha256(path)}


def folder_artefacts(home: Home, folder: Path, name: str) -> list[dict[str, str]]:
    """Name every file in a folder, in the order of their paths."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [artefact(home, path, f"{name}/{path.relative_to(folder).as_posix()}") for path in files]


def heads_in(text: str) -> list[str]:
    """The signed heads in a text: a head itself, or a report that shows one."""
    return HEAD.findall(html.unescape(text))


def read_heads(path: Path) -> list[str]:
    """The signed heads in a file: an exported head or a report.

    Raises:
        BadInput: when the file cannot be read or holds none.
    """
    try:
        found = heads_in(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"expected a signed head in {path}, got {error}: check the path.") from error
    if not found:
        raise BadInput(f"expected a signed head in {path}, got none: give a report or an exported head.")
    return found


def signed_by(heads: Iterable[str], keys: Container[str]) -> list[str]:
    """The heads that say they are signed by one of these keys; whether they are is checked when they are used."""
    return [text for head in heads for text in heads_in(head) if json.loads(text)["signatures"][0]["keyid"] in keys]


def report_heads(home: Home) -> Iterator[str]:
    """The heads that this home's reports show."""
    for path in sorted((home.root / "reports").rglob("*.html")):
        yield from heads_in(path.read_text(errors="replace"))


def _engine(url: str) -> sql.Engine:
    # Statements commit one by one: an entry is one insert, and the unique predecessor guards the rest.
    connect_args = {"timeout": 60} if url.startswith("sqlite") else {}
    engine = sql.create_engine(url, poolclass=sql.NullPool, isolation_level="AUTOCOMMIT", connect_args=connect_args)
    if engine.dialect.name == "sqlite":

        @sql.event.listens_for(engine, "connect")
        def durable(connection: Any, _: Any) -> None:
            # Also syncs the folder once the journal is gone, so that a finished append survives a power cut.
            connection.execute("PRAGMA synchronous=EXTRA")

    return engine


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
