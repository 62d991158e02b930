"""Commands about policies, candidates and champions: train, retrain, candidates, approve, reject, withdraw."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, ConfigFile, emit, keep_compiled, known_plant
from flows.cli.data import DatasetOrFile, HorizonOf, MappingOf, PlantOf, Root, SpecOf
from flows.cli.keys import Hand, KeyFile, hand_of

if TYPE_CHECKING:
    from configs.run import Setting
    from flows.promote import Decided
    from tasks.evidence.people.statement import Signatory
    from tasks.evidence.people.statement import Statement as Signed
    from tasks.models.user_code.known import KnownAlgorithm
    from tasks.progress import FollowLearning

Plant = Annotated[str, typer.Argument(help="The plant's name, such as chemical_reactor.")]
Version = Annotated[str, typer.Argument(help="The candidate's version in the registry.")]
Who = Annotated[str, typer.Option("--by", help="Who decides; NEORL_PERSON or your user name otherwise.")]
Role = Annotated[str, typer.Option(help="As what, where the plant's policy asks for roles.")]
Statement = Annotated[
    Path | None, typer.Option(help="A decision signed elsewhere: its person, note and role are taken from it.")
]
StatementTo = Annotated[Path | None, typer.Option(help="Only write the signed decision there, to be logged later.")]
Note = Annotated[str, typer.Option("--note", help="Why, for the record.")]


def train(
    data: DatasetOrFile,
    algorithm: Annotated[
        str | None,
        typer.Option(help="What learns, by name, or a file of your own; td3_bc, of discrete actions discrete_cql."),
    ] = None,
    updates: Annotated[int, typer.Option(help="Gradient steps.", min=1)] = 100_000,
    seeds: Annotated[int, typer.Option(help="Policies to train, from seeds 0, 1, ...", min=1)] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A hyper-parameter, as alpha=1 or hidden=[256,256]; repeat it.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Transitions per gradient step.", min=1)] = 256,
    plant: PlantOf = None,
    mapping: MappingOf = None,
    spec: SpecOf = None,
    horizon: HorizonOf = None,
    root: Root = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for what comes of it; the data's name and the algorithm's otherwise.")
    ] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Show the learning curves in the home's MLflow.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train on one dataset or file with the core alone: no gates, no certificate, and no server unless asked for.

    A file of D4RL or DSRL is read as it is; any other source is ingested first. A run that was interrupted goes on
    where it was when the same command is given again.

    Example: neorl train hopper-medium-v2.hdf5 --algorithm td3_bc --updates 100000 --set alpha=1
    """
    keep_compiled(from_the_first=True)
    from neorl_core.algorithms import usual
    from tasks.data.formats.options import SourceOptions
    from tasks.models.user_code.known import our_algorithm
    from tasks.progress import StageProgress
    from tasks.training.recorded import open_recording
    from tasks.training.recording import check_overrides, fit_recording

    overrides = dict(map(_setting, settings or []))
    # A wrong name is found before anything is read.
    named = algorithm and (our_algorithm(algorithm) or own_algorithm(algorithm))
    if named:
        check_overrides(named.algorithm, overrides)
    learning = curves_in_mlflow(Home.locate()) if mlflow else None
    with StageProgress("read") as progress:
        log = open_recording(Home.locate(), data, SourceOptions(plant, mapping, horizon, spec), root, progress)
    if not as_json:
        print(log, flush=True)
    known = named or our_algorithm(usual(log.spec))
    assert known is not None
    folder = out or Path(f"{log.about.name}-{known.algorithm.name}")
    with StageProgress("train") as progress:
        result = fit_recording(
            log,
            folder,
            known,
            updates=updates,
            seeds=seeds,
            overrides=overrides,
            batch_size=batch_size,
            progress=progress,
            learning=learning,
        )
    emit(asdict(result), as_json, [str(result)])


def own_algorithm(reference: str) -> KnownAlgorithm:
    """An algorithm of a user's own, from the working directory or an installed package.

    Raises:
        BadInput: when there is none.
    """
    from tasks.models.user_code.algorithms import algorithm_at

    return algorithm_at(reference, Path.cwd())


def curves_in_mlflow(home: Home) -> FollowLearning:
    """Keeps learning curves in the MLflow that a home's servers are.

    Raises:
        ServiceMissing: when it does not answer.
    """
    from flows.services.servers import connect
    from tasks.registry.learning import LearningRuns
    from tasks.registry.registry import Registry

    return partial(LearningRuns, Registry(connect(home).mlflow.url))


def _setting(text: str) -> tuple[str, Setting]:
    """`name=value`; the value is JSON where it can be, else text."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise BadInput(f"expected --set name=value, got '{text}': write for example --set alpha=1.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def retrain(
    config: ConfigFile,
    data: Annotated[
        list[Path] | None, typer.Option("--data", help="A file of logs, or a dataset's digest; repeat it for several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a policy from logs: ingest, validate, train, evaluate, certify, register, approve, promote, report.

    A run that was killed goes on where it was when the same command is given again.

    Example: neorl retrain configs/chemical_reactor.yaml --data logs/historian.parquet
    """
    keep_compiled(from_the_first=True)
    from flows.cli.launch import run_retrain
    from flows.cli.summary import summary_lines

    outcome = run_retrain(config, data)
    emit(outcome, as_json, summary_lines(outcome))


def candidates(
    plant: Annotated[str | None, typer.Argument(help="Only this plant.")] = None, as_json: AsJson = False
) -> None:
    """List the versions that wait for a decision.

    Example: neorl candidates chemical_reactor
    """
    from flows.promote import list_candidates
    from tasks.references import NO_CLAIM

    rows = [
        {
            "plant": found.plant,
            "version": found.record.version,
            "composite": found.record.composite,
            "certificate": found.record.claim or "",
            "url": found.record.url,
        }
        for found in list_candidates(Home.locate(), known_plant(plant) if plant else None)
    ]
    lines = []
    for row in rows:
        lines.append(f"{row['plant']} version {row['version']}, composite {row['composite'][:12]}")
        lines += [f"  {line}" for line in (row["certificate"] or NO_CLAIM).splitlines()]
        lines += [f"  page: {row['url']}", f"  next: neorl approve {row['plant']} {row['version']}, or neorl reject"]
    emit({"candidates": rows}, as_json, lines or ["no candidate waits for a decision"])


def approve(
    plant: Plant,
    version: Version,
    by: Who = "",
    role: Role = "",
    note: Note = "",
    reviewed: Annotated[
        bool, typer.Option("--reviewed", help="Say that you reviewed it, which is no approval by itself.")
    ] = False,
    key: KeyFile = None,
    statement: Statement = None,
    statement_to: StatementTo = None,
    as_json: AsJson = False,
) -> None:
    """Approve a waiting candidate, and promote it once the plant's policy asks for no other approval.

    Where you have a key ('neorl keys create --person') it signs what you decide; else the decision is in the home's
    name.

    Example: neorl approve chemical_reactor 3 --note "compared trajectories"
    """
    from flows.promote import approve as decide

    home = Home.locate()
    known_plant(plant)
    if statement is not None:
        said, signatory = _read_statement(statement, "approval", version)
        hand, note, role, reviewed = Hand(said.person, signatory), said.note, said.role, said.meaning == "reviewed"
    else:
        hand = hand_of(by, key)
    if statement_to is not None:
        _write_statement(statement_to, plant, version, hand, note, as_json, role=role, reviewed=reviewed)
        return
    result = decide(home, plant, version, hand.name, note, role, reviewed=reviewed, signatory=hand.signatory)
    what = "reviewed" if reviewed else "approved"
    missing = f", and waits: {result.missing}" if result.missing else ""
    emit(
        result,
        as_json,
        [f"version {version} of {plant} is {what}{missing}; {_in_force(result)}", signed_how(result, hand)],
    )


def reject(
    plant: Plant,
    version: Version,
    by: Who = "",
    note: Note = "",
    key: KeyFile = None,
    statement: Statement = None,
    statement_to: StatementTo = None,
    as_json: AsJson = False,
) -> None:
    """Reject a waiting candidate; the champion stays.

    Example: neorl reject chemical_reactor 3 --note "too nervous on the valve"
    """
    from flows.promote import reject as decide

    known_plant(plant)
    if statement is not None:
        said, signatory = _read_statement(statement, "rejection", version)
        hand, note = Hand(said.person, signatory), said.note
    else:
        hand = hand_of(by, key)
    if statement_to is not None:
        _write_statement(statement_to, plant, version, hand, note, as_json, against=True)
        return
    result = decide(Home.locate(), plant, version, hand.name, note, hand.signatory)
    emit(result, as_json, [f"version {version} of {plant} is rejected; {_in_force(result)}", signed_how(result, hand)])


def withdraw(
    plant: Plant,
    version: Version,
    why: Annotated[str, typer.Option(help="Why, for the record.")],
    by: Who = "",
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Take the champion out of force in the ledger and in MLflow at once; the plant's own controller takes its place.

    A controller that has already loaded the bundle keeps running it until it is switched off at the plant.
    Example: neorl withdraw chemical_reactor 3 --why "the valve was replaced, it is another plant"
    """
    from flows.promote import withdraw as decide

    hand = hand_of(by, key)
    result = decide(Home.locate(), known_plant(plant), version, hand.name, why, hand.signatory)
    lines = [f"version {version} of {plant} is withdrawn; in force: {result.takes_over}", signed_how(result, hand)]
    emit(result, as_json, [*lines, *result.aliases.changes])


def _read_statement(path: Path, act: str, version: str) -> tuple[Signed, Signatory]:
    """A statement from its file, unchecked: the rules check it when it is logged.

    Raises:
        BadInput: when the file is none, or of another decision.
    """
    from tasks.evidence.people.statement import Statement as Read
    from tasks.evidence.people.statement import read_payload, signed_elsewhere

    try:
        envelope = path.read_text()
        said = Read.model_validate(read_payload(envelope))
    except (OSError, ValueError, LookupError, TypeError) as error:
        cure = "make one with --statement-to"
        raise BadInput(f"expected a signed statement in {path}, got {type(error).__name__}: {cure}.") from error
    if (said.act, said.about.get("version")) != (act, version):
        got = f"one of {said.act} of version {said.about.get('version')}"
        raise BadInput(f"expected a statement of {act} of version {version} in {path}, got {got}: name that one.")
    return said, signed_elsewhere(envelope)


def _write_statement(
    path: Path,
    plant: str,
    version: str,
    hand: Hand,
    note: str,
    as_json: bool,
    *,
    role: str = "",
    reviewed: bool = False,
    against: bool = False,
) -> None:
    from flows.promote import statement
    from tasks.files.canonical import write_atomic

    if hand.signatory is None:
        raise BadInput(f"expected a key of {hand.name} to sign with, got none: 'neorl keys create --person', or --key.")
    signed = statement(
        Home.locate(), plant, version, note, hand.signatory, role=role, reviewed=reviewed, against=against
    )
    write_atomic(path, signed.encode())
    command = "reject" if against else "approve"
    following = f"next: neorl {command} {plant} {version} --statement {path}"
    lines = [f"{path}, {hand.told}: nothing is decided yet", following]
    emit({"statement": str(path), "person": hand.name}, as_json, lines)


def _in_force(decided: Decided) -> str:
    return f"in shadow: {decided.shadow}" if decided.shadow else f"champion: {decided.champion}"


def signed_how(decided: Decided, hand: Hand) -> str:
    """How a decision is signed, or who had decided so before, so that nothing was added to the ledger.

    Args:
        decided: what it came to.
        hand: whose decision it is.
    """
    return f"decided before by {decided.standing}: yours was not added" if decided.standing else hand.told
