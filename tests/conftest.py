"""Fixtures of several test files."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import settings

from configs.home import Home

if TYPE_CHECKING:
    from flows.services.state import Services

CACHE = Path(__file__).parents[1] / ".pytest_cache"
# Servers and libraries send no telemetry and stay offline, like in the product.
os.environ.update(
    DO_NOT_TRACK="true",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    MLFLOW_DISABLE_TELEMETRY="true",
    MLFLOW_MODEL_CATALOG_URI="",
    GX_ANALYTICS_ENABLED="false",
    # Child processes share the compilation cache.
    JAX_COMPILATION_CACHE_DIR=str(CACHE / "jax"),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
    # Most test time is compilation of programs that run once, so XLA need not optimise them.
    JAX_DISABLE_MOST_OPTIMIZATIONS="true",
)
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # Share bytecode between processes in a folder of the tests, so that no process compiles all modules again and
    # none is written into the source tree.
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(CACHE / "bytecode")
    sys.dont_write_bytecode = False
# Signers keep generated passphrases in the user's configuration and outlive the commands that start them.
_CONFIGURATION = tempfile.TemporaryDirectory(prefix="neorl-tests-")
os.environ.update(XDG_CONFIG_HOME=_CONFIGURATION.name, NEORL_SIGNER_IDLE="30")
if platform.machine() == "x86_64":
    # XLA's older code generator takes a quarter of the compile time. It may recompute an expression in each kernel,
    # with fused multiply-adds (AVX2) to different last bits: then a minimum equals none of its arguments and the
    # gradient is 0/0. AVX has no fused multiply-adds. An existing XLA_FLAGS wins; an empty one selects the default
    # generator.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_max_isa=AVX",
    )

# Examples are reproducible and have no deadline. --hypothesis-profile=default draws new examples.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

OWN = Path(__file__).parent / "own_project"
SHARED = Path(__file__).parents[2] / "shared" / "data"


class Truth(Protocol):
    """Compare a number with one from outside this project."""

    def __call__(
        self, quantity: str, theirs: float, ours: float, allowed: float, source: str, plant: str | None = None
    ) -> None: ...


@pytest.fixture
def truth(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Truth:
    """Assert |ours − theirs| <= allowed and keep the comparison for docs/studies/plants.md."""
    named = request.path.stem.removeprefix("test_plant_")

    def hold(quantity: str, theirs: float, ours: float, allowed: float, source: str, plant: str | None = None) -> None:
        row = {"plant": plant or named, "quantity": quantity, "theirs": float(theirs), "ours": float(ours)}
        record_property("truth", json.dumps({**row, "allowed": float(allowed), "source": source}))
        assert abs(float(ours) - float(theirs)) <= allowed, (quantity, theirs, ours, allowed)

    return hold


@pytest.fixture(scope="module", autouse=True)
def _room_for_programs() -> Iterator[None]:
    """Clear compiled programs between files if there are many; a worker accumulates those of a hundred files."""
    yield
    if "jax" in sys.modules:
        from tasks.training.programs import forget_programs

        forget_programs()


@pytest.fixture
def dmsd_train() -> Path:
    """Return the official DMSD training data."""
    path = SHARED / "dmsd" / "DMSD-high-100000-train.npz"
    if not path.exists():
        pytest.skip("the official DMSD data is not beside this checkout")
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty NeoRL home."""
    root = tmp_path / "home"
    monkeypatch.setenv("NEORL_HOME", str(root))
    return root


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's project with a plant, a helper module in a sub-package and an algorithm, and a home."""
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    return Path(shutil.copytree(OWN, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Start real Prefect and MLflow servers and a worker once, because the first start takes many seconds."""
    from flows.services.servers import down, up
    from tests.flows.services.waiting import pause_schedules

    for name in ("NEORL_PREFECT_URL", "NEORL_MLFLOW_URL"):
        os.environ.pop(name, None)
    home = Home(tmp_path_factory.mktemp("services") / "home")
    try:
        found = up(home)
        pause_schedules(found)
    except BaseException:
        down(home)  # stop the servers that did start
        raise
    yield found
    down(found.home)
    ours = [s.process for s in (found.prefect, found.mlflow, found.worker) if s and s.process]
    assert not [process for process in ours if process.alive]


@pytest.fixture
def deployed(services: Services) -> Services:
    """Register this project's deployments; other tests register other projects under the same names."""
    from tests.flows.services.waiting import register

    register(services)
    return services


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file on one worker, and all tests that need servers on one worker.

    The longest groups start first, so that the workers finish together.
    """
    for item in items:
        served = "services" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("services" if served else item.path.name))
    longest = ("services", "served")
    items.sort(key=lambda item: not set(longest) & set(getattr(item, "fixturenames", ())))
