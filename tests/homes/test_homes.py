"""A home that commit 89a12a2 wrote stays valid: audit, report, models, rollback, gates that come and go."""

from __future__ import annotations

import ast
import importlib.util
import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from configs.errors import Refused
from configs.home import Home
from flows.cli.main import run
from flows.period_report import report_period
from tasks import gates
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions.champions import champion
from tasks.evidence.decisions.queue import record_of
from tasks.evidence.ledger import client
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.arrays import read_npz
from tasks.files.provenance import PACKAGES
from tasks.lifecycle.aliases import check_pages, stale_pages
from tasks.lifecycle.champions import roll_back
from tasks.lifecycle.pages import wanted_pages
from tasks.references import CandidateRecord, Evidence
from tasks.registry.reading import Page
from tasks.registry.registry import RegisteredVersion
from tasks.registry.serving import load_model
from tasks.registry.upload import COMPOSITE, MODEL_ID
from tasks.versions import versions
from tasks.versions.versions import newest
from tests.evidence import open_ledger

ARCHIVE = Path(__file__).with_name("2026-11-28.tar.xz")
FULL = Path(__file__).parents[3] / "shared" / "homes" / "2026-11-28"
"""A full home of the same commit, beside the repository."""
PLANT = "chemical_reactor"
ENTRIES = 21


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of 89a12a2, with the passphrases of its keys in the user's configuration."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    for folder in ("", "keys", "witness"):
        (tmp_path / "home" / folder).chmod(0o700)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("NEORL_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


class StoredModels:
    """The home's MLflow without a server: its database and its folder of models."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def rows(self, query: str, *values: str) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(self.home.root / "mlflow" / "mlflow.db")) as database:
            return database.execute(query, values).fetchall()

    def pages(self, plant: str) -> dict[str, Page]:
        """MLflow's pages, by version."""
        found = self.rows("SELECT version, description FROM model_versions WHERE name = ?", plant)
        return {str(version): Page(self.tags(plant, str(version)), text) for version, text in found}

    def tags(self, plant: str, version: str) -> dict[str, str]:
        query = "SELECT key, value FROM model_version_tags WHERE name = ? AND version = ?"
        return dict(self.rows(query, plant, version))

    def version(self, plant: str, version: str) -> RegisteredVersion:
        return RegisteredVersion(version, "", "", self.tags(plant, version), "")

    def folder(self, plant: str, version: str) -> Path:
        model = self.tags(plant, version)[MODEL_ID]
        return next(self.home.root.glob(f"mlflow/artifacts/*/models/{model}/artifacts"))

    def fetch_model(self, plant: str, version: str, target: Path) -> Path:
        return Path(shutil.copytree(self.folder(plant, version), target / "model"))


def examples(home: Home, entry: Entry) -> tuple[pd.DataFrame, np.ndarray]:
    """First observations that a bundle recorded, and the composite's answer to the first of them."""
    bundle = home.root / "bundles" / PLANT / entry.body["composite"][:24]
    found = read_npz(bundle / "examples.npz")
    names = ["concentration", "temperature", "coolant_temperature", "concentration_setpoint"]
    return pd.DataFrame(found["observations"].astype(float), columns=names), found["actions"]


def test_audit_names_the_version_and_passes(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "verify"]) == 0
    shown = capsys.readouterr().out
    assert f"versions: rules and texts: {ENTRIES} entries by version 1; this NeoRL writes version {newest()}" in shown
    assert "FAIL" not in shown


def test_history_and_report_work(home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["history", PLANT]) == 0
    assert "version 2, composite 8885cbd7a00e" in capsys.readouterr().out
    assert run(["history", PLANT, "--at", "2026-11-28T09:28:00"]) == 0
    assert "version 1 was champion" in capsys.readouterr().out
    assert report_period(home, date(2026, 11, 1), date(2026, 11, 28)).failed == ()
    assert run(["audit", "export", str(tmp_path / "audit.tar")]) == 0
    assert run(["audit", "verify", "--archive", str(tmp_path / "audit.tar")]) == 0


def test_a_full_home_is_restored_audited_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not FULL.is_dir():
        pytest.skip(f"no home of an earlier version in {FULL}")
    archive, home = tmp_path / "home.tar", Home(tmp_path / "home")
    archive.write_bytes(lzma.decompress((FULL / "home.tar.xz").read_bytes()))
    monkeypatch.setenv("NEORL_HOME", str(home.root))
    assert run(["restore", str(archive), "--home", str(home.root)]) == 0
    assert run(["audit", "verify"]) == 0
    assert "versions: rules and texts: 13 entries by version 1; " in capsys.readouterr().out
    assert run(["history", PLANT]) == 0
    assert run(["report", PLANT]) == 0
    model = load_model(home, StoredModels(home), PLANT)  # type: ignore[arg-type]
    assert np.allclose(model.predict(model.input_example).to_numpy(), 304.231293)


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_champion_loads_through_load_model(home: Home, version: str) -> None:
    models, entries = StoredModels(home), Ledger.open(home, write=False).entries()
    promotion = next(e for e in entries if e.kind == "promotion" and e.body["version"] == version)
    observations, actions = examples(home, promotion)
    model = load_model(home, models, PLANT, version)  # type: ignore[arg-type]
    assert np.allclose(model.predict(observations).to_numpy()[0], actions[0], rtol=1e-5)


LOAD = """
import sys
import mlflow, numpy as np, pandas as pd
model = mlflow.pyfunc.load_model(sys.argv[1])
print(*model.predict(model.input_example).to_numpy().ravel())
print(*{name.partition(".")[0]: module.__file__ for name, module in sys.modules.items()
        if name in ("tasks", "neorl_core")}.values())
"""


@pytest.mark.parametrize("installed", [True, False])
def test_a_champion_loads_through_plain_pyfunc(home: Home, installed: bool, tmp_path: Path) -> None:
    """In a fresh Python, whether NeoRL is imported already or only the code stored with the model is there."""
    folder = StoredModels(home).folder(PLANT, "1")
    before = "import tasks.registry.registry\n" if installed else ""
    project = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": project if installed else "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", before + LOAD, str(folder)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer, sources = done.stdout.strip().splitlines()
    entries = Ledger.open(home, write=False).entries()
    _, actions = examples(home, next(e for e in entries if e.kind == "promotion"))
    assert np.allclose(float(answer), actions[0], rtol=1e-5)
    assert all(source.startswith(project if installed else str(folder)) for source in sources.split())


def test_stored_code_imports_one_module_that_never_moves() -> None:
    spec = importlib.util.find_spec("tasks.registry.policy_model")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {name for name in imported if name.partition(".")[0] in PACKAGES} == {"tasks.models.mlflow_entry"}


def test_rollback_to_an_earlier_champion(home: Home) -> None:
    try:
        entry = roll_back(home, StoredModels(home), PLANT, "1", "shift engineer", "a test")  # type: ignore[arg-type]
        entries = Ledger.open(home, write=False).entries()
        assert champion(entries, PLANT) == entry
        assert (entry.rules, entry.sequence) == (newest(), ENTRIES + 1)
        found = audit(home)
        assert found.failures == []
        versions_met = next(check.detail for check in found.checks if check.name == "versions")
        assert f"{ENTRIES} entries by version 1, 1 entries by version {newest()}" in versions_met
    finally:
        client.stop(home)


def test_pages_in_earlier_words_are_unaltered_and_tampering_is_found(home: Home) -> None:
    entries, pages = Ledger.open(home, write=False).entries(), StoredModels(home).pages(PLANT)
    assert set(stale_pages(entries, PLANT, pages)) == {"1", "2"}
    (check,) = check_pages(entries, PLANT, pages)
    assert check.passed is None
    assert "versions 1 (text version 1), 2 (text version 1); unaltered" in check.detail
    anew = wanted_pages(entries, PLANT, datetime.now(UTC))
    renewed = {v: Page(pages[v].tags, page.description) for v, page in anew.items()}
    assert check_pages(entries, PLANT, renewed) == []
    for version, page in pages.items():
        altered = page.description.replace("rule: auto", "Ada Lovelace")
        assert altered != page.description
        checks = check_pages(entries, PLANT, {**pages, version: Page(page.tags, altered)})
        assert [(check.name, check.passed) for check in checks] == [("pages", False), ("pages", None)]
    assert pages["1"].tags[COMPOSITE] == entries[10].body["composite"]


def test_gates_come_and_go(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are appended before a gate is added, with it, and after it was removed; all stay valid."""
    ledger = open_ledger(home)
    monkeypatch.setitem(gates.DETAILS, "noise", lambda evidence: f"fallback share {evidence.fallback_share:g}")

    def judged_anew() -> None:
        last = record_of(ledger.entries("candidate", PLANT)[-1])
        assert isinstance(last.evidence, Evidence)
        assert last.evidence.certificate is not None
        # Evidence by earlier rules does not name the simulator's program.
        step = {"step": "5" * 64}
        named = {
            "simulator": last.evidence.simulator.model_copy(update=step),
            "certificate": last.evidence.certificate.model_copy(update=step),
        }
        evidence = last.evidence.model_copy(update=named)
        record: CandidateRecord = last.model_copy(update={"evidence": evidence, "gates": gates.judge(evidence)})
        ledger.append("candidate", record, plant=PLANT)

    def version(gate: bool) -> versions.Version:
        simulated = {name: verdict for name, verdict in versions.current().simulated.items() if name != "noise"}
        more = {"noise": lambda evidence: evidence.fallback_share <= 1.0} if gate else {}
        return versions.current()._replace(simulated={**simulated, **more})

    now = newest()
    judged_anew()
    monkeypatch.setitem(versions.VERSIONS, now + 1, version(gate=True))
    assert audit(home).failures == []
    last = record_of(ledger.entries("candidate", PLANT)[-1])
    with pytest.raises(Refused, match=r"the gates must be data, simulator, .*, servability, noise, got data"):
        ledger.append("candidate", last, plant=PLANT)
    judged_anew()
    assert audit(home).failures == []
    monkeypatch.setitem(versions.VERSIONS, now + 2, version(gate=False))
    assert audit(home).failures == []
    judged_anew()
    found = audit(home)
    assert found.failures == []
    met = next(check.detail for check in found.checks if check.name == "versions")
    later = ", ".join(f"1 entries by version {number}" for number in (now, now + 1, now + 2))
    assert met == f"rules and texts: {ENTRIES} entries by version 1, {later}; this NeoRL writes version {now + 2}"
    assert [entry.rules for entry in ledger.entries()] == [1] * ENTRIES + [now, now + 1, now + 2]
