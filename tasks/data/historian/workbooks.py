"""Convert sheets of untrusted xlsx workbooks to CSV, row by row.

A workbook is a zip archive of XML files. Before the XML is parsed, all files are decompressed once, in pieces. A file
that is too large, is compressed too much, or declares entities raises BadInput. All files are checked, because a
workbook may store a sheet under any name. The size of the CSV is limited, too, because many cells can share one long
text.
"""

from __future__ import annotations

import csv
import lzma
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from configs.errors import BadInput

PIECE = 2**20
MAX_BYTES = 2**30
"""Largest accepted XML in bytes; a sheet with a million rows and ten columns has about half this size."""
MAX_RATIO = 100
"""Largest accepted ratio of decompressed to compressed bytes; usual sheets stay below 40."""
FREE_BYTES = 2**22
"""Decompressed size in bytes that is accepted at any ratio."""
MAX_MEMBER_BYTES = {"xl/worksheets/": MAX_BYTES, "xl/sharedStrings": 2**26}
MAX_PICTURE_BYTES = 2**26
"""Largest accepted size in bytes of a file in the archive that is not XML by its name."""
MAX_OTHER_BYTES = 2**23
"""Largest accepted size in bytes of an XML file that is parsed as a whole, such as the styles."""
MAX_MEMBERS = 2_000
MAX_ROWS = 2**20
DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError, ValueError)
"""Errors of zipfile for damaged archives. EOFError means a truncated file, RuntimeError encryption or an unknown
compression, ValueError an invalid name."""
DECLARATIONS = (b"<!DOCTYPE", b"<!ENTITY")


def sheet_to_csv(path: Path, sheet: str | int | None, target: Path) -> None:
    """Write one sheet of a workbook as CSV, with exact numbers, ISO 8601 times and the stored results of formulas.

    `sheet` is a name, a number from 1, or None for the first sheet. A file that is not a workbook, lacks the sheet, or
    is too large raises BadInput.
    """
    _check(path)
    import openpyxl

    try:
        with warnings.catch_warnings():
            # Ignore warnings about styles and validations, because they do not affect values.
            warnings.simplefilter("ignore")
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
            try:
                chosen = _sheet(book, sheet, path)
                # The declared size of a sheet may be wrong, and openpyxl would fill every row up to this size.
                chosen.reset_dimensions()
                with target.open("w", encoding="utf-8", newline="") as out:
                    writer, written = csv.writer(out), 0
                    for row in chosen.iter_rows(max_row=MAX_ROWS, values_only=True):
                        cells = [_text(value) for value in row]
                        written += len(cells) + sum(map(len, cells))
                        if written > MAX_BYTES:
                            raise BadInput(
                                f"the sheet in {path.name} has more than {MAX_BYTES >> 20} MB of text: save it as CSV."
                            )
                        writer.writerow(cells)
            finally:
                book.close()
    except BadInput:
        raise
    except Exception as error:  # openpyxl raises many kinds of errors
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{path.name} is not a readable xlsx workbook ({reason}): save it again, or as CSV.") from error


def _sheet(book: Any, sheet: str | int | None, path: Path) -> Any:
    names = [each.title for each in book.worksheets]
    if isinstance(sheet, str) and sheet in names:
        return book.worksheets[names.index(sheet)]
    number = 1 if sheet is None else sheet
    if isinstance(number, int) and number <= len(names):
        return book.worksheets[number - 1]
    raise BadInput(f"{path.name} has no sheet {sheet!r}, only {', '.join(names[:10])}: name one in dialect.sheet.")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, datetime):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def _check(path: Path) -> None:
    total, packed = 0, path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > MAX_MEMBERS:
                raise BadInput(f"{path.name} contains {len(members)} files, too many for a workbook: save it as CSV.")
            for member in members:
                limit = MAX_PICTURE_BYTES
                if member.filename.endswith((".xml", ".rels")):
                    limit = next(
                        (most for start, most in MAX_MEMBER_BYTES.items() if member.filename.startswith(start)),
                        MAX_OTHER_BYTES,
                    )
                size = 0
                for piece, tail in _pieces(archive, member):
                    size, total = size + len(piece), total + len(piece)
                    if size > limit or total > MAX_BYTES or total > max(FREE_BYTES, MAX_RATIO * packed):
                        raise BadInput(
                            f"{path.name} unpacks to more than {total >> 20} MB, {total // packed} times its size; "
                            f"the limit is {MAX_BYTES >> 20} MB: save it as CSV."
                        )
                    # UTF-16 has a zero byte beside each letter.
                    letters = (tail + piece).replace(b"\0", b"")
                    if any(word in letters for word in DECLARATIONS):
                        raise BadInput(f"the XML in {path.name} declares entities: save the workbook again.")
    except DAMAGE as error:
        raise BadInput(f"{path.name} is not a readable xlsx workbook ({error}): save it again, or as CSV.") from error


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[tuple[bytes, bytes]]:
    """Yield the bytes of a file in the archive in pieces; each piece comes with the end of the piece before."""
    tail = b""
    with archive.open(member) as stream:
        while piece := stream.read(PIECE):
            yield piece, tail
            tail = piece[-32:]
