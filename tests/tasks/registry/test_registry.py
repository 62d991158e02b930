"""MLflow as a projection: registered once by content, verified on load, mended after a kill. Against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from configs.errors import Refused, ServiceMissing
from configs.home import Home
from tasks.files.canonical import sha256_hex
from tasks.models.bundles.bundle import answers, load_bundle
from tasks.record import VERDICTS, Record
from tasks.references import Bundle, Version
from tasks.register import conclude, register
from tasks.registry import reading
from tasks.registry.registry import Registry
from tasks.registry.upload import CURVE_POINTS, Artifact, Submission
from tasks.report import draw_plots, report
from tests.sample_record import PLANT, sample_record
from tests.servers import free_port

if TYPE_CHECKING:
    from flows.services.servers import Services

NAME = "chemical_reactor"


@pytest.fixture(scope="module")
def registry(services: Services) -> Registry:
    """The session's MLflow server."""
    return Registry(services.mlflow.url)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Bundle]:
    """A record and its bundle."""
    return sample_record(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def plots(sample: tuple[Record, Bundle], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sample's pictures."""
    return draw_plots(tmp_path_factory.mktemp("plots"), sample[0])


@pytest.fixture(scope="module")
def registered(registry: Registry, sample: tuple[Record, Bundle], plots: dict[str, Path]) -> tuple[Record, Version]:
    """The sample, registered through the task."""
    record, bundle = sample
    return record, register(record, registry, bundle, plots)


@pytest.fixture
def submission(sample: tuple[Record, Bundle], request: pytest.FixtureRequest) -> Submission:
    """A small candidate with a run key of the test's own."""
    record, bundle = sample
    return Submission(
        plant=NAME,
        run_key=request.node.name,
        name="candidate",
        digest=bundle.digest,
        bundle=bundle.folder,
        dataset=record.dataset.model_copy(update={"card": None, "rows": 46_512, "episodes": 775, "quarantined": 0}),
        describe=lambda run_id: f"made by {run_id}",
    )


def _runs(registry: Registry, key: str) -> list[str]:
    found = registry.client.search_runs([registry.experiment(NAME)], filter_string=f"tags.`neorl.run_key` = '{key}'")
    return sorted(run.info.status for run in found)


def test_a_version_holds_what_a_reviewer_needs(
    registry: Registry, registered: tuple[Record, Version], tmp_path: Path
) -> None:
    record, reference = registered
    found = registry.version(NAME, reference.version)
    assert found.digest == reference.digest == record.digests.composite
    assert record.ledger is not None
    # The table of versions is read by people: their status first, and the digests with the run.
    assert list(found.tags) == [
        "neorl.status",
        "neorl.composite",
        "neorl.run_key",
        "neorl.model_id",
        "neorl.ledger_head",
    ]
    assert found.tags["neorl.ledger_head"] == record.ledger.signed
    # What is decided stands above it, from the ledger, and changes: this stays so.
    assert found.description.startswith(f"### {VERDICTS['passed']}")
    assert f"run_uuid={reference.run_id}" in found.description
    run = registry.client.get_run(reference.run_id)
    assert run.info.status == "FINISHED"
    assert {f"neorl.{name}": value for name, value in record.digests}.items() <= run.data.tags.items()
    # MLflow shows an experiment of trained models as that only where it says so.
    kind = registry.client.get_experiment(run.info.experiment_id).tags["mlflow.experimentKind"]
    assert kind == "custom_model_development"
    assert run.data.params["train.algorithm"] == record.run.train.algorithm
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.digest == record.dataset.digest[:36]
    assert {tag.key: tag.value for tag in dataset.tags}["neorl.dataset"] == record.dataset.digest
    history = registry.client.get_metric_history(reference.run_id, "critic_loss")
    with np.load(record.population.learners[0].curves) as curves:
        assert len(history) == CURVE_POINTS < len(curves["step"])
        assert {m.step for m in history} <= set(curves["step"].tolist())
        assert max(m.step for m in history) == curves["step"][-1]
        last = next(m for m in history if m.step == curves["step"][-1])
        assert last.value == pytest.approx(curves["critic_loss"][record.evaluation.selected, -1])
    model = registry.client.get_logged_model(found.model_id)
    assert {m.key: m.value for m in model.metrics}["score"] == 87.5
    places = {file.path for file in registry.client.list_artifacts(reference.run_id)}
    assert places == {"plots", "certificates", "data_docs"}
    pictures = {Path(f.path).name for f in registry.client.list_artifacts(reference.run_id, "plots")}
    assert pictures == {"trajectories.png", "departure.png", "intervals.png", "ope.png", "curves.png"}


def test_registering_again_finds_the_same_version(
    registry: Registry, registered: tuple[Record, Version], sample: tuple[Record, Bundle]
) -> None:
    record, reference = registered
    assert register(record, registry, sample[1], {}) == reference
    assert _runs(registry, record.run_key) == ["FINISHED"]


@pytest.mark.slow
def test_the_model_answers_as_the_bundle_does_in_a_process_without_this_project(
    registry: Registry, registered: tuple[Record, Version], sample: tuple[Record, Bundle], tmp_path: Path
) -> None:
    registry.reconcile(NAME, registered[1].version)
    # -I: neither the working directory nor PYTHONPATH; the editable install is hidden too, so that only the code
    # that was logged with the model can be imported.
    code = (
        "import sys, json\n"
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        f"sys.path = [p for p in sys.path if p != {str(Path(__file__).parents[3])!r}]\n"
        "import mlflow\n"
        "mlflow.set_tracking_uri(sys.argv[1])\n"
        f"model = mlflow.pyfunc.load_model('models:/{NAME}@champion')\n"
        "rows = model.input_example\n"
        "import neorl_core\n"
        "names = [column.name for column in model.metadata.signature.inputs.inputs]\n"
        "print(json.dumps([names, rows.values.tolist(), model.predict(rows).values.tolist(), neorl_core.__file__]))\n"
    )
    environment = {**os.environ, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    command = [sys.executable, "-I", "-c", code, registry.uri]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    names, rows, actions, source = json.loads(done.stdout.splitlines()[-1])
    assert names == list(PLANT.spec.observation.names)
    assert Path(source).parents[1] != Path(__file__).parents[3]
    row = np.asarray(rows, np.float32)
    applied = np.asarray(PLANT.applied(row[0]))[None]
    expected = answers(PLANT, load_bundle(sample[1].folder)[1], row, applied)
    np.testing.assert_allclose(actions, expected, rtol=1e-5)


def test_nothing_is_pickled(registry: Registry, registered: tuple[Record, Version], tmp_path: Path) -> None:
    import mlflow

    model = registry.client.get_logged_model(registry.version(NAME, registered[1].version).model_id)
    folder = mlflow.artifacts.download_artifacts(
        artifact_uri=model.artifact_location, dst_path=str(tmp_path), tracking_uri=registry.uri
    )
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".py", ".npz", ".json", ".yaml", ".txt", ".typed", ""}
    assert not [path for path in files if path.read_bytes()[:1] == b"\x80"]  # how every pickle of protocol 2+ begins


def test_aliases_follow_the_ledger(registry: Registry, registered: tuple[Record, Version]) -> None:
    version = registered[1].version
    registry.reconcile(NAME, None, None)
    assert registry.reconcile(NAME, version, version) == [
        f"@champion: none -> {version}",
        f"@challenger: none -> {version}",
    ]
    assert registry.reconcile(NAME, version, version) == []
    assert registry.reconcile(NAME, version, None) == [f"@challenger: {version} -> none"]
    assert registry.aliases(NAME) == {"champion": version}
    assert registry.aliases("no_such_plant") == {}


def test_what_mlflow_has_lost_is_one_sentence(registry: Registry, registered: tuple[Record, Version]) -> None:
    assert registry.reconcile("no_such_plant", None, None) == []
    for call in (
        lambda: registry.version(NAME, "9999"),
        lambda: registry.annotate(NAME, "9999", {"a": "b"}),
        lambda: registry.reconcile(NAME, "9999"),
        lambda: registry.reconcile("no_such_plant", "9999"),
    ):
        with pytest.raises(Refused, match=r"^MLflow at .* does not have version 9999 of \w+: .*backup"):
            call()


@pytest.mark.slow
def test_a_server_that_fails_is_a_missing_service() -> None:
    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"error_code": "INTERNAL_ERROR", "message": "database is locked"}'
            self.send_response(500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Nothing on the screen."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ServiceMissing, match=r"the MLflow server at .* failed|neorl up"):
            Registry(f"http://127.0.0.1:{server.server_port}").version(NAME, "1")
        server.shutdown()


@pytest.mark.slow
def test_the_plant_s_own_controller_carries_no_policy_s_numbers(
    registry: Registry, sample: tuple[Record, Bundle]
) -> None:
    record, bundle = sample
    policy = bundle.model_copy(update={"digest": sha256_hex(b"policy")})
    members = tuple(member.model_copy(update={"bundle": policy}) for member in record.population.members)
    population = record.population.model_copy(update={"members": members})
    changes = {"verdict": "fallback_waiting", "run_key": "own", "population": population}
    record = record.model_copy(update=changes)
    reference = register(record, registry, bundle, {})
    run = registry.client.get_run(reference.run_id)
    assert not [name for name in run.data.params if name.startswith("selected.")]
    kept = {name for name in run.data.metrics if not name.startswith("certificate/")}
    assert kept == {"score", "plant_controller/return", "plant_controller/violated_episodes"}
    assert record.rollouts is not None
    assert run.data.metrics["score"] == pytest.approx(record.rollouts.controllers["plant controller"].score)
    text = registry.version(NAME, reference.version).description
    assert "plant's own controller" in text
    assert "no part of it was trained" in text


def test_the_bundle_in_mlflow_is_the_one_that_was_registered(
    registry: Registry, registered: tuple[Record, Version], tmp_path: Path
) -> None:
    record, reference = registered
    model = registry.fetch_model(NAME, reference.version, tmp_path)
    plant, composite = load_bundle(model / "artifacts" / "bundle", record.digests.composite)
    assert plant is PLANT
    assert composite.policy is None


def test_a_model_file_altered_on_the_server_is_refused(
    registry: Registry, submission: Submission, services: Services, tmp_path: Path
) -> None:
    reference = registry.register(submission)
    model = registry.version(NAME, reference.version).model_id
    (stored,) = (path for path in services.home.root.rglob("composite.npz") if model in str(path))
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 1
    stored.write_bytes(bytes(data))
    model = registry.fetch_model(NAME, reference.version, tmp_path)
    with pytest.raises(Refused, match=r"composite\.npz"):
        load_bundle(model / "artifacts" / "bundle", submission.digest)


def test_a_version_says_what_was_decided_with_the_report_and_its_picture(
    registry: Registry, sample: tuple[Record, Bundle], plots: dict[str, Path], tmp_path: Path
) -> None:
    record = sample[0].model_copy(update={"verdict": "passed", "run_key": "concluded"})
    reference = register(record, registry, sample[1], plots)
    assert registry.version(NAME, reference.version).description.startswith(f"### {VERDICTS['passed']}")
    head = sample[0].ledger.model_copy(update={"signed": "a later head"}) if sample[0].ledger else None
    decided = record.model_copy(update={"verdict": "promoted", "candidate": reference, "ledger": head})
    conclude(decided, registry, reference, report(Home(tmp_path), decided, plots))
    found = registry.version(NAME, reference.version)
    assert found.description.startswith(f"### {VERDICTS['passed']}")
    assert found.tags["neorl.ledger_head"] == "a later head"
    # The part from the ledger stays where it is, whichever part is written.
    for told in ("### Status: champion\n\n---\n\n", "### Status: was champion\n\n---\n\n"):
        registry.annotate(NAME, reference.version, {"neorl.status": "x"}, status=told)
        conclude(decided, registry, reference, report(Home(tmp_path), decided, plots))
        page = registry.pages(NAME)[reference.version]
        assert page.description == told + found.description
        assert page.tags["neorl.status"] == "x"
    files = {
        file.path for place in ("plots", "report") for file in registry.client.list_artifacts(reference.run_id, place)
    }
    assert {"plots/glance.png", "report/concluded.html"} < files


class _Killed(Exception):
    """Stands for SIGKILL: nothing of ours catches it."""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["log_inputs", "log_artifacts", "finalize_logged_model", "create_model_version"])
def test_a_kill_at_any_request_leaves_one_version(
    registry: Registry, submission: Submission, step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "note.txt").write_text("note")
    submission = replace(submission, artifacts=[Artifact("notes", tmp_path)])

    def die(*_: Any, **__: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(registry.client, step, die)
        with pytest.raises(_Killed):
            registry.register(submission)
    assert registry.find(NAME, submission.run_key, submission.digest) is None
    reference = registry.register(submission)
    assert registry.register(submission) == reference
    versions = registry.client.search_model_versions(f"tags.`neorl.run_key` = '{submission.run_key}'")
    assert len(versions) == 1
    finished_before = step == "create_model_version"
    assert _runs(registry, submission.run_key) == (["FINISHED"] if finished_before else ["FAILED", "FINISHED"])


def test_a_bundle_that_is_not_what_it_is_said_to_be_is_not_registered(
    registry: Registry, submission: Submission
) -> None:
    with pytest.raises(Refused, match="but ff"):
        registry.register(replace(submission, digest="ff" * 32))
    assert _runs(registry, submission.run_key) == []


def test_descriptions_and_tags_can_be_completed_later(
    registry: Registry, submission: Submission, tmp_path: Path
) -> None:
    reference = registry.register(submission)
    # Who decided stands in the description alone: a tag that says it, too, is held to nothing.
    registry.client.set_model_version_tag(NAME, reference.version, "neorl.note", "by nobody")
    before = registry.version(NAME, reference.version).tags
    registry.annotate(NAME, reference.version, {"neorl.ledger_head": "abc"}, "x" * 6000)
    found = registry.version(NAME, reference.version)
    assert found.tags == {name: said for name, said in before.items() if name != "neorl.note"} | {
        "neorl.ledger_head": "abc"
    }
    assert len(found.description) == 5000
    (tmp_path / "report.html").write_text("<p>report</p>")
    registry.attach(reference.run_id, [Artifact("", tmp_path / "report.html")])
    assert [f.path for f in registry.client.list_artifacts(reference.run_id)] == ["report.html"]
    assert reference.url == f"{registry.uri}/#/models/{NAME}/versions/{reference.version}?workflowType=machine_learning"


def test_a_server_that_is_gone_is_one_sentence(submission: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    missing = Registry(f"http://127.0.0.1:{free_port()}")
    for call in (
        lambda: missing.version(NAME, "1"),
        lambda: missing.register(submission),
        lambda: missing.reconcile(NAME, "1"),
    ):
        with pytest.raises(ServiceMissing, match="neorl up") as error:
            call()
        assert str(error.value).count(". ") == 0


@pytest.mark.slow
def test_what_is_right_already_is_seen_without_importing_mlflow(
    registry: Registry, registered: tuple[Record, Version]
) -> None:
    """As on most runs: the aliases and a status tag are those that the ledger wants."""
    version = registered[1].version
    registry.annotate(NAME, version, {"neorl.status": "champion"})
    registry.reconcile(NAME, version)
    code = (
        "import sys\n"
        "from tasks.registry.registry import Registry\n"
        f"registry = Registry({registry.uri!r})\n"
        f"assert registry.reconcile({NAME!r}, {version!r}) == []\n"
        f"registry.annotate({NAME!r}, {version!r}, {{'neorl.status': 'champion'}})\n"
        "assert 'mlflow' not in sys.modules\n"
        # Anything else is the client's: another alias, another tag.
        f"registry.annotate({NAME!r}, {version!r}, {{'neorl.status': 'was champion'}})\n"
        f"print(registry.reconcile({NAME!r}, None))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"['@champion: {version} -> none']\n", done.stderr
    assert registry.version(NAME, version).tags["neorl.status"] == "was champion"
    assert registry.aliases(NAME) == {}


def test_without_an_answer_the_client_is_asked(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    url = services.mlflow.url
    assert reading.aliases(url, "nothing_registered") is None
    assert Registry(url).aliases("nothing_registered") == {}
    assert reading.tags("sqlite:///mlflow.db", NAME, "1") is None
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "another")
    assert reading.aliases(url, NAME) is None
