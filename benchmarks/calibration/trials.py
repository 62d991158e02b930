"""Attempts of a home's owner to get a false certificate. Each function returns whether one trial certifies."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from tasks.evidence.claims import Claim, exact
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
from tasks.files.canonical import sha256_hex, write_secret

CONFIDENCE = 0.95
NAMES = 20
"""Names, or programs, of one plant."""
TRIES = 10
"""Attempts of a lineage."""
GUESSES = 20
"""Secrets that the owner tries offline before the commitment."""
NOBODY = sha256_hex(b"")


class Killed(Exception):
    """Stands for a kill of the process."""


def single(world: World) -> bool:
    """Make one attempt."""
    return world.test(secrets.token_bytes(32), attempt_alpha(CONFIDENCE, 1)).certified


def retries(world: World) -> bool:
    """Certify the same composite repeatedly; each attempt of the lineage has a smaller error probability."""
    return any(world.test(secrets.token_bytes(32), attempt_alpha(CONFIDENCE, j)).certified for j in range(1, TRIES + 1))


def best_of_ten(world: World) -> bool:
    """Certify ten composites and show the best; each is an attempt of the same lineage."""
    found = [world.test(secrets.token_bytes(32), attempt_alpha(CONFIDENCE, j)) for j in range(1, TRIES + 1)]
    return max(found, key=lambda counts: counts.log_e).certified or any(counts.certified for counts in found)


def walk_claim(world: World, plant: str = "walk", step: str = "", shift: float = 0.0) -> Claim:
    """Return the claim of a trial, for a plant of this name and this program, with limits moved by a relative shift."""
    bound = exact(world.bound * (1.0 + shift))
    return Claim(
        plant=plant,
        phi=f"-{bound} <= {plant}_x <= {bound} m",
        horizon=200,
        family=f"{plant}.Walk",
        domain_name=f"domain {plant}/standard",
        domain={"bound": world.bound},
        step=step,
        p0=world.p,
        confidence=CONFIDENCE,
        max_episodes=1_000_000,
        batch=world.batch,
        batch_seconds=600.0,
    )


def twenty_names(world: World) -> bool:
    """Certify the same plant under twenty names of plant, signals and domain."""
    return _any_certified(world, [walk_claim(world, f"walk_{i}") for i in range(NAMES)])


def twenty_programs(world: World) -> bool:
    """Certify twenty programs that compute nearly the same: no-ops, other orders, constants moved by a millionth."""
    return _any_certified(world, [walk_claim(world, step=sha256_hex(b"%d" % i), shift=i * 1e-6) for i in range(NAMES)])


def _any_certified(world: World, claims: Sequence[Claim]) -> bool:
    """Make one attempt for each claim, with the error probability that NeoRL's lineages give it."""
    attempts: Counter[str] = Counter()
    for claim in claims:
        lineage = lineage_of(claim)
        attempts[lineage] += 1
        if world.test(secrets.token_bytes(32), attempt_alpha(CONFIDENCE, attempts[lineage])).certified:
            return True
    return False


class Bench(NamedTuple):
    """A new ledger with a witness."""

    home: Home
    key: SigningKey
    trust: TrustRoot
    witness: Witness

    def copied(self, root: Path) -> Bench:
        """Return the same bench with a copy of the home and the original witness."""
        shutil.copytree(self.home.root, root)
        return self._replace(home=Home(root), trust=replace(self.trust, source=root / "trust.yaml"))

    def ledger(self, dies: Callable[[str], None] = lambda _: None) -> Ledger:
        """Return the ledger as a new process opens it; `dies` is called around each request and may raise `Killed`."""
        own = Ledger(self.home, connect(self.home.ledger_url), self.trust, None)
        # Decrypting the key is most of the cost of starting a signer, so keep it decrypted.
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
        """Return the claim of this trial."""
        return walk_claim(world)

    def opened(self, ledger: Ledger, world: World) -> Attempt:
        """Open or resume the attempt of this trial."""
        return open_attempt(ledger, self.inputs(world), self.claim(world))

    def inputs(self, world: World) -> Inputs:
        """Return the inputs of the attempt of this trial."""
        return Inputs(lineage=lineage_of(self.claim(world)), composite=NOBODY, dataset=NOBODY, config=NOBODY)


@contextmanager
def benches(folder: Path) -> Iterator[Iterator[Bench]]:
    """Yield benches. All have the same key; each has a new ledger and a new witness that knows only this key."""
    before = os.environ.get("XDG_CONFIG_HOME")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # Folder of the passphrases of these keys.
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
    """Kill the process at a random step, and whenever the result looks bad, and run it again."""
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
                continue  # the result looks bad, so kill the process before it is logged
            dies("after test")
            close_attempt(ledger, attempt, Outcome(passed=False))
        except Killed:
            continue
        # The number proves that there was only one attempt.
        assert attempt.number == 1
        return certified


def grinding(world: World, bench: Bench, chance: np.random.Generator) -> bool:
    """Try secrets offline and commit to one that would certify without the nonce."""
    ledger = bench.ledger()
    attempt = bench.opened(ledger, world)
    secret = ground(world, attempt.alpha)
    write_secret(seed_file(bench.home, attempt.entry), secret)
    return world.test(draw_seed(ledger, attempt), attempt.alpha).certified


def ground(world: World, alpha: float) -> bytes:
    """Return the first of 20 secrets that would certify if the seed depended on the secret alone; else the last one."""
    for _ in range(GUESSES):
        secret = secrets.token_bytes(32)
        if world.test(derive_seed(secret, ()), alpha).certified:
            break
    return secret


def deletion_and_new_homes(world: World, bench: Bench, chance: np.random.Generator) -> bool:
    """After a failed attempt delete or empty the ledger or start a new home, and try again."""
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
    """Replace the ledger with an empty one, and remove the home's signed head."""
    bench.home.ledger.unlink()
    (bench.home.root / "ledger.head").unlink()
    create(connect(bench.home.ledger_url))
    return bench


def _begin_anew(bench: Bench) -> Bench:
    """Make a new home with a new key under the name of the old ledger."""
    home = bench.home
    asked = (home.root / "witnesses.yaml").read_bytes()
    shutil.rmtree(home.root)
    Signer.open(home)
    (home.root / "witnesses.yaml").write_bytes(asked)
    return Bench(home, *open_keys(home, first_use=False), bench.witness)


FREE: dict[str, Callable[[World], bool]] = {
    "single": single,
    "retries": retries,
    "best of ten": best_of_ten,
    "twenty names": twenty_names,
    "twenty programs": twenty_programs,
}
"""Attempts that need no ledger, by name."""
WATCHED: dict[str, Callable[[World, Bench, np.random.Generator], bool]] = {
    "kills and resumes": kills_and_resumes,
    "grinding of seeds": grinding,
    "deletion and new homes": deletion_and_new_homes,
}
"""Attempts that use a ledger and a witness, by name."""
