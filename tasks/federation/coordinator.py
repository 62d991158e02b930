"""What the coordinator does: it never sees a row, asks the sites round by round, and logs each round in the ledger."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from configs.errors import BadInput, NeoRLError, Refused
from configs.federation import Federation
from configs.home import Home
from neorl_core.federated import privacy as dp
from neorl_core.federated.privacy import add_noise
from neorl_core.federated.rounds import Server, fresh_server, step_server
from neorl_core.networks import Policy
from neorl_core.training.parameters import size, with_parameters
from neorl_core.training.preparation import Moments, make_scaling, merge_moments
from neorl_core.types import PlantSpec
from tasks.evidence.federations import (
    WEIGHTS,
    FederationBody,
    MemberBody,
    PrivacyBody,
    RoundBody,
    rounds_of,
    spent,
)
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger, artefact
from tasks.federation.gathering import Round, gathered
from tasks.federation.learning import Learning, learning_of
from tasks.federation.secret import gathered_in_secret
from tasks.federation.transport.network import Lost, Reach
from tasks.federation.trees import arrays_of, read_tree
from tasks.federation.words import Question, Told, arrays_of_moments, check_sizes, moments_of, named, told_of
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import digest_json, parse_json, sha256_hex, write_atomic
from tasks.files.spec import spec_of_record
from tasks.models.bundles.policy_file import MadeBy, save_policy

Say = Callable[[str], None]


class Opening(NamedTuple):
    """What is known before the first round."""

    entry: Entry
    spec: PlantSpec
    moments: Moments
    rows: dict[str, int]
    """By site."""
    learning: Learning


class Result(NamedTuple):
    """What a federation came to."""

    entry: str
    """Digest of the ledger entry with which it began."""
    rounds: int
    policy: Path
    digest: str
    epsilon: float | None


def terms_digest(asked: Federation) -> str:
    """The name of a federation: what it is, wherever the coordinator listens."""
    return digest_json(asked.model_dump(mode="json", exclude={"network"}))


def run_federation(asked: Federation, reach: Reach, home: Home, ledger: Ledger, say: Say = print) -> Result:
    """Run a federation to its end; one that was interrupted goes on after its last logged round.

    Args:
        asked: the coordinator's file.
        reach: the sites.
        home: the coordinator's own.
        ledger: opened to write.
        say: where a line about each round goes.

    Raises:
        BadInput: when the sites' plants differ, or the terms do not go together.
        Refused: when too few sites answer.
    """
    name = terms_digest(asked)
    folder = home.folder("federations", name[:16])
    reach.joined(asked.network.join_seconds)
    opening = _open(asked, name, reach, ledger, folder, say)
    done = [one for one in rounds_of(ledger.entries(), opening.entry.digest) if one.completed]
    server = _server(opening, folder, done[-1].after if done else opening.entry.read(FederationBody).weights)
    failures = 0
    while (number := len(done) + 1) <= asked.rounds:
        server, logged = _round(asked, opening, reach, ledger, folder, server, number)
        say(_line(asked, logged))
        if logged.completed:
            done, failures = [*done, logged], 0
            continue
        failures += 1
        if failures < asked.tries:
            # Sites that are not connected answer at once that they are not: they get a round's time to come back.
            reach.joined(asked.round_seconds)
        else:
            raise Refused(
                f"expected answers of {asked.minimum_sites} sites in round {number}, got fewer in {failures} tries: "
                "see 'neorl federate show', mend the sites, and run it again; it goes on with this round."
            )
    return _finish(asked, opening, reach, folder, server, done[-1], say)


def _open(asked: Federation, name: str, reach: Reach, ledger: Ledger, folder: Path, say: Say) -> Opening:
    """The logged beginning: that of an earlier run, or a new one, for which sites tell the moments of their rows."""
    path = folder / "moments.npz"
    found = next((e for e in ledger.entries("federation", asked.plant) if e.body["terms"] == name), None)
    if found is not None:
        arrays = dict(read_npz(path))
        if sha256_hex(path.read_bytes()) != found.body["moments"]:
            raise Refused(
                f"expected the moments that the ledger names in {path}, got others: restore it from a backup."
            )
        spec = spec_of_record(parse_json(arrays.pop("spec").tobytes()))
        known = moments_of(arrays, int(arrays["moments/rows"]), bool(arrays["moments/terminates"]))
        rows = {site["site"]: int(site["rows"]) for site in found.body["sites"]}
        say(f"federation {found.digest[:12]} goes on")
        return Opening(found, spec, known, rows, _learning(asked, spec, len(rows)))
    told = _told(asked, name, reach)
    specs = {told[site][0].spec for site in told}
    if len(specs) != 1:
        raise BadInput(f"expected plants of the same names, units and bounds at {', '.join(told)}, got different ones.")
    spec = spec_of_record(parse_json(specs.pop().encode()))
    known = reduce(merge_moments, [check_sizes(told[site][1], spec) for site in sorted(told)])
    rows = {site: told[site][0].rows for site in sorted(told)}
    learning = _learning(asked, spec, len(rows))
    arrays = _moment_arrays(known) | {"spec": np.frombuffer(told[min(told)][0].spec.encode(), np.uint8)}
    write_atomic(path, npz_bytes(arrays))
    server = fresh_server(learning.train.learner, learning.rule.method)
    entry = ledger.append("federation", _body(asked, name, rows, path, _keep(folder, server)), plant=asked.plant)
    say(f"federation {entry.digest[:12]} of {len(rows)} sites and {known.rows} rows, none of which is here")
    return Opening(entry, spec, known, rows, learning)


def _told(asked: Federation, name: str, reach: Reach) -> dict[str, tuple[Told, Moments]]:
    question = Question(kind="moments", federation=name, terms=asked.terms)
    answers = reach.exchange({site: question.message() for site in asked.sites}, asked.round_seconds)
    found, lost = dict[str, tuple[Told, Moments]](), list[str]()
    for site, answer in answers.items():
        if isinstance(answer, Lost):
            lost.append(f"{site} ({answer.why}: {answer.detail})")
            continue
        try:
            found[site] = told_of(answer)
        except NeoRLError as error:
            lost.append(f"{site} ({error})")
    if lost:
        # Moments that are missing would scale the rows of all: a federation begins with all of its sites.
        raise Refused(f"expected all {len(asked.sites)} sites at the beginning, got none of {'; '.join(lost)}.")
    return found


def _learning(asked: Federation, spec: PlantSpec, sites: int) -> Learning:
    learning = learning_of(asked.terms, spec, asked.aggregate)
    if asked.privacy and learning.rule.privacy:
        server = fresh_server(learning.train.learner, learning.rule.method)
        try:
            numbers = size(server.parameters) + size(server.control)
            dp.check(learning.rule.privacy, numbers, sites, asked.privacy.insist)
        except ValueError as error:
            raise Refused(str(error)) from error
    return learning


def _body(asked: Federation, name: str, rows: Mapping[str, int], moments: Path, weights: str) -> FederationBody:
    from tasks.federation.transport.credentials import fingerprint

    private = asked.privacy
    keys = {site: member.key for site, member in asked.sites.items()}
    return FederationBody(
        terms=name,
        algorithm=asked.algorithm,
        method=asked.method,
        aggregate=asked.aggregate.kind,
        rounds=asked.rounds,
        minimum_sites=asked.minimum_sites,
        secure_sums=asked.secure_sums,
        privacy=PrivacyBody(clip=private.clip, noise=private.noise, delta=private.delta) if private else None,
        sites=tuple(
            MemberBody(site=site, key=fingerprint(key) if (key := keys[site]) else "", rows=count)
            for site, count in rows.items()
        ),
        moments=sha256_hex(moments.read_bytes()),
        weights=weights,
    )


def _round(
    asked: Federation, opening: Opening, reach: Reach, ledger: Ledger, folder: Path, server: Server, number: int
) -> tuple[Server, RoundBody]:
    """Gather a round, move the weights, keep them and log what happened."""
    question = Question(kind="round", federation=terms_digest(asked), terms=asked.terms, number=number)
    offered = _offered(opening, server)
    of = Round(asked, opening.learning, opening.rows, server, number, question, offered, reach)
    came = gathered_in_secret(of) if of.asked.secure_sums else gathered(of)
    before, count = _digest(server), len(came.participants)
    if came.found is not None:
        found = came.found
        if private := opening.learning.rule.privacy:
            found = add_noise(found, private, count, secret_key())
        server = step_server(opening.learning.rule, server, found, count / len(opening.rows))
    completed, after = came.found is not None, _keep(folder, server)
    logged = RoundBody(
        federation=opening.entry.digest,
        number=number,
        completed=completed,
        before=before,
        after=after,
        participants=came.participants,
        left_out=came.left_out,
        aggregate=came.digest,
        epsilon=spent(opening.entry.read(FederationBody).privacy, number if completed else number - 1),
    )
    last = completed and number == asked.rounds
    files = [artefact(ledger.home, _kept(folder, after), WEIGHTS)] if last else []
    ledger.append("round", logged, plant=asked.plant, artefacts=files)
    _forget(folder, after)
    return server, logged


def secret_key() -> PRNGKeyArray:
    """A key for noise that this process alone knows, of all the 64 bits that a key has.

    `jax.random.key` keeps 32 bits of a seed, which a site could try one after the other.
    """
    words = np.asarray([secrets.randbits(32), secrets.randbits(32)], np.uint32)
    key: PRNGKeyArray = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    return key


def _finish(
    asked: Federation, opening: Opening, reach: Reach, folder: Path, server: Server, last: RoundBody, say: Say
) -> Result:
    """Write the policy, and let every site that is there have it."""
    learning = opening.learning
    learner = with_parameters(learning.train.learner, server.parameters)
    how = make_scaling(opening.moments, opening.spec)
    made_by = MadeBy(
        algorithm=asked.algorithm, hyperparameters=learning.config._asdict(), updates=asked.rounds * asked.updates
    )
    path = folder / "policy.npz"
    digest = save_policy(path, Policy(learning.algorithm.actor(learner), how.normaliser), opening.spec, made_by)
    question = Question(kind="finish", federation=terms_digest(asked), terms=asked.terms, number=asked.rounds)
    message = question.message(_offered(opening, server))
    answers = reach.exchange(dict.fromkeys(opening.rows, message), asked.round_seconds)
    for site, answer in sorted(answers.items()):
        if isinstance(answer, Lost):
            say(f"{site} does not have the policy ({answer.why}: {answer.detail}): send it {path}")
    return Result(opening.entry.digest, asked.rounds, path, digest, last.epsilon)


def _offered(opening: Opening, server: Server) -> dict[str, np.ndarray[Any, Any]]:
    return named("offer", server.parameters) | named("control", server.control) | _moment_arrays(opening.moments)


def _moment_arrays(known: Moments) -> dict[str, np.ndarray[Any, Any]]:
    return arrays_of_moments(known) | {
        "moments/rows": np.asarray(known.rows, np.int64),
        "moments/terminates": np.asarray(known.terminates),
    }


def _digest(server: Server) -> str:
    return sha256_hex(npz_bytes(arrays_of(server)))


def _kept(folder: Path, digest: str) -> Path:
    return folder / "weights" / f"{digest}.npz"


def _keep(folder: Path, server: Server) -> str:
    """Write what the coordinator has under its digest, before the ledger names it: whoever is killed finds either."""
    data = npz_bytes(arrays_of(server))
    digest = sha256_hex(data)
    if not (path := _kept(folder, digest)).exists():
        write_atomic(path, data)
    return digest


def _forget(folder: Path, last: str) -> None:
    """Remove what earlier rounds left, once the ledger names what came after."""
    for path in (folder / "weights").glob("*.npz"):
        if path.stem != last:
            path.unlink(missing_ok=True)


def _server(opening: Opening, folder: Path, digest: str) -> Server:
    """What the coordinator had after a logged round."""
    path = _kept(folder, digest)
    if not path.is_file() or sha256_hex(path.read_bytes()) != digest:
        raise Refused(f"expected the weights that the ledger names in {path}, got none or others: restore the file.")
    return read_tree(path, fresh_server(opening.learning.train.learner, opening.learning.rule.method))


def _line(asked: Federation, logged: RoundBody) -> str:
    """A round in a line."""
    state = "" if logged.completed else f", which needs {asked.minimum_sites}: it is tried again"
    text = f"round {logged.number} of {asked.rounds}: {len(logged.participants)} sites{state}"
    if logged.left_out:
        text += "; without " + ", ".join(f"{one.site} ({one.why}: {one.detail})" for one in logged.left_out)
    return text + (f"; epsilon {logged.epsilon:.4g}" if logged.epsilon is not None else "")
