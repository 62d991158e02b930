"""Commands for services: `neorl up`, `down`, `status`, `watch`, `serve`, `register` and `metrics`."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import BadInput, printable
from configs.home import Home
from flows.cli.common import AsJson, emit, say, show_table


def up(
    prefect_port: Annotated[int | None, typer.Option(help="Port that Prefect must use.", min=1, max=65535)] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="Port that MLflow must use.", min=1, max=65535)] = None,
    worker: Annotated[bool, typer.Option(help="Also start a worker and register the deployments.")] = True,
    accept_restored: Annotated[
        bool, typer.Option("--accept-restored", help="In a restored home: run the schedules and runs of the backup.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start this home's services: Prefect, MLflow, metrics, a worker and the signer.

    Example: neorl up
    """
    from flows.services import servers as services

    start = time.monotonic()
    running = services.up(
        Home.locate(),
        prefect_port=prefect_port,
        mlflow_port=mlflow_port,
        worker=worker,
        accept_restored=accept_restored,
        say=say,
    )
    seconds = round(time.monotonic() - start, 1)
    reaped = services.reap_dead_runs(running.home)
    login = running.home.login if running.prefect.process or running.mlflow.process else None
    result = {
        "prefect": running.prefect.url,
        "mlflow": running.mlflow.url,
        "worker": running.worker is not None,
        "started": list(running.started),
        "login": login and str(login),
        "crashed_runs": reaped,
        "seconds": seconds,
    }
    lines = [f"Prefect  {running.prefect.url}", f"MLflow   {running.mlflow.url}"]
    if login:
        lines.append(f"Login    in {login}: Prefect takes the whole line, MLflow name and password separately")
    if running.metrics:
        result["metrics"] = f"{running.metrics.url}/metrics"
        lines.append(f"Metrics  {result['metrics']}, token for Prometheus in {running.home.metrics_token}")
    if witnesses := _witnesses(running.home):
        result["witnesses"] = witnesses
        own = all(name.startswith("neorl.local/") for name in witnesses)
        lines.append(f"Witness  {', '.join(witnesses)}{' (on this machine, so not a second party)' if own else ''}")
    if running.prefect.process and worker:
        notified = running.notification_block is not None
        result["notifications"] = notified
        lines.append(
            "Notifications of failed runs and drift go to the block 'neorl'"
            if notified
            else "No notifications of failed runs and drift: create a notification block named 'neorl' in Prefect "
            f"({running.prefect.url}/blocks/catalog), then run 'neorl up' again"
        )
    lines += [f"marked {len(reaped)} killed run(s) as crashed"] if reaped else []
    lines += [f"started {', '.join(running.started)} in {seconds} s" if running.started else "all services ran already"]
    lines += ["next: neorl retrain configs/PLANT.yaml"] if worker else []
    emit(result, as_json, lines)


def _witnesses(home: Home) -> list[str]:
    """Return the names of the home's witnesses, if the home has signed anything."""
    # Checked first, because the imports are slow.
    if not home.signing_key.exists():
        return []
    from tasks.evidence.ledger.signing import TrustRoot
    from tasks.evidence.witness.pinned import pinned

    pins = pinned(home, TrustRoot.locate(home))
    return [witness.verifier.name for witness in pins.witnesses] if pins else []


def down(as_json: AsJson = False) -> None:
    """Stop this home's services and signer.

    Example: neorl down
    """
    from flows.services import servers as services

    stopped = services.down(Home.locate())
    emit({"stopped": stopped}, as_json, [f"stopped {', '.join(stopped)}" if stopped else "nothing was running"])


def watch(
    once: Annotated[bool, typer.Option("--once", help="Scan twice, a few seconds apart, and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report new files in the watched folder to Prefect, which then starts runs.

    A team with its own workers needs this command; the worker of 'neorl up' already includes it. With --once, the exit
    code is 1 if a file or folder cannot be read.

    Example: neorl watch --once
    """
    from flows.services.watched_folder import QUIET, arrival_line, follow, incoming, scan

    home = Home.locate()
    folder = incoming(home)
    if not once:
        say(f"watching {folder}")
        follow(home, say)
    before = scan(home, {}).states
    time.sleep(QUIET if before else 0.0)
    scanned = scan(home, before)
    lines = [arrival_line(arrival) for arrival in scanned.arrived] or [f"nothing new in {folder}"]
    arrived = [arrival.model_dump(mode="json") for arrival in scanned.arrived]
    emit({"folder": str(folder), "arrived": arrived, "failed": list(scanned.failed)}, as_json, lines)
    for problem in scanned.failed:
        say(f"neorl: {printable(problem)}")
    if scanned.failed:
        raise typer.Exit(1)


def serve(
    service: Annotated[str, typer.Argument(help="prefect, mlflow, metrics or worker.")],
    host: Annotated[str, typer.Option(help="Address of the interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on, also for health checks.", min=1, max=65535)] = 8080,
    name: Annotated[
        list[str] | None, typer.Option(help="Host name by which other machines call the server; repeatable.")
    ] = None,
) -> None:
    """Run one service in the foreground, for containers. Servers use the login in NEORL_SERVICE_LOGIN.

    Example: neorl serve mlflow --host 0.0.0.0 --port 5000 --name mlflow
    """
    from flows.services.foreground import serve as become
    from flows.services.service_table import SERVICES

    if service not in SERVICES:
        raise BadInput(f"unknown service '{service}': choose from {', '.join(SERVICES)}.")
    become(Home.locate(), service, host, port, tuple(name or ()))


def register(as_json: AsJson = False) -> None:
    """Register prefect.yaml's deployments and the automations with a team's Prefect server.

    Example: NEORL_PREFECT_URL=http://prefect:4200 neorl register
    """
    from flows.services.foreground import register as register_all

    made = register_all(Home.locate(), timeout=300.0)
    lines = [f"registered {', '.join(made)}" if made else "everything was registered already"]
    emit({"registered": made}, as_json, lines)


def status(
    export: Annotated[
        bool, typer.Option("--export", help="Print 'export' lines for a shell, including the login.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the services of this home. Exit code 3 if a service does not run.

    Example: eval "$(neorl status --export)" && prefect deployment ls
    """
    from flows.services import servers as services
    from flows.services.service_table import SERVERS

    home = Home.locate()
    if export:
        variables = services.environment(services.connect(home))
        emit(variables, as_json, [f"export {name}={shlex.quote(value)}" for name, value in variables.items()])
        return
    report = services.status(home)
    if as_json:
        record: dict[str, object] = {"home": report.home}
        for name, row in report.services.items():
            record[name] = {key: value for key, value in asdict(row).items() if value not in (None, "")}
        if report.environment:
            record["environment"] = dict(report.environment)
        emit(record, True)
    else:
        rows = [(name, each.state, each.url, each.pid or "") for name, each in report.services.items()]
        show_table(("service", "state", "address", "process"), rows)
    if any(report.services[name].state != "running" for name in {*SERVERS, *services.wanted(home)}):
        raise typer.Exit(3)


def metrics(
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print this home's metrics in Prometheus' text format; 'neorl up' serves the same metrics.

    The textfile collector of Prometheus' node exporter reads files that end in .prom.

    Example: neorl metrics --out /var/lib/node_exporter/neorl.prom
    """
    from prometheus_client.exposition import generate_latest

    from flows.services.metrics_server import HomeCollector
    from tasks.files.canonical import writing

    collector = HomeCollector(Home.locate())
    if out is not None:
        with writing(out) as temporary:
            temporary.write_bytes(generate_latest(collector))
            # The node exporter runs as another user; the file contains no secrets.
            temporary.chmod(0o644)
        emit({"file": str(out)}, as_json, [f"metrics in {out}"])
    elif as_json:
        samples = [sample for metric in collector.collect() for sample in metric.samples]
        emit({"samples": [{"name": s.name, "labels": s.labels, "value": s.value} for s in samples]}, as_json)
    else:
        print(generate_latest(collector).decode(), end="")
