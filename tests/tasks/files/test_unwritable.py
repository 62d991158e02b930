"""Writers report a read-only folder with a cure."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from configs.errors import BadInput
from configs.home import Home
from flows.cli.doctor import examine
from neorl_core.plants import PLANTS
from tasks.data.store.writer import DatasetWriter
from tasks.files.canonical import exclusive, make_folder, write_atomic, write_secret
from tests.sample_record import write_bundle


def write_dataset(folder: Path) -> None:
    DatasetWriter(folder, PLANTS["chemical_reactor"].spec)


def lock(folder: Path) -> None:
    with exclusive(folder / "lock"):
        pass


WRITERS: dict[str, Callable[[Path], object]] = {
    "file": lambda folder: write_atomic(folder / "file", b"bytes"),
    "folder": make_folder,
    "lock": lock,
    "secret": lambda folder: write_secret(folder / "secret", b"bytes"),
    "bundle": write_bundle,
    "dataset": write_dataset,
}


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A read-only folder. Root ignores permissions, so a read-only mount is used for root."""
    folder = tmp_path / "folder"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o500)
        yield folder
        folder.chmod(0o700)
        return
    for words in (("--bind", str(folder), str(folder)), ("-o", "remount,ro,bind", str(folder))):
        if subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
            pytest.skip("this machine does not allow mounting a folder")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_doctor_reports_it(read_only: Path) -> None:
    found = {finding.name: finding for finding in examine(Home(read_only))}["home"]
    assert (found.ok, found.detail) == (False, f"this account cannot read and write {read_only}")


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("below", ["", "part"])
def test_writers_name_the_folder_and_the_cure(read_only: Path, kind: str, below: str) -> None:
    if kind == "folder" and not below:
        make_folder(read_only)  # it exists already
        return
    with pytest.raises(BadInput, match=r"^cannot write .*make this folder writable, or choose another folder"):
        WRITERS[kind](read_only / below)
    assert not list(read_only.iterdir())
