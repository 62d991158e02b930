"""Commands for a home: `neorl backup`, `restore`, `migrate` and `prune`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import BadInput, Refused
from configs.home import Home
from flows.cli.common import AsJson, emit, say

SHOWN = 10


def backup(
    file: Annotated[Path, typer.Argument(help="New tar file, outside the home.")],
    as_json: AsJson = False,
) -> None:
    """Back up this home to one file, while servers and runs continue.

    The backup contains the ledger, databases of MLflow and Prefect, datasets, bundles, certificates, reports,
    checkpoints and the witness's state. It also contains encrypted keys and the servers' login: protect the file like
    the home. The keys' passphrases are not in the backup. Exit code 1 if a file differs from the ledger.

    Example: neorl backup /backups/home-2026-11-23.tar
    """
    from tasks.maintenance.backup_file import backup as write
    from tasks.metrics.homes import note_backup
    from tasks.progress import StageProgress

    home, begun = Home.locate(), datetime.now(UTC)
    with StageProgress("backup") as progress:
        done = write(home, file, progress)
    lines = [f"{done.file}: {done.files:,} files, {done.size / 1e6:,.1f} MB, {done.entries:,} ledger entries"]
    lines += [f"not in it: {each}" for each in done.left_out]
    lines += _passphrase(home, "keep a copy apart from the backup")
    lines += [f"FAIL  {each}" for each in done.damaged]
    emit(done, as_json, lines)
    if done.damaged:
        raise typer.Exit(1)
    note_backup(home, begun, done.entries)


def restore(
    file: Annotated[Path, typer.Argument(help="File of 'neorl backup'.")],
    home: Annotated[Path, typer.Option(help="Folder of the new home, absent or empty.")],
    as_json: AsJson = False,
) -> None:
    """Restore a home from a backup: verify every digest, put all files in place at once, and audit them.

    The command lists deployments, waiting runs, automations and other work in the restored Prefect database. Nothing
    runs before 'neorl up --accept-restored'. A killed restore leaves nothing in the new folder; repeat the command.
    Exit code 1 if the audit fails.

    Example: neorl restore /backups/home-2026-11-23.tar --home /srv/neorl
    """
    from flows.services.servers import forget_processes
    from tasks.maintenance.restore import restore as read
    from tasks.progress import StageProgress

    with StageProgress("restore") as progress:
        done = read(file, home, progress)
    # The restored record of services names processes of the original home.
    try:
        forget_processes(Home(Path(done.home)))
    except BadInput:
        Home(Path(done.home)).services.unlink()
    lines = [*done.checks, f"{done.home}: {done.files:,} files, {done.size / 1e6:,.1f} MB, as of {done.made}"]
    if done.moved:
        lines.append("the folder differs from the original: cached results were dropped, and will be computed again")
    lines += [f"not in it: {each}" for each in done.left_out]
    lines += _passphrase(Home(Path(done.home)), "copy it there, or set NEORL_KEY_PASSPHRASE_FILE")
    lines += [f"held: {each}" for each in done.work]
    up = "neorl up --accept-restored, which starts the held work" if done.work else "neorl up"
    lines.append(f"next: NEORL_HOME={done.home} {up}")
    emit(done, as_json, lines)
    if not done.passed:
        raise typer.Exit(1)


def migrate(
    backup: Annotated[Path | None, typer.Option(help="File for the backup; by default beside the home.")] = None,
    as_json: AsJson = False,
) -> None:
    """Upgrade a home from an earlier version, after a backup.

    MLflow's database is upgraded to the installed version. Prefect's server upgrades Prefect's database when it starts.
    If nothing needs an upgrade, no backup is made.

    Example: neorl down && neorl migrate
    """
    from flows.services.state import read_services, running
    from tasks.maintenance.migration import migrate as upgrade
    from tasks.progress import StageProgress

    home = Home.locate(any_layout=True)
    if alive := [name for name, service in read_services(home).items() if running(home, service)]:
        raise Refused(f"{', '.join(alive)} of {home.root} still run: run 'neorl down' first.")
    with StageProgress("backup") as progress:
        done = upgrade(home, backup, progress)
    lines = [f"layout {done.before} -> {done.layout}"] if done.before != done.layout else [f"layout {done.layout}"]
    lines += ["MLflow's database: upgraded to the installed version"] if done.mlflow else []
    lines.append(f"backup: {done.backup}" if done.backup else "nothing to upgrade, so no backup was made")
    emit(done, as_json, lines)


def prune(
    remove: Annotated[bool, typer.Option("--remove", help="Remove the files instead of listing them.")] = False,
    datasets: Annotated[
        float | None, typer.Option(help="Include datasets that the ledger does not name, from this age in days.", min=1)
    ] = None,
    checkpoints: Annotated[float, typer.Option(help="Least age of a training's checkpoints, in days.", min=0)] = 7,
    windows: Annotated[float, typer.Option(help="Least age of a backfill's log windows, in days.", min=7)] = 30,
    logs: Annotated[float, typer.Option(help="Least age of service logs, in days.", min=0)] = 90,
    as_json: AsJson = False,
) -> None:
    """List or remove files that are no longer needed, with their sizes.

    The files are leftovers of killed runs, checkpoints of finished trainings, log windows of backfills and old logs of
    services. With --datasets, unused datasets are included. Files that the ledger names are always kept for audits.

    Example: neorl prune --datasets 365 --remove
    """
    from tasks.maintenance.retention import Ages
    from tasks.maintenance.retention import prune as prune_home

    ages = Ages(checkpoints=checkpoints, windows=windows, logs=logs, datasets=datasets)
    done = prune_home(Home.locate(), ages, remove=remove)
    verb = "removed" if remove else "removable"
    lines = []
    for kind in ("leftovers", "checkpoints", "windows", "logs", "datasets"):
        found = [piece for piece in done.pieces if piece.kind == kind]
        paths = [f"  {piece.path}" for piece in found[:SHOWN]]
        more = [f"  and {len(found) - SHOWN} more: --json lists all"] if len(found) > SHOWN else []
        size = sum(piece.size for piece in found)
        lines += [f"{kind}: {len(found)} {verb}, {size / 1e6:,.1f} MB", *paths, *more]
    lines += [f"{plant}: skipped, because a run has locked it" for plant in done.busy]
    lines.append(f"{verb}: {done.size / 1e6:,.1f} MB; {done.kept} files kept for the ledger")
    lines += [] if remove or not done.pieces else ["next: repeat the command with --remove"]
    emit({**done.model_dump(mode="json"), "size": done.size}, as_json, lines)


def _passphrase(home: Home, advice: str) -> list[str]:
    """Return a line about the file with the signing key's passphrase, because no backup contains this file."""
    if not home.signing_key.exists():
        return []
    from tasks.evidence.ledger.keys import kept_passphrase
    from tasks.files.canonical import read_secret

    path = kept_passphrase(read_secret(home.signing_key))
    if not path.exists():
        say(f"no generated passphrase of the signing key in {path}")
    return [f"a generated passphrase of the signing key is in {path}: {advice}"]
