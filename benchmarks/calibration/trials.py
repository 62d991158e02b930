"""Trials of certification: what an owner could try so as to get a certificate that is false."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.calibration.worlds import World
from benchmarks.redteam.witnessed import ORIGIN, direct, now, pin_witnesses, witness_in
from configs.errors import Refused
from configs.home import Home
from tasks.evidence.attempts import (
    Attempt,
    Inputs,
    Outcome,
    attempt_alpha,
    close_attempt,
    draw_seed,
    find_result,
    lineage_of,
    open_attempt,
    seed_file,
)
from tasks.evidence.claims import Claim
from tasks.evidence.ledger.keys import open_keys
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.protocol import Answer, Request
from tasks.evidence.ledger.signing import SigningKey, TrustRoot
from tasks.evidence.ledger.table import connect, create
from tasks.evidence.signer import Signer
from tasks.evidence.witness.client import WitnessClient
from tasks.evidence.witness.notes import SIGNATURE, Verifier
from tasks.evidence.witness.seeds import derive_seed
from tasks.evidence.witness.witness import Witness
from tasks.files.canonical import sha256_hex
from tasks.files.secrets import write_secret

CONFIDENCE = 0.95
TRIES = 10
"""Attempts of a lineage."""
GUESSES = 20
"""Secrets that are tried offline before one is committed to."""
NOBODY = sha256_hex(b"")


class Killed(Exception):
    """The process was killed here."""


def single(world: World) -> bool:
    """One attempt."""
    return world.test(secrets.token_bytes(32), attempt_alpha(CONFIDENCE, 1)).certified


def retries(world: World) -> bool:
    """The same composite again and again, until it is certified: each attempt of the lineage spends less."""
    return any(world.test(secrets.token_bytes(32), attempt_alpha(CONFIDENCE, j)).certified for j in range(1, TRIES + 1))


def best_of_ten(world: World) -> bool:
    """Ten composites at once, of which the best is shown: the lineage counts them all."""
    found = [world.test(secrets.token_bytes(32), attempt_alpha(CONFIDENCE, j)) for j in range(1, TRIES + 1)]
    return max(found, key=lambda counts: counts.log_e).certified or any(counts.certified for counts in found)


class Bench(NamedTuple):
    """A new ledger under a witness."""

    home: Home
    key: SigningKey
    trust: TrustRoot
    witness: Witness

    def copied(self, root: Path) -> Bench:
        """The same with a copy of the home: the witness is another's."""
        shutil.copytree(self.home.root, root)
        return self._replace(home=Home(root), trust=replace(self.trust, source=root / "trust.yaml"))

    def ledger(self, dies: Callable[[str], None] = lambda _: None) -> Ledger:
        """The ledger as a process has it that has just been started, and may be killed at a request."""
        own = Ledger(self.home, connect(self.home.ledger_url), self.trust, None)
        # A signer whose key is at hand: to decrypt it is most of what starting one costs.
        witnesses = WitnessClient(self.home, own, self.key, direct(self.witness), own=False)
        signer = Signer(self.home, self.key, own, now, None, witnesses)

        def ask(request: Request) -> Answer:
            what = f"{request.ask} {getattr(request, 'kind', '')}".strip()
            dies(f"before {what}")
            answer = signer.answer(request)
            dies(f"after {what}")
            return answer

        return Ledger(self.home, connect(self.home.ledger_url), self.trust, ask)

    def claim(self, world: World) -> Claim:
        """The claim of this trial."""
        return Claim(
            plant="walk",
            phi=f"|x| <= {world.bound} m",
            horizon=200,
            family="walk.Walk",
            domain_name="domain walk/standard",
            domain={"bound": world.bound},
            p0=world.p,
            confidence=CONFIDENCE,
            max_episodes=1_000_000,
            batch=world.batch,
            batch_seconds=600.0,
        )

    def opened(self, ledger: Ledger, world: World) -> Attempt:
        """The attempt of this trial, opened or resumed."""
        return open_attempt(ledger, self.inputs(world), self.claim(world))

    def inputs(self, world: World) -> Inputs:
        """What the attempt of this trial is about."""
        return Inputs(lineage=lineage_of(self.claim(world)), composite=NOBODY, dataset=NOBODY, config=NOBODY)


@contextmanager
def benches(folder: Path) -> Iterator[Iterator[Bench]]:
    """Benches without end, each with a new ledger of the same key and a witness that knows nothing but that key."""
    before = os.environ.get("XDG_CONFIG_HOME")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # Where the passphrases of all these keys are kept.
        os.environ["XDG_CONFIG_HOME"] = f"{scratch}/config"
        try:
            yield _benches(Path(scratch))
        finally:
            del os.environ["XDG_CONFIG_HOME"]
            if before is not None:
                os.environ["XDG_CONFIG_HOME"] = before


def _benches(folder: Path) -> Iterator[Bench]:
    new, place = folder / "new", folder / "now"
    home = Home(new / "home")
    Signer.open(home)
    key, trust = open_keys(home, first_use=False)
    known = witness_in(new / "witness", "witness.example/w1", open_to_all=False)
    known.add_log(Verifier.of(ORIGIN, SIGNATURE, key))
    pin_witnesses(home, known)
    while True:
        shutil.copytree(new, place)
        yield Bench(
            Home(place / "home"),
            key,
            replace(trust, source=place / "home" / "trust.yaml"),
            known.over_copy(place / "witness"),
        )
        shutil.rmtree(place)


def kills_and_resumes(world: World, bench: Bench, chance: np.random.Generator) -> bool:
    """The process is killed at a random step, and whenever it does not look well, and is run again each time."""
    steps = ["append attempt", "countersign", "append seed", "nonces", "append nonce", "test", "append result"]
    fatal = {f"{when} {step}" for step in steps for when in ("before", "after") if chance.random() < 0.1}

    def dies(step: str) -> None:
        if step in fatal:
            fatal.remove(step)
            raise Killed

    certified = False
    while True:
        try:
            ledger = bench.ledger(dies)
            if find_result(ledger.entries(), bench.inputs(world)):
                return certified
            attempt = bench.opened(ledger, world)
            seed = draw_seed(ledger, attempt)
            counts = world.test(seed, attempt.alpha)
            certified |= counts.certified
            if not counts.certified and chance.random() < 0.5:
                continue  # it was seen to fail, and is killed before its result
            dies("after test")
            close_attempt(ledger, attempt, Outcome(passed=False))
        except Killed:
            continue
        # The number says that no attempt was made beside the one that counts.
        assert attempt.number == 1
        return certified


def grinding(world: World, bench: Bench, chance: np.random.Generator) -> bool:
    """Secrets are tried offline, and one is committed to that would have been certified without the nonce."""
    ledger = bench.ledger()
    attempt = bench.opened(ledger, world)
    secret = ground(world, attempt.alpha)
    write_secret(seed_file(bench.home, attempt.entry), secret)
    return world.test(draw_seed(ledger, attempt), attempt.alpha).certified


def ground(world: World, alpha: float) -> bytes:
    """The first of some secrets whose seed would certify if it were the secret's alone, or the last."""
    for _ in range(GUESSES):
        secret = secrets.token_bytes(32)
        if world.test(derive_seed(secret, ()), alpha).certified:
            break
    return secret


def deletion_and_new_homes(world: World, bench: Bench, chance: np.random.Generator) -> bool:
    """After a failed attempt the ledger is deleted, emptied, set back, and a new home is begun: each for a new try."""
    ledger = bench.ledger()
    attempt = bench.opened(ledger, world)
    certified = world.test(draw_seed(ledger, attempt), attempt.alpha).certified
    if certified:
        return True
    with tempfile.TemporaryDirectory(dir=bench.home.root.parent) as scratch:
        for change in (_delete, _empty, _begin_anew):
            copy = bench.copied(Path(scratch) / change.__name__)
            try:
                other = change(copy)
                again = other.ledger()
                fresh = other.opened(again, world)
                certified |= world.test(draw_seed(again, fresh), fresh.alpha).certified
            except Refused:
                continue
    return certified


def _delete(bench: Bench) -> Bench:
    bench.home.ledger.unlink()
    Signer.open(bench.home)
    return bench


def _empty(bench: Bench) -> Bench:
    """An empty table in its place, and the home's own head taken away."""
    bench.home.ledger.unlink()
    (bench.home.root / "ledger.head").unlink()
    create(connect(bench.home.ledger_url))
    return bench


def _begin_anew(bench: Bench) -> Bench:
    """A new home, with a new key, that says it is the same ledger."""
    home = bench.home
    asked = (home.root / "witnesses.yaml").read_bytes()
    shutil.rmtree(home.root)
    Signer.open(home)
    (home.root / "witnesses.yaml").write_bytes(asked)
    return Bench(home, *open_keys(home, first_use=False), bench.witness)


FREE: dict[str, Callable[[World], bool]] = {"single": single, "retries": retries, "best of ten": best_of_ten}
"""They need no ledger: the numbers of their attempts are all that it would add."""
WATCHED: dict[str, Callable[[World, Bench, np.random.Generator], bool]] = {
    "kills and resumes": kills_and_resumes,
    "grinding of seeds": grinding,
    "deletion and new homes": deletion_and_new_homes,
}
"""They go through a ledger and a witness."""
