"""Code of a user's own, a plant or an algorithm: found in the project or an installed package, digested, then imported.

Nothing is executed while it is found. What is executed are the bytes that were digested, and of the project's modules
only those that the digest covers: a module that is imported by a computed name is not found.
"""

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
    """What code of a user's own may build."""

    word: str
    """For messages."""
    article: str
    """The same with its article."""
    group: str
    """Entry points of installed packages that offer such, by its names."""
    attribute: str
    """What it is called in its module where nothing else is said."""


PLANT = Kind("plant", "a plant", "neorl.plants", "PLANT")
ALGORITHM = Kind("algorithm", "an algorithm", "neorl.algorithms", "ALGORITHM")


def project_of(config: Path) -> Path:
    """The folder of a run's project: the one that its file lies in, or the one above where that is called `configs`.

    Example:
        >>> project_of(Path("/plants/tank/configs/run.yaml")).as_posix()
        '/plants/tank'
    """
    folder = config.parent.resolve()
    return folder.parent if folder.name == "configs" else folder


def is_code(reference: str) -> bool:
    """Whether a plant or an algorithm is given by its code, rather than by its name.

    Example:
        >>> is_code("plants/tank.py"), is_code("tank")
        (True, False)
    """
    return ":" in reference or reference.endswith(".py")


def find_code(reference: str, project: Path, kind: Kind = PLANT) -> UserCode:
    """Where code is, and its digest; nothing of it is executed.

    Args:
        reference: `plants/tank.py`, `plants/tank.py:OTHER` or `package.module:PLANT`.
        project: the folder that it is looked up in, and never left.
        kind: what it builds.

    Raises:
        BadInput: when there is no such file in the project, or it is no Python.
    """
    path, _, attribute = reference.partition(":")
    if not path.strip("./") or "\0" in path:
        raise BadInput(
            f"expected the code of {kind.article} as 'folder/file.py' or 'package.module:NAME', got {reference!r}: "
            "name a module before the colon."
        )
    relative = Path(path) if path.endswith(".py") else Path(*path.split(".")).with_suffix(".py")
    tree = Tree(project.resolve())
    outside = relative.is_absolute() or ".." in relative.parts
    if outside or not (tree.folder / relative).resolve().is_relative_to(tree.folder):
        raise BadInput(
            f"expected the code of {kind.article} in the project {project}, got '{reference}', which leaves it: move "
            "the file there."
        )
    home = Home.locate().root
    if (tree.folder / relative).resolve().is_relative_to(home):
        raise BadInput(
            f"expected the code of {kind.article} outside of the home {home}, got '{reference}': move it to the "
            "project."
        )
    module = ".".join(relative.with_suffix("").parts)
    if tree.file(module) is None:
        raise BadInput(
            f"expected the code of {kind.article} '{reference}' in the project {project}, got no module of that name: "
            "check the path; its parts are Python's names, and none of the standard library's or of ours."
        )
    found = UserCode(module=module, attribute=attribute or kind.attribute, project=tree.folder, digest="")
    return found.model_copy(update={"digest": _digest(found, _sources(found, tree, reference))})


def find_installed(name: str, kind: Kind = PLANT) -> UserCode | None:
    """What an installed package offers under this name as an entry point of the kind's group; None without one.

    Raises:
        BadInput: when two packages offer the same name, or what is offered is not there.
    """
    found = {point.value for point in metadata.entry_points(group=kind.group, name=name)}
    if not found:
        return None
    if len(found) > 1:
        raise BadInput(f"expected one package to offer {kind.word} {name}, got {', '.join(sorted(found))}: remove one.")
    module, _, attribute = found.pop().partition(":")
    code = UserCode(module=module, attribute=attribute.split(" ")[0] or kind.attribute, digest="")
    return code.model_copy(update={"digest": _digest(code, _sources(code, tree_of(code), f"entry point {name}"))})


def installed(kind: Kind = PLANT) -> list[str]:
    """Names of what installed packages offer."""
    return sorted({point.name for point in metadata.entry_points(group=kind.group)})


def tree_of(code: UserCode) -> Tree:
    """Where the modules of a user's code are looked up.

    Raises:
        BadInput: when the package is not installed any more.
    """
    if code.project is not None:
        return Tree(code.project)
    top = code.module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    places = [*(spec.submodule_search_locations or [])] if spec else []
    if spec is None or not (places or spec.origin):
        raise BadInput(f"expected package {top} to be installed, got none: install it, or remove its entry point.")
    return Tree(Path(places[0] if places else str(spec.origin)).resolve().parent, (top,))


def import_code(code: UserCode) -> ModuleType:
    """Import a module of a user's own, once per process.

    Raises:
        Refused: when its sources are not those that were digested.
        BadInput: when it cannot be imported.
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
                    f"expected {tree.file(code.module)} to be imported, got {type(error).__name__} '{_line(error)}': "
                    "correct it."
                ) from error
        return _imported[code]


def changed(what: str, expected: str, got: str) -> Refused:
    """The refusal of code that is not what a digest names."""
    return Refused(
        f"expected the code of {what} with the digest {expected}, got {got}: restore the sources that it was "
        "made with, or retrain."
    )


_lock = RLock()
_imported: dict[UserCode, ModuleType] = {}


class _ProjectFinder(MetaPathFinder):
    """Finds the modules of a project that its digest covers, and no others of it."""

    def __init__(self, tree: Tree, sources: Mapping[str, str]) -> None:
        self.tree, self.sources = tree, sources

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a module; packages look for theirs nowhere else.

        Raises:
            Refused: for a module of the project that the digest does not cover.
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
        # Python's own path may hold the project, too: what it would find there and no digest covers is not executed,
        # now or when a step of the plant asks for it.
        elsewhere = PathFinder.find_spec(name, path) if file is not None else None
        origin = elsewhere.origin if elsewhere is not None else None
        if file is not None and origin is not None and Path(origin).resolve() == file.resolve():
            raise Refused(
                f"expected every module of {self.tree.folder} to be imported by an import statement, got '{name}' by a "
                "computed name: write the import down, so that the digest covers it."
            )
        return None


class _VerifiedLoader(SourceLoader):
    """Compiles a source file whose SHA-256 is the expected one, and leaves compiled files beside it unread."""

    def __init__(self, file: str, sha256: str) -> None:
        self.file, self.sha256 = file, sha256

    def get_filename(self, _: str) -> str:
        """The source file."""
        return self.file

    def get_data(self, path: str) -> bytes:
        """The source file's bytes."""
        data = Path(path).read_bytes()
        if sha256_hex(data) != self.sha256:
            raise changed(path, self.sha256, sha256_hex(data))
        return data


def _import_project(code: UserCode, tree: Tree, sources: Mapping[str, str]) -> ModuleType:
    for top in sorted({name.partition(".")[0] for name in sources}):
        if _taken(top, tree):
            raise BadInput(
                f"expected a module name in {tree.folder} that no installed package has, got '{top}': rename it."
            )
    earlier = [found for found in sys.meta_path if isinstance(found, _ProjectFinder)]
    for finder in earlier:
        # A plant and an algorithm of one project stay beside each other, and share the modules that both import.
        if finder.tree == tree and all(finder.sources.get(name, sha256) == sha256 for name, sha256 in sources.items()):
            _forget(sources.keys() - finder.sources.keys())
            finder.sources = {**finder.sources, **sources}
            return importlib.import_module(code.module)
    # What an earlier project of this process, or another state of this one, has left under the same names goes.
    for finder in earlier:
        sys.meta_path.remove(finder)
    _forget({*sources, *(name for finder in earlier for name in finder.sources)})
    sys.meta_path.insert(0, _ProjectFinder(tree, sources))
    return importlib.import_module(code.module)


def _forget(names: Iterable[str]) -> None:
    """Have modules be imported anew: what this process holds of them may be of other sources than the digest's."""
    for name in names:
        # The packages above go too, for they remember their modules as attributes.
        for end in range(1, name.count(".") + 2):
            sys.modules.pop(".".join(name.split(".")[:end]), None)


def _taken(top: str, tree: Tree) -> bool:
    """Whether a top-level name belongs to a package outside of the project."""
    elsewhere = [folder for folder in sys.path if Path(folder).resolve() != tree.folder]
    spec = PathFinder.find_spec(top, elsewhere)
    return spec is not None and spec.origin is not None


def _digest(code: UserCode, sources: Mapping[str, str]) -> str:
    """A file may build several plants: the digest is of its modules, and of what is meant in them."""
    return digest_json({"code": f"{code.module}:{code.attribute}", "sources": sources})


def _sources(code: UserCode, tree: Tree, reference: str) -> dict[str, str]:
    """SHA-256 of every module that a module of the user's imports, by name."""
    try:
        return tree_sources(code.module, tree=tree)
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        raise BadInput(
            f"expected Python in '{reference}' and what it imports, got '{_line(error)}': correct it."
        ) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
