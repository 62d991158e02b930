"""What infra/compose.yaml, infra/kubernetes and infra/Dockerfile say, read for the tests of them."""

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
"""Compose mounts each secret's file there, Kubernetes each secret's folder."""
Yaml = dict[str, Any]


class Program(NamedTuple):
    """A program that a container runs, with what its files say of its surroundings."""

    name: str
    words: tuple[str, ...]
    """Its command, where secrets lie in one folder."""


def yaml_documents(path: Path) -> list[Yaml]:
    """All of a file's documents, anchors and merges resolved."""
    return [document for document in YAML(typ="safe").load_all(path.read_text()) if document]


def compose() -> dict[str, Yaml]:
    """The services of infra/compose.yaml."""
    services: dict[str, Yaml] = yaml_documents(INFRA / "compose.yaml")[0]["services"]
    return services


def kubernetes() -> list[Yaml]:
    """Every object of infra/kubernetes; what kustomize makes of them is another test's affair."""
    files = sorted((INFRA / "kubernetes").rglob("*.yaml"))
    return [each for path in files if path.name != "kustomization.yaml" for each in yaml_documents(path)]


def pods() -> list[tuple[str, Yaml]]:
    """The pods that the objects describe, by the object's name."""
    found = ((each["metadata"]["name"], each.get("spec", {}).get("template", {}).get("spec")) for each in kubernetes())
    return [(name, pod) for name, pod in found if pod]


def containers() -> list[Yaml]:
    """The containers of all pods."""
    return [each for _, pod in pods() for each in (*pod.get("initContainers", ()), *pod["containers"])]


def programs() -> set[Program]:
    """What containers run, of both kinds of manifests and the image: of an image that is not ours, if we say it."""
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
    """The commands by which health is asked for."""
    found = {_plain(test[1:]) for each in compose().values() if (test := each.get("healthcheck", {}).get("test"))}
    for probe in probes():
        if "exec" in probe:
            found.add(_plain(probe["exec"]["command"]))
    image = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])", (INFRA / "Dockerfile").read_text(), re.M)
    return {*found, *(_plain(json.loads(each)) for each in image)}


def probes() -> Iterator[Yaml]:
    """What Kubernetes asks containers."""
    for container in containers():
        yield from (probe for name, probe in container.items() if name.endswith("Probe"))


def started(service: Yaml) -> tuple[str, ...]:
    """What a service of Compose's runs; nothing where that is its image's own affair."""
    command, entry = service.get("command"), service.get("entrypoint")
    if entry is None and command is None:
        return ()
    return _plain([*(_entry(service["image"]) if entry is None else entry), *(command or ())])


def installs() -> list[str]:
    """The commands by which the image is built."""
    return re.findall(r"^RUN (.*)$", (INFRA / "Dockerfile").read_text(), re.M)


def _entry(image: str) -> list[str]:
    return ["neorl"] if OURS.fullmatch(image) else []


def _plain(words: list[str]) -> tuple[str, ...]:
    return tuple(SECRET_PATH.sub("/run/secrets/", str(word)) for word in words)
