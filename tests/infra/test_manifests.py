"""Manifests match the published schemas, refer to existing objects, and request minimal rights."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import ValidationError

from infra import make_secrets
from tests.infra.manifests import (
    INFRA,
    OURS,
    ROOT,
    Yaml,
    compose,
    containers,
    installs,
    kubernetes,
    pods,
    yaml_documents,
)

VERSION = "1.33.0"
KUSTOMIZATIONS = sorted((INFRA / "kubernetes").rglob("kustomization.yaml"))
TAG = re.compile(r"[\w./-]+:v?\d[\w.-]*(@sha256:[0-9a-f]{64})?")


def compose_errors(path: Path) -> str:
    """Return the errors of a file by the Compose specification's schema."""
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode else ""


def test_compose_file_matches_its_schema(tmp_path: Path) -> None:
    assert compose_errors(INFRA / "compose.yaml") == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((INFRA / "compose.yaml").read_text().replace("read_only:", "readonly:"))
    assert "readonly" in compose_errors(wrong)


def test_kubernetes_objects_match_their_schemas() -> None:
    objects = kubernetes()
    assert {"Namespace", "Service", "StatefulSet", "Deployment", "Job", "NetworkPolicy", "PersistentVolumeClaim"} == {
        each["kind"] for each in objects
    }
    for each in objects:
        kubernetes_validate.validate(each, VERSION, strict=True)
    wrong = copy.deepcopy(next(each for each in objects if each["kind"] == "Deployment"))
    wrong["spec"]["replica"] = wrong["spec"].pop("replicas")
    with pytest.raises(ValidationError, match="replica"):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: path.parent.name)
def test_kustomize_output_matches_the_schemas(path: Path, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    shutil.copytree(INFRA / "kubernetes", tmp_path / "kubernetes")
    make_secrets.main(tmp_path / "secrets")
    folder = tmp_path / path.parent.relative_to(INFRA)
    words = ["kubectl", "kustomize", "--load-restrictor", "LoadRestrictionsNone", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "made.yaml").write_text(done.stdout)
    made = yaml_documents(tmp_path / "made.yaml")
    for each in made:
        kubernetes_validate.validate(each, VERSION, strict=True)
        assert each["metadata"].get("namespace", "neorl") == "neorl"
    if "overlays" in path.parts:
        known = {(each["kind"], each["metadata"]["name"]) for each in made}
        assert not {named for each in made for named in references(each)} - known


def references(value: Any) -> set[tuple[str, str]]:
    """Return kind and name of the objects that an object refers to."""
    kinds = {"secretRef": "Secret", "secret": "Secret", "configMapRef": "ConfigMap"}
    found: set[tuple[str, str]] = set()
    for name, part in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        if name in kinds and isinstance(part, dict):
            found.add((kinds[name], part.get("name") or part["secretName"]))
        elif name == "persistentVolumeClaim":
            found.add(("PersistentVolumeClaim", part["claimName"]))
        found |= references(part)
    return found


def test_base_and_overlay_define_everything_that_pods_need() -> None:
    base, overlay = (
        yaml_documents(INFRA / "kubernetes" / folder / "kustomization.yaml")[0]
        for folder in ("base", "overlays/example")
    )
    known = {("Secret", each["name"]) for each in overlay["secretGenerator"]}
    known |= {("ConfigMap", each["name"]) for each in base["configMapGenerator"]}
    known |= {(each["kind"], each["metadata"]["name"]) for each in kubernetes()}
    assert {needed for each in kubernetes() for needed in references(each)} - known == set()
    secrets = {**make_secrets.passwords(), **make_secrets.certificates()}
    files = [file for each in overlay["secretGenerator"] for file in (*each.get("files", ()), *each.get("envs", ()))]
    assert {Path(file).name for file in files} == set(secrets)
    listed = yaml_documents(INFRA / "compose.yaml")[0]
    assert {Path(each["file"]).name for each in listed["secrets"].values()} | {
        Path(each["env_file"]).name for each in listed["services"].values() if "env_file" in each
    } == set(secrets)


def test_containers_run_with_minimal_rights() -> None:
    for name, service in compose().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert int(service["user"].partition(":")[0]) > 0, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    for name, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] > 0, name
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
    for container in containers():
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"], container["name"]
        assert not context["allowPrivilegeEscalation"], container["name"]
        assert context["capabilities"] == {"drop": ["ALL"]}, container["name"]
    assert not {"LoadBalancer", "NodePort"} & {each["spec"].get("type") for each in kubernetes() if "spec" in each}


def test_network_policies_name_the_clients_of_every_pod() -> None:
    policies = {each["metadata"]["name"]: each for each in kubernetes() if each["kind"] == "NetworkPolicy"}
    assert policies["nobody"]["spec"]["podSelector"] == {}
    assert "ingress" not in policies["nobody"]["spec"]
    labels = {each["spec"]["template"]["metadata"]["labels"]["app"] for each in kubernetes() if is_workload(each)}
    for name, policy in policies.items():
        if name != "nobody":
            assert policy["spec"]["podSelector"]["matchLabels"]["app"] in labels, name
            for rule in policy["spec"]["ingress"]:
                assert {each["podSelector"]["matchLabels"]["app"] for each in rule["from"]} <= labels, name
    for each in kubernetes():
        if each["kind"] == "Service":
            assert each["spec"]["selector"]["app"] in labels
            assert {port["port"] for port in each["spec"]["ports"]} <= ports_of(each["spec"]["selector"]["app"])


def is_workload(value: Yaml) -> bool:
    return "template" in value.get("spec", {})


def ports_of(app: str) -> set[int]:
    """Return the ports of an application's containers."""
    pod = dict(pods())[app]
    return {port["containerPort"] for container in pod["containers"] for port in container.get("ports", ())}


def test_images_are_pinned_and_no_secret_is_committed() -> None:
    images = {service["image"] for service in compose().values()} | {each["image"] for each in containers()}
    images |= set(re.findall(r"^FROM (\S+)", (INFRA / "Dockerfile").read_text(), re.M))
    assert [image for image in sorted(images) if not TAG.fullmatch(image)] == []
    # Compose and Kubernetes run the same servers.
    assert {each["image"] for each in compose().values()} == {each["image"] for each in containers()}
    assert any(OURS.fullmatch(image) for image in images)
    for name, service in compose().items():
        for variable, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD$|SECRET|LOGIN|PASSPHRASE$|_KEY$", variable) or value.startswith("/run/"), (
                name
            )
    done = subprocess.run(["git", "ls-files", "infra/secrets"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_the_image_installs_like_make() -> None:
    recipe = (ROOT / "Makefile").read_text().rpartition("$(READY): ")[2].replace("$(BIN)/", "")
    for command in installs():
        words = command.replace("python -m venv /opt/venv", "$(PYTHON) -m venv .venv")
        assert words in recipe or words == "mkdir -p /var/lib/neorl", command
    assert "index" not in " ".join(installs())


def test_secrets_are_created_once_and_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "secrets"
    make_secrets.main(folder)
    assert folder.stat().st_mode & 0o077 == 0, "other users have no access"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SystemExit, match="exists: remove it"):
        make_secrets.main(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    make_secrets.main(tmp_path / "others")
    assert all((tmp_path / "others" / name).read_bytes() != held for name, held in first.items())
