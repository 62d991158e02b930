"""A fleet of four small reactors, one with a broken log, end to end on real servers: killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from configs.home import Home
from configs.load import load_run
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.models.bundles.bundle import load_bundle

if TYPE_CHECKING:
    from flows.services.servers import Services

PROJECT = Path(__file__).parents[2]
RUN = """\
plant: chemical_reactor
data: {{mapping: {mapping}, held_out: 0.3}}
train: {{algorithm: td3_bc, updates: 60, seeds: 1, checkpoint_every: 20, hyperparameters: {{critics: 2, hidden: [8]}}}}
evaluate: {{model_updates: 20, bootstraps: 20, rollouts: 16, discount: 0.95}}
certify: {{p0: 1.0e-2}}
gates: {{beat_plant: false}}
approval: auto
"""
SHARED = "shared: {algorithm: td3_bc, updates: 40, fine_tune: 20, hyperparameters: {critics: 2, hidden: [8]}}\n"
DAY = 1 / 7
SOUND = ("site_01", "site_02", "site_03")

pytestmark = pytest.mark.slow


class Fleet:
    """Generate a fleet on the session's servers."""

    def __init__(self, services: Services, folder: Path) -> None:
        self.home = services.home
        run = folder / "run.yaml"
        run.write_text(RUN.format(mapping=PROJECT / "configs" / "mappings" / "chemical_reactor.yaml"))
        self.file = folder / "reactors" / "fleet.yaml"
        options = ["--like", str(run), "--sites", "4", "--broken", "1", "--weeks", str(DAY)]
        assert self.neorl("fleet", "generate", str(self.file.parent), *options)["exit"] == 0
        self.file.write_text(self.file.read_text() + SHARED)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "NEORL_HOME": str(self.home.root)}

    def neorl(self, *arguments: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "flows", *arguments, "--json"]
        done = subprocess.run(words, cwd=PROJECT, env=self.environment, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return {**answer, "exit": done.returncode, "stderr": done.stderr}

    def entries(self, kind: str, site: str = "") -> list[Any]:
        ledger = Ledger.open(self.home, write=False)
        return [e for e in ledger.entries(kind) if e.plant.startswith(f"reactors_{site}")]


@pytest.fixture(scope="module")
def fleet(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(services, tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def first(fleet: Fleet) -> dict[str, Any]:
    """Retrain, kill all processes after the first site ended, and retrain again."""
    words = [sys.executable, "-m", "flows", "fleet", "retrain", str(fleet.file)]
    with subprocess.Popen(
        words, cwd=PROJECT, env=fleet.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        # Wait for an event, not a time: the end of a sound site.
        for line in process.stderr:
            if line.startswith("neorl: site_") and "refused" not in line:
                os.killpg(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    return fleet.neorl("fleet", "retrain", str(fleet.file))


def test_a_broken_site_does_not_stop_the_others(fleet: Fleet, first: dict[str, Any]) -> None:
    assert first["exit"] == 1
    ended = {site["site"]: site for site in first["sites"]}
    assert list(ended) == [*SOUND, "site_04"]
    assert all(ended[site]["outcome"] for site in SOUND), ended
    assert "PAR1" in ended["site_04"]["refused"]
    outcomes = [ended[site]["outcome"] for site in SOUND]
    # Champion, registered model, dataset and certificate of each site.
    assert len({outcome["champion"]["composite"] for outcome in outcomes}) == 3
    assert len({outcome["dataset"] for outcome in outcomes}) == 3
    for site, outcome in zip(SOUND, outcomes, strict=True):
        assert f"domain reactors_{site}/standard" in outcome["champion"]["claim"]
        assert f"models/reactors_{site}/versions" in outcome["champion"]["url"]
        assert [entry.plant for entry in fleet.entries("promotion", site)] == [f"reactors_{site}"]
        digest = outcome["champion"]["composite"]
        # The bundle alone gives the site's simulator.
        plant, composite = load_bundle(fleet.home.root / "bundles" / f"reactors_{site}" / digest[:24], digest)
        run = load_run(f"{fleet.file}#{site}")
        assert run.site is not None
        assert plant.spec.name == f"reactors_{site}"
        assert float(composite.model.cooling_rate) == pytest.approx(run.site.constants["cooling_rate"])
    assert len(fleet.entries("refusal", "site_04")) == 1
    assert audit(fleet.home).passed


def test_prefect_shows_a_flow_per_site(fleet: Fleet, first: dict[str, Any], services: Services) -> None:
    of_it = {"flow_runs": {"parent_flow_run_id": {"any_": [first["run"]]}}}
    runs = {run["name"]: run["state"] for run in services.ask_prefect("flow_runs/filter", of_it)}
    assert set(runs) == {f"retrain fleet#{site}" for site in (*SOUND, "site_04")}
    assert runs["retrain fleet#site_04"]["type"] == "FAILED"
    assert "PAR1" in runs["retrain fleet#site_04"]["message"]
    assert {runs[f"retrain fleet#{site}"]["type"] for site in SOUND} == {"COMPLETED"}
    assert services.ask_prefect(f"flow_runs/{first['run']}")["state"]["message"] == first["headline"]


def test_a_kill_changes_nothing(fleet: Fleet, first: dict[str, Any], tmp_path: Path) -> None:
    from configs.load import site_logs
    from tasks.fleet.shared import with_shared
    from tasks.ingest import ingest
    from tasks.models.plants.opening import open_run
    from tasks.training.start import start_file
    from tasks.training.train import train

    # The same site undisturbed in another home; the kill met it before its end.
    site = SOUND[-1]
    calm, run = Home(tmp_path / "calm"), with_shared(fleet.home, open_run(f"{fleet.file}#{site}"))
    start = run.train.beside[-1].start
    assert start is not None
    start_file(calm, start).write_bytes(start_file(fleet.home, start).read_bytes())
    dataset = ingest(calm, run, [Path(path) for path in site_logs(fleet.file, site)])
    ended = next(each for each in first["sites"] if each["site"] == site)
    population = train(calm, run, dataset)
    assert population.digest == ended["outcome"]["population"]
    # The site's own member, and one that started from the shared weights.
    assert [member.algorithm for member in population.members] == ["td3_bc", "td3_bc"]


def test_a_repetition_changes_nothing(fleet: Fleet, first: dict[str, Any]) -> None:
    before = len(Ledger.open(fleet.home, write=False).entries())
    again = fleet.neorl("fleet", "retrain", str(fleet.file))
    assert [site["outcome"]["verdict"] for site in again["sites"][:3]] == ["unchanged"] * 3
    assert [s["outcome"]["population"] for s in again["sites"][:3]] == [
        s["outcome"]["population"] for s in first["sites"][:3]
    ]
    assert again["sites"][3] == first["sites"][3]
    assert len(Ledger.open(fleet.home, write=False).entries()) == before
    assert again["headline"] == first["headline"]


def test_one_page_shows_and_links_all_sites(fleet: Fleet, first: dict[str, Any]) -> None:
    page = Path(first["page"])
    status = fleet.neorl("fleet", "status", str(fleet.file))
    assert (status["exit"], status["headline"], status["page"]) == (0, first["headline"], str(page))
    assert {site["standing"]["site"] for site in status["sites"]} == {*SOUND, "site_04"}
    text = page.read_text()
    for site in SOUND:
        ended = next(each for each in first["sites"] if each["site"] == site)
        report = Path(ended["outcome"]["links"]["report"])
        assert f'href="../reactors_{site}/{report.name}"' in text
        assert (page.parent / f"../reactors_{site}/{report.name}").is_file()
    assert "site_04 was refused" in text


def test_only_named_sites_are_retrained(fleet: Fleet, first: dict[str, Any]) -> None:
    one = fleet.neorl("fleet", "retrain", str(fleet.file), "--site", "site_02")
    assert (one["exit"], [site["site"] for site in one["sites"]]) == (0, ["site_02"])
    assert one["headline"] == first["headline"]
    none = fleet.neorl("fleet", "retrain", str(fleet.file), "--site", "site_5")
    assert none["exit"] == 2
    assert "has no site 'site_5'" in none["error"]


def test_sites_are_retrained_without_core_information(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.fleet import runner_of

    # As on macOS.
    monkeypatch.delattr(os, "sched_getaffinity")
    with runner_of(2, None) as runner:
        assert runner is not None


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux counts a process's memory mappings")
def test_programs_are_dropped_between_sites(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    from flows.fleet import retrain_site
    from tasks.training.programs import forget_programs

    # As if each site's programs filled the limit of a process.
    monkeypatch.setattr(forget_programs, "__defaults__", (0,))
    compiled = []

    @jax.jit
    def same(x: jax.Array) -> jax.Array:
        compiled.append(x.shape)
        return x

    for _ in range(2):
        same(1.0)
        ended = retrain_site.fn(
            "site_01", "tank", "run.yaml", [str(tmp_path / "none.parquet")], str(tmp_path / "log"), False
        )
        assert ended.outcome is None
    assert len(compiled) == 2
