"""Start the retraining flow from a command: servers first, then Prefect, which reads its settings when imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from configs.environment import PREFECT_DATABASE, setting
from configs.errors import BadInput, ServiceMissing, nearest
from configs.home import Home
from configs.run import OpenedRun
from flows.checks import check_logs, checked_run, logs_at
from flows.services.servers import environment, up
from flows.services.state import REFUSED_LOGINS, Service, login_refused

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.fleet.records import FleetOutcome
    from tasks.references import Outcome


def run_fleet(config: Path, sites: Sequence[str] | None) -> FleetOutcome:
    """Run the flow of a fleet in this process, as `run_retrain` does that of a plant.

    Args:
        config: the fleet's YAML.
        sites: only these.

    Returns:
        What came of each.

    Raises:
        NeoRLError: as the flow does; a wrong file, site or address of a cluster, or that no site has its logs, is
            found before any server is started.
    """
    from configs.load import load_fleet
    from configs.strict import MARK
    from tasks.evaluation.cluster import scheduler

    scheduler()
    fleet = load_fleet(config)
    runs = {site: checked_run(Path(f"{config}{MARK}{site}")) for site in fleet.sites}
    for site in sites or ():
        if site not in fleet.sites:
            raise BadInput(f"expected a site of {config}, got '{site[:80]}': {nearest(site, fleet.sites)}")
    home = Home.locate()
    _check_sites(home, config, {site: runs[site] for site in sites or fleet.sites})
    with _on_servers(home):
        from flows.fleet import retrain_fleet
        from flows.running import ending_of

        ended = retrain_fleet(str(config), list(sites) if sites else None, return_state=True)
        return ending_of(cast("State[FleetOutcome]", ended))


def _check_sites(home: Home, config: Path, runs: Mapping[str, OpenedRun]) -> None:
    """Refuse a fleet of which no site has its logs: where one has, the others are refused by themselves.

    Raises:
        BadInput: naming the first log that is missing.
    """
    from configs.load import DIGEST, site_logs

    lost = []
    for site, run in runs.items():
        try:
            check_logs(home, run, [Path(name) for name in site_logs(config, site) if not DIGEST.fullmatch(name)])
        except BadInput as error:
            lost.append(error)
    if len(lost) == len(runs):
        raise lost[0]


def run_retrain(config: Path, data: Sequence[Path] | None) -> Outcome:
    """Run the flow in this process, on this home's servers, which are started if none answers.

    Args:
        config: the run's YAML.
        data: files of logs, or datasets of the home.

    Returns:
        What came of it.

    Raises:
        NeoRLError: as the flow does; a wrong configuration or path is found before any server is started.
    """
    home, run = Home.locate(), checked_run(config)
    logs = logs_at(home, run, data or ())
    check_logs(home, run, logs)
    with _on_servers(home):
        from flows.retrain import retrain
        from flows.running import ending_of

        ended = retrain(str(config), [str(path) for path in logs] or None, return_state=True)
        # The run ends in the state that the flow returns.
        return ending_of(cast("State[Outcome]", ended))


@contextmanager
def _on_servers(home: Home) -> Iterator[None]:
    """The home's servers, started if none answers; one that is gone meanwhile is told in a sentence."""
    services = up(home, worker=False, say=lambda text: print(f"neorl: {text}", file=sys.stderr, flush=True))
    os.environ.update(environment(services))
    # The run's own words are enough on the terminal; everything, tracebacks too, is in the UI.
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
    """What a person is told of a Prefect that fails a run."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status in REFUSED_LOGINS:
        return login_refused(prefect, status)
    return ServiceMissing(
        f"expected Prefect at {prefect.url} to answer, got {type(error).__name__}: {_cure(status)}, then give the same "
        "command again to go on."
    )


def _cure(status: int) -> str:
    """What helps: a server that answers with an error of its own runs, and its database does not."""
    if status >= 500 and setting(PREFECT_DATABASE):
        return f"check its database ({PREFECT_DATABASE})"
    return "start it with 'neorl up'"
