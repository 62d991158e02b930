"""What a result depends on besides data and configuration: source code, pinned packages, processor."""

from __future__ import annotations

import ast
import platform
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from configs.home import Home
from tasks.files.canonical import digest_json, file_sha256

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the packages."""
PACKAGES = ("neorl_core", "configs", "tasks", "flows")

LEAVES = frozenset({ast.Name, ast.Load, ast.Store, ast.alias})
"""Most of the nodes of a syntax tree, which have nothing below them that names a module."""
COMPILED = "JAX_COMPILATION_CACHE_DIR"
LONGEST_NAME = 200
"""Characters of a module's name; a longer text is none, and no file system takes it."""


class Tree(NamedTuple):
    """Where modules of a user's own are looked up beside ours: a project's folder, or an installed package's."""

    folder: Path
    """Resolved."""
    packages: tuple[str, ...] = ()
    """The only top-level names that count; empty: all, but for ours and the standard library's."""

    def file(self, module: str) -> Path | None:
        """The source file of a module, or of a package; None where there is none here.

        A link that leads out of the folder leads nowhere.
        """
        top = module.partition(".")[0]
        if top in PACKAGES or top in sys.stdlib_module_names or (self.packages and top not in self.packages):
            return None
        if len(module) > LONGEST_NAME or not all(part.isidentifier() for part in module.split(".")):
            return None
        path = self.folder.joinpath(*module.split("."))
        found = next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)
        return found if found is not None and found.resolve().is_relative_to(self.folder) else None


def modules_of(*roots: str, tree: Tree | None = None) -> tuple[str, ...]:
    """Every module of ours, and of a tree, that the named ones import, directly or not, in alphabetical order.

    No list is kept by hand.

    Imports inside functions count, and so does a string that is a module's full name (a module that is run in a process
    of its own is named so); imports for type checkers alone do not. The tables of plants and algorithms load their
    members by name, so whoever uses one names its module as a root.

    Args:
        roots: full names of modules or packages, such as "tasks.training.train".
        tree: where modules are that are not ours.

    Raises:
        ValueError: when a root is neither a module of ours nor of the tree.
    """
    return _ours(*roots) if tree is None else _reached(roots, tree)


@cache
def _ours(*roots: str) -> tuple[str, ...]:
    return _reached(roots, None)


def _reached(roots: tuple[str, ...], tree: Tree | None) -> tuple[str, ...]:
    found: set[str] = set()
    queue = list(roots)
    for root in roots:
        if _file(root) is None and (tree is None or tree.file(root) is None):
            raise ValueError(f"expected a module of {', '.join(PACKAGES)}, got {root!r}")
    while queue:
        name = queue.pop()
        if name in found:
            continue
        if _file(name) is not None:
            found.add(name)
            queue += _uses(name)
        elif tree is not None and (path := tree.file(name)) is not None:
            found.add(name)
            queue += _named(_parsed(path), name if path.name == "__init__.py" else name.rpartition(".")[0])
        else:
            continue
        # Importing a module runs its packages' `__init__` files first; a package need not have one.
        parts = name.split(".")
        queue += [".".join(parts[:i]) for i in range(1, len(parts))]
    return tuple(sorted(found))


@cache
def sources_digest(*roots: str) -> str:
    """SHA-256 over the source files of the named modules and of all that they import.

    Example:
        >>> len(sources_digest("tasks.files.canonical"))
        64
    """
    return _digest([path for name in modules_of(*roots) if (path := _file(name)) is not None])


def tree_sources(*roots: str, tree: Tree) -> dict[str, str]:
    """SHA-256 of the source file of every module of a tree that the named ones import, directly or not.

    Read anew at every call, for a user's files change while a process lives.
    """
    names = modules_of(*roots, tree=tree)
    return {name: file_sha256(path) for name in names if (path := tree.file(name)) is not None}


@cache
def code_digest() -> str:
    """SHA-256 over all source files of all packages."""
    return _digest(sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")))


@cache
def lock_digest() -> str:
    """SHA-256 of the lock file; of the installed versions where the package was installed without it."""
    lock = ROOT / "requirements.lock"
    if lock.exists():
        return file_sha256(lock)
    return digest_json(sorted((d.metadata["Name"].lower(), d.version) for d in metadata.distributions()))


@cache
def processor_class() -> str:
    """The processor family on which counts repeat exactly: machine, and its widest vector extension.

    How many cores there are makes no difference: `configs` asks for two threads at least, unless `PJRT_NPROC` is set.
    """
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    widest = next((name for name in ("avx512f", "avx2", "asimd") if name in flags), "scalar")
    return f"{platform.system()}-{platform.machine()}-{widest}".lower()


def compiled_programs(home: Home) -> Path:
    """Where a home keeps what JAX compiles: a folder for each version of its compiler and family of processors.

    What another version or processor compiled may not run here.
    """
    return home.root / "cache" / "jax" / f"{metadata.version('jaxlib')}-{processor_class()}"


def compiling(home: Home) -> dict[str, str]:
    """The variables by which JAX, once it is imported, keeps all that it compiles in a home.

    Small programs too: a retraining has hundreds of them, and together they take as long as the large ones.
    """
    return {
        COMPILED: str(compiled_programs(home)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def source_file(module: str) -> Path:
    """The file of a module or package of ours.

    Raises:
        ValueError: when there is none.
    """
    path = _file(module)
    if path is None:
        raise ValueError(f"expected a module of {', '.join(PACKAGES)}, got {module!r}")
    return path


def _digest(paths: list[Path]) -> str:
    return digest_json({path.relative_to(ROOT).as_posix(): file_sha256(path) for path in paths})


@cache
def _file(module: str) -> Path | None:
    if module.partition(".")[0] not in PACKAGES:
        return None
    path = ROOT.joinpath(*module.split("."))
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@cache
def _uses(module: str) -> tuple[str, ...]:
    path = _file(module)
    assert path is not None
    return tuple(_named(_parsed(path), module if path.name == "__init__.py" else module.rpartition(".")[0]))


def _parsed(path: Path) -> ast.Module:
    """The syntax tree of a source file. CPython 3.11 loses count where another thread builds a tree meanwhile."""
    for _ in range(8):
        try:
            return ast.parse(path.read_bytes())
        except SystemError:
            continue
    return ast.parse(path.read_bytes())


def _named(tree: ast.AST, package: str) -> Iterator[str]:
    """Names that may be modules of ours, in a piece of source of a package."""
    rest = [tree]
    while rest:
        node = rest.pop()
        kind = type(node)
        if kind in LEAVES:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value.isprintable():
                yield node.value
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            rest += node.orelse
        else:
            rest += ast.iter_child_nodes(node)
