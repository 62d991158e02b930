"""Check an archive of `neorl audit export` without NeoRL: python verify_archive.py ARCHIVE TRUST.YAML [HEAD FILE ...].

Requires Python 3.11 and `cryptography`. Implements docs/reference/evidence-formats.md independently of NeoRL.

It checks the SHA-256 of all files, the signatures of entries, the chain, the Merkle root, the signed head, the files
that entries name, and the signatures of certificates. TRUST.YAML contains the public keys; do not take it from the
archive. A HEAD file is a report or a `ledger.head` that you stored earlier.

It does not check the statistics of certificates, witnesses, replaced and revoked keys, and the rules of each kind of
entry; `neorl audit verify --archive` does.
"""

import base64
import hashlib
import html
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ENTRY, HEAD, CERTIFICATE = (
    f"application/{name}+json" for name in ("vnd.neorl.ledger-entry.v3", "vnd.neorl.ledger-head", "vnd.in-toto")
)
SMALL = 2**26
KEPT = r'\{"payload":"[^"]+","payloadType":"[^"]+ledger-head\+json".*?\}\]\}'


class Wrong(Exception):
    """A check of the archive failed."""


def expect(passed: bool, message: str) -> None:
    """Raise `Wrong` with a message unless a check passed."""
    if not passed:
        raise Wrong(message)


def canonical(value: Any) -> bytes:
    """Return the canonical JSON that is signed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def read_keys(path: str) -> dict[str, Ed25519PublicKey]:
    """Return the homes' public keys by id (first 16 hex digits of the key's SHA-256), without persons' keys."""
    with open(path, encoding="utf-8") as file:
        rows = re.split(r"^\s*- ", file.read(), flags=re.MULTILINE)
    rows = [row for row in rows if not re.search(r"^\s*person: *[^\s'\"]", row.replace("'", "").replace('"', ""), re.M)]
    texts = [text for row in rows for text in re.findall(r"^\s*public: *['\"]?([A-Za-z0-9+/=]+)", row, re.M)]
    raw = [base64.b64decode(text, validate=True) for text in texts]
    return {hashlib.sha256(key).hexdigest()[:16]: Ed25519PublicKey.from_public_bytes(key) for key in raw}


def unsealed(keys: dict[str, Ed25519PublicKey], kind: str, raw: bytes) -> Any:
    """Verify the signature of a DSSE envelope and return the payload."""
    envelope = json.loads(raw)
    (signature,), body = envelope["signatures"], base64.b64decode(envelope["payload"], validate=True)
    expect(canonical(envelope) == raw, f"an envelope of {kind} is not canonical")
    expect(envelope["payloadType"] == kind, f"an envelope has type {envelope['payloadType']}, not {kind}")
    expect(signature["keyid"] in keys, f"signed by key {signature['keyid']}, which is not in the trust file")
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(body), body)
    keys[signature["keyid"]].verify(base64.b64decode(signature["sig"], validate=True), signed)
    payload = json.loads(body)
    expect(canonical(payload) == body, f"a payload of {kind} is not canonical")
    return payload


def root(leaves: list[bytes]) -> bytes:
    """Compute the Merkle tree hash of RFC 6962, section 2.1."""
    if len(leaves) < 2:
        return hashlib.sha256(b"\0" + leaves[0] if leaves else b"").digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + root(leaves[:half]) + root(leaves[half:])).digest()


def files_of(path: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield path, SHA-256 and content of each file in the archive; the content of large files is empty."""
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            odd = {"", ".", ".."} & set(member.name.split("/"))
            expect(member.type == tarfile.REGTYPE and not odd, f"{member.name!r} is not a plain file in the archive")
            source = archive.extractfile(member)
            assert source is not None
            digest, content = hashlib.sha256(), b""
            while block := source.read(2**20):
                digest.update(block)
                content += block if member.size <= SMALL else b""
            yield member.name, digest.hexdigest(), content


def contains(keys: dict[str, Ed25519PublicKey], leaves: list[bytes], envelope: bytes, name: str) -> None:
    """Check that the ledger begins with the entries that a signed head covers."""
    head = unsealed(keys, HEAD, envelope)
    part = leaves[: head["size"]]
    last = hashlib.sha256(part[-1]).hexdigest() if part else "0" * 64
    same = (len(part), last, root(part).hex()) == (head["size"], head["last"], head["root"])
    expect(same, f"the ledger does not contain the signed head of {name}: it was shortened or replaced")


def verify(archive: str, trust: str, heads: list[str]) -> str:
    """Check everything and return a summary."""
    keys = read_keys(trust)
    found = {}
    for name, digest, content in files_of(archive):
        expect(name not in found, f"{name} is in the archive twice")
        found[name] = (digest, content)
    contents = json.loads(found.pop("archive.json")[1])
    expect(contents["format"] == "neorl-audit-archive/1", f"format {contents['format']} is unknown")
    listed = {file["path"]: file["sha256"] for file in contents["files"]}
    wrong = sorted(set(listed) ^ set(found)) or [name for name in listed if found[name][0] != listed[name]]
    expect(not wrong, f"{', '.join(wrong[:3])}: missing, added or altered")
    leaves = [found[f"ledger/{number:08d}.json"][1] for number in range(1, contents["entries"] + 1)]
    before, clock, rules, files, absent = "0" * 64, "", 1, 0, 0
    for number, leaf in enumerate(leaves, 1):
        entry = unsealed(keys, ENTRY, leaf)
        expect((entry["sequence"], entry["predecessor"]) == (number, before), f"entry {number} breaks the chain")
        expect(entry["timestamp"] >= clock, f"entry {number} is older than the one before")
        expect(entry.get("rules", 1) >= rules, f"entry {number} claims an earlier version of the rules")
        before, clock, rules = hashlib.sha256(leaf).hexdigest(), entry["timestamp"], entry.get("rules", 1)
        for file in entry["artefacts"]:
            path, files = file["path"], files + 1
            if path not in found and path in contents["left_out"] and path.startswith("datasets/"):
                absent += 1
                continue
            expect(path in found, f"{path}, named by entry {number}, is missing")
            expect(found[path][0] == file["sha256"], f"{path} is not the file that entry {number} names")
            if entry["kind"] == "result" and path.startswith("certificates/"):
                unsealed(keys, CERTIFICATE, found[path][1])
    contains(keys, leaves, found["ledger.head"][1].strip(), "the archive")
    size = json.loads(base64.b64decode(json.loads(found["ledger.head"][1])["payload"]))["size"]
    expect(size == len(leaves), f"the signed head covers {size} entries, but the archive has {len(leaves)}")
    for name in heads:
        with open(name, encoding="utf-8") as kept:
            texts = re.findall(KEPT, html.unescape(kept.read()))
        expect(bool(texts), f"{name} contains no signed head")
        for text in texts:
            contains(keys, leaves, text.encode(), name)
    left_out = f", {absent} dataset files left out" if absent else ""
    return f"ok: {len(leaves)} entries until {clock}, {files} files named{left_out}, root {root(leaves).hex()}"


if __name__ == "__main__":
    try:
        print(verify(sys.argv[1], sys.argv[2], sys.argv[3:]))
    except InvalidSignature:
        sys.exit("failed: a signature is invalid")
    except (Wrong, OSError, ValueError, LookupError, TypeError, tarfile.TarError, RecursionError) as error:
        sys.exit(f"failed: {error if isinstance(error, Wrong) else f'{type(error).__name__} {error}'}")
