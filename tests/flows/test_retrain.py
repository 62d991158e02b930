"""The pipeline end to end on real servers, by commands in their own processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from configs.home import Home
from configs.load import load_run
from tasks.evidence.audit.audit import audit
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.provenance import sources_digest
from tasks.gates import REQUIRED
from tasks.promote import FLOW
from tests.flows.services.waiting import shown_graph, wait_until

if TYPE_CHECKING:
    from flows.services.servers import Services

PROJECT = Path(__file__).parents[2]
PLANT = "chemical_reactor"
CONFIG = """\
plant: chemical_reactor
seed: {seed}
data: {{mapping: {mapping}}}
train:
  {{algorithm: td3_bc, updates: 400, seeds: 2, checkpoint_every: 100, hyperparameters: {{critics: 2, hidden: [16]}}}}
evaluate: {{model_updates: 40, bootstraps: 100, rollouts: 32, discount: 0.95}}
gates: {{beat_plant: false}}
approval: {approval}
"""
Neorl = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def command(services: Services) -> Neorl:
    """Return a function that runs `neorl` on the session's servers and returns its JSON with the exit code."""
    environment = {**os.environ, "NEORL_HOME": str(services.home.root)}

    def run(*arguments: str, **extra: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "flows", *arguments, "--json"]
        done = subprocess.run(
            words, cwd=PROJECT, env={**environment, **extra}, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return {**answer, "exit": done.returncode, "stderr": done.stderr}

    return run


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, command: Neorl) -> Callable[..., tuple[Path, Path]]:
    """Return (config, log) of a short reactor log and a small run."""
    folder = tmp_path_factory.mktemp("inputs")
    assert command("generate", PLANT, "--out", str(folder), "--weeks", "0.5")["exit"] == 0
    mapping = PROJECT / "configs" / "mappings" / "chemical_reactor.yaml"

    def write(seed: int = 0, approval: str = "auto", **changes: str) -> tuple[Path, Path]:
        path, text = folder / f"{approval}-{seed}.yaml", CONFIG.format(seed=seed, approval=approval, mapping=mapping)
        for old, new in changes.items():
            text = re.sub(f"{old}: [^,}}]+", f"{old}: {new}", text)
        path.write_text(text)
        return path, folder / "historian.parquet"

    return write


@pytest.fixture(scope="module")
def first(command: Neorl, inputs: Callable[..., tuple[Path, Path]], services: Services) -> dict[str, Any]:
    """The reactor's first retraining, and the paths that it wrote (`made`); other tests share the home."""
    config, log = inputs()
    before = set(services.home.root.rglob("*"))
    result = command("retrain", str(config), "--data", str(log))
    assert result["exit"] == 0, result
    return {**result, "made": set(services.home.root.rglob("*")) - before}


def test_a_log_becomes_a_certified_registered_champion(first: dict[str, Any], services: Services) -> None:
    for key in ("run", "dataset", "candidate", "gates", "certificate", "score", "champion", "seconds"):
        assert first[key] is not None, key
    names = [gate["name"] for gate in first["gates"]]
    assert tuple(names) == REQUIRED
    entries = Ledger.open(services.home, write=False).entries()
    promotions = [entry for entry in entries if entry.kind == "promotion" and entry.plant == PLANT]
    assert [entry.body["composite"] for entry in promotions] == [first["champion"]["composite"]]
    # The sources, for example, distinguish this run from another with the same champion.
    assert {e.body["sources"] for e in entries if (e.kind, e.plant) == ("candidate", PLANT)} == {sources_digest(FLOW)}
    # The fallback is always certified, and each certificate follows its attempt.
    assert next(gate for gate in first["gates"] if gate["name"] == "fallback")["passed"]
    kinds = [entry.kind for entry in entries if entry.kind in ("attempt", "seed", "result")]
    assert kinds[:3] == ["attempt", "seed", "result"]
    page = Path(first["links"]["report"]).read_text()
    assert "http://" not in page.replace(services.prefect.url, "").replace(services.mlflow.url, "")
    assert first["certificate"]["claim"] in page.replace("&lt;", "<").replace("&gt;", ">")


def test_prefect_shows_exactly_the_dependencies(first: dict[str, Any], services: Services) -> None:
    from infra.reference import nodes

    wanted = sorted((node.stage, sorted(node.takes)) for node in nodes())
    wait_until(lambda: len(shown_graph(services, first["run"])) >= len(wanted))  # tasks are written some seconds later
    assert shown_graph(services, first["run"]) == wanted
    assert sum(len(node.takes) for node in nodes()) > 30


def test_prefect_log_and_state_describe_the_run(first: dict[str, Any], services: Services) -> None:
    run = services.ask_prefect(f"flow_runs/{first['run']}")
    assert run["name"] == "retrain auto-0"
    assert {PLANT, first["verdict"]} <= set(run["tags"])
    assert run["state"]["message"] == first["headline"]
    wanted = {"logs": {"flow_run_id": {"any_": [first["run"]]}}, "limit": 200, "sort": "TIMESTAMP_ASC"}
    lines = [entry["message"] for entry in services.ask_prefect("logs/filter", wanted)]
    for told in ("rows in", "fit for training", "members of td3_bc 400 updates", "selected, ", "certified: "):
        assert any(told in line for line in lines), told
    artifacts = services.ask_prefect("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [first["run"]]}}})
    text = next(found["data"] for found in artifacts if found["type"] == "markdown")
    assert "&emsp;" not in text
    assert "![" not in text


def test_mlflow_matches_the_ledger(first: dict[str, Any], services: Services, tmp_path: Path) -> None:
    from tasks.models.bundles.bundle import load_bundle
    from tasks.registry.registry import Registry

    registry = Registry(services.mlflow.url)
    assert registry.aliases(PLANT)["champion"] == first["champion"]["version"]
    version = registry.version(PLANT, first["champion"]["version"])
    assert version.digest == first["champion"]["composite"]
    head = version.tags["neorl.ledger_head"]
    assert Ledger.open(services.home, write=False).verify([head]).size > 0
    model = registry.fetch_model(PLANT, version.version, tmp_path)
    plant, _ = load_bundle(model / "artifacts" / "bundle", first["champion"]["composite"])
    assert plant.spec.name == PLANT


def test_the_audit_covers_every_file_of_the_run(first: dict[str, Any], services: Services) -> None:
    report = audit(services.home)
    assert report.passed, report.failures


@pytest.mark.slow
def test_the_certificate_verifies_and_repeats(command: Neorl, first: dict[str, Any]) -> None:
    path = first["certificate"]["path"]
    checked = command("certificate", "verify", path, "--rerun")
    assert checked["exit"] == 0, checked
    assert {"signature", "seed", "alpha", "statistics", "ledger", "rerun"} <= {c["name"] for c in checked["checks"]}


def test_a_stale_normaliser_is_refused(first: dict[str, Any], services: Services, tmp_path: Path) -> None:
    # truth.md 1.1: such a policy cannot meet p0 = 1e-3. The normaliser is from an earlier log with a hotter reactor and
    # larger coolant moves, so the policy underestimates the temperature.
    import jax.numpy as jnp

    from configs.errors import Refused
    from neorl_core.plants import PLANTS
    from neorl_core.safety.certify import certify
    from neorl_core.safety.composite import bare_controller
    from tasks.models.bundles.bundle import load_bundle, save_bundle

    digest = next(
        entry.body["composite"] for entry in Ledger.open(services.home, write=False).entries("candidate", PLANT)
    )
    plant, composite = load_bundle(services.home.root / "bundles" / PLANT / digest[:24], digest)
    n = composite.policy.normaliser
    stale = n._replace(
        mean=n.mean + 2.0 * n.scale, action_centre=jnp.asarray([300.0]), action_half_range=jnp.asarray([10.0])
    )
    altered = composite._replace(policy=composite.policy._replace(normaliser=stale))
    folder = tmp_path / "stale"
    save_bundle(folder, altered, PLANT)
    with pytest.raises(Refused, match=r"has composite .* is required"):
        load_bundle(folder, digest)
    counts = certify(
        plant, bare_controller(plant), altered.policy, PLANTS[PLANT].domain, 0, p0=1e-3, alpha=0.05, max_episodes=10_000
    )
    assert not counts.certified
    assert counts.stop == "futile"


@pytest.mark.slow
def test_unchanged_inputs_spend_nothing(
    command: Neorl, first: dict[str, Any], inputs: Callable[..., tuple[Path, Path]], services: Services
) -> None:
    def attempts() -> int:
        return len(Ledger.open(services.home, write=False).entries("attempt"))

    before = attempts()
    config, log = inputs()
    second = command("retrain", str(config), "--data", str(log))
    assert second["exit"] == 0, second
    assert second["verdict"] == "unchanged"
    assert "Nothing new to promote" in second["headline"]
    assert {"ingest", "validate", "train", "evaluate", "simulate"} <= set(second["reused"])
    assert second["population"] == first["population"]
    assert attempts() == before
    # Prefect's state says so, too.
    run = services.ask_prefect(f"flow_runs/{second['run']}")
    assert run["state"]["message"].startswith("Nothing new to promote: the same inputs were decided at ")
    assert "unchanged" in run["tags"]


@pytest.mark.slow
def test_forged_results_are_recomputed(
    command: Neorl, first: dict[str, Any], inputs: Callable[..., tuple[Path, Path]], services: Services
) -> None:
    """Edited result files, or files marked as pickle, are recomputed with a message."""
    config, log = inputs()
    before = len(Ledger.open(services.home, write=False).entries())
    stored = services.home.root / "prefect" / "storage"
    said = {
        "ingest": "has serializer 'pickle', only JSON is read",
        "evaluate": "does not have the sealed digest",
        "simulate": "is not a stored result",
    }
    for stage in said:
        named = re.compile(f"{stage}-[0-9a-f]{{32}}")
        path = next(path for path in first["made"] if path.parent == stored and named.fullmatch(path.name))
        record = json.loads(path.read_text())
        if stage == "ingest":
            record["metadata"]["serializer"] = {"type": "pickle"}
        record["result"] = record["result"].replace("0.", "9.")
        path.write_text("" if stage == "simulate" else json.dumps(record))
    again = command("retrain", str(config), "--data", str(log))
    assert again["exit"] == 0, again
    assert not set(said) & set(again["reused"])
    assert again["verdict"] == "unchanged"
    wanted = {"logs": {"flow_run_id": {"any_": [again["run"]]}}, "limit": 200}
    lines = [entry["message"] for entry in services.ask_prefect("logs/filter", wanted)]
    for stage, words in said.items():
        assert any(line.startswith(f"{stage} is computed again") and words in line for line in lines), (stage, lines)
    assert len(Ledger.open(services.home, write=False).entries()) == before


@pytest.mark.slow
def test_tasks_with_missing_files_run_again(
    command: Neorl, first: dict[str, Any], inputs: Callable[..., tuple[Path, Path]], services: Services
) -> None:
    config, log = inputs()
    patterns = ("datasets/*/cards/*", "runs/*/populations/*/curves.npz")
    gone = [path for path in first["made"] if any(path.match(pattern) for pattern in patterns)]
    assert len(gone) >= 3
    for path in gone:
        path.unlink()
    again = command("retrain", str(config), "--data", str(log))
    assert again["exit"] == 0, again
    assert set(again["reused"]) == {
        "validate",
        "identify",
        "fallback",
        "rank",
        "evaluate",
        "simulate",
        "validate_simulator",
    }
    assert all(path.exists() for path in gone)


@pytest.mark.slow
def test_a_failed_candidate_cannot_be_approved(
    command: Neorl, first: dict[str, Any], inputs: Callable[..., tuple[Path, Path]], services: Services
) -> None:
    """Two updates teach nothing, and the run requires a gain over the plant's controller."""
    config, log = inputs(seed=40, approval="required", updates="2", checkpoint_every="1", beat_plant="true")
    champions = Ledger.open(services.home, write=False).entries("promotion", PLANT)
    result = command("retrain", str(config), "--data", str(log))
    assert result["exit"] == 0, result
    verdicts = {gate["name"]: gate["passed"] for gate in result["gates"]}
    assert (verdicts["rollouts"], verdicts["statistical"]) == (False, None)
    refused = command("approve", PLANT, result["candidate"]["version"])
    assert refused["exit"] == 1
    assert "no approval can skip a gate" in refused["error"]
    assert Ledger.open(services.home, write=False).entries("promotion", PLANT) == champions


@pytest.mark.slow
def test_a_candidate_waits_for_a_person(
    command: Neorl, first: dict[str, Any], inputs: Callable[..., tuple[Path, Path]]
) -> None:
    config, log = inputs(seed=10, approval="required")
    result = command("retrain", str(config), "--data", str(log))
    assert result["exit"] == 0, result
    version = result["candidate"]["version"]
    if result["verdict"] == "waiting":
        assert version in [row["version"] for row in command("candidates", PLANT)["candidates"]]
        approved = command("approve", PLANT, version, "--by", "shift engineer", "--note", "compared trajectories")
        assert (approved["exit"], approved["champion"]) == (0, version)
        assert command("history", PLANT)["champions"][-1]["approved_by"] == "shift engineer"
    else:
        refused = command("approve", PLANT, version)
        assert refused["exit"] == 1
        assert "no approval can skip a gate" in refused["error"]
    assert command("reject", PLANT, "99")["exit"] == 2


@pytest.mark.slow
def test_kill_9_between_checkpoints_changes_nothing(
    command: Neorl,
    first: dict[str, Any],
    inputs: Callable[..., tuple[Path, Path]],
    services: Services,
    tmp_path: Path,
) -> None:
    from tasks.ingest import ingest
    from tasks.training.train import train

    config, log = inputs(seed=2)
    words = [sys.executable, "-m", "flows", "retrain", str(config), "--data", str(log)]
    environment = {**os.environ, "NEORL_HOME": str(services.home.root)}
    checkpoints = services.home.folder("checkpoints", PLANT)
    known = set(checkpoints.iterdir())
    process = subprocess.Popen(words, cwd=PROJECT, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
    # Wait for an event, not a time: the first checkpoint of the new run.
    while process.poll() is None:
        fresh = [folder for folder in checkpoints.iterdir() if folder not in known]
        if fresh and any(child.name.isdigit() for child in (fresh[0] / "steps").glob("*")):
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    finished = command("retrain", str(config), "--data", str(log))
    assert finished["exit"] == 0, finished
    assert re.search(r"train: resumes at [1-3]00 of 400 updates", finished["stderr"]), finished["stderr"]
    assert {"ingest", "validate"} <= set(finished["reused"])
    # The same run undisturbed in another home.
    calm, run = Home(tmp_path / "calm"), load_run(config)
    undisturbed = train(calm, run, ingest(calm, run, [log]))
    assert undisturbed.digest == finished["population"]
    assert audit(services.home).passed


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_a_second_run_of_a_plant_is_refused(
    command: Neorl, inputs: Callable[..., tuple[Path, Path]], services: Services
) -> None:
    from flows.services.locks import plant_lock

    config, log = inputs()
    with plant_lock(services.home, PLANT, run="test"):
        refused = command("retrain", str(config), "--data", str(log))
    assert refused["exit"] == 1
    assert refused["error"].startswith(f"{PLANT} is locked by ")


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_concurrent_retrainings_leave_one_champion(
    inputs: Callable[..., tuple[Path, Path]], services: Services
) -> None:
    from tasks.lifecycle.aliases import stale_pages, wanted_aliases
    from tasks.registry.registry import Registry

    config, log = inputs(seed=30)
    words = [sys.executable, "-m", "flows", "retrain", str(config), "--data", str(log), "--json"]
    environment = {**os.environ, "NEORL_HOME": str(services.home.root)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(words, cwd=PROJECT, env=environment, **pipes) for _ in range(2)]
    told = [json.loads(process.communicate()[0].splitlines()[-1]) for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes, told
    assert all(not code or "is locked by" in said["error"] for code, said in zip(codes, told, strict=True))
    entries, registry = Ledger.open(services.home, write=False).entries(), Registry(services.mlflow.url)
    assert {check.name: check.passed for check in audit(services.home).checks}["champions"]
    assert registry.aliases(PLANT) == wanted_aliases(entries, PLANT)
    assert stale_pages(entries, PLANT, registry.pages(PLANT)) == {}


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_prefect_deployment_run_runs_on_the_worker(
    deployed: Services, inputs: Callable[..., tuple[Path, Path]]
) -> None:
    from flows.services.servers import environment

    config, log = inputs()
    variables = {**os.environ, **environment(deployed)}
    words = [sys.executable, "-m", "prefect", "deployment", "run", "retrain/chemical-reactor", "--watch"]
    words += ["--param", f"config={json.dumps(str(config))}", "--param", f"data={json.dumps([str(log)])}"]
    done = subprocess.run(words, cwd=PROJECT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Completed" in done.stdout
