"""A small home with a real ledger, certificate, model file and dataset, for the tests of evidence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from configs.home import Home
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from tasks.adapters.files.canonical import sha256_hex, write_atomic, write_json
from tasks.adapters.ledger.attempts import Attempt, close_attempt, draw_seed, lineage_digest, open_attempt
from tasks.adapters.ledger.certificate import Claim, make_certificate
from tasks.adapters.ledger.champions import approve, champion, promote
from tasks.adapters.ledger.ledger import Entry, Ledger, artefact, folder_artefacts

PLANT = "chemical_reactor"
PHI = "316<=T<=332 K"
LINEAGE = lineage_digest(PLANT, PHI, "nominal")
CLAIM = Claim(PLANT, PHI, 60, "the nominal domain", {"spread": 0.05}, 1e-3, 0.95, 30000)
DATASET, CONFIG, SIMULATOR = (sha256_hex(name) for name in (b"dataset", b"config", b"simulator"))
MATERIALS = {
    "dataset": DATASET,
    "config": CONFIG,
    "code": sha256_hex(b"code"),
    "lock": sha256_hex(b"lock"),
    "simulator": SIMULATOR,
    "shield": sha256_hex(b"shield"),
    "processor": "linux-x86_64-avx2",
}


def counts(alpha: float, violating: tuple[int, ...] = (), episodes: int | None = None) -> dict[str, Any]:
    """The counts of a test that certifies with these violations, or that stopped at `episodes` without."""
    k = len(violating)
    n = betting_episodes(CLAIM.p0, k, alpha) if episodes is None else episodes
    return {
        "episodes": n,
        "violations": k,
        "violating": violating,
        "log_e": log_e_value(n - k, k, CLAIM.p0),
        "log_threshold": -math.log(alpha),
        "upper_bound": clopper_pearson_upper(k, n, alpha),
        "certified": episodes is None,
        "stop": "certified" if episodes is None else "max_episodes",
        "min_margins": (0.5, None),
        "handovers": 3,
        "mean_return": 12.5,
    }


def attempt_for(ledger: Ledger, composite: str) -> Attempt:
    """Open an attempt in the one lineage of these tests."""
    return open_attempt(
        ledger, PLANT, lineage=LINEAGE, composite=composite, dataset=DATASET, config=CONFIG, confidence=0.95
    )


def certify(ledger: Ledger, composite: str, violating: tuple[int, ...] = ()) -> Path:
    """Take a composite through a whole attempt."""
    attempt = attempt_for(ledger, composite)
    seed = draw_seed(ledger, attempt)
    found = counts(attempt.alpha, violating)
    envelope = make_certificate(ledger, attempt, seed, CLAIM, found, MATERIALS)
    path = write_atomic(ledger.home.root / "certificates" / f"{sha256_hex(envelope)}.json", envelope)
    body = {"passed": found["certified"], "episodes": found["episodes"], "violations": found["violations"]}
    close_attempt(ledger, attempt, body, [artefact(ledger.home, path)])
    return path


def crown(ledger: Ledger, composite: str) -> Entry:
    """Approve and promote a certified composite."""
    current = champion(ledger.entries(), PLANT)
    approval = approve(ledger, PLANT, composite, by="a reviewer")
    expected = current.digest if current else None
    return promote(ledger, PLANT, {"composite": composite}, approval=approval.digest, expected_current=expected)


def furnished_home(root: Path) -> Ledger:
    """A dataset, a model, two certified composites, two promotions."""
    home = Home(root)
    ledger = Ledger.open(home)
    shard = home.folder("datasets", PLANT) / "shard.h5"
    with h5py.File(shard, "w") as file:
        rows = np.random.default_rng(0).normal(size=(50, 3)).astype("f4")
        file.create_dataset("observations", data=rows, chunks=(16, 3), compression="gzip")
        file.create_dataset("rewards", data=rows[:, 0])
    manifest = write_json(shard.with_name("manifest.json"), {"shards": ["shard.h5"]})
    ledger.append("dataset", {"rows": 50}, plant=PLANT, artefacts=[artefact(home, path) for path in (shard, manifest)])
    bundle = home.folder("bundles", "a")
    np.savez(bundle / "composite.npz", weight=rows)
    write_json(bundle / "composite.json", {"plant": PLANT})
    files = folder_artefacts(home, bundle, "bundle")
    ledger.append("registration", {"version": 1}, plant=PLANT, artefacts=files)
    for name in (b"a", b"b"):
        composite = sha256_hex(name)
        certify(ledger, composite)
        crown(ledger, composite)
    return ledger
