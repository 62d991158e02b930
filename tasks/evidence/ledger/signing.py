"""Signatures (Ed25519) in DSSE envelopes, a JSON format, and the trust root: the file of trusted public keys."""

from __future__ import annotations

import base64
import binascii
import hashlib
import html
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import configs
from configs.errors import BadInput, Refused
from configs.home import Home
from configs.yaml_files import MAX_BYTES, document
from tasks.files.canonical import canonical_json, normalise_time

ENVELOPE_KEYS = {"payload", "payloadType", "signatures"}
HEAD_TYPE = "application/vnd.neorl.ledger-head+json"
HEAD = re.compile(
    r'\{"payload":"[A-Za-z0-9+/=]+","payloadType":"application/vnd\.neorl\.ledger-head\+json",'
    r'"signatures":\[\{"keyid":"[0-9a-f]+","sig":"[A-Za-z0-9+/=]+"\}\]\}'
)
"""Pattern that finds signed heads in a text."""
MODEL_KEY = b"neorl/model-signing/1"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of the curve P-256 (SP 800-186)."""
PROJECT_TRUST = Path(configs.__path__[0]) / "trust.yaml"
"""File with the public keys that a project trusts."""


def key_id(public: Ed25519PublicKey) -> str:
    """Return the id of a public key: the first 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding (DSSE v1.0.2, protocol.md).

    The encoding is `DSSEv1 LENGTH TYPE LENGTH BODY`, with single spaces and lengths in bytes.
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True)
class SigningKey:
    """A private key. Its bytes never appear in messages, in `repr` or in arguments."""

    _private: Ed25519PrivateKey

    @property
    def public(self) -> Ed25519PublicKey:
        return self._private.public_key()

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature of a message: 64 bytes, deterministic (RFC 8032)."""
        return self._private.sign(message)

    def model_key(self) -> ec.EllipticCurvePrivateKey:
        """Derive the key (ECDSA, P-256) that signs bundles in OpenSSF's format, which has no Ed25519.

        The key needs no file of its own, and changes when this key is rotated.
        """
        seed = HKDF(hashes.SHA256(), 48, salt=None, info=MODEL_KEY).derive(self._private.private_bytes_raw())
        # 48 bytes for 32: FIPS 186-5, A.2.1.
        return ec.derive_private_key(int.from_bytes(seed) % (P256_ORDER - 1) + 1, ec.SECP256R1())

    def seal(self, payload_type: str, payload: Any) -> bytes:
        """Sign a JSON value; return the canonical bytes of a DSSE envelope with one signature."""
        body = canonical_json(payload)
        signature = {"keyid": key_id(self.public), "sig": to_base64(self.sign(pae(payload_type, body)))}
        return canonical_json({"payload": to_base64(body), "payloadType": payload_type, "signatures": [signature]})


class Pin(NamedTuple):
    """One row of the trust root: a public key of a home or of a person."""

    id: str
    public: str
    """Base64 of the key's 32 bytes."""
    note: str = ""
    person: str = ""
    """Owner; empty for a home's key."""
    roles: tuple[str, ...] = ()
    until: str = ""
    """Time at which the key was replaced; empty if it was not."""
    revoked: str = ""
    """Time from which signatures by the key do not count; empty if the key is not revoked."""


@dataclass(frozen=True)
class TrustRoot:
    """Trusted public keys, and the file that lists (pins) them."""

    keys: Mapping[str, Ed25519PublicKey]
    """Keys of homes, by id. Only these keys sign entries, heads, certificates and seals."""
    source: Path
    pins: tuple[Pin, ...] = ()

    @classmethod
    def read(cls, path: Path) -> TrustRoot:
        """Read pinned keys from YAML: `keys: [{id, public, note?, person?, roles?, until?, revoked?}]`."""
        cure = "export it again with `neorl keys show` on the machine that signs"
        try:
            with path.open("rb") as file:
                trusted = document(file.read(MAX_BYTES + 1).decode(), path)[0]
        except FileNotFoundError as error:
            raise BadInput(f"the file of pinned public keys {path} does not exist: {cure}") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{path} is not YAML with pinned public keys ({error}): {cure}") from error
        except BadInput as error:
            raise BadInput(f"{str(error).removesuffix('.')}, or {cure}") from error
        rows = trusted.get("keys") if isinstance(trusted, dict) and set(trusted) == {"keys"} else None
        if not isinstance(rows, list) or not rows:
            raise BadInput(f"{path} must contain a non-empty list `keys` and nothing else, got {trusted!r}: {cure}")
        pins = tuple(_pin(row, path, cure) for row in rows)
        return cls({pin.id: public_key(pin.public) for pin in pins if not pin.person}, path, pins)

    @classmethod
    def locate(cls, home: Home, file: Path | None = None, project: Path = PROJECT_TRUST) -> TrustRoot:
        """Read the trust root: from `file`, else from the project's `configs/trust.yaml`, else from the home."""
        return cls.read(file or next((path for path in (project, home.trust) if path.exists()), home.trust))

    def unseal(self, payload_type: str, envelope: bytes) -> Any:
        """Verify an envelope and return the payload.

        Raises:
            Refused: if the bytes are not canonical, a field is missing or unknown, or no pinned key signed them.
        """
        try:
            document = json.loads(envelope)
            if not isinstance(document, dict) or set(document) != ENVELOPE_KEYS:
                raise ValueError(f"it must be a DSSE envelope with {sorted(ENVELOPE_KEYS)}, got {str(document)[:60]}")
            if document["payloadType"] != payload_type:
                raise ValueError(f"the payload type must be {payload_type!r}, got {document['payloadType']!r}")
            signatures = document["signatures"]
            if not isinstance(signatures, list) or len(signatures) != 1 or set(signatures[0]) != {"keyid", "sig"}:
                raise ValueError(f"it must have exactly one signature, got {str(signatures)[:60]}")
            body, signature = from_base64(document["payload"]), from_base64(signatures[0]["sig"])
            payload = json.loads(body)
            # Accept one encoding of each value: no other white space, key order, duplicate keys or number formats.
            if canonical_json(document) != envelope or canonical_json(payload) != body:
                raise ValueError(f"the {len(envelope)} bytes are not canonical")
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused(f"invalid signed envelope: {error}; restore the original bytes") from error
        name = signatures[0]["keyid"]
        public = self.keys.get(name) if isinstance(name, str) else None
        if public is None:
            raise Refused(
                f"the signing key {name!r} is not pinned in {self.source}: restore the original, or ask the owner for "
                "the key's id, compare both, and pin the key"
            )
        try:
            public.verify(signature, pae(payload_type, body))
        except InvalidSignature as error:
            raise Refused(f"the signature by key {name} is invalid: restore the original bytes") from error
        return payload


def home_pin(public: Ed25519PublicKey, note: str) -> Pin:
    return Pin(key_id(public), public_text(public), note)


def trust_yaml(*pins: Pin) -> bytes:
    lines = ["keys:"]
    for pin in pins:
        row = {name: value for name, value in pin._asdict().items() if value}
        lines += [f"  - id: '{row.pop('id')}'", *(f"    {name}: {_quoted(value)}" for name, value in row.items())]
    return ("\n".join(lines) + "\n").encode()


def _quoted(value: Any) -> str:
    """Return text or a list of texts as YAML; only special characters that YAML cannot contain are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def public_key(text: str) -> Ed25519PublicKey:
    """Return a public key, given base64 of its 32 bytes.

    Raises:
        ValueError, TypeError: if the text is invalid.
    """
    return Ed25519PublicKey.from_public_bytes(from_base64(text))


def public_text(public: Ed25519PublicKey) -> str:
    """Return base64 of a public key's 32 bytes."""
    return to_base64(public.public_bytes_raw())


def keyid_of(envelope: bytes) -> str:
    """Return the key id that an envelope names, without verifying the signature."""
    try:
        return str(json.loads(envelope)["signatures"][0]["keyid"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"the envelope has no signature ({type(error).__name__})") from error


def _pin(row: Any, path: Path, cure: str) -> Pin:
    if not isinstance(row, dict) or not {"id", "public"} <= set(row) <= set(Pin._fields):
        raise BadInput(f"a key in {path} needs `id`, `public` and no fields but {Pin._fields}, got {row!r}: {cure}")
    roles = row.get("roles", [])
    texts = [row.get(name, "") for name in ("id", "note", "person", "until", "revoked")]
    if not all(isinstance(text, str) for text in texts) or not _is_texts(roles):
        raise BadInput(f"fields of a key in {path} must be texts, and roles a list of texts, got {row!r}: {cure}")
    try:
        name = key_id(public_key(row["public"]))
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"`public` in {path} must be base64 of an Ed25519 public key, got {row['public']!r}: {cure}"
        ) from error
    if row["id"] != name:
        raise BadInput(f"the id of key {row['public']!r} in {path} must be {name}, got {row['id']!r}: {cure}")
    try:
        # Normalised to the ledger's form, because times are compared as text.
        dates = {field: normalise_time(row[field], last=False) for field in ("until", "revoked") if row.get(field)}
    except BadInput as error:
        raise BadInput(f"{str(error).removesuffix('.')} in {path}, or {cure}") from error
    return Pin(**{**row, "roles": tuple(roles), **dates})


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def to_base64(data: bytes) -> str:
    """Encode as standard base64 with padding."""
    return base64.b64encode(data).decode()


def from_base64(text: Any) -> bytes:
    """Decode base64; reject every text that `to_base64` would not produce."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the base64 is invalid ({error})") from error
    if to_base64(data) != text:
        raise ValueError(f"the base64 {str(text)[:24]!r} is not canonical")
    return data


def heads_in(text: str) -> list[str]:
    """Return the signed heads in a text, such as an exported head or a report."""
    return HEAD.findall(html.unescape(text))


def read_heads(path: Path) -> list[str]:
    try:
        found = heads_in(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read a signed head from {path} ({error}): check the path") from error
    if not found:
        raise BadInput(f"{path} contains no signed head: give a report or an exported head")
    return found


def signed_by(heads: Iterable[str], keys: Container[str]) -> list[str]:
    """Return the heads that name one of these keys as their signer; signatures are not verified here."""
    return [text for head in heads for text in heads_in(head) if json.loads(text)["signatures"][0]["keyid"] in keys]


def report_heads(home: Home) -> Iterator[str]:
    """Yield the heads shown in this home's reports."""
    for path in sorted((home.root / "reports").rglob("*.html")):
        yield from heads_in(path.read_text(errors="replace"))
