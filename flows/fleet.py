"""Retraining of a fleet: one parent flow, and one retraining flow per site, several in parallel.

Each site is retrained like any plant, with its own lock, gates, certificate and lineage. A failed site does not stop
the others. A killed fleet run is repeated with the same command, which reuses finished sites.
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
from flows.flow_run import completed, proceed, refusals_as_states, result_of, run_name_by_config, tag_run
from flows.preflight import checked_run
from flows.retrain import retrain
from flows.services.locks import recorded_run
from flows.services.servers import connect, reap_dead_runs
from flows.services.watched_folder import arrivals
from tasks.conclusion import show_artifact
from tasks.evaluation.cluster import check_workers, cluster, scheduler
from tasks.evidence.ledger.ledger import Ledger
from tasks.fleet.compare import outliers, ranked
from tasks.fleet.records import FleetOutcome, SiteResult, Standing
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

LOST = "its process was killed: read the site's log, then repeat the command"


@flow(name="fleet", flow_run_name=run_name_by_config, persist_result=False)
@refusals_as_states
def retrain_fleet(config: str, sites: list[str] | None = None) -> State[FleetOutcome]:
    """Retrain every site of a fleet from its logs, and compare them.

    Args:
        config: the fleet's YAML.
        sites: only these sites; by default all.

    Returns:
        The outcome of each site, as data of the state.

    Raises:
        NeoRLError: if the file is invalid, or no site reached a decision.
    """
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
                # Sites use the previous shared weights; a site without any is refused by the site's run.
                get_run_logger().warning(f"the shared weights of {fleet.fleet} were not updated: {error}")
        ended = _each(home, fleet, path, wanted)
        # The ledger has no entry about a crashed site.
        current = tuple(_updated(standing, ended) for standing in standings(path, Ledger.open(home).entries()))
        url = f"{services.prefect.url}/runs/flow-run/{flow_run.id}"
        page = write_page(home, fleet.fleet, current, datetime.now(UTC), {"Prefect run": url})
        outcome = FleetOutcome(
            fleet=fleet.fleet,
            run=str(flow_run.id),
            headline=page.headline,
            sites=tuple(ended.values()),
            outliers=page.outliers,
            page=page.path,
        )
        show_artifact(fleet.fleet, outcome.headline, _markdown(outcome, current), "fleet")
        if not any(each.outcome for each in outcome.sites):
            raise Refused(f"no site of {fleet.fleet} reached a decision: read {outcome.page}.")
        return completed(outcome.headline, outcome)


@task(task_run_name="{site}", cache_policy=NO_CACHE, persist_result=False)
def retrain_site(site: str, plant: str, config: str, data: list[str], log: str, mapped: bool) -> SiteResult:
    """Retrain one site in a flow of its own; a refusal or crash is returned as outcome.

    Args:
        site: name in the fleet's file.
        plant: name of the site's plant.
        config: the site's run, as `fleet.yaml#site`.
        data: log files or dataset digests; if empty, all files of the site in the watched folder.
        log: file for progress messages.
        mapped: whether the logs are read with a mapping.
    """
    # Without an eager commit, Prefect would store results of the site's tasks only at the end of this task.
    with open(log, "a", buffering=1) as stream, redirect_stderr(stream), transaction(commit_mode=CommitMode.EAGER):
        try:
            given = [str(logs_of(Home.locate(), Path(name), mapped)) for name in data]
            ended = retrain(config, given or None, return_state=True)
            return SiteResult(site=site, plant=plant, outcome=result_of(ended))  # type: ignore[arg-type]
        except ServiceMissing as error:
            return SiteResult(site=site, plant=plant, crashed=str(error))
        except NeoRLError as error:
            return SiteResult(site=site, plant=plant, refused=str(error))
        except Exception as error:
            # The other sites continue; Prefect shows the traceback.
            return SiteResult(site=site, plant=plant, crashed=f"{type(error).__name__}: {error}")
        finally:
            # One process retrains many sites, so memory must not grow with each.
            forget_programs()


@task(cache_policy=NO_CACHE, persist_result=False)
def share(config: str) -> str:
    """Train the shared policy on the logs of all sites that pass validation; return the digest of the weights.

    Raises:
        Refused: if no site passes validation.
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
            get_run_logger().warning(f"{site} is left out of the shared policy: {error}")
            continue
        runs[site], datasets[site] = run, dataset
    if not datasets:
        raise Refused(f"no site of {fleet.fleet} passed validation: read the reasons in the flow's log.")
    with StageProgress("share") as progress:
        start = pooled_start(home, fleet.fleet, runs, datasets, progress)
    get_run_logger().info(f"{len(datasets)} of {len(fleet.sites)} sites share weights {start[:12]}")
    return start


def _each(home: Home, fleet: Fleet, path: Path, sites: Sequence[str]) -> dict[str, SiteResult]:
    """Return the outcome of every site, in order; a site that killed the process is retried once, alone."""
    ended = dict(_submitted(home, fleet, path, sites, fleet.at_once))
    for site in sites:
        if site not in ended:
            alone = dict(_submitted(home, fleet, path, [site], 1))
            ended |= alone or {site: SiteResult(site=site, plant=fleet.plant_name(site), crashed=LOST)}
    return {site: ended[site] for site in sites}


def _submitted(
    home: Home, fleet: Fleet, path: Path, named: Sequence[str], at_once: int | None
) -> Iterator[tuple[str, SiteResult]]:
    """Yield outcomes as sites finish; a site is missing if the process was killed."""
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
            future: PrefectFuture[SiteResult] = runner.submit(retrain_site, given)
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
    """Start Prefect's task runner for sites: on the configured Dask cluster, else local processes.

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
    """Exit when the parent process dies, so that no site keeps running after a fleet run is killed."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def _updated(standing: Standing, ended: dict[str, SiteResult]) -> Standing:
    """Return a site's state from the ledger, updated with the outcome of this run."""
    end = ended.get(standing.site)
    if end is None:
        return standing
    if end.crashed:
        return standing.model_copy(update={"state": "crashed", "headline": end.crashed})
    if end.refused:
        return standing.model_copy(update={"state": "refused", "verdict": None, "headline": end.refused})
    decided = end.outcome and (end.outcome.decided or end.outcome.verdict)
    # A repeated decision adds no ledger entry, so the last entry may be an older refusal.
    return standing.model_copy(update={"state": "decided", "verdict": decided})


def _markdown(outcome: FleetOutcome, current: Sequence[Standing]) -> str:
    """Return the outcomes as Markdown for Prefect's page."""
    odd = outliers(ranked(current))
    lines = [outcome.headline, "", *(f"- {each.found}" for each in outcome.sites)]
    lines += ["", "Outliers:", "", *(f"- {line}" for line in odd)] if odd else []
    return "\n".join(lines)
