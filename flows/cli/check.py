"""Command `neorl check`: run a retraining's checks before the retraining, and print a cure for each problem."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from configs.errors import BadInput, NeoRLError, Refused
from configs.home import PASSPHRASE, Home
from flows.cli.common import AsJson, Logs, emit

if TYPE_CHECKING:
    from configs.run import OpenedRun


def check(
    config: Annotated[
        Path | None, typer.Argument(help="The run's file; by default the only one in configs/.", show_default=False)
    ] = None,
    data: Logs = None,
    as_json: AsJson = False,
) -> None:
    """Check everything that a retraining needs, and print a cure for each problem. Exit code 1 if there is a problem.

    Without --data, the command uses the logs that the run's deployment in prefect.yaml names. The command ingests the
    logs, so that a retraining need not read the logs again.

    Example: neorl check configs/wind_turbine.yaml --data scada.csv
    """
    findings = []
    for finding in examine_run(Home.locate(), config or only_run(Path.cwd()), data or []):
        findings.append(finding)
        if not as_json:
            print(f"{'ok' if finding.ok else 'missing':<9}{finding.name}: {finding.detail}", flush=True)
    missing = [finding for finding in findings if not finding.ok]
    emit({"ok": not missing, "findings": [finding._asdict() for finding in findings]}, as_json)
    if missing:
        raise typer.Exit(1)


class Finding(NamedTuple):
    """Result of one check."""

    name: str
    ok: bool
    detail: str


def only_run(folder: Path) -> Path:
    """Return the run's file in configs/ of a project. Raise a BadInput unless there is exactly one run's file."""
    files = sorted(folder.glob("configs/*.yaml"))
    if not files:
        raise BadInput(
            f"no run's file in {folder / 'configs'}: run 'neorl init NAME', or change to a project's folder."
        )
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:5])
        raise BadInput(f"{len(files)} files in {folder / 'configs'} ({names}): name one of them as argument.")
    return files[0]


def examine_run(home: Home, config: Path, data: Sequence[Path]) -> Iterator[Finding]:
    """Yield the result of each check. After the first failure, only the checks of services and key follow."""
    checks = _Checks(home, config, data)
    for name, step in (
        ("configuration", checks.configuration),
        ("plant", checks.plant),
        ("fallback", checks.protection),
        ("constants", checks.constants),
        ("policy", checks.policy),
        ("reward", checks.reward),
        ("training", checks.training),
        ("logs", checks.logs),
        ("signals", checks.signals),
        ("episodes", checks.episodes),
    ):
        finding = _finding(name, step)
        yield finding
        if not finding.ok:
            break
    yield _finding("services", checks.services)
    yield _finding("key", checks.key)


def _finding(name: str, step: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, step())
    except NeoRLError as error:
        return Finding(name, False, str(error))


class _Checks:
    """Checks, one per method: return the finding, or raise a NeoRLError. Later checks use results of earlier checks."""

    run: OpenedRun

    def __init__(self, home: Home, config: Path, data: Sequence[Path]) -> None:
        self.home, self.config, self.data = home, config, data

    def configuration(self) -> str:
        from configs.load import load_run

        load_run(self.config)
        return str(self.config)

    def plant(self) -> str:
        from tasks.models.plants.known import plant_of
        from tasks.models.plants.opening import open_run

        self.run = open_run(self.config)
        known = plant_of(self.run)
        kind = "log-only, described by a mapping" if known.plant is None else "simulated"
        spec = known.spec
        return f"{spec.name}, {kind}: {spec.observation.size} signals, {spec.action.size} actions every {spec.dt:g} s"

    def protection(self) -> str:
        from flows.preflight import check_protection
        from tasks.log_only.protection import fallback_in_words
        from tasks.models.plants.known import plant_of

        check_protection(self.run, self.config)
        if self.run.fallback is None:
            return "the plant's own controller"
        return fallback_in_words(self.run.fallback, plant_of(self.run).spec)

    def constants(self) -> str:
        from flows.preflight import check_constants

        check_constants(self.run)
        names = ", ".join(self.run.identify.constants) if self.run.identify else ""
        return f"{names} will be estimated from the logs" if names else "none to estimate"

    def policy(self) -> str:
        from tasks.evidence.ledger.ledger import Ledger
        from tasks.lifecycle.policy import check_run, policy_for

        if not self._simulated():
            return "none needed, because a log-only plant gets no certificate"
        entries = Ledger.open(self.home, write=False).entries() if Ledger.exists(self.home) else []
        policy, origin = policy_for(entries, self.run)
        check_run(policy, self.run)
        return f"will be drafted from {origin}" if origin else "the run meets the policy in force"

    def reward(self) -> str:
        from flows.preflight import check_reward
        from tasks.models.plants.opening import mapping_of

        check_reward(self.run)
        mapping = mapping_of(self.run)
        return mapping.reward.expression if mapping and mapping.reward else "the plant's own"

    def training(self) -> str:
        from flows.preflight import check_history, check_training

        check_history(self.run, self.config)
        check_training(self.run, self.config)
        return "; ".join(f"{one.title}, {one.updates:,} updates" for one in self.run.train.single_learners())

    def logs(self) -> str:
        from flows.preflight import logs_at
        from flows.services.deployments import deployed_data

        self.data = logs_at(self.home, self.run, self.data or deployed_data(self.config))
        if not self.data:
            raise BadInput(f"no logs for {self.config}: name a file with --data, or in the deployment of prefect.yaml.")
        absent = next((path for path in self.data if not os.path.exists(path)), None)
        if absent is not None:
            code = getattr(self.run.source, "module", "").replace(".", "/")
            plant = f"{code}.py" if code else self.run.plant
            generate = f", or run 'neorl generate {plant}'" if self._simulated() else ""
            raise BadInput(f"no log file at {absent}: put the file there{generate}.")
        return ", ".join(map(str, self.data))

    def signals(self) -> str:
        from tasks.data.historian.raw_rows import RawQuarantine
        from tasks.models.plants.known import plant_of
        from tasks.models.plants.opening import mapping_of
        from tasks.sources import open_source

        plant, mapping = plant_of(self.run), mapping_of(self.run)
        for path in self.data:
            blocks = open_source(path, plant, mapping).stream(RawQuarantine()).blocks
            # The first block may be empty, because an export can begin with a shutdown.
            if not any(len(block["observations"]) for block in blocks):
                raise BadInput(f"{path.name} has no usable rows: check clock, period, gaps and modes in the mapping.")
        return f"{', '.join((*plant.spec.observation.names, *plant.spec.action.names))} are in the logs"

    def episodes(self) -> str:
        from tasks.ingest import ingest
        from tasks.progress import StageProgress
        from tasks.validate import validate

        with StageProgress("ingest") as progress:
            dataset = ingest(self.home, self.run.part("data"), tuple(self.data), progress)
        validation = validate(self.home, self.run.part("data"), dataset)
        if not validation.passed:
            raise Refused(validation.reasons[0])
        quarantined = f", {dataset.quarantined:,} rows in quarantine" if dataset.quarantined else ""
        return f"{dataset.rows:,} rows in {dataset.episodes:,} episodes{quarantined}; card: {dataset.card}"

    def services(self) -> str:
        from flows.services import servers
        from flows.services.service_table import SERVERS, TITLES

        statuses = servers.status(self.home).services
        if any(statuses[name].state == "not answering" for name in SERVERS):
            servers.connect(self.home)
        stopped = [TITLES[name] for name in SERVERS if statuses[name].state == "stopped"]
        return f"{' and '.join(stopped)} will be started" if stopped else "Prefect and MLflow answer"

    def key(self) -> str:
        from flows.cli.doctor import examine_key
        from tasks.evidence.ledger.keys import PASSPHRASE_FILE, must_be_asked_for

        finding = examine_key(self.home)
        if not finding.ok:
            raise BadInput(f"signing key of {self.home.root}: {finding.detail}: {finding.cure}.")
        if must_be_asked_for(self.home) and not os.environ.get(PASSPHRASE) and not sys.stdin.isatty():
            raise Refused(f"no passphrase for {finding.detail}: set {PASSPHRASE_FILE} to the passphrase's file.")
        return finding.detail

    def _simulated(self) -> bool:
        from tasks.models.plants.known import plant_of

        return plant_of(self.run).plant is not None
