"""A worker of Prefect's that first registers deployments, and watches for files: Prefect's commands, imported once.

Importing Prefect takes longer than either command. A thread beside the worker looks into the watched folder. Run as
`python -m flows.services.worker`, by `definitions` as the worker of a home, and by `deployments` where a worker runs
already.
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
    """Register, then work, as far as each is asked for."""
    parser = argparse.ArgumentParser(prog="python -m flows.services.worker", description=__doc__)
    parser.add_argument("--register", nargs=4, metavar=("PROJECT", "DIGEST", "LOG", "OUTCOME"))
    parser.add_argument("--worker", nargs=argparse.REMAINDER, help="arguments of `prefect worker start`")
    asked = parser.parse_args(arguments)
    # What both need, while this is still one process.
    import prefect.workers.process  # noqa: F401

    if asked.register:
        project, digest, log, outcome = asked.register
        code = deploy(Path(project), Path(log))
        write_json(Path(outcome), {"code": code, "digest": digest})
    if asked.worker:
        # A thread: what it does takes next to no time, and it ends with the worker.
        threading.Thread(target=_watch, daemon=True).start()
        _prefect("worker", "start", *asked.worker)


def deploy(project: Path, log: Path) -> int:
    """`prefect deploy --all`, in a fork of this process: the flows that it imports are none of a worker's business.

    Args:
        project: the folder with prefect.yaml.
        log: where its output goes.

    Returns:
        Its exit code.
    """
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.chdir(project)
        # Wide, so that the reason of a refusal stays on one line.
        os.environ["COLUMNS"] = "1000"
        with private_log(log) as output:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
        _prefect("--no-prompt", "deploy", "--all")
        raise SystemExit
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _watch() -> None:
    """Follow the watched folder, and tell the worker's log what came."""
    # What it imports need not be waited for.
    from flows.watch import follow

    follow(Home.locate(), lambda line: print(line, file=sys.stderr, flush=True))


def _prefect(*words: str) -> None:
    """One command of Prefect's."""
    from prefect.cli import app

    sys.argv = ["prefect", *words]
    app()


if __name__ == "__main__":
    main(sys.argv[1:])
