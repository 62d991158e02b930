"""Check a home from the page "Evidence: the formats" alone: python verify.py HOME [TRUST.YAML].

Uses the standard library and `cryptography`; trust.yaml is read with a regular expression (block style only).
Not checked, to stay short: witnesses (pins, checkpoint, countersignatures, nonces), lineage, the order of an attempt's
entries, `upper_bound`, and certificates that no `result` entry names. verify_full.py checks all but the last two.
"""

import base64
import hashlib
import json
import math
import re
import sqlite3
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

TYPES = ("neorl.ledger-entry.v3", "neorl.ledger-head", "in-toto")
ENTRY, HEAD, STATEMENT = (f"application/vnd.{name}+json" for name in TYPES)
FIELDS, TIME = ["sequence", "predecessor", "timestamp", "kind", "plant"], "%Y-%m-%dT%H:%M:%S.%fZ"
KEYS: dict[str, bytes] = {}  # pinned keys by id
LEAVES, ENTRIES, FOUND = list[bytes](), list[dict[str, Any]](), list[str]()  # envelopes, what they say, failures


def run(where: str, checks: Iterator[tuple[Any, str]]) -> None:
    """Note each check that fails, and the error that stops them, if any."""
    try:
        FOUND.extend(f"{where}: {what}" for ok, what in checks if not ok)
    except Exception as error:
        FOUND.append(f"{where}: {type(error).__name__} {error}")


def sha(data: bytes) -> bytes:
    """Return the SHA-256 digest."""
    return hashlib.sha256(data).digest()


def canon(value: Any) -> bytes:
    """Return canonical JSON; compared as such, 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def tree(leaves: list[bytes]) -> bytes:
    """Return the Merkle tree hash of RFC 6962, section 2.1."""
    half = 1 << (len(leaves) - 1).bit_length() - 1 if len(leaves) > 1 else 0
    return sha(b"\1" + tree(leaves[:half]) + tree(leaves[half:]) if half else b"".join(b"\0" + leaf for leaf in leaves))


def unwrap(raw: bytes, kind: str) -> Any:
    """Return the body of a canonical envelope of this type that a pinned key signed, and raise for any other."""
    one = (envelope := json.loads(raw))["signatures"][0]
    body, sig = base64.b64decode(envelope["payload"]), base64.b64decode(one["sig"])
    one = {"keyid": one["keyid"], "sig": base64.b64encode(sig).decode()}
    form = {"payload": base64.b64encode(body).decode(), "payloadType": kind, "signatures": [one]}
    if canon(form) != raw or canon(value := json.loads(body)) != body:
        raise ValueError(f"not a canonical envelope of {kind}")
    key = Ed25519PublicKey.from_public_bytes(KEYS[one["keyid"]])
    key.verify(sig, f"DSSEv1 {len(kind)} {kind} {len(body)} ".encode() + body)
    return value


def contains(envelope: bytes) -> Iterator[tuple[Any, str]]:
    """Check that the ledger contains a signed head."""
    part = LEAVES[: (head := unwrap(envelope, HEAD))["size"]]
    real = {"last": sha(part[-1]).hex() if part else "0" * 64, "root": tree(part).hex(), "size": len(part)}
    yield canon(head) == canon(real), "the ledger does not contain this signed head"


def row(home: Path, digest: str, text: str, *columns: Any) -> Iterator[tuple[Any, str]]:
    """Check one row of the ledger, the files that it names, and the certificate of a result."""
    before, clock = sha(LEAVES[-1]).hex() if LEAVES else "0" * 64, (ENTRIES or [{}])[-1].get("timestamp", "")
    LEAVES.append(text.encode(errors="surrogateescape"))
    ENTRIES.append(entry := {})
    yield digest == sha(LEAVES[-1]).hex(), "digest is not that of the envelope"
    entry.update(unwrap(LEAVES[-1], ENTRY))
    same = canon(columns) == canon([entry[name] for name in FIELDS]) and len(entry.keys() - {"rules"}) == 7
    yield same, "columns differ from the entry, or it has other fields"
    yield canon([entry[x] for x in FIELDS[:2]]) == canon([len(LEAVES), before]), "sequence or predecessor is wrong"
    yield datetime.strptime(time := entry["timestamp"], TIME).strftime(TIME) == time >= clock, "timestamp is wrong"
    for item in entry["artefacts"]:
        file = home / item["path"]
        data = file.read_bytes() if file.is_file() and not {"..", "/"} & {*Path(item["path"]).parts} else None
        yield data is not None and sha(data).hex() == item["sha256"], f"artefact {item['path']!r} is missing or changed"
        if data and entry["kind"] == "result":
            run(f"certificate {item['path']!r}", certificate(data, entry["body"]))


def certificate(raw: bytes, result: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Check a certificate: its form, its statistics, its seed, and what binds it to the ledger."""
    p = (statement := unwrap(raw, STATEMENT))["predicate"]
    a, c, scope, seed, head = p["attempt"], p["counts"], p["scope"], p["seed"], p["ledgerHead"]
    run("ledgerHead of a certificate", contains(head.encode() if isinstance(head, str) else canon(head)))
    alpha = round(1 - scope["confidence"], 12) / (a["number"] * (a["number"] + 1))
    n, k, bad, ten = c["episodes"], c["violations"], c["violating"], math.log(10)
    same = math.isclose(a["alpha"], alpha) and bad == sorted({i for i in bad if 0 <= i < n}) and len(bad) == k
    yield same, "alpha or violations do not follow"
    gain = math.log(1 - scope["p0"] / 10) - math.log(1 - scope["p0"])
    yield math.isclose(c["log_e"], (n - k) * gain - k * ten, abs_tol=1e-9), "log_e does not follow"
    stops = [math.ceil((v * ten - math.log(a["alpha"])) / gain) + v for v in range(k + 1)]
    first = min(m for v, m in enumerate(stops) if (not v or bad[v - 1] < m) and (v == k or bad[v] >= m))
    yield p["passed"] is (first == n) and n <= first, f"passed is {p['passed']} after {n}, the first stop is {first}"
    body, secret = (record := unwrap(seed["record"].encode(), ENTRY))["body"], bytes.fromhex(seed["secret"])
    said = [record["kind"], body["attempt"], body["commitment"], seed["commitment"]]
    yield said == ["seed", a["entry"], *[sha(secret).hex()] * 2], "seed.record or secret is another"
    value = sha(b"neorl attempt seed v1\n" + secret + b"".join(map(base64.b64decode, seed["nonces"]))).hex()
    yield value == seed["value"] and seed["record"].encode() in LEAVES, "seed.value or record is another"
    opening = next(e for e, leaf in zip(ENTRIES, LEAVES, strict=False) if sha(leaf).hex() == a["entry"])["body"]
    told = {x: p["materials"][x] for x in ("dataset", "config")} | {x: a[x] for x in ("number", "alpha", "lineage")}
    told["composite"] = statement["subject"][0]["digest"]["sha256"]
    more = {"attempt": a["entry"], "passed": p["passed"], "episodes": n, "violations": k, "secret": seed["secret"]}
    for source, said in ((opening, {**told, "scope": scope}), (result, {**told, **more})):
        yield canon({x: source.get(x) for x in said}) == canon(said), "differs from the entry of the attempt or result"


def main(home: Path, trust: Path) -> int:
    """Check a home, print what was found, and return the exit status."""
    rows: list[tuple[Any, ...]] = []
    try:
        ids, keys = (re.findall(rf"^[\s-]*{x}: *['\"]?([^\s'\"#]+)", trust.read_text(), re.M) for x in ["id", "public"])
        KEYS.update({name: key for key in map(base64.b64decode, keys) if (name := sha(key).hex()[:16]) in ids})
        base = sqlite3.connect(f"{(home / 'ledger.db').resolve().as_uri()}?mode=ro", uri=True)
        base.text_factory = lambda data: data.decode(errors="surrogateescape")
        rows += base.execute(f"SELECT digest, envelope, {','.join(FIELDS)} FROM ledger ORDER BY sequence")
    except (sqlite3.Error, ValueError, OSError) as error:
        FOUND.append(f"ledger.db or trust.yaml: {error}")
    for number, cells in enumerate(rows, 1):
        run(f"entry {number}", row(home, *cells))
    run("ledger.head", (check for name in ["ledger.head"] for check in contains(Path(home, name).read_bytes())))
    for line in FOUND:
        print(" ".join(line.split()).encode("ascii", "backslashreplace").decode())
    print(f"failed: {len(FOUND)} findings" if FOUND else f"ok: {len(ENTRIES)} entries")
    return 1 if FOUND else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2] if sys.argv[2:] else f"{sys.argv[1]}/trust.yaml")))
