"""Structure of the sources: typed values between tasks, and the length of files."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("neorl_core", "configs", "tasks", "flows")
LONGEST_FILE = 700
UNTYPED = {
    # Parsers read foreign data and build typed values or refuse.
    "flows.services.deployments:_text": "reads prefect.yaml, which users write",
    "flows.services.state:_service": "reads services.json, which may come from another version",
    "tasks.data.formats.hdf5.isolated:_ask": "reads frames of the process that opens foreign HDF5 files",
    "tasks.data.formats.hdf5.isolated:_Worker.receive": "reads frames of the process that opens foreign HDF5 files",
    "tasks.data.formats.hdf5.isolated:_Worker.receive_rows": "reads frames of the process for foreign HDF5 files",
    "tasks.models.bundles.manifest:_manifest": "reads composite.json, which may come from anywhere",
    "tasks.models.bundles.checkpoints:_flat": "compares identities, the JSON that each kind of training brings",
    "tasks.models.bundles.checkpoints:_check_identity": "compares identities, the JSON that each training brings",
    "tasks.files.spec:spec_record": "writes the JSON of a plant's spec; its digest names bundles",
    "tasks.files.spec:_object": "reads the JSON of a plant's spec, which may come from anywhere",
    "configs.load:merged": "merges keys of a fleet and a site before they become a run",
    "configs.load:_site_keys": "reads a site's keys before they become a run",
    "tasks.models.plants.known:site_record": "writes the JSON of a site; its digest names bundles",
    "tasks.data.synthetic.fleet:_yaml": "writes a fleet's file like the run that it is made from",
    # Signatures required by a library.
    "tasks.registry.policy_model:ShieldedPolicy.predict": "MLflow's own signature",
}
"""Functions that may take or return untyped mappings, and the reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources(*folders: str) -> tuple[Path, ...]:
    """Return the Python files that git tracks or would add, in some folders or in all."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(path for name in told.split("\0") if name.endswith(".py") and (path := ROOT / name).exists()))


def module_of(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function and method below a node with its qualified name."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield name, child
            name += "."
        yield from functions(child, name)


class Annotations:
    """Return the aliases in annotations that are assigned in a module or imported from one of ours."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.values: dict[tuple[str, str], ast.expr] = {}
        self.imports: dict[tuple[str, str], tuple[str, str]] = {}
        for module, tree in trees.items():
            for node in tree.body:
                match node:
                    case (
                        ast.Assign(targets=[ast.Name(id=name)], value=value)
                        | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                    ):
                        self.values[module, name] = value
            for found in ast.walk(tree):
                if isinstance(found, ast.ImportFrom) and found.module:
                    for each in found.names:
                        self.imports[module, each.asname or each.name] = (found.module, each.name)

    def untyped(self, module: str, annotation: ast.expr, seen: frozenset[tuple[str, str]] = frozenset()) -> bool:
        """Return whether an annotation contains a mapping to anything, or arbitrary JSON, at any depth."""
        match annotation:
            case ast.Subscript(value=kind, slice=ast.Tuple(elts=[_, held])) if last(kind) in {
                "dict",
                "Dict",
                "Mapping",
                "MutableMapping",
            } and last(held) in {"Any", "object"}:
                return True
            case ast.Name() | ast.Attribute() if last(annotation) in {"JsonValue", "JsonObject"}:
                return True
            case ast.Name(id=name) if (module, name) not in seen:
                here = seen | {(module, name)}
                if (module, name) in self.values:
                    return self.untyped(module, self.values[module, name], here)
                if (module, name) in self.imports:
                    origin, original = self.imports[module, name]
                    return self.untyped(origin, ast.Name(original), here)
        parts = (part for part in ast.iter_child_nodes(annotation) if isinstance(part, ast.expr))
        return any(self.untyped(module, part, seen) for part in parts)

    def untyped_functions(self, module: str, tree: ast.Module) -> Iterator[str]:
        """Return `module:function` of every function that takes or returns such a value."""
        for name, function in functions(tree):
            given = function.args
            taken = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            annotations = [function.returns, *(each.annotation for each in taken if each is not None)]
            if any(each is not None and self.untyped(module, each) for each in annotations):
                yield f"{module}:{name}"


def last(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {module_of(path): ast.parse(path.read_text()) for path in sources(*PACKAGES)}


def test_tasks_exchange_typed_values(trees: dict[str, ast.Module]) -> None:
    annotations = Annotations(trees)
    found = {
        name
        for module, tree in trees.items()
        if module.partition(".")[0] in {"configs", "tasks", "flows"}
        for name in annotations.untyped_functions(module, tree)
    }
    assert sorted(found - UNTYPED.keys()) == [], "add types, or add the function to UNTYPED"
    assert sorted(UNTYPED.keys() - found) == [], "typed or removed: delete from UNTYPED"


@pytest.mark.parametrize(
    "signature",
    [
        "def f(x: dict[str, Any]) -> None: ...",
        "def f() -> list[tuple[int, Mapping[str, object]]]: ...",
        "def f(*, x: int | typing.Mapping[str, typing.Any] | None = None) -> None: ...",
        "def f(**x: Alias) -> None: ...",
        "async def f() -> Callable[[int], pydantic.JsonValue]: ...",
        "class C:\n    def f(self, x: Imported) -> None: ...",
        "def g() -> None:\n    def f(x: Imported) -> None: ...",
    ],
)
def test_untyped_mappings_are_found_at_any_depth(signature: str) -> None:
    trees = {"here": ast.parse(f"from there import Alias as Imported\nAlias = dict[str, Any]\n{signature}")}
    trees["there"] = ast.parse("Deep = dict[str, JsonValue]\nAlias: TypeAlias = list[Deep]")
    assert [name[-1] for name in Annotations(trees).untyped_functions("here", trees["here"])] == ["f"]


def test_typed_mappings_and_arrays_are_accepted() -> None:
    tree = ast.parse("def f(x: dict[str, npt.NDArray[Any]], y: Mapping[str, float]) -> dict[str, dict[str, int]]: ...")
    assert list(Annotations({"here": tree}).untyped_functions("here", tree)) == []


def test_no_file_exceeds_700_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def test_every_package_has_a_py_typed_file() -> None:
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []
