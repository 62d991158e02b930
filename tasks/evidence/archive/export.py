"""Export the ledger and the files that it names into one archive, which an auditor can verify without the home."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.archive.tar import END, write_member
from tasks.evidence.ledger.entry import Body, Entry
from tasks.evidence.ledger.ledger import HeadNow, Ledger
from tasks.evidence.ledger.signing import HEAD_TYPE
from tasks.evidence.policies import pinned_file as policy_file
from tasks.evidence.witness.client import COUNTERSIGNED
from tasks.evidence.witness.pinned import pinned, pinned_file
from tasks.files.canonical import canonical_json, file_sha256, sha256_hex, writing
from tasks.files.stored import is_stored, open_stored, stored_sha256, stored_size

FORMAT = "neorl-audit-archive/1"
CONTENTS = "archive.json"
ENTRIES, HEAD, TRUST, POLICIES, WITNESSES = "ledger", "ledger.head", "trust.yaml", "policies", "witnesses.yaml"
DATA = "datasets/"
"""Path prefix of dataset files. An archive may omit these files, because the ledger contains their digests."""
PRIVATE = ("keys/", "secrets/", "ledger/")


class FileIn(Body):
    path: str
    sha256: str
    size: int


class ContentsOf(Body):
    """Content of `archive.json`, the first file of an archive: the list of all other files."""

    format: str
    entries: int
    files: tuple[FileIn, ...]
    """All other files, in order."""
    left_out: tuple[str, ...]
    """Paths of files that ledger entries name and that the archive omits."""


class Exported(NamedTuple):
    path: Path
    sha256: str
    entries: int
    files: int
    left_out: int


class _Piece(NamedTuple):
    """A file to write: its path in the archive, and its bytes or the path of its source file."""

    path: str
    source: Path | bytes
    sha256: str
    size: int


def export(home: Home, out: Path, data: bool = True) -> Exported:
    """Write the ledger, every file that it names, public keys, policies and the newest heads into one archive.

    An unchanged home always gives the same archive, byte for byte.

    Args:
        out: file to write; an error leaves no incomplete file.
        data: whether to include the datasets; otherwise the archive only lists their paths.

    Raises:
        BadInput: if there is no ledger, or the archive cannot be written.
        Refused: if the ledger is invalid, or a file is missing or has another SHA-256 than the ledger states.
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
    """Return a signed head that covers the last entry: the stored head, or a new head from the signer."""
    path = home.root / HEAD
    kept = path.read_text().strip() if path.is_file() else ""
    if kept and HeadNow(**ledger.trust.unseal(HEAD_TYPE, kept.encode())) == ledger.head():
        return kept
    return Ledger.open(home).signed_head()


def _named(home: Home, entries: Sequence[Entry]) -> dict[str, _Piece]:
    found: dict[str, _Piece] = {}
    for entry in entries:
        for file in entry.artefacts:
            path = home.root / file.path
            if file.path.startswith(PRIVATE):
                raise Refused(
                    f"ledger entry {entry.sequence} names {file.path}, which is private and must not be exported: ask "
                    "the author of this entry"
                )
            got = stored_sha256(path) if not path.is_dir() and is_stored(path) else "no file"
            if got != file.sha256:
                raise Refused(
                    f"{file.path} of entry {entry.sequence} must have SHA-256 {file.sha256[:12]}, got {got[:12]}: "
                    "restore it from a backup; 'neorl audit verify' names all such files"
                )
            found[file.path] = _Piece(file.path, path, file.sha256, stored_size(path))
    return found


def _pins(home: Home, ledger: Ledger, entries: Sequence[Entry]) -> Iterator[_Piece]:
    """Yield the files that pin public keys, policies and witnesses, and the newest countersigned head."""
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
        raise BadInput(f"cannot write {out}: it is a folder, or its folder does not exist; choose another path")
    with writing(out) as temporary, temporary.open("wb") as file:
        for piece in pieces:
            with _opened(piece) as source:
                written = write_member(file, piece.path, source, piece.size)
            if written.sha256 != piece.sha256:
                raise Refused(f"{piece.path} changed during the export: export again")
        file.write(END)


def _opened(piece: _Piece) -> IO[bytes]:
    return io.BytesIO(piece.source) if isinstance(piece.source, bytes) else open_stored(piece.source)
