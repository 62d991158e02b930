"""Write the files of a new project from templates, without overwriting existing files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput
from configs.yaml_files import document, read_text
from tasks.data.historian.guess.mapping import plant_name, start_mapping
from tasks.files.canonical import make_folder, write_atomic

MAPPING = "configs/mappings/{name}.yaml"
OF_SIMULATOR = {
    "plants/{name}.py": "plant.py.j2",
    MAPPING: "mapping.yaml.j2",
    "configs/{name}.yaml": "simulated.yaml.j2",
}
OF_PROCESS = {"configs/{name}.yaml": "process.yaml.j2"}
DEPLOYMENTS = "prefect.yaml"
SHARED = {"prefect.toml": "prefect.toml.j2", ".gitignore": "gitignore.j2"}
"""Files that all plants of the folder share. Existing files are kept."""


class StartedProject(BaseModel):
    """Result of `neorl init`."""

    model_config = ConfigDict(frozen=True)

    name: str
    folder: Path
    config: Path
    mapping: Path
    files: tuple[Path, ...]
    fill_in: tuple[str, ...] = ()
    """Lines of the mapping that a person must fill in."""
    check: tuple[str, ...] = ()
    deployment: str = ""
    """Text to add under `deployments` if the existing prefect.yaml cannot be extended."""


def start_project(name: str | None, folder: Path | None = None, log: Path | None = None) -> StartedProject:
    """Write the files of a project: mapping, run and deployments, and without a log the code of a simulator.

    Args:
        name: name of the plant. Default: from the log's name.
        folder: folder of the project. Default: the plant's name.
        log: log of a log-only plant, from which the mapping is guessed. None for a plant with a simulator.

    Raises:
        BadInput: if the name is invalid, a file exists, or the log cannot be read.
    """
    if name is None and log is None:
        raise BadInput("a name or a log is needed: give NAME, or --from LOGFILE, or both.")
    plain = plant_name(log or Path(str(name)), name)
    root = folder or Path(plain)
    templates = OF_SIMULATOR if log is None else OF_PROCESS
    targets = {root / place.format(name=plain): template for place, template in templates.items()}
    mapping = root / MAPPING.format(name=plain)
    if found := next((path for path in (*targets, mapping) if path.exists()), None):
        raise BadInput(f"{found} exists already: name another folder by --out, or another NAME.")
    made = None if log is None else start_mapping(log, mapping.parent, plain)
    if log is None or made is None:
        # An empty action leaves the deployment of a shadow out.
        view = {"data": f".neorl/generated/{plain}/episodes.hdf5", "action": ""}
    else:
        action, measured, set_point = (made.signals[role] for role in ("action", "observation", "set_point"))
        full, project = log.resolve(), root.resolve()
        view = {"data": str(full.relative_to(project) if full.is_relative_to(project) else full)}
        # Signals for examples in comments.
        view |= {"action": (*action, "action")[0], "measured": (*measured, *set_point, "signal")[0]}
        view["set_point"] = (*set_point, "1.0")[0]
    view["name"] = plain
    shared = {root / place: template for place, template in SHARED.items() if not (root / place).exists()}
    for path, template in (targets | shared).items():
        make_folder(path.parent)
        write_atomic(path, _rendered(template, view).encode())
    deployment = _rendered("deployment.yaml.j2", view)
    deployed = _deploy(root / DEPLOYMENTS, _rendered("prefect.yaml.j2", view), deployment)
    written = dict.fromkeys([*targets, mapping, *([root / DEPLOYMENTS] if deployed else []), *shared])
    return StartedProject(
        name=plain,
        folder=root,
        config=root / "configs" / f"{plain}.yaml",
        mapping=mapping,
        files=tuple(written),
        fill_in=made.fill_in if made else (),
        check=made.check if made else (),
        deployment="" if deployed else deployment,
    )


def _deploy(path: Path, empty: str, deployment: str) -> bool:
    """Append deployments to the project's file. Return False if the file already has them or has another form."""
    before = read_text(path) if path.exists() else empty
    after = before.rstrip() + "\n" + deployment
    try:
        known, found = (document(text, path, aliases=True)[0] for text in (before, after))
        added = document(f"deployments:\n{deployment}", path)[0]["deployments"]
        entries = known.get("deployments") or []
        taken = {entry["name"] for entry in entries} & {entry["name"] for entry in added}
    except (BadInput, AttributeError, LookupError, TypeError):
        return False  # the file has another form
    if taken or found != {**known, "deployments": [*entries, *added]}:
        return False
    write_atomic(path, after.encode())
    return True


def _rendered(template: str, view: Mapping[str, str]) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["quoted"] = lambda text: "'" + text.replace("'", "''") + "'"
    text = files(__package__).joinpath("templates", template).read_text(encoding="utf-8")
    return environment.from_string(text).render(view)
