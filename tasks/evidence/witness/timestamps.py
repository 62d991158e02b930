"""RFC 3161 time stamps: an authority's signed statement that a head existed at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from configs.errors import BadInput, Refused
from tasks.evidence.witness.transport import connection_to

SHA256 = bytes.fromhex("0609608648016503040201")
SIGNED_DATA = bytes.fromhex("06092a864886f70d010702")
TST_INFO = bytes.fromhex("060b2a864886f70d0109100104")
CONTENT_TYPE = bytes.fromhex("06092a864886f70d010903")
MESSAGE_DIGEST = bytes.fromhex("06092a864886f70d010904")
DIGESTS: dict[bytes, Callable[[], hashes.HashAlgorithm]] = {
    SHA256: hashes.SHA256,
    bytes.fromhex("0609608648016503040202"): hashes.SHA384,
    bytes.fromhex("0609608648016503040203"): hashes.SHA512,
}
SEQUENCE, SET, OCTETS, TIME, CONTEXT_0 = 0x30, 0x31, 0x04, 0x18, 0xA0
TIMEOUT = 20.0
LONGEST = 64 * 1024


class Der(NamedTuple):
    """One value in DER, the binary encoding of time stamps: tag, content and complete encoding."""

    tag: int
    content: bytes
    whole: bytes

    @classmethod
    def read(cls, data: bytes) -> tuple[Der, bytes]:
        """Return the first value in `data`, and the remaining bytes."""
        if len(data) < 2:
            raise ValueError(f"DER must have at least 2 bytes, got {len(data)}")
        length, start = data[1], 2
        if length & 0x80:
            count = length & 0x7F
            start, length = 2 + count, int.from_bytes(data[2 : 2 + count])
        if (data[1] == 0x80) or len(data) < start + length:
            raise ValueError(f"DER states {length} bytes, got {len(data) - start}")
        end = start + length
        return cls(data[0], data[start:end], data[:end]), data[end:]

    def parts(self, tag: int) -> list[Der]:
        """Return the values inside a value that must have this tag: a sequence, a set or an explicit tag."""
        if self.tag != tag:
            raise ValueError(f"DER tag must be {tag:#x}, got {self.tag:#x}")
        found, rest = [], self.content
        while rest:
            value, rest = Der.read(rest)
            found.append(value)
        return found


def query(message: bytes) -> bytes:
    """Return a request (RFC 3161) to time-stamp the SHA-256 of a message and to include the authority's certificate."""
    imprint = bytes([SEQUENCE, 0x31, SEQUENCE, 0x0D]) + SHA256 + b"\x05\x00\x04\x20" + hashlib.sha256(message).digest()
    body = b"\x02\x01\x01" + imprint + b"\x01\x01\xff"
    return bytes([SEQUENCE, len(body)]) + body


def request_stamp(url: str, message: bytes) -> bytes:
    """Ask an authority to stamp a message.

    Returns:
        The time stamp ("token"), a `ContentInfo` in DER.
    """
    connection = connection_to(url, TIMEOUT)
    try:
        headers = {"Content-Type": "application/timestamp-query"}
        connection.request("POST", urlsplit(url).path or "/", body=query(message), headers=headers)
        data = connection.getresponse().read(LONGEST)
    except (HTTPException, UnicodeError) as error:
        raise ConnectionError(f"invalid answer ({error})") from error
    finally:
        connection.close()
    try:
        status, *token = Der.read(data)[0].parts(SEQUENCE)
        granted = int.from_bytes(status.parts(SEQUENCE)[0].content)
    except (ValueError, IndexError) as error:
        raise Refused(f"{url} did not answer with a time stamp ({error}): check the address") from error
    if granted > 1 or not token:
        raise Refused(f"{url} refused to stamp, status {granted}: ask the operator")
    return token[0].whole


def read_authority_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read the time-stamp authority's certificate {path} ('{error}'): restore it") from error


def verify_stamp(token: bytes, message: bytes, certificate: x509.Certificate) -> datetime:
    """Verify that a token stamps a message; return the time that it states, in UTC.

    Args:
        certificate: the authority's pinned certificate; its issuer is not checked.
    """
    try:
        kind, content = Der.read(token)[0].parts(SEQUENCE)
        _, _, encapsulated, *_, signers = content.parts(CONTEXT_0)[0].parts(SEQUENCE)
        info_kind, info = encapsulated.parts(SEQUENCE)
        octets = info.parts(CONTEXT_0)[0]
        (signer,) = signers.parts(SET)
        _, _, digest_kind, attributes, _, signature, *_ = signer.parts(SEQUENCE)
        algorithm = DIGESTS[digest_kind.parts(SEQUENCE)[0].whole]
        stated = {
            pair.parts(SEQUENCE)[0].whole: pair.parts(SEQUENCE)[1].parts(SET)[0] for pair in attributes.parts(CONTEXT_0)
        }
        _, _, imprint, _, time, *_ = Der.read(octets.content)[0].parts(SEQUENCE)
        imprint_kind, imprinted = imprint.parts(SEQUENCE)
        forms = (kind.whole == SIGNED_DATA, info_kind.whole == TST_INFO, octets.tag == OCTETS, time.tag == TIME)
        if not all(forms) or stated[CONTENT_TYPE].whole != TST_INFO:
            raise ValueError(f"it must be a time-stamp token of version 1, got content type {kind.whole.hex()}")
        if (imprint_kind.parts(SEQUENCE)[0].whole, imprinted.content) != (SHA256, hashlib.sha256(message).digest()):
            raise ValueError(f"it stamps another message, of SHA-256 {imprinted.content.hex()[:12]}")
        if stated[MESSAGE_DIGEST].content != _digest(algorithm(), octets.content):
            raise ValueError(f"the content differs from the signed digest {stated[MESSAGE_DIGEST].content.hex()[:12]}")
        # RFC 5652 5.4: attributes are signed under the SET tag, not under the tag that is sent.
        _verify(certificate, signature.content, bytes([SET]) + attributes.whole[1:], algorithm())
        return datetime.strptime(time.content.decode()[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except (ValueError, KeyError, IndexError, InvalidSignature) as error:
        reason = str(error) or "the signature is invalid"
        raise Refused(
            f"invalid time stamp of {certificate.subject.rfc4514_string()}: {reason}; repeat the command"
        ) from error


def _digest(algorithm: hashes.HashAlgorithm, data: bytes) -> bytes:
    digest = hashes.Hash(algorithm)
    digest.update(data)
    return digest.finalize()


def _verify(certificate: x509.Certificate, signature: bytes, data: bytes, algorithm: hashes.HashAlgorithm) -> None:
    public = certificate.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        public.verify(signature, data, padding.PKCS1v15(), algorithm)
    elif isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(signature, data, ec.ECDSA(algorithm))
    else:
        raise ValueError(f"the key must be RSA or elliptic-curve, got {type(public).__name__}")
