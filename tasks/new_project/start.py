"""A new project: the files with which a plant of a user's own begins, written from templates and never over others."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from configs.errors import BadInput
from configs.yaml_files import document, parse_yaml, read_text
from tasks.data.historian.guess.start import process_name, start_mapping
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
"""Of the folder rather than of the plant: those that are there already stay as they are."""


class StartedProject(BaseModel):
    """What `neorl init` made."""

    model_config = ConfigDict(frozen=True)

    name: str
    folder: Path
    config: Path
    mapping: Path
    files: tuple[Path, ...]
    fill_in: tuple[str, ...] = ()
    """Lines of the mapping that only a person can write."""
    check: tuple[str, ...] = ()
    """Guesses that rest on little."""
    deployment: str = ""
    """What a person has to put under `deployments` of a prefect.yaml that nothing can be added to."""


class View(NamedTuple):
    """What the templates know."""

    name: str
    data: str
    """The logs that the deployment reads."""
    action: str
    """Of a process, for examples in comments."""
    measured: str
    set_point: str


def start_project(name: str | None, folder: Path | None = None, log: Path | None = None) -> StartedProject:
    """Write a project's folder: a plant with its mapping, its run and its deployment.

    Args:
        name: of the plant; the log's when not given.
        folder: of the project; one of the plant's name in the working directory when not given.
        log: of a process without a simulator, from which the mapping is guessed; without one, a simulated plant's
            file is written.

    Returns:
        The files that were written, and what a person has to fill in or should check.

    Raises:
        BadInput: when the name is none, a file is there already, or the log is no table that could be one.
    """
    if name is None and log is None:
        raise BadInput("expected a name or a log, got none: give NAME, or --from LOGFILE, or both.")
    plain = process_name(log or Path(str(name)), name)
    root = folder or Path(plain)
    templates = OF_SIMULATOR if log is None else OF_PROCESS
    targets = {root / place.format(name=plain): template for place, template in templates.items()}
    mapping = root / MAPPING.format(name=plain)
    if found := next((path for path in (*targets, mapping) if path.exists()), None):
        raise BadInput(f"expected no file at {found}, got one: name another folder by --out, or another NAME.")
    made = None if log is None else start_mapping(log, mapping.parent, plain)
    if log is None or made is None:
        view = View(plain, f".neorl/generated/{plain}/episodes.hdf5", "", "", "")
    else:
        action, measured, set_point = (made.signals[role] for role in ("action", "observation", "set_point"))
        examples = ((*action, "action")[0], (*measured, *set_point, "signal")[0], (*set_point, "1.0")[0])
        view = View(plain, _seen_from(root, log), *examples)
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
    """Add deployments at the end of a project's; False where that would change anything else, or there is one."""
    before = read_text(path) if path.exists() else empty
    after = before.rstrip() + "\n" + deployment
    try:
        known, found = (document(text, path, aliases=True)[0] for text in (before, after))
        added = parse_yaml(f"deployments:\n{deployment}", path)["deployments"]
        entries = known.get("deployments") or []
        taken = {entry["name"] for entry in entries} & {entry["name"] for entry in added}
    except (BadInput, AttributeError, LookupError, TypeError):
        return False  # a person's own form of the file
    if taken or found != {**known, "deployments": [*entries, *added]}:
        return False
    write_atomic(path, after.encode())
    return True


def _seen_from(root: Path, log: Path) -> str:
    """A log's path as the deployment has it: from the project's folder where it lies there."""
    full = log.resolve()
    return str(full.relative_to(root.resolve())) if full.is_relative_to(root.resolve()) else str(full)


def _rendered(template: str, view: View) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["quoted"] = lambda text: "'" + text.replace("'", "''") + "'"
    text = files(__package__).joinpath("templates", template).read_text(encoding="utf-8")
    return environment.from_string(text).render(view._asdict())
