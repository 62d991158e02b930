"""What the results depend on besides data and configuration: source code, pinned packages, processor."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from pathlib import Path

import configs
import neorl_core
import neorl_core.plants
import tasks
from tasks.adapters.canonical import digest_json, file_sha256


def _digest_sources(*packages: str | None) -> str:
    folders = [Path(file).parent for file in packages if file]
    sources = {
        f"{folder.name}/{path.relative_to(folder)}": file_sha256(path)
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
    }
    return digest_json(sources)


@cache
def core_digest() -> str:
    """SHA-256 over `neorl_core`'s source files: results of the core are cached under it."""
    return _digest_sources(neorl_core.__file__)


@cache
def plants_digest() -> str:
    """SHA-256 over the source files of the plants: what a twin does."""
    return _digest_sources(neorl_core.plants.__file__)


@cache
def code_digest() -> str:
    """SHA-256 over the source files of the core, the tasks and the configuration models."""
    return _digest_sources(neorl_core.__file__, tasks.__file__, configs.__file__)


@cache
def lock_digest() -> str:
    """SHA-256 of the lock file; of the installed versions where the package was installed without it."""
    lock = Path(neorl_core.__file__).parents[1] / "requirements.lock"
    if lock.exists():
        return file_sha256(lock)
    return digest_json(sorted((d.metadata["Name"].lower(), d.version) for d in metadata.distributions()))


@cache
def processor_class() -> str:
    """The processor family on which counts repeat exactly: machine, and its widest vector extension."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    widest = next((name for name in ("avx512f", "avx2", "asimd") if name in flags), "scalar")
    return f"{platform.system()}-{platform.machine()}-{widest}".lower()
