"""Call a reader on hostile files in a process with limited memory.

    python -m tests.limited MEGABYTES MODULE:FUNCTION SOUND HOSTILE...

The sound file is read first, so that imports do not count.
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
    """Return the errors of a reader on hostile files, in a process with limited memory and two minutes of time.

    Args:
        function: "module:function" with one path as argument.
        sound: file that the reader accepts.
        hostile: files that the reader should refuse.
        megabytes: address space beyond that after reading the sound file, in 2^20 bytes.

    Returns:
        Name of the error and message for each file; ("", "") without an error.
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
