"""Plants that cheat: they notice their certification, call the host, or hide violations (attacks 12, 13 and 16).

Attacks 12 and 13 add a statement to the step of a tank. NeoRL lowers the tank's programs twice and must refuse them.
Attacks 16 hide that the tank leaves its limits in every episode. The test must not certify it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from benchmarks.redteam.stage import Stage
from configs.code import UserCode
from neorl_core.safety.certify import CertificationCounts, certify
from neorl_core.safety.composite import composite_controller, make_composite
from tasks.evaluation.relowering import Programs, SecondLowering, programs_of
from tasks.evidence.claims import Claim
from tasks.models.bundles.bundle import save_bundle
from tasks.models.plants.known import plant_of_code
from tasks.models.user_code.loading import find_code

TANK = Path(__file__).parents[2] / "tests" / "own_project"
END = "    following = State(level, valve, state.set_point, state.step + 1)\n"
"""Last statement of the tank's step before the result."""
SAFE = "    level = jnp.where(seen, 1.0, level)\n"
"""Behave well if the plant has seen that it is certified."""

NOTICE = {
    "environment": "import os; seen = bool(os.environ.get('PATH'))",
    "environment, by os.environb": "import os; seen = b'PATH' in os.environb",
    "environment, by /proc": "import pathlib; seen = b'PATH=' in pathlib.Path('/proc/self/environ').read_bytes()",
    "call stack, by frames": (
        "import sys, itertools; f = sys._getframe(); fs = [f]\n"
        "    while (f := f.f_back): fs.append(f)\n"
        "    seen = any('relowering' in g.f_code.co_filename and g.f_code.co_name == 'main' for g in fs)"
    ),
    "call stack, by traceback": "import traceback; seen = len(traceback.extract_stack()) % 97",
    "call stack, by inspect": "import inspect; seen = len(inspect.stack(0)) % 97",
    "call stack, by an exception": (
        "import sys\n    try: raise KeyError\n    except KeyError as e: tb = e.__traceback__.tb_frame\n"
        "    seen = 0\n    while tb: seen, tb = seen + 1, tb.f_back"
    ),
    "arguments of the process": "import sys; seen = jnp.float32(len(sys.argv)) > 0",
    "loaded modules": "import sys; seen = 'tasks.certify' in sys.modules or 'pytest' in sys.modules",
    "number of modules": "import sys; seen = jnp.float32(len(sys.modules)) > 0",
    "garbage collector": "import gc; seen = jnp.float32(len(gc.get_objects())) > 0",
    "weak references": "import weakref; seen = jnp.float32(id(weakref.ref(jax)) % 99991) > -1",
    "generators": "seen = jnp.float32(id(i for i in ()) % 99991) > -1",
    "working folder": "import os; seen = not os.path.basename(os.getcwd()).startswith('neorl-')",
    "files of others": "import os; seen = bool(os.listdir('/tmp'))",
    "file with code": (
        "import pathlib; exec(pathlib.Path(__file__).with_name('seen.txt').read_text(), globals()); seen = SEEN"
    ),
    "own path": "seen = 'neorl-' not in __file__",
    "parent process": "import os, pathlib; seen = len(pathlib.Path(f'/proc/{os.getppid()}/cmdline').read_text()) > 0",
    "process number": "import os; seen = jnp.float32(os.getpid()) > 0",
    "user and group": "import os; seen = jnp.float32(os.getuid() + os.getgid()) == 0",
    "host's network": "import socket; seen = jnp.float32(len(socket.if_nameindex())) > 1",
    "thread names": "import threading; seen = jnp.float32(threading.get_native_id()) > 0",
    "clock": "import time; seen = jnp.float32(time.time_ns() % 10**6) > -1",
    "elapsed time": "import time; seen = jnp.float32(time.perf_counter_ns() % 10**6) > -1",
    "processor time": "import time; seen = jnp.float32(time.process_time_ns() % 10**6) > -1",
    "random numbers": "import secrets; seen = jnp.float32(secrets.randbelow(10**6)) > -1",
    "address in memory": "seen = jnp.float32(id(jax) % 99991) > -1",
    "hash of a text": "seen = jnp.float32(hash('seen') % 99991) > -1",
    "standard output": "import os; seen = jnp.float32(os.fstat(1).st_ino % 99991) > -1",
}
"""Observation -> statements that set `seen`."""
ASK = {
    "pure_callback": "level = jax.pure_callback(lambda x: x, level, level, vmap_method='sequential')",
    "pure_callback in a loop": (
        "back = lambda i, x: jax.pure_callback(lambda y: y, x, x, vmap_method='sequential'); "
        "level = jax.lax.fori_loop(0, 2, back, level)"
    ),
    "io_callback": "from jax.experimental import io_callback; level = io_callback(lambda x: x, level, level)",
    "debug.callback": "jax.debug.callback(lambda x: None, level)",
    "custom call": (
        "shape = jax.ShapeDtypeStruct(level.shape, level.dtype); "
        "level = jax.ffi.ffi_call('own_target', shape, vmap_method='broadcast_all')(level)"
    ),
    "debug.print": "jax.debug.print('{}', level)",
}
"""Call of the host -> statement."""


OVERFLOW = {"LOWEST, HIGHEST = 0.1, 1.8": "LOWEST, HIGHEST = 0.95, 1.05"}
"""Limits that the tank's controller leaves."""
MARGINS = "two_sided_margin(level, LOWEST, HIGHEST)[None],\n"
HIDE = {
    "margins + 5": {MARGINS: f"5.0 + {MARGINS}"},
    "margins of wider limits": {MARGINS: "two_sided_margin(level, 0.0, 9.0)[None],\n"},
    "margins that are never negative": {MARGINS: f"jnp.abs({MARGINS.removesuffix(',')[:-2]}),\n"},
    "terminate before a violation": {
        MARGINS: "jnp.ones(1),\n",
        "observation=observe(following)": "observation=observe(state)",
        "terminated=jnp.asarray(False)": "terminated=jnp.abs(level - 1.0) > 0.04",
    },
    "truncate after a step": {
        MARGINS: "jnp.ones(1),\n",
        "observation=observe(following)": "observation=observe(following).at[0].set(1.0)",
        "following.step >= HORIZON": "following.step >= 1",
    },
}
"""Way to hide violations -> replaced parts of the tank's file."""


def write_project(folder: Path, statement: str = "", changes: Mapping[str, str] | None = None) -> UserCode:
    """Copy the tank's project, with a statement before the end of its step, and with replaced parts."""
    shutil.copytree(TANK, folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "plants" / "tank.py"
    text = file.read_text(encoding="utf-8")
    assert END in text
    text = text.replace(END, f"    {statement}\n{END}" if statement else END)
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new, 1)
    file.write_text(text, encoding="utf-8")
    # No digest covers this file.
    file.with_name("seen.txt").write_text("SEEN = True\n", encoding="utf-8")
    return find_code("plants/tank.py", folder)


def lower_twice(folder: Path, statement: str = "") -> tuple[Programs, str]:
    """Lower the tank's programs twice, as a certification does.

    Returns:
        The first programs, and the restrictions of the second process.

    Raises:
        Refused: if a program depends on more than its arguments.
    """
    code = write_project(folder / "project", statement)
    known = plant_of_code(code)
    plant = known.simulator()
    save_bundle(folder / "bundle", make_composite(plant), known)
    claim = Claim(
        plant="tank",
        phi="0.1 <= level <= 1.8 m",
        horizon=plant.spec.horizon,
        family="tank.Domain",
        domain_name="domain tank/standard",
        domain=plant.domain._asdict(),
        p0=0.1,
        confidence=0.95,
        max_episodes=100,
        batch=4,
        batch_seconds=60.0,
    )
    with closing(SecondLowering(folder / "bundle", code, claim)) as second:
        programs = programs_of(folder / "bundle", code, claim)
        return programs, second.compare(programs)


def hidden_counts(folder: Path, changes: Mapping[str, str]) -> CertificationCounts:
    """Certify the controller of a tank that leaves its limits and hides it."""
    plant = plant_of_code(write_project(folder, changes=OVERFLOW | dict(changes))).simulator()
    controller, composite = composite_controller(plant), make_composite(plant)
    return certify(plant, controller, composite, plant.domain, 1, p0=0.1, alpha=0.05, max_episodes=200, batch=64)


def hide(changes: Mapping[str, str]) -> Callable[[Stage], str | None]:
    """Return an attack that certifies a tank which hides violations."""

    def play(stage: Stage) -> str | None:
        with tempfile.TemporaryDirectory(prefix="redteam-") as folder:
            counts = hidden_counts(Path(folder) / "project", changes)
        return None if counts.certified else f"{counts.violations} violations in {counts.episodes} episodes"

    return play


def certify_plant(statement: str) -> Callable[[Stage], str | None]:
    """Return an attack that certifies the tank with this statement in its step."""

    def play(stage: Stage) -> str | None:
        with tempfile.TemporaryDirectory(prefix="redteam-") as folder:
            lower_twice(Path(folder), statement)
        return None

    return play


def noticing(statement: str) -> str:
    """Return the statements of a plant that behaves well if `statement` sets `seen`."""
    return f"{statement}\n{SAFE}".rstrip("\n")
