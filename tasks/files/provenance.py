"""Digests of the code and packages that a result depends on, and the family of the processor."""

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
PACKAGES = ("neorl_core", "configs", "tasks", "flows")

LEAVES = frozenset({ast.Name, ast.Load, ast.Store, ast.alias})
"""Frequent nodes of a syntax tree that contain no module names; they are skipped to save time."""
COMPILED = "JAX_COMPILATION_CACHE_DIR"
LONGEST_NAME = 200
"""Longest accepted name of a module, in characters."""


class Tree(NamedTuple):
    """A folder with a user's modules: a project, or an installed package."""

    folder: Path
    packages: tuple[str, ...] = ()
    """Top-level packages to accept. If empty, all are accepted except those of NeoRL and the standard library."""

    def file(self, module: str) -> Path | None:
        """Return the source file of a module or package; None if it is missing or a link leads out of the folder."""
        top = module.partition(".")[0]
        if top in PACKAGES or top in sys.stdlib_module_names or (self.packages and top not in self.packages):
            return None
        if len(module) > LONGEST_NAME or not all(part.isidentifier() for part in module.split(".")):
            return None
        path = self.folder.joinpath(*module.split("."))
        found = next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)
        return found if found is not None and found.resolve().is_relative_to(self.folder) else None


def modules_of(*roots: str, tree: Tree | None = None) -> tuple[str, ...]:
    """Return the modules `roots` and all modules that they import, directly or indirectly, in alphabetical order.

    Imports inside functions are included; imports under `TYPE_CHECKING` are not. A string that equals a module's name
    is treated as an import, because worker processes start modules by name. Plants and algorithms are also loaded by
    name, so pass their modules as roots. If `tree` is given, the user's modules are included. An unknown root raises
    ValueError.
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
            raise ValueError(f"{root!r} is not a module of {', '.join(PACKAGES)}")
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
        # Importing a module first runs the `__init__.py` of every package above it, if there is one.
        parts = name.split(".")
        queue += [".".join(parts[:i]) for i in range(1, len(parts))]
    return tuple(sorted(found))


@cache
def sources_digest(*roots: str) -> str:
    """Return one SHA-256 for the source files of the modules `roots` and of all modules that they import."""
    return _digest([path for name in modules_of(*roots) if (path := _file(name)) is not None])


def tree_sources(*roots: str, tree: Tree) -> dict[str, str]:
    """Return the SHA-256 of each module in a user's `tree` that `roots` import, directly or indirectly, by module name.

    The result is not cached, because a user's files can change while a process runs.
    """
    names = modules_of(*roots, tree=tree)
    return {name: file_sha256(path) for name in names if (path := tree.file(name)) is not None}


@cache
def code_digest() -> str:
    """Return one SHA-256 for all source files of NeoRL."""
    return _digest(sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")))


@cache
def lock_digest() -> str:
    """Return the SHA-256 of requirements.lock; if it is missing, of the names and versions of installed packages."""
    lock = ROOT / "requirements.lock"
    if lock.exists():
        return file_sha256(lock)
    return digest_json(sorted((d.metadata["Name"].lower(), d.version) for d in metadata.distributions()))


@cache
def processor_class() -> str:
    """Return the processor family, for example linux-x86_64-avx2; within a family, results repeat bit for bit.

    The number of cores does not matter, because `configs` sets at least two threads unless `PJRT_NPROC` is set.
    """
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    widest = next((name for name in ("avx512f", "avx2", "asimd") if name in flags), "scalar")
    return f"{platform.system()}-{platform.machine()}-{widest}".lower()


def jax_versions() -> str:
    """Return the versions of jax and jaxlib, such as '0.10.2, jaxlib 0.10.2'."""
    return f"{metadata.version('jax')}, jaxlib {metadata.version('jaxlib')}"


def compiled_programs(home: Home) -> Path:
    """Return the home's folder for programs compiled by JAX, for the present jaxlib version and processor family."""
    return home.root / "cache" / "jax" / f"{metadata.version('jaxlib')}-{processor_class()}"


def compiling(home: Home) -> dict[str, str]:
    """Return the environment variables that make JAX store all compiled programs in a home."""
    return {COMPILED: str(compiled_programs(home)), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def source_file(module: str) -> Path:
    """Return the source file of a NeoRL module or package; raise ValueError if there is none."""
    path = _file(module)
    if path is None:
        raise ValueError(f"{module!r} is not a module of {', '.join(PACKAGES)}")
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
    """Parse a source file; retry because CPython 3.11 raises SystemError if another thread parses at the same time."""
    for _ in range(8):
        try:
            return ast.parse(path.read_bytes())
        except SystemError:
            continue
    return ast.parse(path.read_bytes())


def _named(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the names in a module's syntax tree that may be modules; relative imports are resolved from `package`."""
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
