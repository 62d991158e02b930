"""Commands about a home as a whole: backup, restore, migrate, prune."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import Refused
from configs.home import Home
from flows.cli.console import AsJson, emit

SHOWN = 10
"""Files of each kind that `neorl prune` prints."""


def backup(
    file: Annotated[Path, typer.Argument(help="A new file for it, outside the home: a tar archive.")],
    as_json: AsJson = False,
) -> None:
    """Write everything that the home holds into one file, while its servers run and runs go on.

    In it are the ledger, MLflow's and Prefect's databases, datasets, bundles, certificates, reports, checkpoints, the
    witness's state and the keys, encrypted as they are in the home; their passphrases are not. The login of the servers
    is in it: keep it like the home. 1 is the exit code when the ledger names a file that the home has otherwise.

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
    file: Annotated[Path, typer.Argument(help="What 'neorl backup' wrote.")],
    home: Annotated[Path, typer.Option(help="The new home's folder, which is absent or empty.")],
    as_json: AsJson = False,
) -> None:
    """Make a home of a backup: every file is held against its digest, then all are put in place at once, and audited.

    A restore that is killed leaves nothing at the new place; the same command begins again. 1 is the exit code when the
    audit finds something, too.

    Example: neorl restore /backups/home-2026-11-23.tar --home /srv/neorl
    """
    from flows.services.servers import forget_processes
    from tasks.maintenance.restore import restore as read
    from tasks.progress import StageProgress

    with StageProgress("restore") as progress:
        done = read(file, home, progress)
    # Those of the home that was backed up are none of this one's.
    forget_processes(Home(Path(done.home)))
    lines = [*done.checks, f"{done.home}: {done.files:,} files, {done.size / 1e6:,.1f} MB, as of {done.made}"]
    if done.moved:
        lines.append("it lies elsewhere now: stored results of stages were left behind, and are computed again")
    lines += [f"not in it: {each}" for each in done.left_out]
    lines += _passphrase(Home(Path(done.home)), "bring it there, or set NEORL_KEY_PASSPHRASE_FILE")
    lines.append(f"next: NEORL_HOME={done.home} neorl up")
    emit(done, as_json, lines)
    if not done.passed:
        raise typer.Exit(1)


def migrate(
    backup: Annotated[
        Path | None, typer.Option(help="File for the backup that is made first; beside the home otherwise.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring a home that an earlier version made to the layout of this one; it is backed up first.

    MLflow's own database is brought to what the installed MLflow reads, too, after the same backup. Prefect's server
    does so by itself. Where nothing is to be done no backup is made.

    Example: neorl down && neorl migrate
    """
    from flows.services.state import read_services, running
    from tasks.maintenance.migration import migrate as bring
    from tasks.progress import StageProgress

    home = Home.locate(any_layout=True)
    if alive := [name for name, service in read_services(home).items() if running(home, service)]:
        raise Refused(f"expected the servers of {home.root} to be down, got {', '.join(alive)}: 'neorl down' first.")
    with StageProgress("backup") as progress:
        done = bring(home, backup, progress)
    lines = [f"layout {done.before} -> {done.layout}"] if done.before != done.layout else [f"layout {done.layout}"]
    lines += ["MLflow's database: brought to what the installed MLflow reads"] if done.mlflow else []
    lines.append(f"as it was: {done.backup}" if done.backup else "nothing was to be done: no backup was made")
    emit(done, as_json, lines)


def prune(
    remove: Annotated[bool, typer.Option("--remove", help="Remove it; without this it is only told.")] = False,
    datasets: Annotated[
        float | None, typer.Option(help="Datasets that no entry names go, too, from this age on, in days.", min=1)
    ] = None,
    checkpoints: Annotated[float, typer.Option(help="Age of checkpoints of finished trainings, in days.", min=0)] = 7,
    windows: Annotated[
        float, typer.Option(help="Age of windows that backfills cut out of logs, in days since one used them.", min=7)
    ] = 30,
    logs: Annotated[float, typer.Option(help="Age of logs, in days.", min=0)] = 90,
    as_json: AsJson = False,
) -> None:
    """Tell what nothing needs any more, and how many bytes it takes; with --remove, remove it.

    Leftovers of killed runs, checkpoints of finished trainings, windows of backfills, old logs, and, if asked for,
    datasets that nothing names. What an entry of the ledger names stays, whatever its age: an audit looks at all of it.

    Example: neorl prune --datasets 365 --remove
    """
    from tasks.maintenance.retention import Ages
    from tasks.maintenance.retention import prune as look

    ages = Ages(checkpoints=checkpoints, windows=windows, logs=logs, datasets=datasets)
    done = look(Home.locate(), ages, remove=remove)
    verb = "removed" if remove else "may go"
    lines = []
    for kind in ("leftovers", "checkpoints", "windows", "logs", "datasets"):
        found = [piece for piece in done.pieces if piece.kind == kind]
        told = [f"  {piece.path}" for piece in found[:SHOWN]]
        more = [f"  and {len(found) - SHOWN} more: --json has all"] if len(found) > SHOWN else []
        size = sum(piece.size for piece in found)
        lines += [f"{kind}: {len(found)} {verb}, {size / 1e6:,.1f} MB", *told, *more]
    lines += [f"{plant}: left alone, for a run holds it" for plant in done.busy]
    lines.append(f"{verb}: {done.size / 1e6:,.1f} MB; {done.kept} files stay that entries of the ledger name")
    emit({**done.model_dump(mode="json"), "size": done.size}, as_json, lines)


def _passphrase(home: Home, advice: str) -> list[str]:
    """Where the passphrase of the home's key is expected, for it is in no backup."""
    if not home.signing_key.exists():
        return []
    from tasks.evidence.ledger.keys import kept_passphrase
    from tasks.files.secrets import read_secret

    path = kept_passphrase(read_secret(home.signing_key))
    if not path.exists():
        print(f"no generated passphrase of the signing key in {path}", file=sys.stderr)
    return [f"the signing key's passphrase is in {path}, if it was generated: {advice}"]
