"""What MLflow serves, held against the ledger before any of it is executed; MLflow's own database, without a server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from configs.errors import Refused
from configs.home import Home
from tasks.evidence.audit.audit import audit
from tasks.evidence.bundle_signature import KEY, SIGNATURE, fault_of, public_pem, signed
from tasks.evidence.decisions.approvals import VerdictBody
from tasks.evidence.decisions.champions import PromotionBody, promote
from tasks.evidence.decisions.verdicts import approve
from tasks.evidence.ledger.keys import open_key
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import make_folder, write_atomic
from tasks.lifecycle.policy import sign
from tasks.models.bundles.bundle import answers, load_bundle
from tasks.references import Dataset
from tasks.registry.registry import Registry
from tasks.registry.serving import check_aliases, check_given_out, listed_model, load_model, named_record
from tasks.registry.upload import Submission
from tests.evidence import DATASET, POLICY, candidate_record, certify, open_ledger, propose, put
from tests.sample_record import PLANT, write_bundle

NAME = PLANT.spec.name

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ledger, Registry, Path]]:
    """A champion in the ledger and in MLflow, and the folder in which MLflow keeps its model."""
    root = tmp_path_factory.mktemp("serving")
    with pytest.MonkeyPatch.context() as patch:
        # Where a database without a server puts what is uploaded.
        patch.chdir(root)
        ledger, registry = open_ledger(Home(root / "home")), Registry(f"sqlite:///{root / 'mlflow.db'}")
        digest = write_bundle(root / "bundle")
        data = Dataset(digest=DATASET, plant=NAME, store=root, manifest=root, shards=(), rows=1, episodes=1)
        submission = Submission(
            plant=NAME,
            run_key="run",
            name="candidate",
            digest=digest,
            bundle=root / "bundle",
            dataset=data,
            describe=lambda _: "text",
            signature=root / "signature",
        )
        key = open_key(root / "key.pem")
        write_atomic(make_folder(root / "signature") / SIGNATURE, signed(key, root / "bundle").encode())
        write_atomic(root / "signature" / KEY, public_pem(key))
        version = registry.register(submission)
        sign(ledger, POLICY, "a reviewer", "first")
        certify(ledger, digest)
        listed = listed_model(ledger.home, registry, NAME, version.version)
        record = candidate_record(ledger, digest, served=listed, version=version.version)
        candidate = ledger.append("candidate", record, plant=NAME).digest
        said = VerdictBody(composite=digest, by="a reviewer", candidate=candidate, version=version.version)
        approval = approve(ledger, NAME, said)
        body = PromotionBody(
            composite=digest, approval=approval.digest, replaces=None, candidate=candidate, version=version.version
        )
        promote(ledger, NAME, body)
        registry.reconcile(NAME, version.version)
        (file,) = root.rglob(f"*{version.model_id}*/**/MLmodel")
        yield ledger, registry, file.parent


def test_everything_that_is_served_is_named(served: tuple[Ledger, Registry, Path]) -> None:
    ledger, _, folder = served
    (candidate,) = ledger.entries("candidate")
    named = {file["path"] for file in candidate.body["served"]["contents"]}
    assert named == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"MLmodel", "policy_model.py", "code/neorl_core/types.py", "artifacts/bundle/composite.npz"} <= named
    assert fault_of(folder / "artifacts" / "bundle", folder / "openssf") is None


def test_the_champion_answers_as_its_bundle_does(served: tuple[Ledger, Registry, Path]) -> None:
    ledger, registry, folder = served
    model = load_model(ledger.home, registry, NAME)
    row = np.asarray([[0.877, 324.5, 300.0, 0.877]], np.float32)
    table = pd.DataFrame(row.astype(float), columns=list(PLANT.spec.observation.names))
    applied = np.asarray(PLANT.applied(row[0]))[None]
    expected = answers(PLANT, load_bundle(folder / "artifacts" / "bundle")[1], row, applied)
    np.testing.assert_allclose(model.predict(table).to_numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("file", ["policy_model.py", "MLmodel", "code/neorl_core/types.py", "code/pandas.py"])
def test_code_that_the_ledger_does_not_name_is_not_executed(
    served: tuple[Ledger, Registry, Path], tmp_path: Path, file: str
) -> None:
    """The attack: one request puts another file in the model's place, and whoever loads the model runs it."""
    ledger, registry, folder = served
    place, ran = folder / file, tmp_path / "ran"
    before = place.read_bytes() if place.exists() else None
    place.write_text(f"open({str(ran)!r}, 'w').write('owned')\n" + (before or b"").decode())
    try:
        with pytest.raises(Refused, match=f"differs from the ledger, got {file}: (expected SHA-256|a file that no)"):
            load_model(ledger.home, registry, NAME)
        # Nor is it listed for the ledger as if it were ours.
        if file == "policy_model.py":
            with pytest.raises(Refused, match=r"policy_model.py of version 1 .* differs from the uploaded file"):
                listed_model(ledger.home, registry, NAME, "1")
        (found,) = check_given_out(registry, ledger.entries())
        assert file in found.detail
    finally:
        if before is None:
            place.unlink()
        else:
            place.write_bytes(before)
    assert not ran.exists()
    assert check_given_out(registry, ledger.entries()) == []


def test_files_in_the_home_stand_for_none_that_are_given_out(served: tuple[Ledger, Registry, Path]) -> None:
    """The attack: MLflow's database leads elsewhere, and what the home keeps is as the ledger names it."""
    ledger, registry, folder = served
    (candidate,) = ledger.entries("candidate")
    kept = ledger.home.root / "mlflow" / "artifacts" / "1" / "models" / candidate.body["served"]["model"] / "artifacts"
    shutil.copytree(folder, kept)
    code = folder / "policy_model.py"
    before = code.read_bytes()
    try:
        for change, told in ((b"import os\n", "policy_model.py: expected SHA-256"), (None, "policy_model.py: missing")):
            code.write_bytes(change) if change else code.unlink()
            assert "served" not in {check.name for check in audit(ledger.home).failures}
            (found,) = check_given_out(registry, ledger.entries())
            assert told in found.detail
        folder.rename(folder.with_name("elsewhere"))
        (found,) = check_given_out(registry, ledger.entries())
        assert "it cannot be downloaded, got" in found.detail
        folder.with_name("elsewhere").rename(folder)
    finally:
        code.write_bytes(before)
        shutil.rmtree(ledger.home.root / "mlflow")


def test_a_version_that_the_ledger_does_not_name_is_not_loaded(served: tuple[Ledger, Registry, Path]) -> None:
    ledger, registry, _ = served
    with pytest.raises(Refused, match="the ledger has no version '7' of chemical_reactor"):
        load_model(ledger.home, registry, NAME, "7")
    with pytest.raises(Refused, match="double_mass has no champion"):
        load_model(ledger.home, registry, "double_mass")


def test_the_champion_is_served_by_the_record_that_was_promoted(home: Path) -> None:
    """The attack: other files are logged under the number that the next version will have."""
    ledger = open_ledger(Home(home))
    other, true = "a" * 64, "b" * 64
    propose(ledger, other, version="7")
    said = VerdictBody(composite=true, by="a reviewer", candidate=propose(ledger, true, version="7"))
    approval = approve(ledger, NAME, said)
    put(ledger, approval, None)
    propose(ledger, other, version="7", run_key="again")
    assert named_record(ledger.entries(), NAME, None).composite == true


def test_an_alias_that_points_elsewhere_is_told_in_words() -> None:
    wanted = {"champion": "3", "challenger": "4"}
    assert check_aliases(NAME, wanted, wanted) == []
    moved, gone = check_aliases(NAME, {"champion": "1"}, wanted)
    assert gone.detail.startswith("MLflow's chemical_reactor@champion is version 1, by the ledger version 3")
    assert moved.detail.startswith("MLflow's chemical_reactor@challenger is none, by the ledger version 4")
