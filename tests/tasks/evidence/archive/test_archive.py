"""Archives are verified by NeoRL and by a script without NeoRL: both find changes and refuse hostile archives."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from configs.errors import BadInput, NeoRLError, Refused
from configs.home import Home
from flows.cli.main import run
from tasks.evidence.archive.export import export
from tasks.evidence.archive.tar import extract
from tasks.evidence.archive.verify import verify_archive
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import read_heads
from tasks.files.canonical import canonical_json, sha256_hex
from tests.evidence import furnished_home, signer_at

OUTSIDE = Path(__file__).parents[4] / "infra" / "verify_archive.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ledger, Path]:
    """A furnished home and its archive."""
    root = tmp_path_factory.mktemp("made")
    ledger = furnished_home(root / "home")
    with signer_at(ledger.home):
        export(ledger.home, root / "audit.tar")
    return ledger, root / "audit.tar"


def outside(archive: Path, trust: Path, *heads: Path) -> str:
    """Run the script with an interpreter that cannot import NeoRL."""
    command = [sys.executable, "-I", str(OUTSIDE), str(archive), str(trust), *map(str, heads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=archive.parent)
    assert "Traceback" not in done.stderr, done.stderr
    assert (done.returncode == 0) == done.stdout.startswith("ok: "), done
    return done.stdout + done.stderr


def failures(archive: Path, trust: Path | None = None) -> set[str]:
    """Return the failed checks, or `refused`."""
    try:
        return {check.name for check in verify_archive(archive, trust=trust) if check.passed is False}
    except NeoRLError:
        return {"refused"}


Files = dict[str, bytes]


def unpacked(archive: Path) -> Files:
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def packed(path: Path, files: Files, *, listed: bool = True) -> Path:
    """Make an archive of other files with Python's tarfile and a matching list."""
    if listed:
        contents = json.loads(files["archive.json"])
        rest = sorted(name for name in files if name != "archive.json")
        contents["files"] = [{"path": n, "sha256": sha256_hex(files[n]), "size": len(files[n])} for n in rest]
        contents["entries"] = sum(name.startswith("ledger/") for name in rest)
        files = {"archive.json": canonical_json(contents), **{name: files[name] for name in rest}}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        end = tar.offset
    path.write_bytes(buffer.getvalue()[:end] + bytes(1024))
    return path


def test_both_verifiers_accept_an_archive_without_the_home(
    made: tuple[Ledger, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, archive = made
    pinned = shutil.copy(ledger.home.trust, tmp_path / "pinned.yaml")
    copy = Path(shutil.copy(archive, tmp_path / "copy.tar"))
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("NEORL_LEDGER_URL", f"sqlite:///{tmp_path}/another.db")
    assert run(["audit", "verify", "--archive", str(copy), "--trust", str(pinned), "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {"chain", "heads", "certificates", "files", "archive", "trust"} <= {c["name"] for c in checks if c["passed"]}
    monkeypatch.delenv("NEORL_LEDGER_URL")
    said = outside(copy, Path(pinned), ledger.home.root / "ledger.head")
    assert said.startswith(f"ok: {len(ledger.entries())} entries until {ledger.entries()[-1].timestamp}")
    assert f"root {ledger.head().root}" in said
    assert not list(tmp_path.glob("none*"))
    # Without keys of another way the archive speaks for itself, which is told.
    told = {check.name: check for check in verify_archive(copy)}
    assert told["trust"].passed is None
    assert "which prove no identity" in told["trust"].detail


def test_archives_are_reproducible_and_contain_nothing_private(made: tuple[Ledger, Path], tmp_path: Path) -> None:
    ledger, archive = made
    again = export(ledger.home, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()
    assert again.sha256 == sha256_hex(archive.read_bytes())
    names = set(unpacked(archive))
    assert not {name for name in names if name.startswith(("keys", "secrets", "witness/"))}
    assert b"PRIVATE KEY" not in archive.read_bytes()
    # The writer is strict; Python's tarfile can read its output.
    assert {"archive.json", "ledger.head", "trust.yaml", "policies/chemical_reactor.yaml"} <= names


def test_a_persons_key_signs_no_entry(made: tuple[Ledger, Path], tmp_path: Path) -> None:
    ledger, archive = made
    text = ledger.home.trust.read_text().rstrip("\n")
    for line in ('\n    person: "Ada Lovelace"\n', "\n    person: Ada Lovelace\n"):
        (tmp_path / "trust.yaml").write_text(text + line)
        assert "which is not in the trust file" in outside(archive, tmp_path / "trust.yaml")
        assert "chain" in failures(archive, tmp_path / "trust.yaml")
    (tmp_path / "trust.yaml").write_text(f'{text}\n    person: ""\n')
    assert outside(archive, tmp_path / "trust.yaml").startswith("ok: ")


def test_datasets_can_be_left_out_and_nothing_else(made: tuple[Ledger, Path], tmp_path: Path) -> None:
    ledger, archive = made
    done = export(ledger.home, tmp_path / "small.tar", data=False)
    assert (done.left_out, done.files) == (2, len(unpacked(archive)) - 1 - 2)
    found = verify_archive(tmp_path / "small.tar", trust=ledger.home.trust)
    assert {check.name for check in found if check.passed is False} == set()
    assert any("2 files are left out" in check.detail for check in found)
    assert outside(tmp_path / "small.tar", ledger.home.trust).startswith("ok: ")
    # A certificate that is said to be left out on purpose is not.
    files = unpacked(archive)
    certificate = next(name for name in files if name.startswith("certificates/"))
    del files[certificate]
    files["archive.json"] = canonical_json({**json.loads(files["archive.json"]), "left_out": [certificate]})
    changed = packed(tmp_path / "less.tar", files)
    assert failures(changed, ledger.home.trust) == {"refused"}
    assert "is missing" in outside(changed, ledger.home.trust)
    # Nor is a dataset's file that is there, altered, and said to be left out.
    files = unpacked(archive)
    shard = next(name for name in files if name.startswith("datasets/") and name.endswith(".h5"))
    files[shard] = b"another"
    listed = json.loads(files["archive.json"])
    digests = [{**f, "sha256": sha256_hex(b"another")} if f["path"] == shard else f for f in listed["files"]]
    files["archive.json"] = canonical_json({**listed, "files": digests, "left_out": [shard]})
    changed = packed(tmp_path / "other.tar", files)
    assert failures(changed, ledger.home.trust)
    assert "is not the file that entry" in outside(changed, ledger.home.trust)


def test_a_flipped_bit_is_found_wherever_it_is(made: tuple[Ledger, Path], tmp_path: Path) -> None:
    ledger, archive = made
    good, changed = archive.read_bytes(), tmp_path / "changed.tar"
    # Every field of a header, the list, and places drawn with a seed over all of the file, its last byte among them.
    rng = random.Random(7)
    places = [*range(0, 512, 23), *rng.sample(range(len(good)), 60), len(good) - 1]
    for place in places:
        data = bytearray(good)
        data[place] ^= 1 << rng.randrange(8)
        changed.write_bytes(data)
        assert failures(changed, ledger.home.trust), place
    for size in (0, 100, 512, 5000, len(good) - 512, len(good) - 1):
        changed.write_bytes(good[:size])
        assert failures(changed, ledger.home.trust), size
    changed.write_bytes(good + b"\0")
    assert failures(changed, ledger.home.trust) == {"refused"}


def swapped(files: Files) -> Files:
    """Swap the certificates of two results."""
    one, two = [name for name in files if name.startswith("certificates/")][:2]
    return {**files, one: files[two], two: files[one]}


def without(*gone: str) -> object:
    return lambda files: {name: data for name, data in files.items() if name not in gone}


def renumbered(files: Files) -> Files:
    """Remove the third entry and move later ones up."""
    entries = [data for name, data in sorted(files.items()) if name.startswith("ledger/")]
    del entries[2]
    rest = {name: data for name, data in files.items() if not name.startswith("ledger/")}
    return rest | {f"ledger/{number:08d}.json": data for number, data in enumerate(entries, 1)}


def cut(files: Files) -> Files:
    """Remove the last entry."""
    return {name: data for name, data in files.items() if name != max(n for n in files if n.startswith("ledger/"))}


def altered(files: Files) -> Files:
    """Change a text in the first entry only."""
    envelope = json.loads(files["ledger/00000001.json"])
    entry = json.loads(base64.b64decode(envelope["payload"]))
    entry["body"] = {"text": "another"}
    envelope["payload"] = base64.b64encode(canonical_json(entry)).decode()
    return {**files, "ledger/00000001.json": canonical_json(envelope)}


CHANGES = {
    "a certificate in place of another": swapped,
    "an entry left out": without("ledger/00000003.json"),
    "an entry left out, the others moved up": renumbered,
    "the last entry cut off": cut,
    "a file gone": without("bundles/a/composite.npz"),
    "another file": lambda files: {**files, "bundles/a/composite.npz": b"another"},
    "an entry altered": altered,
    "the head gone": without("ledger.head"),
    "another head": lambda files: {**files, "ledger.head": files["ledger.head"].replace(b"eyJ", b"e30", 1)},
    "nonsense for an entry": lambda files: {**files, "ledger/00000002.json": b"[" * 100_000},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_with_a_matching_list_is_found_by_both(made: tuple[Ledger, Path], tmp_path: Path, change: str) -> None:
    ledger, archive = made
    changed = packed(tmp_path / "changed.tar", CHANGES[change](unpacked(archive)))  # type: ignore[operator]
    assert packed(tmp_path / "same.tar", unpacked(archive)).read_bytes() == archive.read_bytes()
    assert changed.read_bytes() != archive.read_bytes()
    assert failures(changed, ledger.home.trust)
    assert outside(changed, ledger.home.trust).startswith("failed: ")


def test_an_archive_of_another_key_is_refused(made: tuple[Ledger, Path], tmp_path: Path) -> None:
    other = furnished_home(tmp_path / "other")
    export(other.home, tmp_path / "other.tar")
    ledger, _ = made
    assert "chain" in failures(tmp_path / "other.tar", ledger.home.trust)
    assert "which is not in the trust file" in outside(tmp_path / "other.tar", ledger.home.trust)
    # Nor does a head that was kept fit the archive of a ledger that has been begun anew.
    both = tmp_path / "both.yaml"
    both.write_text(ledger.home.trust.read_text() + other.home.trust.read_text().partition("keys:")[2].lstrip("\n"))
    said = outside(tmp_path / "other.tar", both, ledger.home.root / "ledger.head")
    assert "does not contain the signed head" in said
    heads = read_heads(ledger.home.root / "ledger.head")
    found = verify_archive(tmp_path / "other.tar", heads, both)
    assert "heads" in {check.name for check in found if check.passed is False}


def hostile(path: Path, info: tarfile.TarInfo, data: bytes = b"") -> Path:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


@pytest.mark.parametrize(
    "info",
    [
        member("../escape"),
        member("/etc/escape"),
        member("a/../../escape"),
        member("a//b"),
        member("a\\b"),
        member("a\nb"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("hard", tarfile.LNKTYPE, "archive.json"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
        member("folder", tarfile.DIRTYPE),
        member("runs", mode=0o4755),
    ],
    ids=lambda info: repr(info.name),
)
def test_hostile_members_are_refused_and_write_nothing(tmp_path: Path, info: tarfile.TarInfo) -> None:
    target = tmp_path / "inside" / "folder"
    target.mkdir(parents=True)
    path = hostile(tmp_path / "hostile.tar", info)
    with pytest.raises(Refused, match="was not written by 'neorl audit export'") as error:
        list(extract(path, target))
    assert "\n" not in str(error.value)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["hostile.tar"]


def test_bombs_and_invalid_archives_are_refused(made: tuple[Ledger, Path], tmp_path: Path) -> None:
    _, archive = made
    # A header that tells of eight gigabytes, and none behind it: nothing is set aside for them.
    info = member("large")
    info.size = 8**11 - 1
    (tmp_path / "bomb.tar").write_bytes(info.tobuf(tarfile.USTAR_FORMAT))
    with pytest.raises(Refused, match="fewer than"):
        list(extract(tmp_path / "bomb.tar", tmp_path / "out"))
    for mode in ("w:gz", "w:xz"):
        with tarfile.open(tmp_path / "packed.tar", mode) as tar:  # type: ignore[call-overload]
            tar.add(archive, "archive.json")
        assert failures(tmp_path / "packed.tar") == {"refused"}
    files = unpacked(archive)
    for name in ("ledger.db", "ledger.db-wal", "mlflow/artifacts/x", "reports/x.html", "notes.txt", "bundles/a/more"):
        assert failures(packed(tmp_path / "more.tar", {**files, name: b"x"})), name
    twice = archive.read_bytes()[:-1024]
    (tmp_path / "twice.tar").write_bytes(twice + archive.read_bytes())
    assert failures(tmp_path / "twice.tar") == {"refused"}
    with pytest.raises(BadInput, match="check the path"):
        verify_archive(tmp_path / "none.tar")
    with pytest.raises(Refused):
        verify_archive(OUTSIDE)


def test_a_failed_export_is_one_sentence(
    made: tuple[Ledger, Path], tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, _ = made
    assert run(["audit", "export", str(tmp_path / "x.tar")]) == 2
    assert "there is no ledger at" in capsys.readouterr().err
    with pytest.raises(BadInput, match="it is a folder, or its folder does not exist"):
        export(ledger.home, tmp_path / "none" / "x.tar")
    copy = Home(Path(shutil.copytree(ledger.home.root, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))))
    (copy.root / "bundles" / "a" / "composite.npz").unlink()
    with pytest.raises(Refused, match=r"bundles/a/composite\.npz of entry 2 must have SHA-256 .*, got no file"):
        export(copy, tmp_path / "x.tar")
    assert sorted(os.listdir(tmp_path)) == ["copy"]


def test_the_script_is_short_enough_to_read() -> None:
    text = OUTSIDE.read_text()
    assert len(text.splitlines()) <= 160
    assert importlib.util.find_spec("cryptography")
    assert not [line for line in text.splitlines() if line.startswith(("from tasks", "from configs", "from flows"))]
