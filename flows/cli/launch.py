"""Start the retraining flow from a command: servers first, then Prefect, which reads its settings when imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from configs.environment import PREFECT_DATABASE, setting
from configs.errors import BadInput, ServiceMissing, nearest
from configs.home import Home
from flows.checks import checked_run
from flows.services.servers import environment, up

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from tasks.fleet.model import FleetOutcome
    from tasks.references import Outcome


def run_fleet(config: Path, sites: Sequence[str] | None) -> FleetOutcome:
    """Run the flow of a fleet in this process, as `run_retrain` does that of a plant.

    Args:
        config: the fleet's YAML.
        sites: only these.

    Returns:
        What came of each.

    Raises:
        NeoRLError: as the flow does; a wrong file or site is found before any server is started.
    """
    from configs.fleet.reading import load_fleet
    from configs.strict import MARK

    fleet = load_fleet(config)
    for site in fleet.sites:
        checked_run(Path(f"{config}{MARK}{site}"))
    for site in sites or ():
        if site not in fleet.sites:
            raise BadInput(f"expected a site of {config}, got '{site[:80]}': {nearest(site, fleet.sites)}")
    with _on_servers(Home.locate()):
        from flows.fleet import retrain_fleet

        ended = retrain_fleet(str(config), list(sites) if sites else None, return_state=True)
        found: FleetOutcome = cast("State[FleetOutcome]", ended).result()
        return found


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
    from tasks.ingest import check_there, logs_of

    home, mapped = Home.locate(), checked_run(config).data.mapping is not None
    data = [logs_of(home, path, mapped) for path in data] if data else None
    check_there(data or ())
    with _on_servers(home):
        from flows.retrain import retrain
        from flows.running import outcome_of

        ended = retrain(str(config), [str(path) for path in data] if data else None, return_state=True)
        # The run ends in the state that the flow returns.
        return outcome_of(cast("State[Outcome]", ended))


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
        raise ServiceMissing(
            f"expected Prefect at {services.prefect.url} to answer, got {type(error).__name__}: {_cure(error)}, then "
            "give the same command again to go on."
        ) from error


def _cure(error: Exception) -> str:
    """What helps: a server that answers with an error of its own runs, and its database does not."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status >= 500 and setting(PREFECT_DATABASE):
        return f"check its database ({PREFECT_DATABASE})"
    return "start it with 'neorl up'"
