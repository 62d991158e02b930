"""Readers of infra/compose.yaml, infra/kubernetes and infra/Dockerfile for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
OURS = re.compile(r"neorl:\S+")
SECRET_PATH = re.compile(r"/run/secrets/(?:\w+/)?(?=[\w.-]+$)")
"""Compose mounts secrets as files there, Kubernetes as folders."""
Yaml = dict[str, Any]


class Program(NamedTuple):
    """A program that a container runs."""

    name: str
    words: tuple[str, ...]
    """Its command, with all secrets in one folder."""


def yaml_documents(path: Path) -> list[Yaml]:
    """Read all documents of a file, with anchors and merges resolved."""
    return [document for document in YAML(typ="safe").load_all(path.read_text()) if document]


def compose() -> dict[str, Yaml]:
    """Return the services of infra/compose.yaml."""
    services: dict[str, Yaml] = yaml_documents(INFRA / "compose.yaml")[0]["services"]
    return services


def kubernetes() -> list[Yaml]:
    """Return every object in infra/kubernetes, without kustomize."""
    files = sorted((INFRA / "kubernetes").rglob("*.yaml"))
    return [each for path in files if path.name != "kustomization.yaml" for each in yaml_documents(path)]


def pods() -> list[tuple[str, Yaml]]:
    """Return pod specifications with their object's name."""
    found = ((each["metadata"]["name"], each.get("spec", {}).get("template", {}).get("spec")) for each in kubernetes())
    return [(name, pod) for name, pod in found if pod]


def containers() -> list[Yaml]:
    """Return the containers of all pods."""
    return [each for _, pod in pods() for each in (*pod.get("initContainers", ()), *pod["containers"])]


def programs() -> set[Program]:
    """Return the programs in Compose, Kubernetes and the image; without default programs of foreign images."""
    found = {Program(name, words) for name, service in compose().items() if (words := started(service))}
    for container in containers():
        command, arguments = container.get("command"), container.get("args")
        words = command or [*_entry(container["image"]), *arguments] if command or arguments else []
        if words:
            found.add(Program(str(container["name"]), _plain(words)))
    image = (INFRA / "Dockerfile").read_text()
    entry, default = (json.loads(re.findall(rf"^{word} (\[.*\])", image, re.M)[0]) for word in ("ENTRYPOINT", "CMD"))
    return {*found, Program("image", _plain([*entry, *default]))}


def checks() -> set[tuple[str, ...]]:
    """Return the commands of health checks."""
    found = {_plain(test[1:]) for each in compose().values() if (test := each.get("healthcheck", {}).get("test"))}
    for probe in probes():
        if "exec" in probe:
            found.add(_plain(probe["exec"]["command"]))
    image = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])", (INFRA / "Dockerfile").read_text(), re.M)
    return {*found, *(_plain(json.loads(each)) for each in image)}


def probes() -> Iterator[Yaml]:
    """Yield the probes of all containers."""
    for container in containers():
        yield from (probe for name, probe in container.items() if name.endswith("Probe"))


def started(service: Yaml) -> tuple[str, ...]:
    """Return the command of a Compose service; empty if the image decides."""
    command, entry = service.get("command"), service.get("entrypoint")
    if entry is None and command is None:
        return ()
    return _plain([*(_entry(service["image"]) if entry is None else entry), *(command or ())])


def installs() -> list[str]:
    """Return the build commands of the image."""
    return re.findall(r"^RUN (.*)$", (INFRA / "Dockerfile").read_text(), re.M)


def _entry(image: str) -> list[str]:
    return ["neorl"] if OURS.fullmatch(image) else []


def _plain(words: list[str]) -> tuple[str, ...]:
    return tuple(SECRET_PATH.sub("/run/secrets/", str(word)) for word in words)
