"""RFC 3161 time stamps: an authority's word that a head existed at a time, whatever became of the ledger later."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from configs.errors import BadInput, Refused

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
PATIENCE = 20.0
LONGEST = 64 * 1024


class Der(NamedTuple):
    """One value of DER: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    whole: bytes

    @classmethod
    def read(cls, data: bytes) -> tuple[Der, bytes]:
        """The first value of some bytes, and the rest.

        Raises:
            ValueError: when there is none.
        """
        if len(data) < 2:
            raise ValueError("DER that ends early")
        length, start = data[1], 2
        if length & 0x80:
            count = length & 0x7F
            start, length = 2 + count, int.from_bytes(data[2 : 2 + count])
        if (data[1] == 0x80) or len(data) < start + length:
            raise ValueError("DER of another length than it says")
        end = start + length
        return cls(data[0], data[start:end], data[:end]), data[end:]

    def parts(self, tag: int) -> list[Der]:
        """The values in a sequence, set or explicit tag.

        Raises:
            ValueError: when it is not of this tag.
        """
        if self.tag != tag:
            raise ValueError(f"DER with tag {self.tag:#x} in place of {tag:#x}")
        found, rest = [], self.content
        while rest:
            value, rest = Der.read(rest)
            found.append(value)
        return found


def query(message: bytes) -> bytes:
    """A time-stamp request for the SHA-256 of a message, which asks for the authority's certificate, too."""
    imprint = bytes([SEQUENCE, 0x31, SEQUENCE, 0x0D]) + SHA256 + b"\x05\x00\x04\x20" + hashlib.sha256(message).digest()
    body = b"\x02\x01\x01" + imprint + b"\x01\x01\xff"
    return bytes([SEQUENCE, len(body)]) + body


def request_stamp(url: str, message: bytes) -> bytes:
    """Ask an authority to stamp a message.

    Returns:
        The token: a DER `ContentInfo`.

    Raises:
        OSError: when it does not answer.
        Refused: when it refuses, or answers something else.
    """
    parts = urlsplit(url)
    try:
        connection = (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(parts.netloc, timeout=PATIENCE)
    except (HTTPException, ValueError) as error:
        raise ConnectionError(f"an address that is none ({error})") from error
    try:
        headers = {"Content-Type": "application/timestamp-query"}
        connection.request("POST", parts.path or "/", body=query(message), headers=headers)
        data = connection.getresponse().read(LONGEST)
    except (HTTPException, UnicodeError) as error:
        raise ConnectionError(f"an answer that is none ({error})") from error
    finally:
        connection.close()
    try:
        status, *token = Der.read(data)[0].parts(SEQUENCE)
        granted = int.from_bytes(status.parts(SEQUENCE)[0].content)
    except (ValueError, IndexError) as error:
        raise Refused(
            f"expected a time stamp of {url}, got an answer that is none ({error}): check the address."
        ) from error
    if granted > 1 or not token:
        raise Refused(f"expected a time stamp of {url}, got its status {granted}: ask who runs it.")
    return token[0].whole


def read_certificate_of(path: Path) -> x509.Certificate:
    """The pinned certificate of an authority.

    Raises:
        BadInput: when it cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(
            f"expected the certificate of a time-stamp authority in {path}, got '{error}': restore it."
        ) from error


def stamped_at(token: bytes, message: bytes, certificate: x509.Certificate) -> datetime:
    """When an authority stamped a message.

    Args:
        token: DER of a `TimeStampToken` (RFC 3161, a CMS `SignedData`, RFC 5652).
        message: what was to be stamped, by its SHA-256.
        certificate: the one that is pinned; no chain is looked at.

    Raises:
        Refused: when the token is malformed, of another message, or not signed by this certificate's key.
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
            raise ValueError("a token of another kind")
        if (imprint_kind.parts(SEQUENCE)[0].whole, imprinted.content) != (SHA256, hashlib.sha256(message).digest()):
            raise ValueError("a stamp of another message")
        if stated[MESSAGE_DIGEST].content != _digest(algorithm(), octets.content):
            raise ValueError("another content than the one that is signed")
        # The attributes are signed as the set that they are, not under the tag that they are sent with.
        _verify(certificate, signature.content, bytes([SET]) + attributes.whole[1:], algorithm())
        return datetime.strptime(time.content.decode()[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except (ValueError, KeyError, IndexError, InvalidSignature) as error:
        said = str(error) or "a signature that does not fit"
        raise Refused(
            f"expected a time stamp of {certificate.subject.rfc4514_string()}, got {said}: ask again."
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
        raise ValueError("a key that is neither RSA nor of an elliptic curve")
