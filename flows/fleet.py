"""Retrain a fleet: a parent flow starts one retraining flow per site, and several sites run in parallel.

Each site has a separate lock, certificate and lineage, like any plant. If a site fails, the other sites continue.
After a kill, repeat the command: finished sites are not retrained.
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
    """Retrain the sites of a fleet, each from the site's own logs, and write a report that compares the sites.

    Args:
        config: the fleet's file.
        sites: names of the sites to retrain; None for all.

    Returns:
        The final Prefect state, with the outcome of each site as data.

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
                # Sites continue with the previous shared weights. A site's own run fails if there are none.
                get_run_logger().warning(f"the shared weights of {fleet.fleet} were not updated: {error}")
        ended = _each(home, fleet, path, wanted)
        # The ledger does not record crashes, so this run's outcomes are added to the state in the ledger.
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
    """Retrain one site in a separate flow run. A refusal or a crash is returned, not raised.

    Args:
        site: name of the site in the fleet's file.
        plant: name of the site's plant.
        config: the site's run, as `fleet.yaml#site`.
        data: log files or dataset digests; if empty, all files of the site in the watched folder.
        log: file to which progress messages are appended.
        mapped: whether the logs are read with a mapping.
    """
    # By default Prefect would store the results of the site's tasks only at the end of this task.
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
            # This process retrains further sites, so free the memory of compiled programs.
            forget_programs()


@task(cache_policy=NO_CACHE, persist_result=False)
def share(config: str) -> str:
    """Train one policy on the logs of all sites that pass validation, and return the digest of the shared weights.

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
    """Return each site's outcome by name. If a process was killed, each of its sites is retried once, alone."""
    ended = dict(_submitted(home, fleet, path, sites, fleet.at_once))
    for site in sites:
        if site not in ended:
            alone = dict(_submitted(home, fleet, path, [site], 1))
            ended |= alone or {site: SiteResult(site=site, plant=fleet.plant_name(site), crashed=LOST)}
    return {site: ended[site] for site in sites}


def _submitted(
    home: Home, fleet: Fleet, path: Path, named: Sequence[str], at_once: int | None
) -> Iterator[tuple[str, SiteResult]]:
    """Yield name and outcome of each site when the site finishes. Leave out sites of a killed process."""
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
    """Start a Prefect task runner: on the Dask cluster in NEORL_DASK_SCHEDULER, else with local processes.

    There are at most `at_once` local processes (None: one per core), and not more than `sites`.

    Raises:
        BadInput: if the cluster's address is malformed, or on another machine without TLS.
        ServiceMissing: if the cluster does not answer or has no workers.
        Refused: if a worker has other sources, packages or processors.
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
    """Return a site's state from the ledger, updated with the site's outcome in this run."""
    end = ended.get(standing.site)
    if end is None:
        return standing
    if end.crashed:
        return standing.model_copy(update={"state": "crashed", "headline": end.crashed})
    if end.refused:
        return standing.model_copy(update={"state": "refused", "verdict": None, "headline": end.refused})
    decided = end.outcome and (end.outcome.decided or end.outcome.verdict)
    # An unchanged decision adds no ledger entry, so the last entry may be a refusal of an earlier run.
    return standing.model_copy(update={"state": "decided", "verdict": decided})


def _markdown(outcome: FleetOutcome, current: Sequence[Standing]) -> str:
    """Return the outcomes as Markdown for the run's page in Prefect."""
    odd = outliers(ranked(current))
    lines = [outcome.headline, "", *(f"- {each.found}" for each in outcome.sites)]
    lines += ["", "Outliers:", "", *(f"- {line}" for line in odd)] if odd else []
    return "\n".join(lines)
