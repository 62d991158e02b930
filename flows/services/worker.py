"""The home's Prefect worker: registers deployments, executes runs, and follows the watched folder in a thread.

Registration and worker share a process, because importing Prefect takes longer than the registration. `service_table`
starts the process as `python -m flows.services.worker`; if a worker runs already, `deployments` starts a second one.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from configs.home import Home
from flows.services.processes import private_log
from tasks.files.canonical import write_json


def main(arguments: Sequence[str]) -> None:
    """Register deployments if `--register` is given, then run the worker if `--worker` is given."""
    parser = argparse.ArgumentParser(prog="python -m flows.services.worker", description=__doc__)
    parser.add_argument("--register", nargs=4, metavar=("PROJECT", "DIGEST", "LOG", "OUTCOME"))
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help="arguments of `prefect worker start`")
    options = parser.parse_args(arguments)
    # Import before the fork, because both processes need this module.
    import prefect.workers.process  # noqa: F401

    if options.register:
        project, digest, log, outcome = options.register
        code = deploy(Path(project), Path(log))
        write_json(Path(outcome), {"code": code, "digest": digest})
    if options.worker:
        threading.Thread(target=_follow_watched_folder, daemon=True).start()
        _prefect("worker", "start", *options.worker)


def deploy(project: Path, log: Path) -> int:
    """Run `prefect deploy --all` in a forked process, so that this process imports no flows. Return the exit code."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.chdir(project)
        # Wide output keeps the reason of an error on one line.
        os.environ["COLUMNS"] = "1000"
        with private_log(log) as output:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
        _prefect("--no-prompt", "deploy", "--all")
        raise SystemExit
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _follow_watched_folder() -> None:
    # Imported in the thread, so that the worker need not wait for this import.
    from flows.services.watched_folder import follow

    follow(Home.locate(), lambda line: print(line, file=sys.stderr, flush=True))


def _prefect(*arguments: str) -> None:
    from prefect.cli import app

    sys.argv = ["prefect", *arguments]
    app()


if __name__ == "__main__":
    main(sys.argv[1:])
