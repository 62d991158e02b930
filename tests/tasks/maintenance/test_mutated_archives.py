"""Mutated backups through `neorl restore`: an identical home or one message, within limits of memory and disk."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.redteam.archives import mutated
from configs.home import Home
from tasks.files.canonical import digests_in
from tasks.maintenance.backup_file import backup
from tasks.maintenance.backup_format import GROWTH, HEADER, SUMS
from tests.tasks.maintenance.test_backup import silent
from tests.tasks.maintenance.test_restored import plant_work

PROJECT = Path(__file__).parents[3]
COUNT = 500
MOST_MEMORY = 300 << 20
CHANGED = ("mlflow/mlflow.db", "restored.json", "services.json")
"""Files that a restore changes."""
DROPPED = ("prefect", "mlflow", "results")
FORKS = """
import json, os, resource, sys
import tasks.maintenance.restore, flows.services.servers
from flows.cli.main import run
for line in sys.stdin:
    fork, archive, home, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if not fork:
            os.execl(sys.executable, sys.executable, "-m", "flows", "restore", archive, "--home", home)
        code = 70
        try:
            code = run(["restore", archive, "--home", home])
        finally:
            sys.stdout.flush()
            if code == 70:
                import traceback; traceback.print_exc()
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss]), flush=True)
"""


class Outcome(NamedTuple):
    """Result of one restore."""

    code: int
    out: str
    err: str
    memory: int
    """Bytes of the largest process."""
    disk: int
    """Largest number of bytes of all files below the parent of the home."""


@pytest.fixture(scope="module")
def archive(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backup of a home with all databases and 4 MB of data."""
    root = tmp_path_factory.mktemp("mutated")
    home = Path(shutil.copytree(furnished, root / "home"))
    plant_work(home)
    (home / "mlflow").mkdir(exist_ok=True)
    (home / "mlflow" / "mlflow.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(home / "mlflow" / "mlflow.db")) as connection, connection:
        connection.execute("CREATE TABLE datasets (dataset_source TEXT)")
        connection.executemany("INSERT INTO datasets VALUES (?)", [(f"{home}/datasets/{i}",) for i in range(5000)])
    for name, data in {
        "services.json": b'{"prefect": {"url": "http://127.0.0.1:4200", "port": 4200, "token": "x"}}',
        "prefect/storage/x": b"{}",
        "results/x": b"{}",
        "secrets/login": b"neorl:x",
        "datasets/large": random.Random(1).randbytes(4_000_000),
    }.items():
        (home / name).parent.mkdir(exist_ok=True, mode=0o700)
        (home / name).write_bytes(data)
        (home / name).chmod(0o600)
    assert backup(Home(home), root / "home.tar", silent).damaged == ()
    return root / "home.tar"


@contextmanager
def largest(folder: Path) -> Iterator[list[int]]:
    """Sample the bytes of all files below a folder."""
    seen, end = [0], threading.Event()

    def size() -> None:
        total = 0
        for path, _, names in os.walk(folder):
            for name in names:
                try:
                    total += os.lstat(os.path.join(path, name)).st_size
                except OSError:
                    continue
        seen[0] = max(seen[0], total)

    def sample() -> None:
        while not end.wait(0.01):
            size()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield seen
    finally:
        end.set()
        thread.join()
        size()


class Restores:
    """Run restores in forks of one process, or each in a process of its own."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self.variables = folder, variables
        self.home = folder / "to" / "home"
        self._forks = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=-1, stdout=-1, text=True, env=variables, cwd=PROJECT
        )

    def close(self) -> None:
        with self._forks:
            assert self._forks.stdin is not None
            self._forks.stdin.close()
        assert self._forks.returncode == 0

    def restore(self, archive: Path, *, fork: bool) -> Outcome:
        """Restore an archive."""
        shutil.rmtree(self.home.parent, ignore_errors=True)
        self.home.parent.mkdir()
        out, err = self.folder / "out", self.folder / "err"
        with largest(self.home.parent) as disk:
            code, kilobytes = self._answer(json.dumps([fork, *map(str, (archive, self.home, out, err))]))
        texts = (path.read_text(errors="replace") for path in (out, err))
        return Outcome(code, *texts, kilobytes << 10, disk[0])

    def _answer(self, request: str) -> tuple[int, int]:
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        print(request, file=self._forks.stdin, flush=True)
        code, kilobytes = json.loads(self._forks.stdout.readline())
        return code, kilobytes


def contents(archive: Path) -> dict[str, str]:
    """Return the digests of the files in an archive, read by Python's own tarfile."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            found[member.name] = hashlib.file_digest(content, "sha256").hexdigest()
    return {name: digest for name, digest in found.items() if name not in (HEADER, SUMS)}


def lasting(digests: dict[str, str]) -> dict[str, str]:
    """Leave out files that a restore changes, and cached results."""
    return {n: d for n, d in digests.items() if n not in CHANGED and n.partition("/")[0] not in DROPPED}


def stated_size(archive: Path) -> int:
    """Return the size that the header states; 0 without a valid header. `tarfile` never ends for some archives."""
    with archive.open("rb") as file:
        try:
            length = int(file.read(512)[124:135], 8)
            return max(0, int(json.loads(file.read(min(length, 1 << 20)))["size"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return 0


def judged(archive: Path, done: Outcome, home: Path) -> tuple[str, list[str]]:
    """Return an outcome in a word, and everything that is wrong with it."""
    stated = stated_size(archive)
    told = [line for line in done.err.splitlines() if not line.startswith("  restore: ")]
    wrong = {
        "traceback": "Traceback" in done.out + done.err,
        "control characters": not (done.out + done.err).replace("\n", "").isprintable(),
        "memory": done.memory > MOST_MEMORY,
        "disk": done.disk > max(1.1 * stated, stated + GROWTH) + GROWTH,
    }
    if home.exists():
        word = "restored" if done.code == 0 else "restored, audit failed"
        wrong |= {
            "files": lasting(digests_in(home)) != lasting(contents(archive)),
            "others": [path.name for path in home.parent.iterdir()] != ["home"],
            "code": done.code != ("FAIL" in done.out),
        }
    else:
        word = "refused"
        wrong |= {
            "others": list(home.parent.iterdir()) != [],
            "code": done.code not in (1, 2),
            "message": done.out != "" or len(told) != 1 or not told[0].startswith("neorl: "),
        }
    return word, [name for name, found in wrong.items() if found]


@pytest.fixture
def restores(tmp_path: Path) -> Iterator[Restores]:
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("NEORL_", "PYTEST"))}
    found = Restores(tmp_path, variables)
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_500_mutated_archives(archive: Path, restores: Restores, capsys: pytest.CaptureFixture[str]) -> None:
    """The first archive of every kind is restored by a process of its own, the others in forks of one process."""
    found: defaultdict[str, list[tuple[str, Outcome]]] = defaultdict(list)
    faults = []
    for kind, path in mutated(archive, COUNT, restores.folder):
        done = restores.restore(path, fork=kind in found)
        word, wrong = judged(path, done, restores.home)
        said = (
            f"{kind}: {', '.join(wrong)}: {done.disk:,} B of {stated_size(path):,}, {done.memory:,} B of memory: {done}"
        )
        faults += [said[:1500]] if wrong else []
        found[kind].append((word, done))
    with capsys.disabled():
        print(table(found))
    assert faults == []
    assert {word for each in found.values() for word, _ in each} == {"refused", "restored", "restored, audit failed"}


def table(found: dict[str, list[tuple[str, Outcome]]]) -> str:
    """Return a table of outcomes by kind."""
    lines = [f"\n{'kind':44s} {'refused':>7s} {'restored':>8s} {'audit failed':>12s} {'memory MB':>9s} {'disk MB':>8s}"]
    for kind, outcomes in found.items():
        words = [word for word, _ in outcomes]
        memory = max(done.memory for _, done in outcomes) / 2**20
        disk = max(done.disk for _, done in outcomes) / 1e6
        counts = [words.count(word) for word in ("refused", "restored", "restored, audit failed")]
        lines.append(f"{kind:44s} {counts[0]:7d} {counts[1]:8d} {counts[2]:12d} {memory:9.0f} {disk:8.1f}")
    return "\n".join(lines)
