"""`make tamper`: alter copies of a home, and count the alterations that the audit finds.

    python -m benchmarks.tamper [--home HOME] [--flips 200] [--seed 0]

The home must have a ledger; `make run` makes one. The command only reads this home.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from configs.errors import NeoRLError
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import ENTRY_TYPE, Ledger
from tasks.evidence.ledger.signing import HEAD_TYPE
from tasks.evidence.ledger.table import GENESIS, TABLE
from tasks.files.canonical import sha256_hex

COLUMNS = tuple(TABLE.columns.keys())
TRIGGERS = ("ledger_no_update", "ledger_no_delete", "ledger_next_only")
"""Database triggers that protect the ledger. An attacker who has the database file removes them first."""


def copy_home(source: Home, target: Path) -> Home:
    """Copy the files that the audit reads: ledger, trust root, key and all files that entries name."""
    copy = Home(target)
    wanted = {source.trust, source.root / "ledger.head", source.signing_key}
    wanted |= set((source.root / "policies").glob("*.yaml"))
    wanted |= {source.root / "witnesses.yaml", source.root / "witnessed.head"}
    wanted |= {path for path in (source.root / "witness").rglob("*") if path.is_file()}
    for entry in Ledger.open(source, write=False).entries():
        wanted |= {source.root / file.path for file in entry.artefacts}
    wanted |= {
        path for path in (source.root / "mlflow" / "artifacts").glob("*/models/*/artifacts/**/*") if path.is_file()
    }
    for path in (path for path in wanted if path.exists()):
        destination = target / path.relative_to(source.root)
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, destination)
    with closing(sqlite3.connect(source.ledger)) as database:
        # A copy of the file would contain remains of moved rows, and a changed byte there would have no effect.
        database.execute("VACUUM INTO ?", (str(copy.ledger),))
    return copy


@contextmanager
def altered(path: Path) -> Iterator[None]:
    """Restore the content of a file at the end of the block."""
    original = path.read_bytes()
    try:
        yield
    finally:
        path.write_bytes(original)


def flip_byte(path: Path, offset: int, mask: int) -> None:
    """Change one byte of a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def flip_in_row(path: Path, chance: random.Random) -> tuple[int, str]:
    """Change one byte of one column of one row through SQL, like a database administrator.

    Returns:
        Sequence of the row and name of the column.
    """
    with closing(sqlite3.connect(path)) as database:
        for trigger in TRIGGERS:
            database.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        count = database.execute("SELECT COUNT(*) FROM ledger").fetchone()[0]
        sequence, column = chance.randint(1, count), chance.choice(COLUMNS)
        (value,) = database.execute(f"SELECT {column} FROM ledger WHERE sequence = ?", (sequence,)).fetchone()
        if column == "sequence":
            altered_value: int | str = value + (1 << chance.randint(10, 30))
        elif value:
            at = chance.randrange(len(value))
            altered_value = value[:at] + chr(ord(value[at]) ^ (1 << chance.randrange(7)) or 1) + value[at + 1 :]
        else:
            altered_value = "x"
        database.execute(f"UPDATE ledger SET {column} = ? WHERE sequence = ?", (altered_value, sequence))
        database.commit()
    return sequence, column


def row_bytes(path: Path, piece: int = 48) -> list[tuple[int, int]]:
    """Return the parts (offset, length) of the database file that contain rows of the table or of its indices."""
    raw = path.read_bytes()
    # Skip the first page: it has no rows, but the schema on it contains the first digest, too.
    rows_from = int.from_bytes(raw[16:18], "big")
    with closing(sqlite3.connect(path)) as database:
        values = [
            value.encode()
            for row in database.execute("SELECT predecessor, digest, timestamp, envelope FROM ledger")
            for value in row
        ]
    # Long values are spread over overflow pages, so search for pieces.
    pieces = {value[at : at + piece] for value in values for at in range(0, len(value), piece)}
    stretches = []
    for content in sorted(content for content in pieces if len(content) >= 24):
        at = raw.find(content, rows_from)
        while at >= 0:
            stretches.append((at, len(content)))
            at = raw.find(content, at + 1)
    return stretches


def resign(home: Home, scratch: Path) -> None:
    """Sign the whole ledger again with a new key and with a correct chain; leave the trust root unchanged."""
    key, _ = open_keys(Home(scratch), first_use=True)
    entries = Ledger.open(home, write=False).entries()
    last = GENESIS
    with closing(sqlite3.connect(home.ledger)) as database:
        for trigger in TRIGGERS:
            database.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        for entry in entries:
            payload = {name: getattr(entry, name) for name in COLUMNS if name not in ("digest", "envelope")}
            payload |= {
                "artefacts": [file._asdict() for file in entry.artefacts],
                "body": entry.body,
                "predecessor": last,
                "rules": entry.rules,
            }
            envelope = key.seal(ENTRY_TYPE, payload)
            row = (last, sha256_hex(envelope), envelope.decode(), entry.sequence)
            database.execute("UPDATE ledger SET predecessor = ?, digest = ?, envelope = ? WHERE sequence = ?", row)
            last = row[1]
        database.commit()


def truncate(home: Home, keep: int) -> None:
    """Delete the last entries."""
    with closing(sqlite3.connect(home.ledger)) as database:
        for trigger in TRIGGERS:
            database.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        database.execute("DELETE FROM ledger WHERE sequence > ?", (keep,))
        database.commit()


def group(home: Home, path: Path) -> str:
    """Return the category of a file in the results."""
    folder = path.relative_to(home.root).parts[0]
    return {"certificates": "certificate", "datasets": "dataset"}.get(folder, "model and evidence")


def tamper(source: Home, flips: int, seed: int, scratch: Path) -> dict[str, Counter[str]]:
    """Alter a copy of a home repeatedly.

    Args:
        source: home with a passing audit.
        flips: number of single bytes to change, spread evenly over rows, the database file and the kinds of files.
        scratch: empty folder.

    Returns:
        For each kind of alteration: number tried, number found, and the missed ones.
    """
    chance = random.Random(seed)
    home = copy_home(source, scratch / "home")
    ledger = Ledger.open(source, write=False)
    entries = ledger.entries()
    head = (source.root / "ledger.head").read_text()
    results: dict[str, Counter[str]] = {}

    def count(kind: str, what: str, named: str, heads: tuple[str, ...] = ()) -> None:
        report = audit(home, heads)
        found = not report.passed and any(named in f"{check.name} {check.detail}" for check in report.failures)
        results.setdefault(kind, Counter()).update({"tried": 1, "found": int(found)})
        if not found:
            results[kind][f"missed: {what}"] += 1

    if not (clean := audit(home, [head])).passed:
        raise SystemExit(f"the audit of the home fails: {clean.failures}: fix the home first.")
    files: dict[str, list[Path]] = {}
    for path in sorted({home.root / file.path for entry in entries for file in entry.artefacts}):
        if path.stat().st_size:
            files.setdefault(group(home, path), []).append(path)
    stretches = row_bytes(home.ledger)
    kinds = ["ledger row", "ledger file", *files]
    for i in range(flips):
        kind, mask = kinds[i % len(kinds)], 1 << chance.randrange(8)
        if kind == "ledger row":
            with altered(home.ledger):
                sequence, column = flip_in_row(home.ledger, chance)
                count(kind, f"entry {sequence}, column {column}", f"ledger entry {sequence}:")
        elif kind == "ledger file":
            start, length = chance.choice(stretches)
            offset = start + chance.randrange(length)
            with altered(home.ledger):
                flip_byte(home.ledger, offset, mask)
                count(kind, f"byte {offset}", "")
        else:
            path = chance.choice(files[kind])
            offset = chance.randrange(path.stat().st_size)
            with altered(path):
                flip_byte(path, offset, mask)
                relative = path.relative_to(home.root).as_posix()
                count(kind, f"{relative} byte {offset}", relative)
    for path in (path for paths in files.values() for path in paths):
        for name, offset in slack(path):
            with altered(path):
                flip_byte(path, offset, 1)
                count(
                    "flip bytes outside dataset values", f"{path.name} {name}", path.relative_to(home.root).as_posix()
                )

    with altered(home.ledger):
        resign(home, scratch / "other")
        count("sign again with a fresh key", "all entries", "ledger entry 1:")
    own = home.root / "ledger.head"
    with altered(home.ledger), altered(own):
        truncate(home, len(entries) - 1)
        count("truncate the ledger", "last entry", "ledger.head")
        own.unlink()
        count("truncate the ledger", "last entry and the home's own head", "head 1", (head,))
        # An older copy of the home contains a valid signed head.
        key, _ = open_keys(home, first_use=False)
        own.write_text(key.seal(HEAD_TYPE, Ledger.open(home, write=False).head()._asdict()).decode())
        count("restore an older home", "one entry behind", "head 1", (head,))
    return results


def slack(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (offset, kind) of bytes of an HDF5 file outside all dataset values, which content digests do not cover."""
    if path.suffix not in (".h5", ".hdf5"):
        return
    import h5py

    used: list[tuple[int, int]] = []

    def note(_: str, node: object) -> None:
        if not isinstance(node, h5py.Dataset) or node.is_virtual:
            return
        if node.chunks is None:
            offset = node.id.get_offset()
            used.extend([(offset, node.id.get_storage_size())] if offset is not None else [])
        else:
            chunks = (node.id.get_chunk_info(i) for i in range(node.id.get_num_chunks()))
            used.extend((chunk.byte_offset, chunk.size) for chunk in chunks)

    with h5py.File(path) as file:
        file.visititems(note)
    raw = path.read_bytes()
    # A run of zeros outside all values is padding of the format.
    for at in range(0, len(raw) - 32, 16):
        if raw[at : at + 32] == bytes(32) and not any(s < at + 32 and at < s + n for s, n in used):
            yield "padding", at + 16
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Home.locate().root, help="home to copy (default: the current one)")
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = tamper(Home(options.home.resolve()), options.flips, options.seed, Path(scratch))
    for kind, count in results.items():
        print(f"{kind:36s} found {count['found']:4d} of {count['tried']:4d}")
        for missed in (name for name in count if name.startswith("missed")):
            print(f"  {missed}")
    return int(any(count["found"] != count["tried"] for count in results.values()))


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except NeoRLError as error:
        raise SystemExit(str(error)) from error
