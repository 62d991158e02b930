"""Certificates and keys of a federation, held to OpenSSL's own verification of a handshake."""

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


def test_a_site_that_pins_the_authority_knows_the_coordinator_by_its_names(tmp_path: Path) -> None:
    # The coordinator itself reaches its SuperLink by loopback, whatever the sites call it.
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
    with pytest.raises(BadInput, match="expected no certificate"):
        make_certificate(tmp_path / "tls", ["coordinator.example"])


def test_a_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
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
    with pytest.raises(BadInput, match="expected a site's key"):
        make_key(path)


def test_an_older_file_in_a_keys_place_leaves_it_to_no_others(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir(mode=0o755)
    key = tmp_path / "tls" / "superlink-key.pem"
    key.touch(mode=0o644)
    make_certificate(tmp_path / "tls", ["coordinator.example"])
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    # The folder was there before, and holds others' files.
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o755


@pytest.mark.parametrize("text", ["ecdsa-sha2-nistp384 AAAA", "", "north"])
def test_what_is_no_key_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(BadInput, match=r"expected a site's key as .* ask the site for that line"):
        public_pem(text)
