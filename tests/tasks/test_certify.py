"""Certification for real: the plant's own controller on its simulator, with a claim weak enough for a few episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.plants.base import EpisodeResult
from neorl_core.safety.bounds import betting_episodes
from neorl_core.safety.certify import certify_results
from tasks.certify import certify
from tasks.evaluation import repetition
from tasks.evaluation.claims import simulator_digest
from tasks.evaluation.relowering import lowered_apart
from tasks.evaluation.repetition import artifact_of, materials_here, repeat_with
from tasks.evidence.attempts import attempt_alpha
from tasks.evidence.audit.audit import audit
from tasks.evidence.certificate import read_certificate, verify_certificate
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import sha256_hex
from tasks.models.plants.known import plant_named
from tasks.references import Bundle
from tests.evidence import signer_at
from tests.sample_record import write_bundle
from tests.small_data import PLANT, reactor_run


def weak(**changes: float) -> OpenedRun:
    return reactor_run(certify={"p0": 0.3, "max_episodes": 100, **changes})


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Bundle]]:
    home = Home(tmp_path_factory.mktemp("certify") / "home")
    folder = home.folder("bundles", PLANT) / "sample"
    with signer_at(home):
        yield home, Bundle(digest=write_bundle(folder), plant=PLANT, folder=folder)


def test_a_bundle_is_certified_once_and_can_be_repeated(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    told: list[tuple[int, int, str]] = []
    found = certify(home, weak(), bundle, progress=lambda *said: told.append(said))
    assert found.passed
    assert found.complete
    assert (found.attempt, found.composite, found.reused) == (1, bundle.digest, False)
    assert told[-1][0] == found.episodes
    again = certify(home, weak(), bundle)
    assert again == found.model_copy(update={"reused": True})
    # Another claim about the same limits is another attempt, and spends less.
    other = certify(home, weak(p0=0.4), bundle)
    assert (other.attempt, other.reused) == (2, False)
    assert other.alpha == pytest.approx(0.05 / 6)
    ledger = Ledger.open(home, write=False)
    assert [entry.kind for entry in ledger.entries()] == ["attempt", "seed", "result"] * 2
    stated = read_certificate(found.path, ledger.trust).predicate
    assert stated.claim == found.claim
    lowered = lowered_apart(bundle.folder, None, stated.scope)
    here = materials_here(bundle.folder, lowered)

    def again(here: dict[str, str]) -> dict[str, bool | None]:
        checks = verify_certificate(
            found.path,
            ledger.trust,
            artefacts=here,
            ledger=ledger,
            repeat=repeat_with(bundle.folder, lowered, found.path),
            rerun=True,
            challenge=b"the auditor's own",
        )
        return {check.name: check.passed for check in checks}

    said = again(here)
    assert {name for name, passed in said.items() if passed is None} == {
        *("dataset", "config", "artifact", "arguments", "isolation", "policy", "witnesses")
    }
    assert all(said[name] for name in (*here, "rerun", "challenge", "ledger"))
    # A changed simulator, lock or code is named although the counts repeat; so is what is not here.
    for name in ("simulator", "shield", "code", "lock", "step", "program"):
        assert [n for n, passed in again({**here, name: "0" * 64}).items() if passed is False] == [name]
    assert [n for n, passed in again({"composite": bundle.digest}).items() if passed is False] == [
        *("code", "lock", "simulator", "shield", "step", "program")
    ]
    assert audit(home).passed


def test_counts_that_the_code_of_a_plant_made_up_do_not_repeat(
    bundled: tuple[Home, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: the code of a plant replaces functions of NeoRL; the auditor executes none of this code."""
    home, bundle = bundled
    run = weak(p0=0.25, domain={"start_temperature_spread": 30.0})

    def kind(result: EpisodeResult, *_: object) -> EpisodeResult:
        return result._replace(violated=np.zeros_like(result.violated), length=np.full_like(result.length, 60))

    honest = certify_results
    with monkeypatch.context() as patched:
        patched.setattr(repetition, "certify_results", lambda found, *a, **k: honest(map(kind, found), *a, **k))
        found = certify(home, run, bundle)
    assert found.passed
    trust = Ledger.open(home, write=False).trust
    lowered = lowered_apart(bundle.folder, None, read_certificate(found.path, trust).predicate.scope)
    checks = verify_certificate(
        found.path,
        trust,
        artefacts=materials_here(bundle.folder, lowered),
        repeat=repeat_with(bundle.folder, lowered, found.path),
        rerun=True,
    )
    assert [check.name for check in checks if check.passed is False] == ["rerun"]


def test_arguments_of_another_composite_are_refused(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    found = certify(home, weak(), bundle)
    predicate = read_certificate(found.path, Ledger.open(home, write=False).trust).predicate
    lowered = lowered_apart(bundle.folder, None, predicate.scope)
    other = lowered._replace(leaves=(lowered.leaves[0] + 1, *lowered.leaves[1:]))
    with pytest.raises(Refused, match=r"1 arguments of .* are not among the .* numbers of"):
        repeat_with(bundle.folder, other)(predicate, bytes(32))


def test_programs_that_may_do_more_than_compute_are_not_repeated(bundled: tuple[Home, Bundle]) -> None:
    """The attack: code of the plant writes the program, here a program with hidden random numbers."""
    home, bundle = bundled
    found = certify(home, weak(), bundle)
    predicate = read_certificate(found.path, Ledger.open(home, write=False).trust).predicate
    lowered = lowered_apart(bundle.folder, None, predicate.scope)
    drawn = jax.jit(lambda x: (jax.lax.rng_uniform(0.0, x, (3,)),))
    hostile = bytes(jax.export.export(drawn)(np.float32(1)).serialize())
    with pytest.raises(Refused, match=r"isolated process: the program does more .* got the operation stablehlo.rng"):
        repeat_with(bundle.folder, lowered._replace(stored=hostile))(predicate, bytes(32))
    materials = predicate.materials.model_copy(update={"artifact": sha256_hex(hostile)})
    stored, honest = artifact_of(found.path), artifact_of(found.path).read_bytes()
    stored.write_bytes(hostile)
    with pytest.raises(Refused, match=rf"{stored.name}: the program does more .* got the operation stablehlo.rng"):
        repeat_with(bundle.folder, lowered, found.path)(
            predicate.model_copy(update={"materials": materials}), bytes(32)
        )
    stored.write_bytes(honest)


def test_another_source_of_the_simulator_is_another_simulator() -> None:
    """The attack: the plant's code is changed, and nothing else of it."""
    known = plant_named(PLANT)
    changed = known._replace(code="f" * 64)
    assert simulator_digest(changed, known.simulator()) != simulator_digest(known, known.simulator())


def test_a_certificate_that_has_gone_is_not_made_up(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    found = certify(home, weak(p0=0.35), bundle)
    kept = found.path.read_bytes()
    found.path.unlink()
    with pytest.raises(Refused, match=f"certificate of attempt {found.attempt} is missing at .*: restore this file"):
        certify(home, weak(p0=0.35), bundle)
    found.path.write_bytes(kept)
    assert certify(home, weak(p0=0.35), bundle).reused


def test_an_attempt_that_cannot_pass_spends_nothing(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    count = len(Ledger.open(home).entries("attempt"))
    with pytest.raises(BadInput, match="no error probability was spent"):
        certify(home, weak(p0=0.05, max_episodes=20), bundle)
    assert len(Ledger.open(home).entries("attempt")) == count


def test_a_killed_attempt_goes_on_where_a_new_one_would_lack_episodes(tmp_path: Path) -> None:
    """As many episodes as the first attempt needs are too few for the second, which would spend less."""
    home, folder = Home(tmp_path / "home"), tmp_path / "bundle"
    bundle = Bundle(digest=write_bundle(folder), plant=PLANT, folder=folder)
    run = weak(max_episodes=betting_episodes(0.3, 0, attempt_alpha(0.95, 1)))
    with signer_at(home):
        with pytest.raises(InterruptedError):
            certify(home, run, bundle, progress=_die)
        found = certify(home, run, bundle)
        assert (found.attempt, found.reused) == (1, False)
        assert len(Ledger.open(home).entries("attempt")) == 1
        with pytest.raises(BadInput, match=r"attempt 2 needs .* without a violation"):
            certify(home, weak(max_episodes=run.certify.max_episodes, p0=0.299), bundle)


def _die(*_: object) -> None:
    """Stands for SIGKILL: nothing of ours catches it."""
    raise InterruptedError


def test_another_bundle_than_the_named_one_is_refused(bundled: tuple[Home, Bundle]) -> None:
    home, bundle = bundled
    with pytest.raises(Refused, match="but 0000"):
        certify(home, weak(), bundle.model_copy(update={"digest": "0" * 64}))
