"""Run the retraining flow of a plant or fleet in this process, with the home's servers.

The servers start first, because Prefect reads their addresses when Prefect is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from configs.environment import PREFECT_DATABASE, setting
from configs.errors import BadInput, ServiceMissing, nearest
from configs.home import Home
from configs.run import OpenedRun
from flows.cli.common import say
from flows.preflight import check_logs, checked_run, logs_at
from flows.services.servers import environment, up
from flows.services.state import REFUSED_LOGINS, Service, login_refused

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.fleet.records import FleetOutcome
    from tasks.references import Outcome


def run_fleet(config: Path, sites: Sequence[str] | None) -> FleetOutcome:
    """Retrain a fleet. Before any server starts, report wrong files, or that no site has logs."""
    from configs.load import load_fleet
    from configs.strict import MARK
    from tasks.evaluation.cluster import scheduler

    scheduler()
    fleet = load_fleet(config)
    runs = {site: checked_run(Path(f"{config}{MARK}{site}")) for site in fleet.sites}
    for site in sites or ():
        if site not in fleet.sites:
            raise BadInput(f"{config} has no site '{site[:80]}': {nearest(site, fleet.sites)}")
    home = Home.locate()
    _check_sites(home, config, {site: runs[site] for site in sites or fleet.sites})
    with _on_servers(home):
        from flows.fleet import retrain_fleet
        from flows.flow_run import result_of

        state = retrain_fleet(str(config), list(sites) if sites else None, return_state=True)
        return result_of(cast("State[FleetOutcome]", state))


def _check_sites(home: Home, config: Path, runs: Mapping[str, OpenedRun]) -> None:
    """Raise a BadInput if no site has logs. If only some sites lack logs, the flow reports these sites."""
    from configs.load import DIGEST, site_logs

    errors = []
    for site, run in runs.items():
        try:
            check_logs(home, run, [Path(name) for name in site_logs(config, site) if not DIGEST.fullmatch(name)])
        except BadInput as error:
            errors.append(error)
    if len(errors) == len(runs):
        raise errors[0]


def run_retrain(config: Path, data: Sequence[Path] | None) -> Outcome:
    """Retrain a plant. Before any server starts, report wrong files and missing logs."""
    home, run = Home.locate(), checked_run(config)
    logs = logs_at(home, run, data or ())
    check_logs(home, run, logs)
    with _on_servers(home):
        from flows.flow_run import result_of
        from flows.retrain import retrain

        state = retrain(str(config), [str(path) for path in logs] or None, return_state=True)
        return result_of(cast("State[Outcome]", state))


@contextmanager
def _on_servers(home: Home) -> Iterator[None]:
    """Start the home's servers if needed; turn a lost connection to Prefect into a ServiceMissing."""
    services = up(home, worker=False, say=lambda text: say(f"neorl: {text}"))
    os.environ.update(environment(services))
    # The terminal shows the run's own messages only; Prefect's pages show everything.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        yield
    except (httpx.HTTPError, PrefectHTTPStatusError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "API" not in str(error):
            raise
        raise _lost(services.prefect, error) from error


def _lost(prefect: Service, error: Exception) -> ServiceMissing:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status in REFUSED_LOGINS:
        return login_refused(prefect, status)
    return ServiceMissing(
        f"Prefect at {prefect.url} failed ({type(error).__name__}): {_cure(status)}, then repeat the command to resume."
    )


def _cure(status: int) -> str:
    # The server answers, though with an error, so its PostgreSQL database must be down.
    if status >= 500 and setting(PREFECT_DATABASE):
        return f"check the database ({PREFECT_DATABASE})"
    return "start it with 'neorl up'"
