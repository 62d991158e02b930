"""A small home with a real ledger, certificate, model file and dataset, for tests of evidence."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from pydantic import BaseModel

from benchmarks.redteam.stage import forge as append_past_the_rules
from configs.home import Home
from configs.safety_policy import SafetyPolicy
from configs.strict import Approvers
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from tasks.evidence.attempts import (
    Attempt,
    Inputs,
    Outcome,
    ResultBody,
    certificate_file,
    close_attempt,
    draw_seed,
    lineage_of,
    open_attempt,
    witnesses_of,
)
from tasks.evidence.certificate import make_certificate
from tasks.evidence.claims import Claim, Counts, Materials
from tasks.evidence.decisions.approvals import VerdictBody
from tasks.evidence.decisions.champions import PromotionBody, champion, promote
from tasks.evidence.decisions.verdicts import approve
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact, folder_artefacts
from tasks.evidence.ledger.protocol import Artefact
from tasks.evidence.policies import policy_of
from tasks.evidence.rules import NoteBody
from tasks.evidence.signer import Server, Signer
from tasks.files.canonical import digests_in, sha256_hex, write_atomic, write_json
from tasks.gates import REQUIRED, judge
from tasks.lifecycle.policy import sign
from tasks.references import CandidateRecord, Certificate, Dataset, Evidence, ProcessEvidence, ServedFile, ServedModel
from tasks.versions.versions import current
from tests import judged

PLANT = "chemical_reactor"
PHI = "316<=T<=332 K"
CLAIM = Claim(
    plant=PLANT,
    phi=PHI,
    horizon=60,
    family="nominal",
    domain_name="the nominal domain",
    domain={"spread": 0.05},
    step=sha256_hex(b"step"),
    p0=1e-3,
    confidence=0.95,
    max_episodes=30000,
    batch=512,
    batch_seconds=600.0,
)
POLICY = SafetyPolicy(
    plant=PLANT,
    limits=PHI,
    horizon=60,
    family="nominal",
    domain={"spread": 0.05},
    p0=1e-3,
    confidence=0.95,
    gates=list(REQUIRED),
    approvers=Approvers(count=0),
    approval_days=3660,
    certificate_days=3660,
)
"""Operating domain and limit of these tests' candidates."""
DATASET, CONFIG, SIMULATOR = (sha256_hex(name) for name in (b"dataset", b"config", b"simulator"))
MATERIALS = Materials(
    dataset=DATASET,
    config=CONFIG,
    code=sha256_hex(b"code"),
    lock=sha256_hex(b"lock"),
    simulator=SIMULATOR,
    shield=sha256_hex(b"shield"),
    processor="linux-x86_64-avx2",
    step=sha256_hex(b"step"),
    program=sha256_hex(b"program"),
    artifact=sha256_hex(b"artifact"),
    isolation="no network; Landlock 7",
    custom_calls="lapack_sgetrf_ffi",
    jax="0.10.2, jaxlib 0.10.2",
)


OTHERWISE: dict[str, bool | int | float | str] = {
    "passed": True,
    "claim": "P(violation) <= 0",
    "episodes": 7,
    "violations": 7,
    "upper_bound": 1e-9,
    "handovers": 7,
}
"""Certificate fields with values that no certificate of these tests has."""


def open_ledger(home: Home, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Ledger:
    """Return the ledger of a home with a signer in this process, because starting one for each test takes too long."""
    return Ledger.open(home, ask=Signer.open(home, clock=clock).answer)


@contextmanager
def signer_at(home: Home) -> Iterator[Signer]:
    """Run a home's signer on its socket in a thread, for code that opens the ledger itself."""
    server = Server(Signer.open(home), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.signer
    finally:
        server.shutdown()
        thread.join()
        server.close()


def counts(alpha: float, violating: tuple[int, ...] = (), episodes: int | None = None, p0: float = CLAIM.p0) -> Counts:
    """Return counts that certify with these violations, or that stopped at `episodes` without certifying."""
    k = len(violating)
    n = betting_episodes(p0, k, alpha) if episodes is None else episodes
    return Counts(
        episodes=n,
        violations=k,
        violating=violating,
        log_e=log_e_value(n - k, k, p0),
        log_threshold=-math.log(alpha),
        upper_bound=clopper_pearson_upper(k, n, alpha),
        certified=episodes is None,
        stop="certified" if episodes is None else "max_episodes",
        min_margins=(0.5, None),
        handovers=3,
        mean_return=12.5,
        crashed=0,
        steps=n * CLAIM.horizon,
    )


def inputs(composite: str, claim: Claim = CLAIM) -> Inputs:
    """Return the inputs of a composite in the lineage of these tests, or of another claim."""
    return Inputs(lineage=lineage_of(claim), composite=composite, dataset=DATASET, config=CONFIG)


def attempt_for(ledger: Ledger, composite: str, claim: Claim = CLAIM) -> Attempt:
    """Open an attempt in the lineage of these tests, or for another claim."""
    drawn_from = inputs(composite, claim).model_copy(update={"lineage": lineage_of(claim, ledger.entries())})
    return open_attempt(ledger, drawn_from, claim)


def outcome(composite: str, found: Counts, claim: Claim = CLAIM, witnesses: Sequence[str] = ()) -> Outcome:
    """Return a result's fields for these counts."""
    return Outcome(
        passed=found.certified,
        claim=claim.lines(composite, SIMULATOR, found.certified, witnesses, current().texts),
        episodes=found.episodes,
        violations=found.violations,
        upper_bound=found.upper_bound,
        handovers=found.handovers,
    )


def certify(
    ledger: Ledger,
    composite: str,
    violating: tuple[int, ...] = (),
    episodes: int | None = None,
    claim: Claim = CLAIM,
) -> Path:
    """Run a whole attempt for a composite."""
    attempt = attempt_for(ledger, composite, claim)
    draw_seed(ledger, attempt)
    found = counts(attempt.alpha, violating, episodes, claim.p0)
    found = found.model_copy(update={"steps": found.episodes * claim.horizon})
    materials = MATERIALS.model_copy(update={"step": claim.step or MATERIALS.step})
    envelope = make_certificate(ledger, attempt.entry, found, materials)
    path = write_atomic(ledger.home.root / "certificates" / f"{sha256_hex(envelope)}.json", envelope)
    found_by = witnesses_of(ledger, attempt)
    close_attempt(ledger, attempt, outcome(composite, found, claim, found_by), [artefact(ledger.home, path)])
    return path


def certificate_of(ledger: Ledger, composite: str) -> Certificate | None:
    """Return the last outcome of a composite in the ledger."""
    results = [entry for entry in ledger.entries("result", PLANT) if entry.body["composite"] == composite]
    if not results:
        return None
    body, file = results[-1].read(ResultBody), certificate_file(results[-1])
    assert file is not None
    return Certificate(
        claim=body.claim,
        passed=body.passed,
        attempt=body.number,
        alpha=body.alpha,
        episodes=body.episodes,
        violations=body.violations,
        upper_bound=body.upper_bound,
        handovers=body.handovers,
        composite=composite,
        path=ledger.home.root / file.path,
        step=judged.STEP,
    )


def candidate_record(
    ledger: Ledger, composite: str, evidence: Evidence | None = None, **changes: object
) -> CandidateRecord:
    """Return a candidate with a certificate that passes every gate, with changes."""
    own = certificate_of(ledger, composite)
    assert own is not None, "certify the composite first"
    numbers = evidence or judged.evidence(fallback=own, certificate=own)
    said = {"claim": own.claim, "served": served_model(ledger.home), **changes}
    return judged_record(PLANT, composite, numbers, **said)


def served_model(home: Home) -> ServedModel:
    """Return the files of the only model in MLflow, if any."""
    found = digests_in(served_folder(home))
    return ServedModel(model="m-0", contents=tuple(ServedFile(path=p, sha256=d) for p, d in found.items()))


def served_folder(home: Home) -> Path:
    """Return the folder of that model."""
    return home.root / "mlflow" / "artifacts" / "1" / "models" / "m-0" / "artifacts"


def judged_record(
    plant: str, composite: str, numbers: Evidence | ProcessEvidence, **changes: object
) -> CandidateRecord:
    """Return a candidate with the gates of its numbers, with changes."""
    gates = judge(numbers)
    dataset = Dataset(
        digest=DATASET, plant=plant, store=Path("."), manifest=Path("manifest.json"), shards=(), rows=50, episodes=5
    )
    record = CandidateRecord(
        run_key=f"run of {composite[:12]}",
        composite=composite,
        role="candidate",
        version="1",
        run_id="0",
        url="http://mlflow/1",
        passed=all(gate.passed for gate in gates),
        gates=gates,
        evidence=numbers,
        claim=None,
        served=ServedModel(model="m-0", contents=()),
        dataset=dataset,
        config=CONFIG,
        champion=None,
    )
    return record.model_copy(update=changes)


def propose(ledger: Ledger, composite: str, **changes: object) -> str:
    """Log a certified candidate that passed every gate under a suitable policy, and return the digest of the entry."""
    if policy_of(ledger.entries(), PLANT) is None:
        sign(ledger, POLICY, "a reviewer", "before the first promotion")
    if certificate_of(ledger, composite) is None:
        certify(ledger, composite)
    current = champion(ledger.entries(), PLANT)
    said = {"champion": current.digest if current else None, **changes}
    return ledger.append("candidate", candidate_record(ledger, composite, **said), plant=PLANT).digest


def verdict(ledger: Ledger, composite: str, by: str = "a reviewer", note: str = "") -> VerdictBody:
    """Approve or reject a new candidate with this composite."""
    return VerdictBody(composite=composite, by=by, note=note, candidate=propose(ledger, composite))


def crown(ledger: Ledger, composite: str) -> Entry:
    """Propose, approve and promote a certified composite."""
    current = champion(ledger.entries(), PLANT)
    return put(ledger, approve(ledger, PLANT, verdict(ledger, composite)), current.digest if current else None)


def put(ledger: Ledger, approval: Entry, replaces: str | None, composite: str = "") -> Entry:
    """Promote the approved composite, or another composite."""
    promotion = PromotionBody(
        composite=composite or approval.body["composite"],
        approval=approval.digest,
        replaces=replaces,
        candidate=approval.body["candidate"],
    )
    return promote(ledger, PLANT, promotion)


def forge(
    home: Home, kind: str, body: BaseModel | dict[str, Any], artefacts: Sequence[Artefact] = (), plant: str = PLANT
) -> Entry:
    """Append an entry without the signer and its rules, using the decrypted key."""
    return append_past_the_rules(home, kind, body, artefacts, plant)


def furnished_home(root: Path) -> Ledger:
    """Make a home with a dataset, a model, two certified composites and two promotions."""
    home = Home(root)
    ledger = open_ledger(home)
    shard = home.folder("datasets", PLANT) / "shard.h5"
    with h5py.File(shard, "w") as file:
        rows = np.random.default_rng(0).normal(size=(50, 3)).astype("f4")
        file.create_dataset("observations", data=rows, chunks=(16, 3), compression="gzip")
        file.create_dataset("rewards", data=rows[:, 0])
    manifest = write_json(shard.with_name("manifest.json"), {"shards": ["shard.h5"]})
    ledger.append(
        "note", NoteBody(text="a dataset"), plant=PLANT, artefacts=[artefact(home, path) for path in (shard, manifest)]
    )
    bundle = home.folder("bundles", "a")
    np.savez(bundle / "composite.npz", weight=rows)
    write_json(bundle / "composite.json", {"plant": PLANT})
    files = folder_artefacts(home, bundle, "bundle")
    model = served_folder(home)
    write_atomic(model / "MLmodel", b"flavors: {python_function: {loader_module: mlflow.pyfunc.model}}\n")
    write_atomic(model / "policy_model.py", b"print('answers')\n")
    write_atomic(model / "code" / "neorl_core" / "types.py", b"\n")
    ledger.append("note", NoteBody(text="a version"), plant=PLANT, artefacts=files)
    for name in (b"a", b"b"):
        composite = sha256_hex(name)
        certify(ledger, composite)
        crown(ledger, composite)
    return ledger
