"""Calls a reader on hostile files in a process of its own that may not take more memory than it is given.

    python -m tests.limited MEGABYTES MODULE:FUNCTION SOUND HOSTILE...

The sound file is read first, so that what is imported on the way does not count.
"""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
from pathlib import Path

from configs.errors import NeoRLError

ROOT = Path(__file__).resolve().parents[1]


def read_limited(function: str, sound: Path, hostile: list[Path], megabytes: int) -> list[tuple[str, str]]:
    """What a reader says of hostile files, in a process that is limited in memory and to two minutes.

    Args:
        function: "module:function" of one path.
        sound: a file that it reads.
        hostile: files that it should refuse.
        megabytes: address space that the process may take beyond what it has after reading the sound file, 2^20 bytes.

    Returns:
        The name of the error and its message for each file; ("", "") where there was none.
    """
    arguments = [str(megabytes), function, str(sound), *map(str, hostile)]
    command = [sys.executable, "-m", "tests.limited", *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    return [tuple(json.loads(line)) for line in process.stdout.splitlines()]


def _main(megabytes: str, function: str, sound: str, *hostile: str) -> None:
    module, _, name = function.partition(":")
    read = getattr(importlib.import_module(module), name)
    read(Path(sound))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(megabytes) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for path in hostile:
        try:
            read(Path(path))
            found = ("", "")
        except NeoRLError as error:
            found = (type(error).__name__, str(error))
        print(json.dumps(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])
