"""Everything that an attack may use: a copy of a finished home, its signer and its decrypted key."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel

from benchmarks.redteam.witnessed import direct, now
from configs.home import Home
from configs.safety_policy import SafetyPolicy
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from tasks.evidence.attempts import (
    AttemptBody,
    Inputs,
    Outcome,
    close_attempt,
    draw_seed,
    lineage_of,
    open_attempt,
    witnesses_of,
)
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import make_certificate
from tasks.evidence.claims import Claim, Counts, Materials
from tasks.evidence.decisions.approvals import VerdictBody
from tasks.evidence.decisions.champions import PromotionBody, champion
from tasks.evidence.ledger import table
from tasks.evidence.ledger.entry import Entry, read_entry
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import ENTRY_TYPE, Ledger, artefact, insert
from tasks.evidence.ledger.protocol import Artefact
from tasks.evidence.ledger.signing import HEAD_TYPE, SigningKey
from tasks.evidence.ledger.table import GENESIS
from tasks.evidence.policies import policy_of
from tasks.evidence.signer import Signer
from tasks.evidence.witness.pinned import Witnesses, pinned
from tasks.evidence.witness.server import open_witness
from tasks.evidence.witness.witness import Witness
from tasks.files.canonical import sha256_hex, write_atomic
from tasks.gates import judge
from tasks.references import (
    CandidateRecord,
    Certificate,
    Evidence,
    Interval,
    Role,
    Servability,
    SignalError,
    SimulatorErrors,
)
from tasks.versions.versions import current, newest

SERVED = Servability(
    reasons=(), answers=1, max_error=0.0, tolerance=1.0, latency_us=None, budget_us=1.0, seconds_to_ready=None
)


@dataclass(frozen=True)
class Stage:
    """A copy of a finished home under attack."""

    home: Home
    plant: str
    witness: Witness | None = None
    """Witness of the home. An attack may change a witness that is in the home."""

    def ledger(self, clock: Callable[[], datetime] = now) -> Ledger:
        """Open the ledger with the home's signer, as any program of the user can do."""
        return Ledger.open(self.home, ask=self.signer(clock).answer)

    def later(self, days: int) -> Ledger:
        """Open the ledger with the clocks of home and witness set ahead by some days."""

        def clock() -> datetime:
            return now() + timedelta(days=days)

        if self.witness is not None:
            self.witness.clock = clock
        return self.ledger(clock)

    def signer(self, clock: Callable[[], datetime] = now) -> Signer:
        """Return the home's signer."""
        return Signer.open(self.home, clock=clock, transport=direct(self.witness) if self.witness else None)

    @property
    def watched_from_here(self) -> bool:
        """Whether the witness runs as the same user, so that the attacker can reach it."""
        return self.witness is not None and self.witness.folder.is_relative_to(self.home.root)

    @property
    def pinned(self) -> Witnesses:
        """Return the pinned witnesses of the home."""
        found = pinned(self.home, self.ledger().trust)
        assert found is not None, "pin a witness first"
        return found

    def beside(self, other: Home) -> Witness | None:
        """Return the witness for another home: a copy of a local witness, or the same external witness."""
        if self.witness is None or not self.watched_from_here:
            return self.witness
        return open_witness(other.root / self.witness.folder.relative_to(self.home.root), open_to_all=True)

    @property
    def champion(self) -> Entry:
        """Return the promotion entry of the champion."""
        found = champion(self.ledger().entries(), self.plant)
        assert found is not None, "finish a retraining first"
        return found

    @property
    def candidate(self) -> Entry:
        """Return the candidate entry of the champion."""
        return self.ledger().entry(self.champion.body["candidate"])

    @property
    def policy(self) -> SafetyPolicy:
        """Return the current safety policy."""
        found = policy_of(self.ledger().entries(), self.plant)
        assert found is not None, "finish a retraining of this version first"
        return found

    @property
    def claim(self) -> Claim:
        """Return the claim of the last attempt."""
        attempts = self.ledger().entries("attempt", self.plant)
        return attempts[-1].read(AttemptBody).scope

    def certified(self, ledger: Ledger, composite: str, claim: Claim) -> Entry:
        """Log a certificate of a composite with invented counts, without a simulation."""
        digest = sha256_hex(b"invented")
        inputs = Inputs(lineage=lineage_of(claim), composite=composite, dataset=digest, config=digest)
        attempt = open_attempt(ledger, inputs, claim)
        draw_seed(ledger, attempt)
        counts = invented(claim.p0, attempt.alpha, claim.horizon)
        materials = Materials(**{**dict.fromkeys(Materials.model_fields, digest), "step": claim.step or digest})
        envelope = make_certificate(ledger, attempt.entry, counts, materials)
        path = write_atomic(self.home.folder("certificates") / f"{composite[:12]}.dsse.json", envelope)
        found = Outcome(
            passed=True,
            claim=claim.lines(composite, digest, True, witnesses_of(ledger, attempt), current().texts),
            episodes=counts.episodes,
            violations=0,
            upper_bound=counts.upper_bound,
        )
        return close_attempt(ledger, attempt, found, [artefact(self.home, path)])

    def record(self, result: Entry, replaces: str | None, role: Role = "candidate") -> CandidateRecord:
        """Return the record of a candidate that passes every gate, with a certificate of the ledger."""
        body = result.body
        names = ("claim", "passed", "alpha", "episodes", "violations", "upper_bound", "handovers", "composite")
        own = Certificate(
            **{name: body[name] for name in names},
            attempt=body["number"],
            path=self.home.root / result.artefacts[0].path,
            step="5" * 64,
        )
        above = Interval(value=0.2, lower=0.1, upper=0.3)
        evidence = Evidence(
            beat_plant=True,
            data=(),
            simulator=SimulatorErrors(signals={"x": SignalError(logs=0.1, domain=0.1, spread=1.0)}, step="5" * 64),
            ope=above,
            supported=True,
            rollouts=above,
            fallback=own,
            certificate=own,
            servability=SERVED,
        )
        gates = judge(evidence)
        changes = {
            "evidence": evidence,
            "gates": gates if role == "candidate" else tuple(gate for gate in gates if gate.name == "fallback"),
            "role": role,
            "composite": body["composite"],
            "passed": all(gate.passed for gate in gates),
            "champion": replaces,
            "claim": own.claim,
            "run_key": f"run of {body['composite'][:12]}",
            "version": "99",
        }
        return self.candidate.read(CandidateRecord).model_copy(update=changes)

    def approval(self, candidate: Entry, by: str = "Somebody Else", role: str = "") -> VerdictBody:
        """Return the body of an approval of a candidate."""
        return VerdictBody(composite=candidate.body["composite"], by=by, role=role, candidate=candidate.digest)

    def promotion(self, approval: Entry, replaces: str | None) -> PromotionBody:
        """Return the body of a promotion of the approved candidate."""
        body = approval.body
        return PromotionBody(
            composite=body["composite"], approval=approval.digest, replaces=replaces, candidate=body["candidate"]
        )

    def audited(self, heads: Sequence[str] = ()) -> str | None:
        """Return the findings of the audit as text; None if the audit passes."""
        failures = audit(self.home, heads).failures
        return f"{failures[0].name}: {failures[0].detail}" if failures else None


def invented(p0: float, alpha: float, horizon: int = 1) -> Counts:
    """Return invented counts without a violation that are sufficient for a certificate."""
    n = betting_episodes(p0, 0, alpha)
    return Counts(
        episodes=n,
        violations=0,
        violating=(),
        log_e=log_e_value(n, 0, p0),
        log_threshold=-math.log(alpha),
        upper_bound=clopper_pearson_upper(0, n, alpha),
        certified=True,
        stop="certified",
        min_margins=(1.0,),
        handovers=0,
        mean_return=None,
        crashed=0,
        steps=n * horizon,
    )


def forge(
    home: Home,
    kind: str,
    body: BaseModel | dict[str, Any],
    artefacts: Sequence[Artefact] = (),
    plant: str = "",
    timestamp: str = "",
    key: SigningKey | None = None,
) -> Entry:
    """Append an entry with a decrypted key, without the signer and its rules."""
    key = key or open_keys(home, first_use=False)[0]
    ledger = Ledger.open(home, write=False)
    history = ledger.entries()
    payload = {
        "artefacts": [file._asdict() for file in artefacts],
        "body": json.loads(body.model_dump_json()) if isinstance(body, BaseModel) else body,
        "kind": kind,
        "plant": plant,
        "predecessor": history[-1].digest if history else GENESIS,
        "rules": newest(),
        "sequence": len(history) + 1,
        "timestamp": timestamp or (history[-1].timestamp if history else "2026-11-20T10:00:00.000000Z"),
    }
    envelope = key.seal(ENTRY_TYPE, payload)
    insert(table.connect(home.ledger_url), read_entry(payload, envelope))
    entry = ledger.entries()[-1]
    (home.root / "ledger.head").write_text(key.seal(HEAD_TYPE, ledger.head()._asdict()).decode())
    return entry
