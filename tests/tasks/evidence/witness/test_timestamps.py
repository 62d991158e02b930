"""RFC 3161 time stamps by a local OpenSSL authority."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from benchmarks.redteam.witnessed import direct, pin_witnesses, watched, witness_in
from configs.errors import BadInput, Refused
from configs.home import Home
from tasks.evidence.attempts import draw_seed
from tasks.evidence.audit.audit import audit
from tasks.evidence.witness.pinned import FILE
from tasks.evidence.witness.timestamps import query, read_authority_certificate, request_stamp, verify_stamp
from tests.evidence import attempt_for, forge

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="OpenSSL is not here")

CONFIGURATION = """
[tsa]
default_tsa = one
[one]
dir = {folder}
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
ess_cert_id_alg = sha256
[extensions]
extendedKeyUsage = critical, timeStamping
[req]
distinguished_name = name
[name]
"""


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority(BaseHTTPRequestHandler):
    """Passes requests to `openssl ts`."""

    folder: ClassVar[Path]

    def do_POST(self) -> None:
        asked, reply, config = (self.folder / name for name in ("query.tsq", "reply.tsr", "openssl.cnf"))
        asked.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
        openssl("ts", "-reply", "-config", str(config), "-queryfile", str(asked), "-out", str(reply))
        data = reply.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log."""


def make_authority(folder: Path, key: list[str]) -> None:
    folder.mkdir()
    config = folder / "openssl.cnf"
    config.write_text(CONFIGURATION.format(folder=folder))
    (folder / "serial").write_text("01\n")
    files = ["-keyout", str(folder / "tsa.key"), "-out", str(folder / "tsa.pem"), "-config", str(config)]
    openssl("req", "-x509", *key, "-nodes", *files, "-days", "2", "-subj", "/CN=authority", "-extensions", "extensions")


@pytest.fixture(scope="module", params=["rsa:2048", "ec"])
def authority(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An authority's address, and its certificate."""
    folder = tmp_path_factory.mktemp("authority") / "tsa"
    rsa = request.param != "ec"
    make_authority(
        folder, ["-newkey", request.param] if rsa else ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    )
    handler = type("Here", (Authority,), {"folder": folder})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", folder / "tsa.pem"
        server.shutdown()
        thread.join()


def test_a_stamp_fits_one_message_authority_and_time(authority: tuple[str, Path], tmp_path: Path) -> None:
    url, path = authority
    certificate = read_authority_certificate(path)
    token = request_stamp(url, b"a head")
    assert abs(verify_stamp(token, b"a head", certificate) - datetime.now(UTC)) < timedelta(minutes=2)
    # OpenSSL agrees that it is one.
    (tmp_path / "token").write_bytes(token)
    (tmp_path / "data").write_bytes(b"a head")
    openssl("ts", "-verify", "-in", str(tmp_path / "token"), "-token_in", "-data", str(tmp_path / "data"), "-CAfile",
            str(path), "-untrusted", str(path))  # fmt: skip
    with pytest.raises(Refused, match="it stamps another message"):
        verify_stamp(token, b"another head", certificate)
    make_authority(tmp_path / "other", ["-newkey", "rsa:2048"])
    with pytest.raises(Refused, match="invalid time stamp of CN=authority"):
        verify_stamp(token, b"a head", read_authority_certificate(tmp_path / "other" / "tsa.pem"))
    for at in range(0, len(token), 7):
        spoiled = token[:at] + bytes([token[at] ^ 1]) + token[at + 1 :]
        try:
            # Bytes that are not signed (the certificates that it brings) may differ; nothing else, and nothing crashes.
            assert verify_stamp(spoiled, b"a head", certificate) == verify_stamp(token, b"a head", certificate)
        except Refused:
            continue
    for short in (b"", b"0", token[:20], token[:-1]):
        with pytest.raises(Refused):
            verify_stamp(short, b"a head", certificate)


def test_a_request_is_what_openssl_writes(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"a head")
    openssl(
        "ts", "-query", "-data", str(tmp_path / "data"), "-sha256", "-no_nonce", "-cert", "-out", str(tmp_path / "q")
    )
    assert query(b"a head") == (tmp_path / "q").read_bytes()


def test_heads_of_attempts_are_stamped(authority: tuple[str, Path], home: Path, tmp_path: Path) -> None:
    url, path = authority
    place = Home(home)
    witness = witness_in(tmp_path / "w", "witness.example/w1")
    file = pin_witnesses(place, witness)
    shutil.copy(path, file.with_name("tsa.pem"))
    with file.open("a") as more:
        more.write(f'timestamps: {{"url": "{url}", "certificate": "tsa.pem"}}\n')
    ledger = watched(place, direct(witness))
    draw_seed(ledger, attempt_for(ledger, "a" * 64))
    entry = ledger.entries("nonce")[0]
    assert entry.body["stamp"]
    checks = {check.name: check for check in audit(place).checks}
    assert checks["stamps"].passed
    assert "1 heads" in checks["stamps"].detail
    # An attempt without a stamp, where one is asked for.
    forge(place, "nonce", {**entry.body, "stamp": ""})
    assert any(check.name == "stamps" for check in audit(place).failures)
    file.with_name("tsa.pem").unlink()
    with pytest.raises(BadInput, match="cannot read the time-stamp authority's certificate"):
        draw_seed(ledger, attempt_for(ledger, "b" * 64))
    assert (home / FILE).exists()
