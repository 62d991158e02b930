"""Sheets of xlsx workbooks as plain CSV, row by row, read without trust in what the archive says of itself.

A workbook is a zip archive of XML. All of it is inflated once, in pieces, before its XML is parsed: what is too
large for its kind, grows too much, or declares entities is refused, so that neither memory nor time depends on what it
claims. Members of any name count, for a workbook says itself which of them are its sheets. The CSV is bounded, too:
many cells may share one long text, and a cell at the end of a row stands for all before it.
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
"""Bytes of XML of a workbook; a sheet's million rows of ten columns have about half of it."""
MAX_RATIO = 100
"""Bytes that one byte of the archive may stand for, on average; real sheets stay below 40."""
FREE_BYTES = 2**22
"""Bytes of XML below which nothing is held against the ratio."""
MAX_MEMBER_BYTES = {"xl/worksheets/": MAX_BYTES, "xl/sharedStrings": 2**26}
MAX_PICTURE_BYTES = 2**26
"""Bytes of a member that is no XML by its name."""
MAX_OTHER_BYTES = 2**23
"""Bytes of a member that is parsed whole, such as the styles."""
MAX_MEMBERS = 2_000
MAX_ROWS = 2**20
"""Rows of a sheet, as Excel has them."""
DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError, ValueError)
"""What zipfile raises of damage: EOFError of a member cut short, RuntimeError of one that is encrypted or packed in an
unknown way, ValueError of a name that is no text."""
DECLARATIONS = (b"<!DOCTYPE", b"<!ENTITY")


def sheet_to_csv(path: Path, sheet: str | int | None, target: Path) -> None:
    """Write one sheet as CSV: numbers to the last digit, times as ISO 8601, formulas as the values kept with them.

    Args:
        path: the workbook.
        sheet: its name, or its number from 1; the first when None.
        target: the CSV.

    Raises:
        BadInput: when it is no workbook, has no such sheet, or is larger than it may be.
    """
    _check(path)
    import openpyxl

    try:
        with warnings.catch_warnings():
            # Of styles and validations that openpyxl leaves out; values are not touched by them.
            warnings.simplefilter("ignore")
            book = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
            try:
                chosen = _sheet(book, sheet, path)
                # A sheet's own word on its size may be wrong, and every row would be filled up to it.
                chosen.reset_dimensions()
                with target.open("w", encoding="utf-8", newline="") as out:
                    writer, written = csv.writer(out), 0
                    for row in chosen.iter_rows(max_row=MAX_ROWS, values_only=True):
                        cells = [_text(value) for value in row]
                        written += len(cells) + sum(map(len, cells))
                        if written > MAX_BYTES:
                            raise BadInput(
                                f"expected a sheet of at most {MAX_BYTES >> 20} MB of text in {path.name}, got more: "
                                "save it as CSV."
                            )
                        writer.writerow(cells)
            finally:
                book.close()
    except BadInput:
        raise
    except Exception as error:  # openpyxl lets errors of zip, XML and its own models through, of many kinds
        said = " ".join(str(error).split())[:200]
        raise BadInput(f"expected an xlsx workbook in {path.name}, got '{said}': save it again, or as CSV.") from error


def _sheet(book: Any, sheet: str | int | None, path: Path) -> Any:
    names = [each.title for each in book.worksheets]
    if isinstance(sheet, str) and sheet in names:
        return book.worksheets[names.index(sheet)]
    number = 1 if sheet is None else sheet
    if isinstance(number, int) and number <= len(names):
        return book.worksheets[number - 1]
    raise BadInput(f"expected sheet {sheet!r} in {path.name}, got {', '.join(names[:10])}: name one in dialect.sheet.")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, datetime):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def _check(path: Path) -> None:
    """Inflate everything once, and refuse what is too large or declares entities.

    Raises:
        BadInput: one sentence.
    """
    total, packed = 0, path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > MAX_MEMBERS:
                raise BadInput(f"expected a workbook in {path.name}, got {len(members)} files: save it as CSV.")
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
                            f"expected a workbook of at most {MAX_BYTES >> 20} MB in {path.name}, got one that "
                            f"inflates to more than {total >> 20} MB, {total // packed} times its size: save it as CSV."
                        )
                    # UTF-16 has a zero beside each of these letters.
                    letters = (tail + piece).replace(b"\0", b"")
                    if any(word in letters for word in DECLARATIONS):
                        raise BadInput(
                            f"expected XML without declarations in {path.name}, got some: save the workbook again."
                        )
    except DAMAGE as error:
        raise BadInput(f"expected an xlsx workbook in {path.name}, got '{error}': save it again, or as CSV.") from error


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[tuple[bytes, bytes]]:
    """A member's bytes in pieces, each with the end of the one before."""
    tail = b""
    with archive.open(member) as stream:
        while piece := stream.read(PIECE):
            yield piece, tail
            tail = piece[-32:]
