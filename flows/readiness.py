"""What a retraining of a run still lacks, in the order in which a person mends it, by the retraining's own checks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from configs.errors import BadInput, NeoRLError, Refused
from configs.home import PASSPHRASE, Home
from configs.run import OpenedRun


class Finding(NamedTuple):
    """One thing that was looked at: what it is, or the sentence that says what is missing and what to write."""

    name: str
    ok: bool
    detail: str


def only_run(folder: Path) -> Path:
    """The only run's file of a project.

    Raises:
        BadInput: when there is none, or several.
    """
    found = sorted(folder.glob("configs/*.yaml"))
    if len(found) != 1:
        got = ", ".join(path.name for path in found[:5]) or "none"
        cure = "name it" if found else "begin a project with 'neorl init NAME', or go into its folder"
        raise BadInput(f"expected one run's file in {folder / 'configs'}, got {got}: {cure}.")
    return found[0]


def examine_run(home: Home, config: Path, data: Sequence[Path]) -> Iterator[Finding]:
    """Look at all that a retraining needs. Of what rests on one another only the first that is missing is told.

    Args:
        home: of the datasets, the services and the key.
        config: the run's YAML.
        data: files of logs; without one those that the deployment of the run reads.

    Yields:
        What was found.
    """
    look = _Look(home, config, data)
    for name, step in (
        ("configuration", look.configuration),
        ("plant", look.plant),
        ("fallback", look.protection),
        ("constants", look.constants),
        ("policy", look.policy),
        ("reward", look.reward),
        ("training", look.training),
        ("logs", look.logs),
        ("signals", look.signals),
        ("episodes", look.episodes),
    ):
        found = _asked(name, step)
        yield found
        if not found.ok:
            break
    yield _asked("services", look.services)
    yield _asked("key", look.key)


def _asked(name: str, step: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, step())
    except NeoRLError as error:
        return Finding(name, False, str(error))


class _Look:
    """The steps: each says what it found, or raises what is missing; a later one uses what earlier ones read."""

    run: OpenedRun

    def __init__(self, home: Home, config: Path, data: Sequence[Path]) -> None:
        self.home, self.config, self.data = home, config, data

    def configuration(self) -> str:
        """The run's file can be read."""
        from configs.load import load_run

        load_run(self.config)
        return str(self.config)

    def plant(self) -> str:
        """The plant or the mapping is found and can be used."""
        from tasks.models.plants.known import plant_of
        from tasks.models.plants.opening import open_run

        self.run = open_run(self.config)
        known = plant_of(self.run)
        kind = "a process that its mapping describes" if known.plant is None else "simulated"
        spec = known.spec
        return f"{spec.name}, {kind}: {spec.observation.size} observed, {spec.action.size} moved every {spec.dt:g} s"

    def protection(self) -> str:
        """What takes over fits the plant."""
        from flows.checks import check_protection
        from tasks.log_only.protection import fallback_in_words
        from tasks.models.plants.known import plant_of

        check_protection(self.run, self.config)
        if self.run.fallback is None:
            return "the plant's own controller"
        return fallback_in_words(self.run.fallback, plant_of(self.run).spec)

    def constants(self) -> str:
        """Those that are to be estimated are the plant's."""
        from flows.checks import check_constants

        check_constants(self.run)
        names = ", ".join(self.run.identify.constants) if self.run.identify else ""
        return f"{names} will be estimated from the logs" if names else "none is estimated"

    def policy(self) -> str:
        """The run asks for no less than the plant's safety policy."""
        from tasks.evidence.ledger.ledger import Ledger
        from tasks.lifecycle.policy import check_run, policy_for

        if not self._simulated():
            return "none, for nothing is claimed of a process"
        entries = Ledger.open(self.home, write=False).entries() if Ledger.exists(self.home) else []
        found, whence = policy_for(entries, self.run)
        check_run(found, self.run)
        return f"will be drafted from {whence}" if whence else "the run meets the one in force"

    def reward(self) -> str:
        """Something is wanted."""
        from flows.checks import check_reward
        from tasks.models.plants.opening import mapping_of

        check_reward(self.run)
        mapping = mapping_of(self.run)
        return mapping.reward.expression if mapping and mapping.reward else "the plant's own"

    def training(self) -> str:
        """The algorithm, its settings and the signals of the history are known."""
        from flows.checks import check_history, check_training

        check_history(self.run, self.config)
        check_training(self.run, self.config)
        return "; ".join(f"{one.title}, {one.updates:,} updates" for one in self.run.train.single_learners())

    def logs(self) -> str:
        """There are files to learn from."""
        from flows.checks import logs_at
        from flows.services.deployments import deployed_data

        self.data = logs_at(self.home, self.run, self.data or deployed_data(self.config))
        if not self.data:
            raise BadInput(
                "expected a file of logs, got none: name it by --data, or in the deployment of prefect.yaml."
            )
        lost = next((path for path in self.data if not os.path.exists(path)), None)
        if lost is not None:
            code = getattr(self.run.source, "module", "").replace(".", "/")
            made = f", or run 'neorl generate {f'{code}.py' if code else self.run.plant}'" if self._simulated() else ""
            raise BadInput(f"expected logs at {lost}, got none: put the file there{made}.")
        return ", ".join(map(str, self.data))

    def signals(self) -> str:
        """The first rows of each file are what the plant or the mapping says."""
        from tasks.data.historian.raw_rows import RawQuarantine
        from tasks.models.plants.known import plant_of
        from tasks.models.plants.opening import mapping_of
        from tasks.sources import open_source

        plant, mapping = plant_of(self.run), mapping_of(self.run)
        for path in self.data:
            blocks = open_source(path, plant, mapping).stream(RawQuarantine()).blocks
            # An export may begin with a shutdown, whose steps are no rows.
            if not any(len(block["observations"]) for block in blocks):
                raise BadInput(f"expected rows in {path.name}, got none: check clock, period, gaps and modes.")
        return f"{', '.join((*plant.spec.observation.names, *plant.spec.action.names))} are in the logs"

    def episodes(self) -> str:
        """All rows make a dataset that training and evaluation can use."""
        from tasks.ingest import ingest
        from tasks.progress import StageProgress
        from tasks.validate import validate

        with StageProgress("ingest") as progress:
            dataset = ingest(self.home, self.run.part("data"), tuple(self.data), progress)
        validation = validate(self.home, self.run.part("data"), dataset)
        if not validation.passed:
            raise Refused(validation.reasons[0])
        lost = f", {dataset.quarantined:,} rows in quarantine" if dataset.quarantined else ""
        return f"{dataset.rows:,} rows in {dataset.episodes:,} episodes{lost}; card: {dataset.card}"

    def services(self) -> str:
        """The servers answer, or can be started."""
        from flows.services import servers
        from flows.services.definitions import SERVERS, TITLES

        found = servers.status(self.home).services
        if any(found[name].state == "not answering" for name in SERVERS):
            servers.connect(self.home)
        stopped = [TITLES[name] for name in SERVERS if found[name].state == "stopped"]
        return f"{' and '.join(stopped)} will be started" if stopped else "they answer"

    def key(self) -> str:
        """The signing key is there, and can be opened without a person; or the first run makes it."""
        from flows.cli.doctor import examine_key
        from tasks.evidence.ledger.keys import PASSPHRASE_FILE, must_be_asked_for

        found = examine_key(self.home)
        if not found.ok:
            raise BadInput(f"expected the signing key of this home, got '{found.detail}': {found.cure}.")
        if must_be_asked_for(self.home) and not os.environ.get(PASSPHRASE) and not sys.stdin.isatty():
            raise Refused(
                f"expected the passphrase of {found.detail}, got none: set {PASSPHRASE_FILE} to a file that holds it."
            )
        return found.detail

    def _simulated(self) -> bool:
        from tasks.models.plants.known import plant_of

        return plant_of(self.run).plant is not None
