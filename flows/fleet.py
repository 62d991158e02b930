"""The retraining of a fleet: a flow for all of it, and a flow below it for each site, several at the same time.

A site's retraining is the one of any plant, with its own lock, gates, certificate and lineage. Whatever becomes of it,
the others go on; a fleet that was killed is retrained again, and finds again what was finished.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.transactions import CommitMode, transaction

from configs.errors import NeoRLError, Refused, ServiceMissing
from configs.fleet import Fleet
from configs.home import Home
from configs.load import load_fleet, site_logs, site_run
from configs.run import OpenedRun
from configs.strict import MARK
from flows.checks import checked_run
from flows.retrain import retrain
from flows.running import ending_of, proceed, refusals_as_states, tag_run
from flows.services.locks import recorded_run
from flows.services.servers import connect, reap_dead_runs
from flows.watch import arrivals
from tasks.conclusion import show_artifact
from tasks.evaluation.cluster import check_workers, cluster, scheduler
from tasks.evidence.ledger.ledger import Ledger
from tasks.fleet.compare import outliers, ranked
from tasks.fleet.records import FleetOutcome, SiteEnded, Standing
from tasks.fleet.report import write_page
from tasks.fleet.shared import pooled_start
from tasks.fleet.standing import standings
from tasks.ingest import ingest, logs_of
from tasks.progress import StageProgress
from tasks.references import Dataset, DriftReference
from tasks.training.placement import cores
from tasks.training.programs import forget_programs
from tasks.validate import validate

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State
    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner

LOST = "its process ended before it did: see the site's log, and give the same command again"


def fleet_run_name() -> str:
    """`fleet` and the fleet's file, from the flow run's parameters."""
    return f"fleet {Path(flow_run.parameters['config']).stem}"


@flow(name="fleet", flow_run_name=fleet_run_name, persist_result=False)
@refusals_as_states
def retrain_fleet(config: str, sites: list[str] | None = None) -> State[FleetOutcome]:
    """Retrain every site of a fleet from its logs, and compare them.

    Args:
        config: the fleet's YAML.
        sites: only these; all of them when not given.

    Returns:
        What came of each, as the state's data.

    Raises:
        NeoRLError: when the file cannot be used, or not one site came to a decision.
    """
    from prefect.states import Completed

    path = Path(config).resolve()
    home, fleet = Home.locate(), load_fleet(path)
    wanted = list(fleet.sites) if sites is None else sites
    with recorded_run(home, str(flow_run.id), fleet.fleet):
        reap_dead_runs(home)
        services = connect(home)
        tag_run(fleet.fleet)
        if fleet.shared is not None and sites is None:
            try:
                share(str(path))
            except NeoRLError as error:
                # Sites go on with what was shared before; one without any is refused by itself.
                get_run_logger().warning(f"nothing new is shared by the sites of {fleet.fleet}: {error}")
        ended = _each(home, fleet, path, wanted)
        # What a site's retraining came to stands in the ledger, but for one that nothing was said of.
        told = tuple(_told(standing, ended) for standing in standings(path, Ledger.open(home).entries()))
        url = f"{services.prefect.url}/runs/flow-run/{flow_run.id}"
        page = write_page(home, fleet.fleet, told, datetime.now(UTC), {"Prefect run": url})
        found = FleetOutcome(
            fleet=fleet.fleet,
            run=str(flow_run.id),
            headline=page.headline,
            sites=tuple(ended.values()),
            outliers=page.outliers,
            page=page.path,
        )
        show_artifact(fleet.fleet, found.headline, _in_words(found, told), "fleet")
        if not any(each.outcome for each in found.sites):
            raise Refused(f"expected a site of {fleet.fleet} to come to a decision, got none: read {found.page}.")
        get_run_logger().info(found.headline)
        return Completed(message=found.headline, data=found)


@task(task_run_name="{site}", cache_policy=NO_CACHE, persist_result=False)
def retrain_site(site: str, plant: str, config: str, data: list[str], log: str, mapped: bool) -> SiteEnded:
    """One site's retraining, as a flow of its own below the fleet's; whatever becomes of it is an answer.

    Args:
        site: its name in the fleet's file.
        plant: its name as a plant.
        config: its run, as `fleet.yaml#site`.
        data: its logs, files or digests of datasets; with none, all that came to the watched folder.
        log: file for what the retraining tells of its progress.
        mapped: whether its logs are read by a mapping.
    """
    # A task holds back what tasks below it store until its own end: a retraining needs its stages' results at once.
    with open(log, "a", buffering=1) as stream, redirect_stderr(stream), transaction(commit_mode=CommitMode.EAGER):
        try:
            given = [str(logs_of(Home.locate(), Path(name), mapped)) for name in data]
            ended = retrain(config, given or None, return_state=True)
            return SiteEnded(site=site, plant=plant, outcome=ending_of(ended))  # type: ignore[arg-type]
        except ServiceMissing as error:
            return SiteEnded(site=site, plant=plant, crashed=str(error))
        except NeoRLError as error:
            return SiteEnded(site=site, plant=plant, refused=str(error))
        except Exception as error:
            # One site stops nobody, whatever it was: Prefect has its traceback.
            return SiteEnded(site=site, plant=plant, crashed=f"{type(error).__name__}: {error}")
        finally:
            # A process retrains one site after another, of a fleet that may have hundreds.
            forget_programs()


@task(cache_policy=NO_CACHE, persist_result=False)
def share(config: str) -> str:
    """Train the policy that the sites share on the logs of all whose data are fit for training.

    Args:
        config: the fleet's YAML.

    Returns:
        The digest of its weights.

    Raises:
        Refused: when no site's data are fit.
    """
    path, home = Path(config), Home.locate()
    fleet, runs, datasets = load_fleet(path), dict[str, OpenedRun](), dict[str, Dataset]()
    for site in fleet.sites:
        try:
            run = checked_run(Path(f"{path}{MARK}{site}"))
            mapped = run.data.mapping is not None
            logs = [logs_of(home, Path(name), mapped) for name in site_logs(path, site)]
            logs = logs or [arrival.path for arrival in arrivals(home, run.plant)]
            dataset = ingest(home, run.part("data"), logs)
            proceed(validate(home, run.part("data"), dataset, DriftReference()))
        except NeoRLError as error:
            get_run_logger().warning(f"{site} has no part in what the sites share: {error}")
            continue
        runs[site], datasets[site] = run, dataset
    if not datasets:
        raise Refused(
            f"expected a site of {fleet.fleet} whose data are fit for training, got none: read the flow's log."
        )
    with StageProgress("share") as progress:
        start = pooled_start(home, fleet.fleet, runs, datasets, progress)
    get_run_logger().info(f"{len(datasets)} of {len(fleet.sites)} sites share the weights {start[:12]}")
    return start


def _each(home: Home, fleet: Fleet, path: Path, sites: Sequence[str]) -> dict[str, SiteEnded]:
    """Every site's end, in their order; one that takes its process with it is tried once more, alone."""
    ended = dict(_submitted(home, fleet, path, sites, fleet.at_once))
    for site in sites:
        if site not in ended:
            alone = dict(_submitted(home, fleet, path, [site], 1))
            ended |= alone or {site: SiteEnded(site=site, plant=fleet.plant_name(site), crashed=LOST)}
    return {site: ended[site] for site in sites}


def _submitted(
    home: Home, fleet: Fleet, path: Path, named: Sequence[str], at_once: int | None
) -> Iterator[tuple[str, SiteEnded]]:
    """Sites as they end; nothing of one whose process was killed."""
    from prefect.futures import as_completed

    with runner_of(len(named), at_once) as runner:
        sites: dict[Any, str] = {}
        for site in named:
            plant = fleet.plant_name(site)
            given = {
                "site": site,
                "plant": plant,
                "config": f"{path}{MARK}{site}",
                "data": list(site_logs(path, site)),
                "log": str(home.folder("logs", "sites") / f"{plant}.log"),
                "mapped": site_run(path, site).data.mapping is not None,
            }
            future: PrefectFuture[SiteEnded] = runner.submit(retrain_site, given)
            sites[future] = site
        for future in as_completed(list(sites)):
            try:
                ended = future.result()
            except Exception as error:
                get_run_logger().warning(f"{sites[future]}: {type(error).__name__}: {error}")
                continue
            get_run_logger().info(ended.found)
            print(f"neorl: {ended.found}", file=sys.stderr, flush=True)
            yield sites[future], ended


@contextmanager
def runner_of(sites: int, at_once: int | None) -> Iterator[TaskRunner[Any]]:
    """What the sites are fanned out by: the Dask cluster of the installation, else processes of this machine.

    Args:
        sites: how many.
        at_once: processes; one for each core when not given.

    Yields:
        The started task runner of Prefect.

    Raises:
        BadInput, ServiceMissing: as `cluster`.
        Refused: as `check_workers`.
    """
    from prefect.task_runners import ProcessPoolTaskRunner

    runner: TaskRunner[Any]
    with cluster() as client:
        if client is None:
            most = at_once or len(cores())
            runner = ProcessPoolTaskRunner(max_workers=min(sites, most), initializer=end_with_parent)
        else:
            from prefect_dask.task_runners import DaskTaskRunner

            check_workers(client)
            runner = DaskTaskRunner(address=scheduler())
        with runner as started:
            yield started


def end_with_parent() -> None:
    """Have this process end when the one that started it does, however that was: a killed fleet goes on nowhere."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def _told(standing: Standing, ended: dict[str, SiteEnded]) -> Standing:
    """A site's standing by the ledger, with what this run found that the ledger does not say."""
    end = ended.get(standing.site)
    if end is None:
        return standing
    if end.crashed:
        return standing.model_copy(update={"state": "crashed", "headline": end.crashed})
    if end.refused:
        return standing.model_copy(update={"state": "refused", "verdict": None, "headline": end.refused})
    decided = end.outcome and (end.outcome.decided or end.outcome.verdict)
    # A site that was refused once and has its old logs again finds its old decision, of which nothing new is written.
    return standing.model_copy(update={"state": "decided", "verdict": decided})


def _in_words(found: FleetOutcome, told: Sequence[Standing]) -> str:
    """The sites' ends as Markdown, for Prefect's page."""
    odd = outliers(ranked(told))
    lines = [found.headline, "", *(f"- {each.found}" for each in found.sites)]
    lines += ["", "What stands out:", "", *(f"- {line}" for line in odd)] if odd else []
    return "\n".join(lines)
