"""One archive of a ledger and all that it vouches for, for an auditor on a machine without the home."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.archive.tar import END, write_member
from tasks.evidence.ledger.ledger import Entry, HeadNow, Ledger
from tasks.evidence.ledger.signing import HEAD_TYPE
from tasks.evidence.policies import pinned_file as policy_file
from tasks.evidence.witness.client import COUNTERSIGNED
from tasks.evidence.witness.pinned import pinned, pinned_file
from tasks.files.canonical import (
    canonical_json,
    file_sha256,
    sha256_hex,
    writing,
)
from tasks.files.stored import is_stored, open_stored, stored_sha256, stored_size

FORMAT = "neorl-audit-archive/1"
CONTENTS = "archive.json"
ENTRIES, HEAD, TRUST, POLICIES, WITNESSES = "ledger", "ledger.head", "trust.yaml", "policies", "witnesses.yaml"
DATA = "datasets/"
"""What may be left out: the ledger has its digests all the same."""
PRIVATE = ("keys/", "secrets/", "ledger/")


class FileIn(BaseModel):
    """A file of an archive."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: str
    sha256: str
    size: int


class ContentsOf(BaseModel):
    """What an archive says of itself, in its first file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: str
    entries: int
    """Of the ledger."""
    files: tuple[FileIn, ...]
    """All others, in the order in which they follow."""
    left_out: tuple[str, ...]
    """Files that entries name and that are not in it."""


class Exported(NamedTuple):
    """An archive that was written."""

    path: Path
    sha256: str
    entries: int
    files: int
    left_out: int


class _Piece(NamedTuple):
    """A file to be: its path in the archive, and its bytes or where they lie."""

    path: str
    source: Path | bytes
    sha256: str
    size: int


def export(home: Home, out: Path, data: bool = True) -> Exported:
    """Write the ledger, every file that it names, keys, policies and witnesses' checkpoint into one archive.

    The same ledger gives the same bytes.

    Args:
        home: of the ledger.
        out: file to write, whole or not at all.
        data: with datasets; without them the archive says which are left out.

    Raises:
        BadInput: when there is no ledger, or the archive cannot be written.
        Refused: when the ledger does not verify, or a file is missing or not what the ledger says.
    """
    ledger = Ledger.open(home, write=False)
    ledger.verify()
    head = _signed_head(home, ledger)
    size = HeadNow(**ledger.trust.unseal(HEAD_TYPE, head.encode())).size
    entries = ledger.verified[:size]
    pieces = [_of_bytes(f"{ENTRIES}/{entry.sequence:08d}.json", entry.envelope) for entry in entries]
    pieces += [_of_bytes(HEAD, head.encode()), *_pins(home, ledger, entries)]
    named = _named(home, entries)
    left_out = tuple(path for path in named if not data and path.startswith(DATA))
    pieces += [piece for path, piece in named.items() if path not in left_out]
    pieces.sort(key=lambda piece: piece.path)
    contents = ContentsOf(
        format=FORMAT,
        entries=size,
        files=tuple(FileIn(path=p.path, sha256=p.sha256, size=p.size) for p in pieces),
        left_out=left_out,
    )
    first = _of_bytes(CONTENTS, canonical_json(contents.model_dump(mode="json")))
    _write(out, [first, *pieces])
    return Exported(out, file_sha256(out), size, len(pieces), len(left_out))


def _signed_head(home: Home, ledger: Ledger) -> str:
    """The home's own head where it is of the last entry, for which no key is needed; else a new one."""
    path = home.root / HEAD
    kept = path.read_text().strip() if path.is_file() else ""
    if kept and HeadNow(**ledger.trust.unseal(HEAD_TYPE, kept.encode())) == ledger.head():
        return kept
    return Ledger.open(home).signed_head()


def _named(home: Home, entries: Sequence[Entry]) -> dict[str, _Piece]:
    """Every file that an entry names, by its path in the home."""
    found: dict[str, _Piece] = {}
    for entry in entries:
        for file in entry.artefacts:
            path = home.root / file.path
            where = f"{file.path}, named by ledger entry {entry.sequence}"
            if file.path.startswith(PRIVATE):
                raise Refused(f"expected files for others to see, got {where}: an archive holds no secret.")
            got = stored_sha256(path) if not path.is_dir() and is_stored(path) else "none"
            if got != file.sha256:
                raise Refused(
                    f"expected SHA-256 {file.sha256[:12]} of {where}, got {got[:12]}: restore it from a backup, "
                    "'neorl audit verify' names all of them."
                )
            found[file.path] = _Piece(file.path, path, file.sha256, stored_size(path))
    return found


def _pins(home: Home, ledger: Ledger, entries: Sequence[Entry]) -> Iterator[_Piece]:
    """What is pinned: keys, policies, witnesses; and the newest head that these countersigned."""
    trust, plants = ledger.trust, sorted({entry.plant for entry in entries if entry.kind == "policy"})
    files = {TRUST: trust.source} | {f"{POLICIES}/{plant}.yaml": policy_file(trust, plant) for plant in plants}
    where, witnesses = pinned_file(home, trust), pinned(home, trust)
    files |= {WITNESSES: where, COUNTERSIGNED: home.root / COUNTERSIGNED}
    if witnesses is not None and witnesses.timestamps is not None:
        files[witnesses.timestamps.certificate] = where.parent / witnesses.timestamps.certificate
    yield from (_of_bytes(name, path.read_bytes()) for name, path in files.items() if path.is_file())


def _of_bytes(path: str, data: bytes) -> _Piece:
    return _Piece(path, data, sha256_hex(data), len(data))


def _write(out: Path, pieces: Sequence[_Piece]) -> None:
    if not out.parent.is_dir() or out.is_dir():
        raise BadInput(f"expected a file in a folder that is there, got {out}: name another one.")
    with writing(out) as temporary, temporary.open("wb") as file:
        for piece in pieces:
            with _opened(piece) as source:
                written = write_member(file, piece.path, source, piece.size)
            if written.sha256 != piece.sha256:
                raise Refused(f"expected {piece.path} to stay as it is, got a change meanwhile: export again.")
        file.write(END)


def _opened(piece: _Piece) -> IO[bytes]:
    return io.BytesIO(piece.source) if isinstance(piece.source, bytes) else open_stored(piece.source)
