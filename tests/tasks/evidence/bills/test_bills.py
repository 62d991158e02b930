"""Bills of materials: valid against the CycloneDX schema, and consistent with ledger, files and lock."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from configs.errors import BadInput, Refused
from configs.home import Home
from flows.cli.main import run
from tasks.evidence.bills.cyclonedx import lock_bill, read_lock
from tasks.evidence.bills.model_bill import model_bill
from tasks.evidence.certificate import verify_certificate
from tasks.evidence.ledger.ledger import Ledger, artefact, folder_artefacts
from tasks.files.canonical import write_atomic, write_json
from tasks.references import Source
from tests.evidence import PLANT, POLICY, candidate_record, certificate_of, certify, judged_record, open_ledger
from tests.judged import process_evidence
from tests.sample_record import write_bundle

LOCK = Path(__file__).parents[4] / "requirements.lock"


def held(text: str) -> dict[str, Any]:
    """Return the bill after validation against the official schema."""
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found: dict[str, Any] = json.loads(text)
    refs = re.findall(r'"bom-ref": "(.*?)"', text)
    assert len(refs) == len(set(refs)), "a reference names one thing"
    return found


@pytest.fixture
def ledger(home: Path) -> Ledger:
    """Log a candidate with a real bundle, dataset files and a certificate."""
    from tasks.lifecycle.policy import sign

    ledger = open_ledger(Home(home))
    bundle = home / "bundles" / PLANT / "one"
    composite = write_bundle(bundle)
    certify(ledger, composite)
    sign(ledger, POLICY, "a reviewer", "first")
    manifest = write_json(home / "datasets" / PLANT / "manifests" / "m.json", {"shards": ["s.h5"]})
    shard = write_atomic(home / "datasets" / PLANT / "shards" / "s.h5", b"rows")
    record = candidate_record(ledger, composite, version="7", author="ada")
    dataset = record.dataset.model_copy(update={"sources": (Source(path="/mnt/log.parquet", sha256="5" * 64),)})
    certificate = certificate_of(ledger, composite)
    assert certificate is not None
    files = folder_artefacts(ledger.home, bundle, "bundle")
    files += [artefact(ledger.home, manifest, "dataset manifest"), artefact(ledger.home, shard, "dataset shard")]
    files += [artefact(ledger.home, certificate.path, "certificate")]
    ledger.append("candidate", record.model_copy(update={"dataset": dataset}), plant=PLANT, artefacts=files)
    return ledger


def test_a_versions_bill_names_all_that_it_rests_on(ledger: Ledger) -> None:
    bill = held(model_bill(ledger.home, ledger, PLANT, "7", "1.2").text())
    entry = ledger.entries("candidate")[-1]
    model = bill["metadata"]["component"]
    assert (model["type"], model["name"], model["version"]) == ("machine-learning-model", PLANT, "7")
    assert model["authors"] == [{"name": "ada"}]
    files = {f["name"]: f["hashes"][0]["content"] for f in model["components"]}
    folder = ledger.home.root / "bundles" / PLANT / "one"
    assert files == {f"bundle/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    (data,) = [part for part in bill["components"] if part["type"] == "data"]
    assert data["version"] == entry.body["dataset"]["digest"]
    # A path would be one of the machine that read it.
    assert data["pedigree"]["ancestors"][0]["name"] == "log.parquet"
    assert {part["description"] for part in data["components"]} == {"dataset manifest", "dataset shard"}
    card = model["modelCard"]
    assert card["modelParameters"]["datasets"] == [{"ref": data["bom-ref"]}]
    assert [put["format"] for put in card["modelParameters"]["outputs"]] == ["coolant_temperature [K], float32"]
    assert {p["name"] for p in card["properties"]} == {f"neorl:gate:{gate['name']}" for gate in entry.body["gates"]}
    assert "-" not in {m["value"] for m in card["quantitativeAnalysis"]["performanceMetrics"]}


def test_a_bill_contains_the_signed_certificate(ledger: Ledger, tmp_path: Path) -> None:
    bill = held(model_bill(ledger.home, ledger, PLANT, "7", "1.2").text())
    (claim,), (evidence,) = bill["declarations"]["claims"], bill["declarations"]["evidence"]
    assert (claim["target"], claim["evidence"]) == (bill["metadata"]["component"]["bom-ref"], [evidence["bom-ref"]])
    attached = evidence["data"][0]["contents"]["attachment"]["content"]
    file = write_atomic(tmp_path / "certificate.json", base64.b64decode(attached))
    assert all(check.passed is not False for check in verify_certificate(file, ledger.trust, ledger=ledger))
    (reference,) = bill["metadata"]["component"]["externalReferences"]
    assert reference["hashes"][0]["content"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_log_only_plant_claims_nothing(ledger: Ledger) -> None:
    home = ledger.home
    bundle = home.root / "bundles" / "mill"
    record = judged_record("mill", write_bundle(bundle), process_evidence(), shadow_days=30)
    manifest = write_json(home.root / "datasets" / "mill" / "m.json", {"shards": []})
    files = [*folder_artefacts(home, bundle, "bundle"), artefact(home, manifest, "dataset manifest")]
    ledger.append("candidate", record, plant="mill", artefacts=files)
    bill = held(model_bill(home, ledger, "mill", "1", "1.2").text())
    model = bill["metadata"]["component"]
    assert "declarations" not in bill
    assert "externalReferences" not in model
    assert model["modelCard"]["considerations"]["technicalLimitations"] == [
        "No statistical safety claim: there is no certificate of it."
    ]
    (gain,) = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert (gain["value"], gain["confidenceInterval"]) == ("0.15", {"lowerBound": "0.1", "upperBound": "0.2"})


def test_a_file_that_differs_from_the_ledger_has_no_bill(ledger: Ledger) -> None:
    shard = ledger.home.root / "datasets" / PLANT / "shards" / "s.h5"
    shard.write_bytes(b"Rows")
    with pytest.raises(Refused, match=r"datasets/chemical_reactor/shards/s\.h5 must have SHA-256"):
        model_bill(ledger.home, ledger, PLANT, "7", "1.2")
    shard.unlink()
    with pytest.raises(Refused, match="\\(ledger\\), got no file: restore"):
        model_bill(ledger.home, ledger, PLANT, "7", "1.2")
    with pytest.raises(BadInput, match=r"has no version '8' in the ledger \(versions: 7\)"):
        model_bill(ledger.home, ledger, PLANT, "8", "1.2")


def test_the_lock_bill_has_every_package_with_hashes() -> None:
    bill = held(lock_bill(LOCK, "1.2").text())
    lines = LOCK.read_text().splitlines()
    pins = [line.split(" ;")[0].rstrip(" \\") for line in lines if "==" in line and not line.startswith(" ")]
    assert [f"{part['name']}=={part['version']}" for part in bill["components"]] == pins
    hashes = [h["content"] for part in bill["components"] for h in part["externalReferences"][0]["hashes"]]
    assert hashes == re.findall(r"--hash=sha256:([0-9a-f]{64})", LOCK.read_text())
    assert lock_bill(LOCK, "1.2") == lock_bill(LOCK, "1.2")
    assert lock_bill(LOCK, "1.3").serialNumber != bill["serialNumber"]


def test_package_urls_follow_the_rules_for_pypi(tmp_path: Path) -> None:
    # From the purl specification: lower case, hyphens for underscores, and a plus sign is escaped.
    pin = b"Jaraco_Text==3.1+local ; os_name == 'nt' \\\n    --hash=sha256:" + b"0" * 64
    lock = write_atomic(tmp_path / "lock", pin)
    (package,) = read_lock(lock)
    assert (package.purl, package.marker) == ("pkg:pypi/jaraco-text@3.1%2Blocal", "os_name == 'nt'")


@pytest.mark.parametrize("text", [b"", b"numpy>=2\n", b"    --hash=sha256:00\n", b"\xff", b"-r other.txt\n"])
def test_an_invalid_lock_file_is_one_sentence(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(BadInput, match=r"'make lock' writes|with --lock"):
        read_lock(write_atomic(tmp_path / "lock", text))


def test_the_command_writes_a_bill_and_names_its_file(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["bom", PLANT, "--version", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bom"] == f"bom-{PLANT}-7.cdx.json"
    held((tmp_path / f"bom-{PLANT}-7.cdx.json").read_text())
    assert run(["bom", "--lock", str(LOCK), "--out", "lock.json"]) == 0
    assert run(["bom", PLANT]) == 2
    assert f"{PLANT} has no champion" in capsys.readouterr().err
    for wrong in ([], [PLANT, "--lock", str(LOCK)], ["--lock", str(LOCK), "--version", "1"], ["--lock", "none"]):
        assert run(["bom", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
