"""Certificates and attempts: numbers, seeds, error probability, and false certificates."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from neorl_core.safety.bounds import betting_episodes, clopper_pearson_upper, log_e_value
from tasks.evidence.attempts import (
    Outcome,
    ResultBody,
    attempt_alpha,
    check_attempt,
    check_result,
    close_attempt,
    count_lineages,
    draw_seed,
    find_result,
    lineage_digest,
    lineage_of,
    open_attempt,
)
from tasks.evidence.certificate import PAYLOAD_TYPE, make_certificate, read_certificate, verify_certificate
from tasks.evidence.claims import Counts, Materials, Predicate
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import write_atomic
from tasks.lifecycle.policy import sign
from tasks.versions.versions import current
from tests.evidence import CLAIM, MATERIALS, POLICY, SIMULATOR, attempt_for, certify, counts, forge, inputs, open_ledger

A, B = "a" * 64, "b" * 64
OWN = ("seed", "alpha", "statistics", "claim", "identity")
"""What a certificate shows by itself."""


@pytest.fixture
def ledger(home: Path) -> Ledger:
    return open_ledger(Home(home))


@pytest.fixture
def certificate(ledger: Ledger) -> Path:
    return certify(ledger, A)


def test_attempts_spend_the_exact_alpha(ledger: Ledger) -> None:
    # truth.md 2: alpha_j = alpha/(j(j+1)); without a violation the e-process needs 4097, 5317, 6087 episodes.
    for number, episodes in ((1, 4097), (2, 5317), (3, 6087)):
        attempt = attempt_for(ledger, f"{number:064x}")
        assert attempt.number == number
        assert attempt.alpha == pytest.approx(0.05 / (number * (number + 1)), rel=1e-12)
        assert counts(attempt.alpha).episodes == episodes
    assert counts(attempt_alpha(0.95, 10)).episodes == 8547


def test_lineages_of_rules_1_and_2_are_plant_limits_and_domain_family() -> None:
    # sha256sum of {"domain_family":"f","phi":"x<=1","plant":"p"}: another digest would begin every lineage anew.
    assert lineage_digest("p", "x<=1", "f") == "8b151d14c78ed90d7f151b52b9f26491a4818cf3076c38c019c4c3132d139e69"


def test_plants_with_equal_limits_share_a_lineage() -> None:
    shared = lineage_of(CLAIM)
    # sha256sum of {"limits":["0 <= 2 m","316 <= 332 K"],"plant":""}
    two = CLAIM.model_copy(update={"phi": "316 <= T <= 332 K; 0 <= level <= 2 m"})
    assert lineage_of(two) == "966951a6d39fb7e55c94f4d5479272ab08eb814adc0d6db4df9921607020b293"
    reordered = two.model_copy(update={"phi": "0 <= height <= 2 m; 316 <= temperature <= 332 K"})
    assert lineage_of(reordered) == lineage_of(two) != shared
    for change in ({"plant": "other"}, {"family": "other"}, {"horizon": 61}, {"step": B}, {"domain": {"spread": 0.0}}):
        assert lineage_of(CLAIM.model_copy(update=change)) == shared
    assert lineage_of(two.model_copy(update={"phi": "316 <= T <= 333 K; 0 <= level <= 2 m"})) != lineage_of(two)


def test_renamed_plants_spend_the_same_error_probability(ledger: Ledger) -> None:
    names = [f"renamed_{i}" for i in range(4)]
    numbers = [attempt_for(ledger, A, CLAIM.model_copy(update={"plant": name})).number for name in names]
    assert numbers == [1, 2, 3, 4]


def test_a_signed_policy_gives_a_plant_a_lineage_of_its_own(ledger: Ledger) -> None:
    other = CLAIM.model_copy(update={"plant": "other"})
    own = POLICY.model_copy(update={"plant": "other", "own_lineage": True})
    assert attempt_for(ledger, A).number == 1
    sign(ledger, own, "Ada Lovelace", "it is another reactor")
    assert lineage_of(other, ledger.entries()) != lineage_of(other)
    assert attempt_for(ledger, B, other).number == 1
    assert count_lineages(ledger.entries()) == 2


def test_attempt_seed_and_result_are_logged_in_order(ledger: Ledger) -> None:
    certify(ledger, A)
    attempt, seed, result = ledger.entries()
    assert [entry.kind for entry in (attempt, seed, result)] == ["attempt", "seed", "result"]
    assert "seed" not in attempt.body
    assert hashlib.sha256(bytes.fromhex(result.body["secret"])).hexdigest() == seed.body["commitment"]
    check_attempt([], attempt)
    check_result([attempt, seed], result)


def test_a_resumed_attempt_keeps_number_and_seed(ledger: Ledger) -> None:
    attempt = attempt_for(ledger, A)
    assert attempt_for(ledger, A) == attempt
    seed = draw_seed(ledger, attempt)
    again = open_ledger(ledger.home)
    assert draw_seed(again, attempt_for(again, A)) == seed
    assert len(seed) == 32
    assert again.head().size == 2
    # What the secret is kept in, and that nothing else holds it before the result does.
    (path,) = (ledger.home.root / "keys" / "seeds").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert seed.hex() not in "".join(b64decode(json.loads(e.envelope)["payload"]).decode() for e in ledger.entries())


def test_a_drawn_but_uncommitted_seed_survives_a_kill(ledger: Ledger) -> None:
    attempt = attempt_for(ledger, A)
    path = ledger.home.root / "keys" / "seeds" / f"{attempt.entry}.seed"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(32))
    path.chmod(0o600)
    # Without a witness: SHA-256 of the label and the secret.
    assert draw_seed(ledger, attempt) == hashlib.sha256(b"neorl attempt seed v1\n" + bytes(32)).digest()
    # sha256 of 32 zero bytes
    commitment = "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925"
    assert ledger.entries("seed")[0].body["commitment"] == commitment


def test_abandoned_attempts_count(ledger: Ledger) -> None:
    lost = attempt_for(ledger, A)
    draw_seed(ledger, lost)
    (ledger.home.root / "keys" / "seeds" / f"{lost.entry}.seed").unlink()
    assert attempt_for(ledger, A).number == 2
    assert attempt_for(ledger, B).number == 3


def test_a_finished_attempt_is_found_and_not_resumed(ledger: Ledger) -> None:
    assert find_result(ledger.entries(), inputs(A)) is None
    certify(ledger, A)
    found = find_result(ledger.entries(), inputs(A))
    assert found is not None
    assert found.body["passed"] is True
    assert find_result(ledger.entries(), inputs(B)) is None
    assert attempt_for(ledger, A).number == 2
    assert not list((ledger.home.root / "keys" / "seeds").iterdir())


def test_a_result_needs_its_seed_and_comes_once(ledger: Ledger) -> None:
    attempt = attempt_for(ledger, A)
    with pytest.raises(Refused, match="already has a result, or"):
        close_attempt(ledger, attempt, Outcome(passed=False))
    draw_seed(ledger, attempt)
    close_attempt(ledger, attempt, Outcome(passed=False))
    with pytest.raises(Refused, match="already has a result, or"):
        close_attempt(ledger, attempt, Outcome(passed=False))


def test_only_the_committed_seed_is_accepted(ledger: Ledger) -> None:
    attempt = attempt_for(ledger, A)
    draw_seed(ledger, attempt)
    path = ledger.home.root / "keys" / "seeds" / f"{attempt.entry}.seed"
    path.write_bytes(bytes(32))
    with pytest.raises(Refused, match="does not match the SHA-256"):
        draw_seed(ledger, attempt)
    # Nor does the signer sign for it.
    with pytest.raises(Refused, match="the secret has SHA-256"):
        close_attempt(ledger, attempt, Outcome(passed=False))
    first, seed = ledger.entries()
    opened = attempt.body.model_dump(exclude={"scope"})
    body = ResultBody(**opened, passed=False, attempt=attempt.entry, secret="00" * 32)
    result = forge(ledger.home, "result", body)
    with pytest.raises(Refused, match="the secret has SHA-256"):
        check_result([first, seed], result)


def test_replay_finds_false_attempts(ledger: Ledger) -> None:
    attempt_for(ledger, A)
    entry = ledger.entries()[0]
    lax = {**entry.body["scope"], "confidence": 0.9}
    for field, value in (("number", 2), ("alpha", 0.05), ("scope", lax)):
        with pytest.raises(Refused, match="abandoned attempts have numbers too"):
            check_attempt([], replace(entry, body={**entry.body, field: value}))
    # A lineage of its own would be at its first attempt for ever.
    alone = replace(entry, body={**entry.body, "lineage": "f" * 64})
    with pytest.raises(Refused, match="but its claim has lineage"):
        check_attempt([entry], alone)
    with pytest.raises(Refused, match="the next attempt of this lineage is number 2"):
        check_attempt([entry], entry)
    certify(ledger, A)
    attempt, seed, result = ledger.entries()
    with pytest.raises(Refused, match="is not in the ledger, has no seed"):
        check_result([attempt], result)
    with pytest.raises(Refused, match="is not in the ledger, has no seed"):
        check_result([attempt, seed, result], result)
    with pytest.raises(Refused, match=r"composite must be .* as in the attempt"):
        check_result([attempt, seed], replace(result, body={**result.body, "composite": B}))


def test_the_statement_is_in_toto_with_non_claims(ledger: Ledger, certificate: Path) -> None:
    """Read with only json and base64, as other tools would."""
    envelope = json.loads(certificate.read_bytes())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(b64decode(envelope["payload"]))
    # in-toto attestation framework, Statement v1: the four fields and their meaning.
    assert set(statement) == {"_type", "subject", "predicateType", "predicate"}
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "composite/chemical_reactor", "digest": {"sha256": A}}]
    predicate = statement["predicate"]
    assert predicate["claim"] == (
        "P(an episode of 60 steps under the nominal domain violates 316<=T<=332 K) <= 1e-3 with confidence 95 %, "
        f"for composite aaaaaaaaaaaa on simulator {SIMULATOR[:12]}.\n"
        "No witness: only the home's owner says that no other seed was tried and that no entry was left out"
    )
    assert any("about the simulator, not about the plant" in text for text in predicate["nonClaims"])
    assert any("SIL" in text for text in predicate["nonClaims"])
    assert predicate["materials"] == MATERIALS.model_dump()
    assert read_certificate(certificate, ledger.trust).model_dump(mode="json", by_alias=True) == statement


def test_a_good_certificate_passes_every_check(ledger: Ledger, certificate: Path) -> None:
    found = {**MATERIALS.model_dump(), "composite": A}
    checks = verify_certificate(certificate, ledger.trust, artefacts=found, ledger=ledger)
    names = [check.name for check in checks]
    assert names == ["signature", "composite", *MATERIALS.model_dump(), *OWN, "witnesses", "ledger", "policy", "rerun"]
    assert [check.name for check in checks if check.passed is not True] == ["witnesses", "policy", "rerun"]


def test_skipped_checks_are_listed(ledger: Ledger, certificate: Path) -> None:
    checks = verify_certificate(certificate, ledger.trust)
    skipped = {check.name: check.detail for check in checks if check.passed is None}
    assert skipped.keys() == {"composite", *MATERIALS.model_dump(), "witnesses", "ledger", "rerun"}
    assert "name it with --bundle" in skipped["composite"]
    assert "so the attempt's number is not checked" in skipped["ledger"]
    assert all(check.passed for check in checks if check.name not in skipped)


def test_a_rerun_of_other_materials_fails(ledger: Ledger, certificate: Path) -> None:
    """The counts agree, but the simulator differs or was not compared."""

    def failed(found: dict[str, str]) -> list[str]:
        checks = verify_certificate(
            certificate, ledger.trust, artefacts=found, repeat=lambda *_: {"source": counts(0.025)}, rerun=True
        )
        return [check.name for check in checks if check.passed is False]

    here = {**MATERIALS.model_dump(), "composite": A}
    assert failed(here) == []
    for name in ("simulator", "code", "lock", "shield", "composite", "step", "program"):
        assert failed({**here, name: B}) == [name]
        assert failed({key: value for key, value in here.items() if key != name}) == [name]
    # On another family of processors counts may differ in an episode at the limit: the counts themselves tell.
    assert failed({**here, "processor": "linux-aarch64-asimd"}) == []
    assert failed({}) == ["composite", "code", "lock", "simulator", "shield", "step", "program"]


def test_violations_are_allowed_for(ledger: Ledger) -> None:
    path = certify(ledger, A, violating=(10, 4000))
    assert all(check.passed is not False for check in verify_certificate(path, ledger.trust, ledger=ledger))
    # truth.md 2: each violation costs 2557.02 successes more.
    episodes = read_certificate(path, ledger.trust).predicate.counts.episodes
    assert episodes in (4097 + 2 * 2558, 4097 + 2 * 2558 - 1)


def test_the_same_attempt_gives_the_same_bytes(ledger: Ledger) -> None:
    attempt = attempt_for(ledger, A)
    draw_seed(ledger, attempt)
    first, second = (make_certificate(ledger, attempt.entry, counts(attempt.alpha), MATERIALS) for _ in range(2))
    assert first == second
    with pytest.raises(ValueError, match="shield"):
        Materials.model_validate(MATERIALS.model_dump(exclude={"shield"}))


def test_the_claim_is_fixed_before_the_seed(ledger: Ledger) -> None:
    """Counts that miss 1e-3 would show 1e-2: the attempt fixes the claim."""
    attempt = attempt_for(ledger, A)
    assert attempt.body.scope == CLAIM
    draw_seed(ledger, attempt)
    weaker = CLAIM.model_copy(update={"p0": 1e-2})
    n = betting_episodes(1e-2, 0, attempt.alpha)
    log_e, upper = log_e_value(n, 0, 1e-2), clopper_pearson_upper(0, n, attempt.alpha)
    enough = counts(attempt.alpha).model_copy(update={"episodes": n, "log_e": log_e, "upper_bound": upper})
    with pytest.raises(Refused, match="the counts are inconsistent"):
        make_certificate(ledger, attempt.entry, enough, MATERIALS)
    # Nor does the attempt go on for another claim: that is another attempt.
    other = open_attempt(ledger, inputs(A), weaker)
    assert (other.number, other.body.scope) == (2, weaker)
    assert open_attempt(ledger, inputs(A), weaker) == other


def test_a_failed_test_is_certified_as_not_shown(ledger: Ledger, tmp_path: Path) -> None:
    attempt = attempt_for(ledger, A)
    found = counts(attempt.alpha, (1, 2, 3), episodes=500)
    draw_seed(ledger, attempt)
    path = write_atomic(tmp_path / "c.json", make_certificate(ledger, attempt.entry, found, MATERIALS))
    predicate = read_certificate(path, ledger.trust).predicate
    assert predicate.passed is False
    assert predicate.claim.startswith("Not certified: P(")
    assert all(check.passed is not False for check in verify_certificate(path, ledger.trust))


def resealed(ledger: Ledger, certificate: Path, change: Any) -> Path:
    """Sign a false certificate as the key's holder."""
    statement = read_certificate(certificate, ledger.trust).model_dump(mode="json", by_alias=True)
    change(statement)
    return write_atomic(certificate.with_name("false.json"), sealed(ledger.home, statement))


def sealed(home: Home, statement: Any) -> bytes:
    key, _ = open_keys(home, first_use=False)
    return key.seal(PAYLOAD_TYPE, statement)


def at(*path: str, value: Any) -> Any:
    def change(statement: dict[str, Any]) -> None:
        node: Any = statement["predicate"]
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("failing", "change"),
    [
        ("seed", at("seed", "value", value="00" * 32)),
        ("alpha", at("attempt", "alpha", value=0.05)),
        ("alpha", at("attempt", "number", value=2)),
        ("statistics", at("counts", "episodes", value=4096)),
        ("statistics", at("counts", "episodes", value=4098)),
        ("statistics", at("counts", "violations", value=1)),
        ("statistics", at("counts", "violating", value=[7])),
        ("statement", at("counts", "violating", value=[5000])),
        ("statistics", at("counts", "log_e", value=9.0)),
        ("statistics", at("counts", "log_threshold", value=2.0)),
        ("statistics", at("counts", "upper_bound", value=1e-4)),
        ("statistics", at("counts", "certified", value=False)),
        ("statistics", at("passed", value=False)),
        ("statistics", at("scope", "p0", value=1e-4)),
        ("statistics", at("scope", "max_episodes", value=4000)),
        ("statistics", at("counts", "crashed", value=1)),
        ("statistics", at("counts", "steps", value=4097 * CLAIM.horizon - 1)),
        ("statistics", at("counts", "steps", value=4097 * CLAIM.horizon + 1)),
        ("identity", at("materials", "program", value="")),
        ("ledger", at("attempt", "lineages", value=2)),
        ("ledger", at("scope", "batch_seconds", value=1e9)),
        ("claim", at("scope", "horizon", value=600)),
        ("claim", at("claim", value="It is safe.")),
        ("ledger", at("attempt", "lineage", value="0" * 64)),
        ("ledger", at("attempt", "entry", value="0" * 64)),
        ("seed", at("seed", "secret", value="00" * 32)),
        ("seed", at("seed", "commitment", value="00" * 32)),
        ("seed", at("seed", "nonces", value=["AAAA"])),
        ("statement", at("seed", "record", value="{}")),
        ("ledger", at("ledgerHead", value="{}")),
        # Nothing is wrong in it, but it is not the file that the ledger names.
        ("ledger", at("nonClaims", value=[])),
        ("statement", at("counts", value={})),
        ("statement", at("scope", "more", value=1)),
    ],
)
def test_a_false_certificate_is_caught(ledger: Ledger, certificate: Path, failing: str, change: Any) -> None:
    checks = verify_certificate(resealed(ledger, certificate, change), ledger.trust, ledger=ledger)
    assert failing in {check.name for check in checks if check.passed is False}


@pytest.mark.parametrize("passed", [True, False])
def test_episodes_after_the_stop_are_refused(ledger: Ledger, certificate: Path, passed: bool) -> None:
    """It certifies after 4097 episodes; counting on past a violation means choosing the stop afterwards."""

    def change(statement: dict[str, Any]) -> None:
        predicate = statement["predicate"]
        found = counts(predicate["attempt"]["alpha"], (4500,)).model_dump(mode="json")
        predicate |= {"counts": {**found, "certified": passed}, "passed": passed}
        predicate["claim"] = CLAIM.lines(A, SIMULATOR, passed, (), current().texts)

    checks = verify_certificate(resealed(ledger, certificate, change), ledger.trust)
    assert [check.name for check in checks if check.passed is False] == ["statistics"]


def test_other_digests_on_this_machine_are_named(ledger: Ledger, certificate: Path) -> None:
    checks = verify_certificate(certificate, ledger.trust, artefacts={"composite": B, "lock": "f" * 64})
    assert [check.name for check in checks if check.passed is False] == ["composite", "lock"]


def test_bytes_and_kinds_are_checked_first(ledger: Ledger, certificate: Path) -> None:
    raw = certificate.read_bytes()
    # One character of the signature, which may have been an A before.
    other = raw[:-40] + (b"B" if raw[-40:-39] == b"A" else b"A") + raw[-39:]
    for spoiled in (raw + b"\n", other, raw[: len(raw) // 2], b""):
        certificate.write_bytes(spoiled)
        (check,) = verify_certificate(certificate, ledger.trust)
        assert (check.name, check.passed) == ("signature", False)
    certificate.write_bytes(sealed(ledger.home, {"_type": "other"}))
    with pytest.raises(Refused, match="safety-certificate/v4"):
        read_certificate(certificate, ledger.trust)
    with pytest.raises(BadInput, match="cannot read the certificate"):
        verify_certificate(certificate.with_name("none.json"), ledger.trust)


def test_rerun_and_challenge_use_the_right_seeds(ledger: Ledger, certificate: Path) -> None:
    seeds: list[bytes] = []
    answer = counts(0.025)

    def repeat(predicate: Predicate, seed: bytes) -> dict[str, Counts]:
        seeds.append(seed)
        assert predicate.scope.domain == {"spread": 0.05}
        return {"source": answer}

    def asked(**options: Any) -> bool:
        return verify_certificate(certificate, ledger.trust, repeat=repeat, **options)[-1].passed

    assert asked(rerun=True)
    assert asked(challenge=b"fresh")
    secret = bytes.fromhex(ledger.entries("result")[0].body["secret"])
    assert seeds == [hashlib.sha256(b"neorl attempt seed v1\n" + secret).digest(), b"fresh"]
    answer = counts(0.025, (12,))
    assert not asked(rerun=True)
    assert asked(challenge=b"fresh")
    answer = counts(0.025, (1, 2, 3), episodes=500)
    assert not asked(challenge=b"fresh")
    with pytest.raises(BadInput, match="repeating the rollouts"):
        verify_certificate(certificate, ledger.trust, rerun=True)
