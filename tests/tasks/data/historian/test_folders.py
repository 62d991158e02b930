"""Files of an export's folder, and packed tables."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import yaml

from configs.errors import BadInput
from configs.home import Home
from tasks.data.formats.sources import SourceOptions
from tasks.data.historian import dialects
from tasks.data.historian.dialects import skipped_files, source_files
from tasks.ingest import ingest_file
from tests.small_tank import MAPPING, read, wide

TEXT = wide().write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ")


def packed(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


@pytest.mark.parametrize("name", ["log.csv.gz", "log.csv", "log.CSV", "log.CSV.GZ", "log.gz"])
def test_gzip_files_are_read_under_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain.csv").write_text(TEXT)
    (tmp_path / name).write_bytes(packed(TEXT))
    plain = read(tmp_path / ("plain.csv" if name != "plain.csv" else name), layout="wide")
    log = read(tmp_path / name, layout="wide")
    np.testing.assert_array_equal(log.rows["observations"], plain.rows["observations"])
    assert log.account == plain.account
    semicolons = {"delimiter": ";", "encoding": "utf-16"}
    (tmp_path / f"other-{name}").write_bytes(gzip.compress(TEXT.replace(",", ";").encode("utf-16")))
    assert read(tmp_path / f"other-{name}", layout="wide", dialect=semicolons).account == plain.account


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv.gz").write_bytes(packed(TEXT)[:-20])
    with pytest.raises(BadInput, match=r"log\.csv\.gz is not a complete gzip file \(.*\): export it again\."):
        read(tmp_path / "log.csv.gz", layout="wide")


def test_gzip_bombs_and_full_disks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(packed(TEXT + 20_000_000 * "\n"))
    monkeypatch.setattr(dialects, "FREE_BYTES", 2**20)
    with pytest.raises(BadInput, match=r"log\.csv\.gz unpacks to more than"):
        read(path, layout="wide")
    # A table in which only the clock changes is accepted.
    frozen = ",".join(str(20 + i / 8) for i in range(100))
    path.write_bytes(packed("".join(f"2026-01-05T00:{i // 60:02}:{i % 60:02}Z,{frozen}\n" for i in range(3600))))
    assert dialects._unpacked(path, tmp_path / "frozen.csv").stat().st_size > 2**20
    path.write_bytes(packed(TEXT))
    monkeypatch.setattr(dialects, "KEPT_BYTES", 2**62)
    with pytest.raises(BadInput, match=r"MB free after .* MB of log\.csv\.gz were unpacked: free some"):
        read(path, layout="wide")


def test_other_files_of_a_folder_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    (folder / "2026" / ".cache").mkdir(parents=True)
    head, *lines = TEXT.splitlines(keepends=True)
    (folder / "a.csv").write_text(head + "".join(lines[:10]))
    (folder / "B.CSV").write_text(head + "".join(lines[10:20]))
    (folder / "2026" / "c.csv.gz").write_bytes(packed(head + "".join(lines[20:])))
    (folder / "2026" / ".cache" / "old.csv").write_text(head)
    (folder / "readme.txt").write_text("Exported on Monday.")
    (folder / "2026" / "d.xlsx").write_bytes(b"")
    assert [str(p.relative_to(folder)) for p in source_files(folder)] == ["2026/c.csv.gz", "B.CSV", "a.csv"]
    assert [str(p.relative_to(folder)) for p in skipped_files(folder)] == ["2026/d.xlsx", "readme.txt"]
    (tmp_path / "plain.csv").write_text(TEXT)
    plain, log = read(tmp_path / "plain.csv", layout="wide"), read(folder, layout="wide")
    np.testing.assert_array_equal(log.rows["observations"], plain.rows["observations"])
    (tmp_path / "mapping.yaml").write_text(yaml.safe_dump(MAPPING | {"layout": "wide"}))
    made = ingest_file(Home(tmp_path / "home"), folder, SourceOptions(mapping=tmp_path / "mapping.yaml"))
    assert made.notes[1:] == ("  not read in logs (file names are not those of tables): 2026/d.xlsx, readme.txt",)
    (folder / "lost.csv").symlink_to(tmp_path / "unmounted.csv")
    (folder / "archive").symlink_to(tmp_path)
    (folder / "same.csv").symlink_to(folder / "a.csv")
    made = ingest_file(Home(tmp_path / "home"), folder, SourceOptions(mapping=tmp_path / "mapping.yaml"))
    assert made.notes[2:] == ("  not read in logs (links to folders, or broken links): archive, lost.csv",)
