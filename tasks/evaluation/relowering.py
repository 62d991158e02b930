"""Lower a claim's programs a second time, in a process without this one's environment, files and call path.

A plant's Python code runs while JAX traces it. Code that reads the environment, the clock, the call stack or a file
gives different programs here and there, so the certificate is refused.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from configs.code import Origin, SiteOf, UserCode
from configs.errors import Refused
from configs.strict import Strict
from tasks.evidence.claims import Claim
from tasks.files.arrays import npz_bytes, read_npz
from tasks.files.canonical import write_atomic
from tasks.files.sandbox import HELD, WRITTEN, kill_tree, open_back, read_back, restrict
from tasks.models.bundles.manifest import read_manifest
from tasks.models.user_code.loading import copy_code, find_installed

if TYPE_CHECKING:
    from neorl_core.safety.program import Program

SECONDS = 600.0
"""Time limit of the second lowering; the reactor takes about 4 s, of which imports take 3 s."""
AHEAD = 3.0
"""Seconds after which `lowerings_ahead` starts processes."""
START = f"import sys; sys.path.insert(0, sys.argv[1]); from {__name__} import main; main(sys.argv[2])"
"""Python code of the process: it uses this NeoRL, even if another is installed."""
PACKAGES = "packages"
"""Subfolder with the sources of an installed plant."""


class Programs(NamedTuple):
    """Programs that a claim is about, with the arguments of the episode's."""

    simulator: Program
    """From `neorl_core.safety.program.simulator_program`."""
    episode: Program
    arguments: tuple[Any, Any]
    """Composite and operating domain."""


class _Request(Strict):
    """Input of the process."""

    source: Origin | None
    claim: str
    """`Claim` as JSON."""


class _Answer(Strict):
    """The file `answer.json`, which is not trusted."""

    simulator: str
    episode: str
    materials: dict[str, str]


class Lowered(NamedTuple):
    """Result of the process."""

    simulator: str
    """Text of the simulator's program."""
    episode: str
    isolation: str
    """Restrictions under which the process ran."""
    materials: dict[str, str]
    """Digests of simulator, shield, code, step and program, by their names in a certificate."""
    stored: bytes
    """Episode program, from `Program.serialise`."""
    leaves: tuple[npt.NDArray[Any], ...]
    """Arguments of the episode program beside the keys."""


def programs_of(folder: Path, source: Origin | None, claim: Claim) -> Programs:
    """Lower the programs of a claim about a bundle.

    Raises:
        Refused: if a program depends on more than its arguments.
    """
    from neorl_core.safety.composite import composite_controller
    from neorl_core.safety.program import ImpureProgram, episode_program, simulator_program
    from neorl_core.types import Plant
    from tasks.evaluation.claims import claimed_simulator
    from tasks.models.bundles.bundle import load_bundle

    plant, composite = load_bundle(folder, source=source)
    if not isinstance(plant, Plant):
        raise Refused(f"the bundle {folder.name} has no simulator: a log-only plant cannot be certified")
    simulator, domain = claimed_simulator(plant, claim)
    try:
        return Programs(
            simulator_program(simulator, domain),
            episode_program(simulator, composite_controller(simulator), composite, domain, claim.batch),
            (composite, domain),
        )
    except ImpureProgram as error:
        raise Refused(f"plant {claim.plant} cannot be certified: {error}") from error


class _Process:
    """A process that imports JAX, then waits for its request."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="neorl-")
        self.popen = subprocess.Popen(
            [sys.executable, "-I", "-c", START, str(Path(__file__).parents[2]), self.folder.name],
            cwd=self.folder.name,
            # Messages without JAX's own frames end with the plant's error.
            env={"JAX_TRACEBACK_FILTERING": "off"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def isolation(self) -> str:
        """Return the restrictions, which the process prints before it imports the plant; empty if it has failed."""
        assert self.popen.stdout is not None
        line = b""
        # One character at a time, because `communicate` reads the rest.
        while len(line) < 100 and (sign := os.read(self.popen.stdout.fileno(), 1)) not in (b"", b"\n"):
            line += sign
        found = line.decode(errors="replace")
        return found if re.fullmatch(HELD, found) else ""

    def go(self) -> None:
        """Tell the process that its request is written; without these words it ends with this process."""
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write("go\n")
            self.popen.stdin.close()
        except BrokenPipeError:
            pass  # the process has failed, which `SecondLowering.lowered` reports
        self.popen.stdin = None

    def close(self) -> None:
        """Kill the process if it runs, and remove its folder."""
        kill_tree(self.popen)
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream:
                stream.close()
        self.folder.cleanup()


_waiting: list[_Process] = []
_lock = Lock()


def prepare_lowerings(count: int) -> None:
    """Start processes for the coming second lowerings, so that they import JAX beside other work.

    Args:
        count: number of processes that wait afterwards, at least.
    """
    with _lock, suppress(OSError):  # a certification starts the missing processes, or fails with a message
        while len(_waiting) < count:
            _waiting.append(_Process())


@atexit.register
def discard_lowerings() -> None:
    """End the processes that no certification used."""
    with _lock:
        while _waiting:
            _waiting.pop().close()


@contextmanager
def lowerings_ahead() -> Iterator[None]:
    """Prepare the lowerings of the plant's controller and of the candidate, and discard unused processes at the end.

    The processes start after some seconds, because a run that repeats known results ends before.
    """
    timer = Timer(AHEAD, prepare_lowerings, (2,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        discard_lowerings()


def _taken() -> _Process:
    """Return a process that waits, or a new one."""
    with _lock:
        while _waiting:
            process = _waiting.pop(0)
            if process.popen.poll() is None and Path(process.folder.name).is_dir():
                return process
            process.close()
    return _Process()


class SecondLowering:
    """A running process that lowers the programs of a claim again."""

    def __init__(self, folder: Path, source: Origin | None, claim: Claim) -> None:
        self._process = _taken()
        box = Path(self._process.folder.name)
        try:
            shutil.copytree(folder, box / "bundle")
            request = _Request(source=_copied(_located(source, folder), box), claim=claim.model_dump_json())
            (box / "request.json").write_text(request.model_dump_json())
        except BaseException:
            self.close()
            raise
        self._isolation = self._process.isolation()
        self._process.go()

    def lowered(self) -> Lowered:
        """Wait for the process, and return the answer.

        Raises:
            Refused: if the process failed or took too long.
        """
        box, process = Path(self._process.folder.name), self._process.popen
        try:
            said, _ = process.communicate(timeout=SECONDS)
            if process.returncode or not self._isolation:
                reason = said.strip().splitlines()[-1][:300] if said.strip() else "no message"
                raise Refused(f"the plant cannot be lowered in an isolated process ({reason}): read no files in it")
        except subprocess.TimeoutExpired as error:
            raise Refused(f"the isolated process did not lower the plant within {SECONDS:g} s: simplify it") from error
        data = read_back(box / "answer.json", WRITTEN)
        try:
            answer = _Answer.model_validate_json(data)
        except ValidationError as error:
            shown = repr(data[:80].decode(errors="replace"))
            raise Refused(f"the isolated process answered {shown}: correct the plant's code") from error
        # No process is left that could replace the file after this check.
        open_back(box / "arguments.npz", WRITTEN).close()
        leaves = read_npz(box / "arguments.npz")
        return Lowered(
            **dict(answer),
            isolation=self._isolation,
            stored=read_back(box / "episode.jax", WRITTEN),
            leaves=tuple(leaves[name] for name in sorted(leaves)),
        )

    def compare(self, here: Programs) -> str:
        """Wait for the process, and compare the programs.

        Returns:
            The restrictions under which the process ran.

        Raises:
            Refused: if the process failed, or a program differs.
        """
        from neorl_core.safety.program import first_difference

        there = self.lowered()
        for name in ("simulator", "episode"):
            program: Program = getattr(here, name)
            if program.text != getattr(there, name):
                difference = first_difference(program.text, getattr(there, name))
                raise Refused(
                    f"the {name}'s program depends on more than the plant's source: lowered here and in an "
                    f"isolated process it differs, first in {difference}: remove the dependence"
                )
        return there.isolation

    def close(self) -> None:
        """Kill the process if it runs, and remove the copies."""
        self._process.close()


def lowered_apart(folder: Path, source: Origin | None, claim: Claim) -> Lowered:
    """Lower the programs of a claim in a process of their own, so that this one does not execute the plant's code."""
    with closing(SecondLowering(folder, source, claim)) as apart:
        return apart.lowered()


def _located(source: Origin | None, bundle: Path) -> Origin | None:
    """Return where a plant's code is; packages need not be where the process may read."""
    manifest = read_manifest(bundle)
    if source is not None or not manifest.own_code:
        return source
    return find_installed(str(manifest.site["plant"]) if manifest.site else manifest.spec.name)


def _copied(source: Origin | None, box: Path) -> Origin | None:
    """Return a plant's origin, with the sources that the digest covers copied to the process's folder."""
    code = source.code if isinstance(source, SiteOf) else source
    if not isinstance(code, UserCode):
        return source
    moved = copy_code(code, box / ("project" if code.project else PACKAGES))
    return source.model_copy(update={"code": moved}) if isinstance(source, SiteOf) else moved


def main(folder: str) -> None:
    """Lower the programs that `request.json` in a folder asks for, and write them to `answer.json`.

    The process imports JAX first, and reads the request after a line on standard input.
    """
    box = Path(folder)
    # The first process compiles meanwhile, which takes longer.
    os.nice(10)
    os.umask(0o077)
    os.environ["TMPDIR"] = str(box)
    print(restrict(box, Path(__file__).parents[2]), flush=True)
    _import_all()
    if not sys.stdin.readline():
        return
    # Only now, because Python remembers that a folder did not exist.
    sys.path.insert(0, str(box / PACKAGES))
    request = _Request.model_validate_json((box / "request.json").read_bytes())
    claim = Claim.model_validate_json(request.claim)
    found = programs_of(box / "bundle", request.source, claim)
    write_atomic(box / "episode.jax", found.episode.serialise())
    write_atomic(box / "arguments.npz", arguments_file(found.arguments))
    materials = _materials(box / "bundle", request.source, claim, found)
    answer = _Answer(simulator=found.simulator.text, episode=found.episode.text, materials=materials)
    (box / "answer.json").write_text(answer.model_dump_json())


def _import_all() -> None:
    """Import the modules that `programs_of` and `_materials` use."""
    for name in ("neorl_core.safety.program", "tasks.evaluation.claims", "tasks.models.bundles.bundle"):
        import_module(name)


def _materials(folder: Path, source: Origin | None, claim: Claim, programs: Programs) -> dict[str, str]:
    from tasks.evaluation.claims import COUNTED_BY, claimed_simulator, simulator_digest
    from tasks.models.bundles.bundle import composite_digest, plant_of_bundle
    from tasks.models.bundles.manifest import read_manifest

    known = plant_of_bundle(folder, read_manifest(folder), source)
    return {
        "simulator": simulator_digest(known, claimed_simulator(known.simulator(), claim)[0]),
        "shield": composite_digest(programs.arguments[0].shield, known),
        "code": known.sources(*COUNTED_BY),
        "step": programs.simulator.digest,
        "program": programs.episode.digest,
    }


def arguments_file(arguments: tuple[Any, Any]) -> bytes:
    """Encode the leaves of a program's arguments in their order."""
    return npz_bytes({f"{number:04d}": leaf for number, leaf in enumerate(as_arrays(arguments))})


def as_arrays(arguments: Any) -> list[npt.NDArray[Any]]:
    """Return the leaves of a program's arguments as the arrays that the program takes."""
    import jax
    import jax.numpy as jnp

    return [np.asarray(jnp.asarray(leaf)) for leaf in jax.tree.leaves(arguments)]
