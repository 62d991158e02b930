"""Certificates and keys of a federation, checked by OpenSSL handshakes."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused
from tasks.federation.transport.credentials import fingerprint, make_certificate, make_key, public_pem


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    one, other = socket.socketpair()

    def accept() -> None:
        try:
            server.wrap_socket(one, server_side=True).close()
        except (ssl.SSLError, OSError):
            one.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        client.wrap_socket(other, server_hostname=name).close()
    finally:
        thread.join()
        one.close()
        other.close()


def test_site_with_authority_verifies_the_coordinator(tmp_path: Path) -> None:
    # The coordinator connects to its SuperLink by loopback.
    make_certificate(tmp_path / "tls", ["coordinator.example"])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls" / "superlink.pem", tmp_path / "tls" / "superlink-key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "tls" / "authority.pem"))
    for name in ("coordinator.example", "127.0.0.1"):
        handshake(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "another.example")
    make_certificate(tmp_path / "other", ["coordinator.example"])
    another = ssl.create_default_context(cafile=str(tmp_path / "other" / "authority.pem"))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, another, "coordinator.example")
    with pytest.raises(BadInput, match="exists: to make a new certificate"):
        make_certificate(tmp_path / "tls", ["coordinator.example"])


def test_key_is_made_once_and_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "north"
    public = make_key(path)
    assert public.startswith("ecdsa-sha2-nistp384 ")
    assert make_key(path) == public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert public_pem(public).startswith("-----BEGIN PUBLIC KEY-----")
    assert fingerprint(public) != fingerprint(make_key(tmp_path / "keys" / "south"))
    path.chmod(0o640)
    with pytest.raises(Refused, match="must have mode 0600"):
        make_key(path)
    path.chmod(0o600)
    path.write_text("no key")
    with pytest.raises(BadInput, match="is not a private key of a site"):
        make_key(path)


def test_existing_key_file_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir(mode=0o755)
    key = tmp_path / "tls" / "superlink-key.pem"
    key.touch(mode=0o644)
    make_certificate(tmp_path / "tls", ["coordinator.example"])
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    # The folder existed before, so its mode stays.
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o755


@pytest.mark.parametrize("text", ["ecdsa-sha2-nistp384 AAAA", "", "north"])
def test_invalid_public_key_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a site's public key: ask the site for the line"):
        public_pem(text)
