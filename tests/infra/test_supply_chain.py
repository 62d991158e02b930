"""Findings of `make scan`, and digests written by `make pin-images`."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.version import Version
from pip_audit._format import JsonFormat
from pip_audit._service import Dependency, ResolvedDependency, SkippedDependency, VulnerabilityResult

from infra import pin_images, scan
from tests.infra.manifests import ROOT

PART = ("infra", "configs", "flows/services")
"""Folders of the copy, to keep the test short."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Part of this repository in a repository of its own."""
    folder = tmp_path / "repository"
    listed = subprocess.run(["git", "ls-files", *PART], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    return folder


@pytest.mark.slow
def test_scan_finds_only_the_planted_secret(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scan, "audit", lambda root, lock: ("", "no network in tests"))
    assert scan.main([], repository) == 0
    assert "secrets: 0 new in tracked files\n" in capsys.readouterr().out

    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
    key = "AKIA" + "".join(secrets.choice(alphabet) for _ in range(16))
    home = repository / "configs" / "home.py"
    # At the top, so that lines in the baseline move.
    home.write_text(f'STORAGE = "{key}"\n{home.read_text()}')
    (repository / "configs" / "notes.env").write_text(f"{key}\n")
    assert scan.main([], repository) == 1
    said = capsys.readouterr().out
    assert "possible secret in configs/home.py, line 1 (AWS Access Key): remove" in said
    assert "secrets: 1 new in tracked files\n" in said, "untracked files are not scanned"
    assert key not in said

    password = "-----BEGIN " + "PRIVATE KEY-----"
    (repository / "configs" / "key.pem").write_text(f"{password}\n{secrets.token_urlsafe(48)}\n")
    subprocess.run(["git", "add", "-A"], cwd=repository, check=True)
    assert scan.main([], repository) == 1
    assert "configs/key.pem, line 1 (Private Key)" in capsys.readouterr().out

    assert scan.main(["--baseline"], repository) == 0
    assert scan.main([], repository) == 0
    assert key not in (repository / scan.BASELINE).read_text(), "the baseline has digests only"


def test_audit_fails_on_a_known_vulnerability() -> None:
    sound = ResolvedDependency("numpy", Version("2.4.0"))
    flawed = ResolvedDependency("pyyaml", Version("5.3"))
    flaw = VulnerabilityResult("PYSEC-2021-142", "arbitrary code", [Version("5.4")], {"CVE-2020-14343"})
    skipped: Dependency = SkippedDependency("neorl", "not found")

    def report(found: dict[Dependency, list[VulnerabilityResult]]) -> str:
        return JsonFormat(True, True).format(found, [])

    assert scan.audited(report({sound: []}), "") == (True, "vulnerabilities: 0 known in 1 packages")
    good, said = scan.audited(report({sound: [], flawed: [flaw], skipped: []}), "")
    assert not good
    assert said.splitlines() == [
        "known vulnerability in pyyaml 5.3: PYSEC-2021-142: pin another version.",
        "vulnerabilities: 1 known in 2 packages; 1 are not in the database",
    ]
    # pip-audit itself succeeds if the database has no package.
    nobody = scan.audited(report({skipped: []}), "")
    assert nobody == (True, "vulnerabilities: not run: the database has none of 1 packages")


def test_audit_reports_a_missing_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    digest = hashlib.sha256(b"").hexdigest()
    (tmp_path / "requirements.lock").write_text(f"numpy==2.4.0 --hash=sha256:{digest}\n")
    good, said = scan.audited(*scan.audit(tmp_path))
    assert good
    assert said.startswith("vulnerabilities: not run: the database does not answer (")


@contextmanager
def registry(manifests: dict[str, bytes]) -> Iterator[str]:
    """Run an OCI registry that requires a token; yield its address."""
    token = secrets.token_hex(8)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, status = b"{}", 404
            if self.path.startswith("/token?"):
                body, status = json.dumps({"token": token}).encode(), 200
            elif self.headers.get("Authorization") != f"Bearer {token}":
                status = 401
            elif self.path in manifests and pin_images.MANIFESTS[0] in self.headers["Accept"]:
                body, status = manifests[self.path], 200
            self.send_response(status)
            if status == 401:
                where = f"http://{self.headers['Host']}/token"
                self.send_header("WWW-Authenticate", f'Bearer realm="{where}",service="registry"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_images_are_pinned_all_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    names = {"python": "3.11.13", "postgres": "17.6", "redis": "7.4.5", "versity/versitygw": "v1.7.0"}
    bodies = {name: json.dumps({"schemaVersion": 2, "manifests": [], "of": name}).encode() for name in names}
    manifests: dict[str, bytes] = {}
    with registry(manifests) as address:
        (tmp_path / "kubernetes").mkdir()
        written = {
            "Dockerfile": f"FROM {address}/python:3.11.13 AS build\nFROM {address}/python:3.11.13\n",
            "compose.yaml": f"  a:\n    image: {address}/postgres:17.6\n  b:\n    image: {address}/redis:7.4.5\n",
            "kubernetes/a.yaml": f"          image: neorl:0.1.0\n          image: {address}/versity/versitygw:v1.7.0\n",
        }
        for name, text in written.items():
            (tmp_path / name).write_text(text)
        manifests |= {f"/v2/{name}/manifests/{names[name]}": bodies[name] for name in list(names)[:3]}
        assert pin_images.main(tmp_path) == 0
        assert f"not run: the registry of {address}/versity/versitygw:v1.7.0 does not answer" in capsys.readouterr().out
        assert {name: (tmp_path / name).read_text() for name in written} == written

        manifests["/v2/versity/versitygw/manifests/v1.7.0"] = bodies["versity/versitygw"]
        for _ in range(2):
            assert pin_images.main(tmp_path) == 0
            for name, text in written.items():
                for image, tag in names.items():
                    digest = hashlib.sha256(bodies[image]).hexdigest()
                    text = text.replace(f"{address}/{image}:{tag}", f"{address}/{image}:{tag}@sha256:{digest}")
                assert (tmp_path / name).read_text() == text
