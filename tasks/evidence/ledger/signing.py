"""Ed25519 signatures in DSSE envelopes, and the pinned public keys that they must verify against."""

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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import configs
from configs.errors import BadInput, Refused
from configs.home import Home
from configs.yaml_files import MAX_BYTES, parse_yaml
from tasks.files.canonical import canonical_json
from tasks.files.times import normalise_time

ENVELOPE_KEYS = {"payload", "payloadType", "signatures"}
HEAD_TYPE = "application/vnd.neorl.ledger-head+json"
HEAD = re.compile(
    r'\{"payload":"[A-Za-z0-9+/=]+","payloadType":"application/vnd\.neorl\.ledger-head\+json",'
    r'"signatures":\[\{"keyid":"[0-9a-f]+","sig":"[A-Za-z0-9+/=]+"\}\]\}'
)
"""The canonical envelope of a head: its keys in their one order, and nothing but base64 within the strings."""
PROJECT_TRUST = Path(configs.__path__[0]) / "trust.yaml"
"""Where a project pins the keys that it trusts."""


def key_id(public: Ed25519PublicKey) -> str:
    """The first 16 hexadecimal digits of SHA-256 over the 32 public bytes: a name for the key, never a proof."""
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def pae(payload_type: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding, the bytes that are signed.

    PAE(type, body) = "DSSEv1" SP LEN(type) SP type SP LEN(body) SP body (DSSE v1.0.2, protocol.md).
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True)
class SigningKey:
    """A private key; its bytes are in no message, representation or argument list."""

    _private: Ed25519PrivateKey

    @property
    def public(self) -> Ed25519PublicKey:
        """The half that others verify with."""
        return self._private.public_key()

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature of a message: 64 bytes, the same ones for the same message (RFC 8032)."""
        return self._private.sign(message)

    def seal(self, payload_type: str, payload: Any) -> bytes:
        """Sign a JSON value.

        Args:
            payload_type: media type that says what the payload means.
            payload: a JSON value; its canonical bytes are signed.

        Returns:
            The canonical bytes of a DSSE envelope with one signature.
        """
        body = canonical_json(payload)
        signature = {"keyid": key_id(self.public), "sig": to_base64(self.sign(pae(payload_type, body)))}
        return canonical_json({"payload": to_base64(body), "payloadType": payload_type, "signatures": [signature]})


class Pin(NamedTuple):
    """A row of a trust root: a home's key, or a person's."""

    id: str
    public: str
    """Base64 of the 32 bytes."""
    note: str = ""
    person: str = ""
    """Whose key it is; nobody's is a home's."""
    roles: tuple[str, ...] = ()
    until: str = ""
    """When another key took its place."""
    revoked: str = ""
    """From when on it does not count."""


@dataclass(frozen=True)
class TrustRoot:
    """The public keys whose signatures count, and the file that pins them."""

    keys: Mapping[str, Ed25519PublicKey]
    """Those of homes, which sign entries, heads, certificates and seals; a person's key signs none of them."""
    source: Path
    pins: tuple[Pin, ...] = ()
    """All rows of the file."""

    @classmethod
    def read(cls, path: Path) -> TrustRoot:
        """Read pinned keys from YAML: `keys: [{id, public, note?, person?, roles?, until?, revoked?}]`.

        Raises:
            BadInput: when the file is missing, malformed, empty, or an id is not that of its key.
        """
        cure = "export it again with `neorl keys show` on the machine that signs."
        try:
            with path.open("rb") as file:
                document = parse_yaml(file.read(MAX_BYTES + 1).decode(), path)
        except FileNotFoundError as error:
            raise BadInput(f"expected pinned public keys in {path}, got no such file: {cure}") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"expected YAML with pinned public keys in {path}, got {error}: {cure}") from error
        except BadInput as error:
            raise BadInput(f"{str(error).removesuffix('.')}, or {cure}") from error
        rows = document.get("keys") if isinstance(document, dict) and set(document) == {"keys"} else None
        if not isinstance(rows, list) or not rows:
            raise BadInput(f"expected a non-empty list `keys` and nothing else in {path}, got {document!r}: {cure}")
        pins = tuple(_pin(row, path, cure) for row in rows)
        return cls({pin.id: public_key(pin.public) for pin in pins if not pin.person}, path, pins)

    @classmethod
    def locate(cls, home: Home, file: Path | None = None, project: Path = PROJECT_TRUST) -> TrustRoot:
        """The trust root in force: the file given, else the project's `configs/trust.yaml`, else the home's own."""
        return cls.read(file or next((path for path in (project, home.trust) if path.exists()), home.trust))

    def unseal(self, payload_type: str, envelope: bytes) -> Any:
        """Check an envelope and return its payload.

        Args:
            payload_type: the only media type that is accepted here.
            envelope: bytes that must be the canonical bytes of a DSSE envelope with one signature.

        Returns:
            The payload's JSON value.

        Raises:
            Refused: on any byte that is not canonical, any other field, and any signature by a key not pinned.
        """
        try:
            document = json.loads(envelope)
            if not isinstance(document, dict) or set(document) != ENVELOPE_KEYS:
                raise ValueError("not the three fields of a DSSE envelope")
            if document["payloadType"] != payload_type:
                raise ValueError(f"payload type {document['payloadType']!r} in place of {payload_type!r}")
            signatures = document["signatures"]
            if not isinstance(signatures, list) or len(signatures) != 1 or set(signatures[0]) != {"keyid", "sig"}:
                raise ValueError("not exactly one signature")
            body, signature = from_base64(document["payload"]), from_base64(signatures[0]["sig"])
            payload = json.loads(body)
            # One byte string per meaning: white space, key order, duplicate keys and number forms all end here.
            if canonical_json(document) != envelope or canonical_json(payload) != body:
                raise ValueError("bytes that are not the canonical ones")
        except (ValueError, TypeError, RecursionError) as error:
            raise Refused(f"expected a canonical signed envelope, got {error}: restore the original bytes.") from error
        name = signatures[0]["keyid"]
        public = self.keys.get(name) if isinstance(name, str) else None
        if public is None:
            raise Refused(
                f"expected a signature by a key pinned in {self.source}, got one by key {name!r}: restore the "
                "original, or pin that key after comparing its fingerprint with its owner's."
            )
        try:
            public.verify(signature, pae(payload_type, body))
        except InvalidSignature as error:
            raise Refused(
                f"expected a valid signature by key {name}, got one that does not fit the content: "
                "restore the original bytes."
            ) from error
        return payload


def home_pin(public: Ed25519PublicKey, note: str) -> Pin:
    """The row that pins a home's key."""
    return Pin(key_id(public), public_text(public), note)


def trust_yaml(*pins: Pin) -> bytes:
    """The trust root that pins these keys; JSON's strings and lists are YAML's."""
    lines = ["keys:"]
    for pin in pins:
        told = {name: value for name, value in pin._asdict().items() if value}
        lines += [f"  - id: '{told.pop('id')}'", *(f"    {name}: {_quoted(value)}" for name, value in told.items())]
    return ("\n".join(lines) + "\n").encode()


def _quoted(value: Any) -> str:
    """A text or list of texts in YAML; JSON's escapes of letters beyond the BMP are two letters there, so they stay."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def public_key(text: str) -> Ed25519PublicKey:
    """A public key from the base64 of its 32 bytes.

    Raises:
        ValueError, TypeError: when it is not that.
    """
    return Ed25519PublicKey.from_public_bytes(from_base64(text))


def public_text(public: Ed25519PublicKey) -> str:
    """The base64 of a public key's 32 bytes."""
    return to_base64(public.public_bytes_raw())


def keyid_of(envelope: bytes) -> str:
    """The key that an envelope says it is signed by; whether it is, is checked where it is unsealed.

    Raises:
        ValueError: when it is no envelope.
    """
    try:
        return str(json.loads(envelope)["signatures"][0]["keyid"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"an envelope without a signature ({type(error).__name__})") from error


def _pin(row: Any, path: Path, cure: str) -> Pin:
    if not isinstance(row, dict) or not {"id", "public"} <= set(row) <= set(Pin._fields):
        raise BadInput(f"expected keys with `id`, `public` and perhaps `note` in {path}, got {row!r}: {cure}")
    roles = row.get("roles", [])
    texts = [row.get(name, "") for name in ("id", "note", "person", "until", "revoked")]
    if not all(isinstance(text, str) for text in texts) or not _is_texts(roles):
        raise BadInput(f"expected texts, and a list of them as roles, in {path}, got {row!r}: {cure}")
    try:
        name = key_id(public_key(row["public"]))
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"expected the base64 of an Ed25519 public key in {path}, got {row['public']!r}: {cure}"
        ) from error
    if row["id"] != name:
        raise BadInput(f"expected id {name} for its key in {path}, got {row['id']!r}: {cure}")
    try:
        # As the ledger writes times, for they are compared as texts: another form would void nothing, or all.
        dates = {field: normalise_time(row[field], last=False) for field in ("until", "revoked") if row.get(field)}
    except BadInput as error:
        raise BadInput(f"{str(error).removesuffix('.')} in {path}, or {cure}") from error
    return Pin(**{**row, "roles": tuple(roles), **dates})


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def to_base64(data: bytes) -> str:
    """Standard base64, padded."""
    return base64.b64encode(data).decode()


def from_base64(text: Any) -> bytes:
    """Decode base64 that is its own canonical encoding (no other padding bits, no foreign characters)."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"base64 that does not decode ({error})") from error
    if to_base64(data) != text:
        raise ValueError("base64 that is not canonical")
    return data


def heads_in(text: str) -> list[str]:
    """The signed heads in a text: a head itself, or a report that shows one."""
    return HEAD.findall(html.unescape(text))


def read_heads(path: Path) -> list[str]:
    """The signed heads in a file: an exported head or a report.

    Raises:
        BadInput: when the file cannot be read or holds none.
    """
    try:
        found = heads_in(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"expected a signed head in {path}, got {error}: check the path.") from error
    if not found:
        raise BadInput(f"expected a signed head in {path}, got none: give a report or an exported head.")
    return found


def signed_by(heads: Iterable[str], keys: Container[str]) -> list[str]:
    """The heads that say they are signed by one of these keys; whether they are is checked when they are used."""
    return [text for head in heads for text in heads_in(head) if json.loads(text)["signatures"][0]["keyid"] in keys]


def report_heads(home: Home) -> Iterator[str]:
    """The heads that this home's reports show."""
    for path in sorted((home.root / "reports").rglob("*.html")):
        yield from heads_in(path.read_text(errors="replace"))
