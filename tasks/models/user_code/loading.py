"""Locate, digest and import user code of plants and algorithms, in the project or an installed package.

Locating executes nothing. Importing executes exactly the bytes of the digest. A module of the project that is imported
by a computed name is refused, because the digest does not cover this module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import NamedTuple

from configs.code import UserCode
from configs.errors import BadInput, NeoRLError, Refused
from configs.home import Home
from tasks.files.canonical import digest_json, sha256_hex
from tasks.files.provenance import Tree, tree_sources


class Kind(NamedTuple):
    """A kind of object that user code may build: a plant or an algorithm."""

    word: str
    article: str
    group: str
    """Entry-point group of installed packages."""
    attribute: str


PLANT = Kind("plant", "a plant", "neorl.plants", "PLANT")
ALGORITHM = Kind("algorithm", "an algorithm", "neorl.algorithms", "ALGORITHM")


def project_of(config: Path) -> Path:
    """Return a run's project: the folder of its file, or the parent if the folder is called `configs`."""
    folder = config.parent.resolve()
    return folder.parent if folder.name == "configs" else folder


def is_code(reference: str) -> bool:
    """Return whether a reference names a file or module of code, not a plant or algorithm."""
    return ":" in reference or reference.endswith(".py")


def find_code(reference: str, project: Path, kind: Kind = PLANT) -> UserCode:
    """Locate and digest code without executing it.

    Args:
        reference: `plants/tank.py`, `plants/tank.py:OTHER` or `package.module:PLANT`.
        project: folder with the code; references may not leave it.

    Raises:
        BadInput: if there is no such file in the project, or it is not Python.
    """
    path, _, attribute = reference.partition(":")
    if not path.strip("./") or "\0" in path:
        raise BadInput(
            f"{reference!r} names no module before the colon: write the code of {kind.article} as 'folder/file.py' or "
            "'package.module:NAME'"
        )
    relative = Path(path) if path.endswith(".py") else Path(*path.split(".")).with_suffix(".py")
    tree = Tree(project.resolve())
    outside = relative.is_absolute() or ".." in relative.parts
    if outside or not (tree.folder / relative).resolve().is_relative_to(tree.folder):
        raise BadInput(
            f"the code of {kind.article} '{reference}' is outside the project {project}: move the file there"
        )
    home = Home.locate().root
    if (tree.folder / relative).resolve().is_relative_to(home):
        raise BadInput(f"the code of {kind.article} '{reference}' is inside the home {home}: move it to the project")
    module = ".".join(relative.with_suffix("").parts)
    if tree.file(module) is None:
        raise BadInput(
            f"the project {project} has no module '{reference}' for {kind.article}: check the path; its parts must "
            "be Python names, and none of the standard library or of NeoRL"
        )
    found = UserCode(module=module, attribute=attribute or kind.attribute, project=tree.folder, digest="")
    return found.model_copy(update={"digest": _digest(found, _sources(found, tree, reference))})


def find_installed(name: str, kind: Kind = PLANT) -> UserCode | None:
    """Locate an installed package's entry point of this name; None if there is none.

    Raises:
        BadInput: if two packages offer the name, or the entry point is broken.
    """
    found = {point.value for point in metadata.entry_points(group=kind.group, name=name)}
    if not found:
        return None
    if len(found) > 1:
        raise BadInput(f"{', '.join(sorted(found))} all offer {kind.word} {name}: remove all but one")
    module, _, attribute = found.pop().partition(":")
    code = UserCode(module=module, attribute=attribute.split(" ")[0] or kind.attribute, digest="")
    return code.model_copy(update={"digest": _digest(code, _sources(code, tree_of(code), f"entry point {name}"))})


def installed(kind: Kind = PLANT) -> list[str]:
    """Return the names that installed packages offer."""
    return sorted({point.name for point in metadata.entry_points(group=kind.group)})


def tree_of(code: UserCode) -> Tree:
    """Return the source tree in which modules of user code are looked up.

    Raises:
        BadInput: if the package is no longer installed.
    """
    if code.project is not None:
        return Tree(code.project)
    top = code.module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    places = [*(spec.submodule_search_locations or [])] if spec else []
    if spec is None or not (places or spec.origin):
        raise BadInput(f"package {top} is not installed: install it, or remove its entry point")
    return Tree(Path(places[0] if places else str(spec.origin)).resolve().parent, (top,))


def import_code(code: UserCode) -> ModuleType:
    """Import a module of user code, once per process.

    Raises:
        Refused: if the sources do not have the digest.
        BadInput: if the import fails.
    """
    with _lock:
        if code not in _imported:
            tree = tree_of(code)
            sources = _sources(code, tree, code.module)
            found = _digest(code, sources)
            if found != code.digest:
                raise changed(code.module, code.digest, found)
            try:
                project = code.project is not None
                _imported[code] = (
                    _import_project(code, tree, sources) if project else importlib.import_module(code.module)
                )
            except NeoRLError:
                raise
            except Exception as error:
                raise BadInput(
                    f"{tree.file(code.module)} cannot be imported, got {type(error).__name__} '{_line(error)}': fix it"
                ) from error
        return _imported[code]


def covered_files(code: UserCode) -> dict[Path, bytes]:
    """Return the sources that the digest of a project's code covers, by path in the project.

    Raises:
        Refused: if the sources do not have the digest.
    """
    tree = tree_of(code)
    sources = _sources(code, tree, code.module)
    files = [file for name in sources if (file := tree.file(name)) is not None]
    found = {file.relative_to(tree.folder): file.read_bytes() for file in files}
    if sorted(map(sha256_hex, found.values())) != sorted(sources.values()) or _digest(code, sources) != code.digest:
        raise changed(code.module, code.digest, _digest(code, sources))
    return found


def copy_code(code: UserCode, folder: Path) -> UserCode:
    """Copy the sources that the digest covers to a folder, and return the code at its new place.

    Raises:
        Refused: if the sources do not have the digest.
    """
    for name, data in covered_files(code).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return code.model_copy(update={"project": folder}) if code.project else code


def changed(name: str, expected: str, got: str) -> Refused:
    """Return the error for code with another digest than the recorded one."""
    return Refused(f"the code of {name} has digest {got}, must be {expected}: restore the original sources, or retrain")


_lock = RLock()
_imported: dict[UserCode, ModuleType] = {}


class _ProjectFinder(MetaPathFinder):
    """Find only modules of a project that the digest covers."""

    def __init__(self, tree: Tree, sources: Mapping[str, str]) -> None:
        self.tree, self.sources = tree, sources

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module of the project.

        Raises:
            Refused: if the digest does not cover the module.
        """
        file = self.tree.file(name)
        if name in self.sources and file is not None:
            package = file.name == "__init__.py"
            loader = _VerifiedLoader(str(file), self.sources[name])
            spec = importlib.util.spec_from_file_location(name, file, loader=loader)
            if spec is not None:
                spec.submodule_search_locations = [] if package else None
            return spec
        if any(known.startswith(f"{name}.") for known in self.sources):
            return ModuleSpec(name, None, is_package=True)
        # Python may also find the project on its own path. A module that the digest does not cover must never be
        # executed.
        elsewhere = PathFinder.find_spec(name, path) if file is not None else None
        origin = elsewhere.origin if elsewhere is not None else None
        if file is not None and origin is not None and Path(origin).resolve() == file.resolve():
            raise Refused(
                f"'{name}' of {self.tree.folder} is imported by a computed name: use an import statement, so that the "
                "digest covers it"
            )
        return None


class _VerifiedLoader(SourceLoader):
    """Compile a source file with a verified SHA-256, and ignore compiled files."""

    def __init__(self, file: str, sha256: str) -> None:
        self.file, self.sha256 = file, sha256

    def get_filename(self, _: str) -> str:
        return self.file

    def get_data(self, path: str) -> bytes:
        data = Path(path).read_bytes()
        if sha256_hex(data) != self.sha256:
            raise changed(path, self.sha256, sha256_hex(data))
        return data


def _import_project(code: UserCode, tree: Tree, sources: Mapping[str, str]) -> ModuleType:
    for top in sorted({name.partition(".")[0] for name in sources}):
        if _taken(top, tree):
            raise BadInput(f"'{top}' in {tree.folder} is also an installed package: rename it")
    earlier = [found for found in sys.meta_path if isinstance(found, _ProjectFinder)]
    for finder in earlier:
        # A plant and an algorithm of one project share the modules that both import.
        if finder.tree == tree and all(finder.sources.get(name, sha256) == sha256 for name, sha256 in sources.items()):
            _forget(sources.keys() - finder.sources.keys())
            finder.sources = {**finder.sources, **sources}
            return importlib.import_module(code.module)
    # Remove modules of the same names from an earlier project, or an earlier state of this project.
    for finder in earlier:
        sys.meta_path.remove(finder)
    _forget({*sources, *(name for finder in earlier for name in finder.sources)})
    sys.meta_path.insert(0, _ProjectFinder(tree, sources))
    return importlib.import_module(code.module)


def _forget(names: Iterable[str]) -> None:
    """Remove modules from this process, because they may come from different sources."""
    for name in names:
        # Parent packages keep modules as attributes, so they are removed too.
        for end in range(1, name.count(".") + 2):
            sys.modules.pop(".".join(name.split(".")[:end]), None)


def _taken(top: str, tree: Tree) -> bool:
    """Return whether a top-level name belongs to a package outside the project."""
    elsewhere = [folder for folder in sys.path if Path(folder).resolve() != tree.folder]
    spec = PathFinder.find_spec(top, elsewhere)
    return spec is not None and spec.origin is not None


def _digest(code: UserCode, sources: Mapping[str, str]) -> str:
    """Return the digest of modules and attribute, because a file may build several plants."""
    return digest_json({"code": f"{code.module}:{code.attribute}", "sources": sources})


def _sources(code: UserCode, tree: Tree, reference: str) -> dict[str, str]:
    try:
        return tree_sources(code.module, tree=tree)
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(
            f"'{reference}' or an import of it is not valid Python, got '{_line(error)}': correct it"
        ) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
