"""The ledger: an append-only table of signed, hash-chained entries, the truth about promotion."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sql
from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.ledger import client, table
from tasks.evidence.ledger.protocol import Answer, Append, Artefact, Ask, Head, Request
from tasks.evidence.ledger.signing import HEAD_TYPE, Pin, TrustRoot, keyid_of
from tasks.evidence.ledger.table import GENESIS, TABLE
from tasks.evidence.ledger.voided import counting
from tasks.files.canonical import sha256_hex
from tasks.files.merkle import MerkleTree, merkle_root
from tasks.files.stored import stored_sha256
from tasks.files.times import format_time, parse_time
from tasks.versions.versions import version_of

ENTRY_TYPE = "application/vnd.neorl.ledger-entry.v3+json"
EARLIER = re.compile(rb'"payloadType":"application/vnd\.neorl\.ledger-entry(\.v2)?\+json"')
"""In the canonical envelopes of ledgers of earlier versions, whose seeds no witness had a part in."""
LOST_ANSWERS = 5
"""Times that the signer may be lost, or give no answer in time, during one append before it is an error."""


class Body(BaseModel):
    """What an entry of some kind says. Frozen, and nothing is converted or ignored when it is read."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


AnyBody = TypeVar("AnyBody", bound=BaseModel)


@dataclass(frozen=True)
class Entry:
    """One verified row of the ledger."""

    sequence: int
    predecessor: str
    timestamp: str
    kind: str
    plant: str
    body: dict[str, Any]
    artefacts: tuple[Artefact, ...]
    """Files that the entry vouches for."""
    digest: str
    """SHA-256 of the envelope: the entry's name for its successor and for other entries."""
    envelope: bytes = field(repr=False)
    rules: int = 1
    """Version of the rules and texts that it was judged and written by (`tasks.versions`)."""
    void: str = ""
    """Why it does not count, where it was read as a void one; no entry is signed with it."""
    root: bytes = field(default=b"", repr=False, compare=False)
    """Merkle root (RFC 6962) over its envelope and all before it, as the ledger that read it found it."""

    @cached_property
    def signer(self) -> str:
        """Id of the key that signed it."""
        return keyid_of(self.envelope) if self.envelope else ""

    def read(self, model: type[AnyBody]) -> AnyBody:
        """The entry's body as the model of its kind.

        Raises:
            pydantic.ValidationError: when it says more, less or something else.
        """
        return model.model_validate_json(json.dumps(self.body))


class HeadNow(NamedTuple):
    """Size, last digest and Merkle root (RFC 6962 over the envelopes) of a ledger at a moment."""

    last: str
    root: str
    size: int


class Ledger:
    """Reads are verified: no entry is returned whose signature, chain or columns do not hold.

    Reading needs neither the private key nor the signer; appending asks the signer.
    """

    def __init__(self, home: Home, engine: sql.Engine, trust: TrustRoot, ask: Ask | None) -> None:
        self.home, self.trust, self._engine, self._ask = home, trust, engine, ask
        self._entries, self._counted = list[Entry](), list[Entry]()
        self._tree = MerkleTree()
        self._counted_at: tuple[int, tuple[Pin, ...]] = (0, ())
        self._known = _known_under(engine, trust)

    @staticmethod
    def exists(home: Home) -> bool:
        """Whether there is a ledger to read: a team's, or this home's own."""
        return home.ledger_url != f"sqlite:///{home.ledger}" or home.ledger.exists()

    @classmethod
    def open(cls, home: Home, *, trust: Path | None = None, write: bool = True, ask: Ask | None = None) -> Ledger:
        """Open the ledger of a home.

        Args:
            trust: file of pinned public keys, in place of the project's or the home's.
            write: False only reads: nothing is created, and no signer is needed.
            ask: answers requests for signatures, in place of the home's signer process.

        Raises:
            BadInput: when there is no ledger to read, or the trust root is missing.
            Refused: when the signing key is missing or not pinned, or the database cannot be read.
        """
        if write:
            ask = ask or partial(client.ask, home)
            ask(client.hello(home))
        elif not cls.exists(home):
            raise BadInput(f"expected a ledger at {home.ledger}, got none: check NEORL_HOME, or retrain a plant first.")
        return cls(home, table.connect(home.ledger_url), TrustRoot.locate(home, trust), ask if write else None)

    def entries(self, kind: str | None = None, plant: str | None = None) -> list[Entry]:
        """Verified entries in order, all or those of a kind and a plant; one that does not count is of the kind `void`.

        Raises:
            Refused: naming the first entry that does not hold.
        """
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
        """The entries read so far, all of which hold: those before the broken one when reading was refused."""
        return tuple(self._entries)

    def entry(self, digest: str) -> Entry:
        """The entry with a digest.

        Raises:
            BadInput: when there is none.
        """
        found = next((entry for entry in self.entries() if entry.digest == digest), None)
        if found is None:
            raise BadInput(f"expected the digest of a ledger entry, got {digest!r}: `neorl history` lists them.")
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
            kind: what happened, one of `rules.RULES`.
            body: what the entry says; or a function that makes it of all earlier entries, or refuses. The function runs
                again whenever another writer was first, so what it checked still holds in the entry (compare-and-set).
            plant: the plant that it is about.
            artefacts: files vouched for, from `artefact`; they must never be overwritten later.

        Returns:
            The entry, read back and verified.

        Raises:
            Refused: when the ledger does not verify, was opened to read, or the entry breaks a rule of its kind.
            BadInput: when the ledger cannot be written.
        """
        lost, why = list[Append](), ""
        while True:
            history = self.entries()
            # A signer that was killed, or is slow, may have written what it gave no answer about.
            found = (entry for entry in self._entries if any(_is_of(entry, request) for request in lost))
            if lost and (ours := next(found, None)) is not None:
                return ours
            if len(lost) == LOST_ANSWERS:
                raise Refused(f"expected the signer to append an entry, got '{why}': see logs/signer.log.")
            said = body(history) if callable(body) else body
            request = Append(
                kind=kind,
                plant=plant,
                # By way of text, where numbers that are not finite have a form that JSON knows.
                body=json.loads(said.model_dump_json()),
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
        """The head of the ledger now."""
        self._refresh()
        return self._head_of_read()

    def adopt(self, entry: Entry) -> HeadNow:
        """Take in the next entry from who has just signed and written it; the head with it."""
        self._take(entry)
        return self._head_of_read()

    def signed_head(self) -> str:
        """The head as a small signed envelope (ASCII JSON): keep it elsewhere and truncation will be seen."""
        return self.request(Head()).envelope

    def verify(self, heads: Iterable[str] = ()) -> HeadNow:
        """Check every entry, and that every signed head is one that this ledger has had.

        Returns:
            The head.

        Raises:
            Refused: naming the entry that does not hold, or the head that the ledger contradicts.
        """
        entries = self._refresh()
        for text in heads:
            self._check_head(entries, HeadNow(**self.trust.unseal(HEAD_TYPE, text.strip().encode())))
        return self._head_of_read()

    def request(self, request: Request) -> Answer:
        """Ask this home's signer.

        Raises:
            Refused: when the ledger was opened to read, or the signer refuses.
        """
        if self._ask is None:
            raise Refused("expected a ledger opened to write, got one opened to read: sign on the home's own machine.")
        return self._ask(request)

    def _refresh(self) -> list[Entry]:
        """Read and verify what was appended since the last look, and that the last entry seen is still there."""
        seen = len(self._entries)
        with closing(table.rows_from(self._engine, seen)) as rows:
            if seen:
                row = next(rows, None)
                if row is None or row.envelope != self._entries[-1].envelope.decode():
                    raise Refused(
                        f"ledger entry {seen}: expected the one that was read before, got another or none: bring back "
                        "the newer ledger; where an older one is meant, run `neorl down` first."
                    )
            for row in rows:
                self._take(self._checked(row))
        return self._entries

    def _take(self, entry: Entry) -> None:
        self._tree.append(entry.envelope)
        self._entries.append(replace(entry, root=self._tree.root()))

    def _head_of_read(self) -> HeadNow:
        last = self._entries[-1].digest if self._entries else GENESIS
        return HeadNow(last, root_of(self._entries, len(self._entries)).hex(), len(self._entries))

    def _checked(self, row: sql.Row[Any]) -> Entry:
        number = len(self._entries) + 1
        try:
            if not isinstance(row.envelope, str):
                raise Refused("expected text in the envelope column, got another type: restore the row.")
            envelope = row.envelope.encode()
            known = self._known.get(envelope)
            if known is None and EARLIER.search(envelope):
                raise Refused(
                    "expected one of this version of NeoRL, got one of an earlier version: keep the home for its audit "
                    "with the version that wrote it, and start a new one (NEORL_HOME)."
                )
            entry = known or read_entry(self._unsealed(envelope), envelope)
            last = self._entries[-1] if self._entries else None
            expected = {"sequence": number, "predecessor": last.digest if last else GENESIS, "digest": entry.digest}
            for name in TABLE.columns.keys()[:-1]:
                signed, stored = getattr(entry, name), getattr(row, name)
                if stored != signed or signed != expected.get(name, signed):
                    raise Refused(
                        f"expected {name} {expected.get(name, signed)!r}, got {stored!r} beside a signed {signed!r}: "
                        "restore the row."
                    )
            if last is not None and entry.rules < last.rules:
                raise Refused(
                    f"uses rules version {entry.rules} after an entry of version {last.rules}, and versions never "
                    "decrease: restore the row."
                )
            if format_time(parse_time(entry.timestamp)) != entry.timestamp:
                raise Refused(f"expected a time as the ledger writes it, got {entry.timestamp!r}: restore the row.")
            if last is not None and entry.timestamp < last.timestamp:
                raise Refused(f"expected a time from {last.timestamp} on, got {entry.timestamp}: restore the row.")
        except (Refused, KeyError, TypeError, ValueError) as error:
            raise Refused(f"ledger entry {number}: {error}") from error
        self._known[envelope] = entry
        return entry

    def _unsealed(self, envelope: bytes) -> Any:
        try:
            return self.trust.unseal(ENTRY_TYPE, envelope)
        except Refused:
            # Another key may have taken the home's place since this was opened: then the file pins more keys now.
            now = TrustRoot.read(self.trust.source)
            if now.keys.keys() == self.trust.keys.keys():
                raise
            self.trust, self._known = now, _known_under(self._engine, now)
            return now.unseal(ENTRY_TYPE, envelope)

    def _check_head(self, entries: Sequence[Entry], head: HeadNow) -> None:
        if head.size > len(entries):
            raise Refused(
                f"expected at least the {head.size} ledger entries that a signed head has seen, got {len(entries)}: "
                "the ledger was truncated or an older one restored, so bring back the newer one."
            )
        root = root_of(entries, head.size).hex()
        last = entries[head.size - 1].digest if head.size else GENESIS
        if (root, last) != (head.root, head.last):
            raise Refused(
                f"expected the first {head.size} ledger entries to have root {head.root[:12]}, as a signed head says, "
                f"got {root[:12]}: this is another history, so bring back the original ledger."
            )


def _known_under(engine: sql.Engine, trust: TrustRoot) -> dict[bytes, Entry]:
    """The entries that this process has read of a ledger under the same keys, by their signed envelopes.

    A retraining opens its ledger a dozen times, and most of a reading's time goes into signatures. All else is checked
    at each: that the rows are there, in their order, and say what is signed.
    """
    return _known(str(engine.url), frozenset((name, key.public_bytes_raw()) for name, key in trust.keys.items()))


@lru_cache(maxsize=1)
def _known(url: str, keys: frozenset[tuple[str, bytes]]) -> dict[bytes, Entry]:
    """Kept for the ledger that was opened last."""
    return {}


def read_entry(payload: Any, envelope: bytes = b"") -> Entry:
    """The entry that a payload stands for.

    Raises:
        KeyError, TypeError, ValueError: when the payload has another shape.
    """
    if not isinstance(payload["body"], dict):
        raise TypeError(f"expected an object as its body, got {payload['body']!r}: restore the row.")
    # Entries of version 1 have no such field, and a signed 1 would be a second way to write the same.
    rules = payload["rules"] if "rules" in payload else 1  # noqa: SIM401, a payload may be a list
    if "rules" in payload and (type(rules) is not int or rules < 2):
        raise ValueError(f"rules must be a whole number of at least 2, got {rules!r}: restore the row.")
    # Before anything else is read: entries of a later version may have other fields.
    version_of(rules)
    said = {**payload, "artefacts": tuple(Artefact(**file) for file in payload["artefacts"]), "rules": rules}
    return Entry(**said, digest=sha256_hex(envelope), envelope=envelope, void="", root=b"")


def root_of(entries: Sequence[Entry], size: int) -> bytes:
    """The Merkle root of the first entries of a ledger, which are at least so many."""
    return entries[size - 1].root if size else merkle_root([])


def insert(engine: sql.Engine, entry: Entry) -> None:
    """Write the row of a signed entry.

    Raises:
        sqlalchemy.exc.IntegrityError: when another writer was first.
        sqlalchemy.exc.DBAPIError: when the database cannot be written.
    """
    columns = {name: getattr(entry, name) for name in TABLE.columns.keys()[:-1]}
    with engine.connect() as connection:
        connection.execute(sql.insert(TABLE), {**columns, "envelope": entry.envelope.decode()})


def artefact(home: Home, path: Path, name: str | None = None) -> Artefact:
    """Name a file under the home by its SHA-256, for an entry to vouch for."""
    relative = path.resolve().relative_to(home.root.resolve())
    return Artefact(name or path.name, relative.as_posix(), stored_sha256(path))


def folder_artefacts(home: Home, folder: Path, name: str) -> list[Artefact]:
    """Name every file in a folder, in the order of their paths."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [artefact(home, path, f"{name}/{path.relative_to(folder).as_posix()}") for path in files]


def _is_of(entry: Entry, request: Append) -> bool:
    same = ("predecessor", "kind", "plant", "body", "artefacts")
    return all(getattr(entry, name) == getattr(request, name) for name in same)
