"""Commands about the local servers: up, down, status, doctor."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from configs.home import Home
from flows.cli.console import AsJson, emit, show_table


def up(
    prefect_port: Annotated[int | None, typer.Option(help="Insist on this port for Prefect.", min=1, max=65535)] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="Insist on this port for MLflow.", min=1, max=65535)] = None,
    worker: Annotated[bool, typer.Option(help="Also run a worker and register the schedule.")] = True,
    as_json: AsJson = False,
) -> None:
    """Start a Prefect server, an MLflow server, a worker and the signer for this home, unless they run already.

    Example: neorl up
    """
    from flows.services import servers as services

    start = time.monotonic()
    found = services.up(
        Home.locate(),
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        worker=worker,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    seconds = round(time.monotonic() - start, 1)
    reaped = services.reap_dead_runs(found.home)
    login = found.home.login if found.prefect.process or found.mlflow.process else None
    result = {
        "prefect": found.prefect.url,
        "mlflow": found.mlflow.url,
        "worker": found.worker is not None,
        "started": list(found.started),
        "login": login and str(login),
        "crashed_runs": reaped,
        "seconds": seconds,
    }
    lines = [f"Prefect  {found.prefect.url}", f"MLflow   {found.mlflow.url}"]
    lines += (
        [f"Log in   with {login}: Prefect asks for all of it, MLflow for the name and the password"] if login else []
    )
    if watching := _witnesses(found.home):
        result["witnesses"] = watching
        alone = " (one machine is no second party)" if all(name.startswith("neorl.local/") for name in watching) else ""
        lines.append(f"Witness  {', '.join(watching)}{alone}")
    lines += [f"marked {len(reaped)} killed run(s) as crashed"] if reaped else []
    lines += [f"started {', '.join(found.started)} in {seconds} s" if found.started else "everything ran already"]
    emit(result, as_json, lines)


def _witnesses(home: Home) -> list[str]:
    """Names of the witnesses of a home that has signed something."""
    # Most of what starts servers alone needs none of these imports.
    if not home.signing_key.exists():
        return []
    from tasks.adapters.ledger.signing import TrustRoot
    from tasks.adapters.ledger.witness.pinned import pinned

    found = pinned(home, TrustRoot.locate(home))
    return [witness.verifier.name for witness in found.witnesses] if found else []


def down(as_json: AsJson = False) -> None:
    """Stop the servers and the signer of this home, and no others.

    Example: neorl down
    """
    from flows.services import servers as services

    stopped = services.down(Home.locate())
    emit({"stopped": stopped}, as_json, [f"stopped {', '.join(stopped)}" if stopped else "nothing was running"])


def status(
    export: Annotated[bool, typer.Option("--export", help="Print shell lines for eval, for other tools.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what runs and where; 3 is the exit code when something does not. Only --export shows the login.

    Example: eval "$(neorl status --export)" && prefect deployment ls
    """
    from flows.services import servers as services
    from flows.services.definitions import SERVERS

    home = Home.locate()
    if export:
        variables = services.environment(services.connect(home))
        emit(variables, as_json, [f"export {name}={shlex.quote(value)}" for name, value in variables.items()])
        return
    report = services.status(home)
    if as_json:
        record: dict[str, object] = {"home": report.home}
        for name, row in report.services.items():
            # What does not apply to the service is left out.
            record[name] = {key: value for key, value in asdict(row).items() if value not in (None, "")}
        if report.environment:
            record["environment"] = dict(report.environment)
        emit(record, True)
    else:
        rows = [(name, found.state, found.url, found.pid or "") for name, found in report.services.items()]
        show_table(("service", "state", "address", "process"), rows)
    if any(report.services[name].state != "running" for name in SERVERS):
        raise typer.Exit(3)


def doctor(as_json: AsJson = False) -> None:
    """Look for what would keep NeoRL from working, each with its cure; 1 is the exit code when something would.

    Example: neorl doctor
    """
    from flows.cli.doctor import examine

    findings = examine(Home.locate())
    failed = [f for f in findings if not f.ok]
    lines = [f"{'ok  ' if f.ok else 'FAIL'}  {f.name}: {f.detail}" + ("" if f.ok else f": {f.cure}") for f in findings]
    emit({"ok": not failed, "findings": [f._asdict() for f in findings]}, as_json, lines)
    if failed:
        raise typer.Exit(1)
