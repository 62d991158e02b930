"""Coordinator of a federation: asks sites for changes of the weights, aggregates the changes, and logs each round."""

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
from tasks.federation.learning import Learning, make_learning
from tasks.federation.messages import (
    Question,
    RowSummary,
    check_moments,
    named,
    pooled_moment_arrays,
    read_pooled_moments,
    read_row_summary,
)
from tasks.federation.open_round import RoundRequest, run_round
from tasks.federation.secure_round import run_secure_round
from tasks.federation.state_files import read_tree, tree_arrays
from tasks.federation.transport.network import MissingAnswer, Transport
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import digest_json, parse_json, sha256_hex, write_atomic
from tasks.files.spec import spec_of_record
from tasks.models.bundles.policy_file import MadeBy, save_policy

Say = Callable[[str], None]


class Opening(NamedTuple):
    """Facts that are fixed before a federation's first round."""

    entry: Entry
    spec: PlantSpec
    moments: Moments
    rows: dict[str, int]
    """Number of rows by site."""
    learning: Learning


class Result(NamedTuple):
    entry: str
    """Digest of the ledger entry that opened the federation."""
    rounds: int
    policy: Path
    digest: str
    epsilon: float | None


def terms_digest(federation: Federation) -> str:
    """Return the digest that identifies a federation, without the network settings, which may change."""
    return digest_json(federation.model_dump(mode="json", exclude={"network"}))


def run_federation(
    federation: Federation, transport: Transport, home: Home, ledger: Ledger, say: Say = print
) -> Result:
    """Run a federation to the end. An interrupted federation resumes after the last recorded round.

    Raises:
        BadInput: if the sites' plants differ or the terms are inconsistent.
        Refused: if too few sites answer.
    """
    name = terms_digest(federation)
    folder = home.folder("federations", name[:16])
    transport.wait_for_sites(federation.network.join_seconds)
    opening = _open(federation, name, transport, ledger, folder, say)
    done = [body for body in rounds_of(ledger.entries(), opening.entry.digest) if body.completed]
    server = _load_weights(opening, folder, done[-1].after if done else opening.entry.read(FederationBody).weights)
    failures = 0
    while (number := len(done) + 1) <= federation.rounds:
        server, logged = _round(federation, opening, transport, ledger, folder, server, number)
        say(_line(federation, logged))
        if logged.completed:
            done, failures = [*done, logged], 0
            continue
        failures += 1
        if failures < federation.tries:
            # Sites without a connection fail at once, so wait as long as a round for them to return.
            transport.wait_for_sites(federation.round_seconds)
        else:
            raise Refused(
                f"round {number} needs answers of {federation.minimum_sites} sites, got {len(logged.participants)} in "
                f"the last of {failures} tries: see 'neorl federate show', repair the sites and run again to resume"
            )
    return _finish(federation, opening, transport, folder, server, done[-1], say)


def _open(federation: Federation, name: str, transport: Transport, ledger: Ledger, folder: Path, say: Say) -> Opening:
    """Return the recorded opening of an earlier run, or open the federation with the moments of all sites."""
    path = folder / "moments.npz"
    entry = next((e for e in ledger.entries("federation", federation.plant) if e.body["terms"] == name), None)
    if entry is not None:
        arrays = dict(read_npz(path))
        if (digest := sha256_hex(path.read_bytes())) != (recorded := entry.body["moments"]):
            raise Refused(f"{path} has SHA-256 {digest[:12]}, must be {recorded[:12]}: restore this file from a backup")
        spec = spec_of_record(parse_json(arrays.pop("spec").tobytes()))
        moments = read_pooled_moments(arrays)
        rows = {site["site"]: int(site["rows"]) for site in entry.body["sites"]}
        say(f"federation {entry.digest[:12]} resumes")
        return Opening(entry, spec, moments, rows, _learning(federation, spec, len(rows)))
    summaries = _row_summaries(federation, name, transport)
    specs = {summary.spec for summary, _ in summaries.values()}
    if len(specs) != 1:
        raise BadInput(
            f"the datasets at {', '.join(summaries)} have {len(specs)} different specs: use the same names, units and "
            "bounds"
        )
    spec = spec_of_record(parse_json(specs.pop().encode()))
    moments = reduce(merge_moments, [check_moments(summaries[site][1], spec) for site in sorted(summaries)])
    rows = {site: summaries[site][0].rows for site in sorted(summaries)}
    learning = _learning(federation, spec, len(rows))
    first = summaries[min(summaries)][0]
    arrays = pooled_moment_arrays(moments) | {"spec": np.frombuffer(first.spec.encode(), np.uint8)}
    write_atomic(path, npz_bytes(arrays))
    server = fresh_server(learning.train.learner, learning.rule.method)
    entry = ledger.append(
        "federation", _body(federation, name, rows, path, _save_weights(folder, server)), plant=federation.plant
    )
    say(f"federation {entry.digest[:12]} starts with {len(rows)} sites; their {moments.rows} rows stay at the sites")
    return Opening(entry, spec, moments, rows, learning)


def _row_summaries(federation: Federation, name: str, transport: Transport) -> dict[str, tuple[RowSummary, Moments]]:
    question = Question(kind="moments", federation=name, terms=federation.terms)
    answers = transport.exchange({site: question.message() for site in federation.sites}, federation.round_seconds)
    summaries, missing = dict[str, tuple[RowSummary, Moments]](), list[str]()
    for site, answer in answers.items():
        if isinstance(answer, MissingAnswer):
            missing.append(f"{site} ({answer.why}: {answer.detail})")
            continue
        try:
            summaries[site] = read_row_summary(answer)
        except NeoRLError as error:
            missing.append(f"{site} ({error})")
    if missing:
        # The moments of all sites determine the scaling, so a federation cannot start without a site.
        raise Refused(
            f"{len(missing)} of {len(federation.sites)} sites did not send moments ({'; '.join(missing)}), but all "
            "sites must take part at the beginning: repair these sites and run again"
        )
    return summaries


def _learning(federation: Federation, spec: PlantSpec, sites: int) -> Learning:
    learning = make_learning(federation.terms, spec, federation.aggregate)
    if federation.privacy and learning.rule.privacy:
        server = fresh_server(learning.train.learner, learning.rule.method)
        try:
            numbers = size(server.parameters) + size(server.control)
            dp.check(learning.rule.privacy, numbers, sites, federation.privacy.insist)
        except ValueError as error:
            raise Refused(str(error)) from error
    return learning


def _body(federation: Federation, name: str, rows: Mapping[str, int], moments: Path, weights: str) -> FederationBody:
    from tasks.federation.transport.credentials import fingerprint

    private, members = federation.privacy, federation.sites
    return FederationBody(
        terms=name,
        algorithm=federation.algorithm,
        method=federation.method,
        aggregate=federation.aggregate.kind,
        rounds=federation.rounds,
        minimum_sites=federation.minimum_sites,
        secure_sums=federation.secure_sums,
        privacy=PrivacyBody(clip=private.clip, noise=private.noise, delta=private.delta) if private else None,
        sites=tuple(
            MemberBody(site=site, key=fingerprint(key) if (key := members[site].key) else "", rows=count)
            for site, count in rows.items()
        ),
        moments=sha256_hex(moments.read_bytes()),
        weights=weights,
    )


def _round(
    federation: Federation,
    opening: Opening,
    transport: Transport,
    ledger: Ledger,
    folder: Path,
    server: Server,
    number: int,
) -> tuple[Server, RoundBody]:
    question = Question(kind="round", federation=terms_digest(federation), terms=federation.terms, number=number)
    offered = _offered(opening, server)
    request = RoundRequest(federation, opening.learning, opening.rows, server, number, question, offered, transport)
    result = run_secure_round(request) if federation.secure_sums else run_round(request)
    before, count = _digest(server), len(result.participants)
    if (aggregate := result.aggregate) is not None:
        if private := opening.learning.rule.privacy:
            aggregate = add_noise(aggregate, private, count, secret_key())
        server = step_server(opening.learning.rule, server, aggregate, count / len(opening.rows))
    completed, after = aggregate is not None, _save_weights(folder, server)
    logged = RoundBody(
        federation=opening.entry.digest,
        number=number,
        completed=completed,
        before=before,
        after=after,
        participants=result.participants,
        left_out=result.left_out,
        aggregate=result.digest,
        epsilon=spent(opening.entry.read(FederationBody).privacy, number if completed else number - 1),
    )
    last = completed and number == federation.rounds
    files = [artefact(ledger.home, _weights_file(folder, after), WEIGHTS)] if last else []
    ledger.append("round", logged, plant=federation.plant, artefacts=files)
    _remove_old_weights(folder, after)
    return server, logged


def secret_key() -> PRNGKeyArray:
    """Return a secret random key of 64 bits for noise.

    `jax.random.key` keeps only 32 bits of a seed, which a site could find by trial.
    """
    words = np.asarray([secrets.randbits(32), secrets.randbits(32)], np.uint32)
    key: PRNGKeyArray = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
    return key


def _finish(
    federation: Federation,
    opening: Opening,
    transport: Transport,
    folder: Path,
    server: Server,
    last: RoundBody,
    say: Say,
) -> Result:
    """Write the policy and send it to every connected site."""
    learning = opening.learning
    learner = with_parameters(learning.train.learner, server.parameters)
    scaling = make_scaling(opening.moments, opening.spec)
    made_by = MadeBy(
        algorithm=federation.algorithm,
        hyperparameters=learning.config._asdict(),
        updates=federation.rounds * federation.updates,
    )
    path = folder / "policy.npz"
    digest = save_policy(path, Policy(learning.algorithm.actor(learner), scaling.normaliser), opening.spec, made_by)
    question = Question(
        kind="finish", federation=terms_digest(federation), terms=federation.terms, number=federation.rounds
    )
    message = question.message(_offered(opening, server))
    answers = transport.exchange(dict.fromkeys(opening.rows, message), federation.round_seconds)
    for site, answer in sorted(answers.items()):
        if isinstance(answer, MissingAnswer):
            say(f"{site} did not receive the policy ({answer.why}: {answer.detail}): send {path} to this site")
    return Result(opening.entry.digest, federation.rounds, path, digest, last.epsilon)


def _offered(opening: Opening, server: Server) -> dict[str, np.ndarray[Any, Any]]:
    return named("offer", server.parameters) | named("control", server.control) | pooled_moment_arrays(opening.moments)


def _digest(server: Server) -> str:
    return sha256_hex(npz_bytes(tree_arrays(server)))


def _weights_file(folder: Path, digest: str) -> Path:
    return folder / "weights" / f"{digest}.npz"


def _save_weights(folder: Path, server: Server) -> str:
    """Write the weights to a file named by their digest, before the ledger entry, so that a run can resume."""
    data = npz_bytes(tree_arrays(server))
    digest = sha256_hex(data)
    if not (path := _weights_file(folder, digest)).exists():
        write_atomic(path, data)
    return digest


def _remove_old_weights(folder: Path, last: str) -> None:
    """Remove the weights of earlier rounds after the ledger has recorded the newest weights."""
    for path in (folder / "weights").glob("*.npz"):
        if path.stem != last:
            path.unlink(missing_ok=True)


def _load_weights(opening: Opening, folder: Path, digest: str) -> Server:
    path = _weights_file(folder, digest)
    if not path.is_file() or sha256_hex(path.read_bytes()) != digest:
        raise Refused(f"{path} is missing or does not match the digest in the ledger: restore it from a backup")
    return read_tree(path, fresh_server(opening.learning.train.learner, opening.learning.rule.method))


def _line(federation: Federation, logged: RoundBody) -> str:
    state = "" if logged.completed else f" of the {federation.minimum_sites} needed, trying again"
    text = f"round {logged.number} of {federation.rounds}: {len(logged.participants)} sites{state}"
    if logged.left_out:
        text += "; without " + ", ".join(f"{body.site} ({body.why}: {body.detail})" for body in logged.left_out)
    return text + (f"; epsilon {logged.epsilon:.4g}" if logged.epsilon is not None else "")
