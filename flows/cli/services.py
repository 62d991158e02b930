"""Commands about the local servers: up, down, status, watch, metrics, doctor."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import BadInput, printable
from configs.home import Home
from flows.cli.console import AsJson, emit, show_table


def up(
    prefect_port: Annotated[int | None, typer.Option(help="Insist on this port for Prefect.", min=1, max=65535)] = None,
    mlflow_port: Annotated[int | None, typer.Option(help="Insist on this port for MLflow.", min=1, max=65535)] = None,
    worker: Annotated[bool, typer.Option(help="Also run a worker and register the schedule.")] = True,
    as_json: AsJson = False,
) -> None:
    """Start Prefect, MLflow, a server of metrics, a worker and the signer for this home, unless they run already.

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
    if found.metrics:
        result["metrics"] = f"{found.metrics.url}/metrics"
        lines.append(f"Metrics  {result['metrics']}: Prometheus reads its token in {found.home.metrics_token}")
    if watching := _witnesses(found.home):
        result["witnesses"] = watching
        alone = " (one machine is no second party)" if all(name.startswith("neorl.local/") for name in watching) else ""
        lines.append(f"Witness  {', '.join(watching)}{alone}")
    if found.prefect.process and worker:
        told = found.told is not None
        result["notifications"] = told
        lines.append(
            "Messages of failed runs and drift go to the block 'neorl'"
            if told
            else "No messages of failed runs and drift: make a notification block named 'neorl' in Prefect's pages "
            f"({found.prefect.url}/blocks/catalog), then 'neorl up' again"
        )
    lines += [f"marked {len(reaped)} killed run(s) as crashed"] if reaped else []
    lines += [f"started {', '.join(found.started)} in {seconds} s" if found.started else "everything ran already"]
    emit(result, as_json, lines)


def _witnesses(home: Home) -> list[str]:
    """Names of the witnesses of a home that has signed something."""
    # Most of what starts servers alone needs none of these imports.
    if not home.signing_key.exists():
        return []
    from tasks.evidence.ledger.signing import TrustRoot
    from tasks.evidence.witness.pinned import pinned

    found = pinned(home, TrustRoot.locate(home))
    return [witness.verifier.name for witness in found.witnesses] if found else []


def down(as_json: AsJson = False) -> None:
    """Stop the servers and the signer of this home, and no others.

    Example: neorl down
    """
    from flows.services import servers as services

    stopped = services.down(Home.locate())
    emit({"stopped": stopped}, as_json, [f"stopped {', '.join(stopped)}" if stopped else "nothing was running"])


def watch(
    once: Annotated[bool, typer.Option("--once", help="Look twice, some seconds apart, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Announce files that come to the watched folder, as the worker of 'neorl up' does; for a team's own workers.

    With --once 1 is the exit code when a file or a folder cannot be read.

    Example: neorl watch --once
    """
    from flows.watch import QUIET, follow, in_words, incoming, look

    home = Home.locate()
    folder = incoming(home)
    if not once:
        print(f"watching {folder}", file=sys.stderr, flush=True)
        follow(home, lambda line: print(line, file=sys.stderr, flush=True))
    before = look(home, {}).states
    time.sleep(QUIET if before else 0.0)
    found = look(home, before)
    lines = [in_words(arrival) for arrival in found.arrived] or [f"nothing new in {folder}"]
    arrived = [arrival.model_dump(mode="json") for arrival in found.arrived]
    emit({"folder": str(folder), "arrived": arrived, "failed": list(found.failed)}, as_json, lines)
    for why in found.failed:
        print(f"neorl: {printable(why)}", file=sys.stderr)
    if found.failed:
        raise typer.Exit(1)


def serve(
    service: Annotated[str, typer.Argument(help="prefect, mlflow, metrics or worker.")],
    host: Annotated[str, typer.Option(help="The address of the interface to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Where to listen; a worker tells there of its health.", min=1, max=65535)
    ] = 8080,
    name: Annotated[
        list[str] | None, typer.Option(help="What clients on other machines call the server; repeat it.")
    ] = None,
) -> None:
    """Run one service of 'neorl up' in the foreground, as a container does; the login is NEORL_SERVICE_LOGIN.

    Example: neorl serve mlflow --host 0.0.0.0 --port 5000 --name mlflow
    """
    from flows.services.definitions import SERVICES
    from flows.services.foreground import serve as become

    if service not in SERVICES:
        raise BadInput(f"expected one of {', '.join(SERVICES)}, got '{service}': name one of them.")
    become(Home.locate(), service, host, port, tuple(name or ()))


def register(as_json: AsJson = False) -> None:
    """Make prefect.yaml's deployments, and the automations, known to the Prefect server that a team runs.

    Example: NEORL_PREFECT_URL=http://prefect:4200 neorl register
    """
    from flows.services.foreground import register as make_known

    made = make_known(Home.locate(), timeout=300.0)
    lines = [f"registered {', '.join(made)}" if made else "all of it was known already"]
    emit({"registered": made}, as_json, lines)


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
    if any(report.services[name].state != "running" for name in {*SERVERS, *services.wanted(home)}):
        raise typer.Exit(3)


def metrics(
    out: Annotated[Path | None, typer.Option(help="Write them to this file, whole or not at all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the numbers of this home in Prometheus' text format, once; 'neorl up' serves the same.

    A file that ends in .prom is what the textfile collector of Prometheus' node exporter reads.

    Example: neorl metrics --out /var/lib/node_exporter/neorl.prom
    """
    from prometheus_client.exposition import generate_latest

    from flows.metrics import HomeCollector
    from tasks.files.canonical import writing

    collector = HomeCollector(Home.locate())
    if out is not None:
        with writing(out) as temporary:
            temporary.write_bytes(generate_latest(collector))
            # Its reader is another user, and the file holds no secret.
            temporary.chmod(0o644)
        emit({"file": str(out)}, as_json, [f"metrics in {out}"])
    elif as_json:
        found = [sample for metric in collector.collect() for sample in metric.samples]
        emit({"samples": [{"name": s.name, "labels": s.labels, "value": s.value} for s in found]}, as_json)
    else:
        print(generate_latest(collector).decode(), end="")


def doctor(as_json: AsJson = False) -> None:
    """Look for what would keep NeoRL from working, each with its cure; 1 is the exit code when something would.

    Example: neorl doctor
    """
    from flows.cli.doctor import examine

    findings = examine(Home.locate(any_layout=True))
    failed = [f for f in findings if not f.ok]
    lines = [f"{'ok  ' if f.ok else 'FAIL'}  {f.name}: {f.detail}" + ("" if f.ok else f": {f.cure}") for f in findings]
    emit({"ok": not failed, "findings": [f._asdict() for f in findings]}, as_json, lines)
    if failed:
        raise typer.Exit(1)
