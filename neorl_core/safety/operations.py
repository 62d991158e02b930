"""Find operations of a program that do more than compute.

The kernels of linear algebra trust the shapes of their caller, and a sort trusts its comparison. Therefore each custom
call, composite and comparison must equal one that JAX itself lowers for operands of the same types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import export, lax
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

NAMES = """
abs add and atan2 bitcast_convert broadcast_in_dim case cbrt ceil cholesky clamp compare complex concatenate
constant convert convolution cosine count_leading_zeros divide dot_general dynamic_slice dynamic_update_slice
exponential exponential_minus_one fft floor gather if imag iota is_finite log log_plus_one logistic maximum minimum
multiply negate not optimization_barrier or pad popcnt power real reduce reduce_precision reduce_window remainder
reshape return reverse rng_bit_generator round_nearest_afz round_nearest_even rsqrt scatter select
select_and_scatter shift_left shift_right_arithmetic shift_right_logical sign sine slice sqrt subtract tan tanh
transpose triangular_solve while xor
"""
ALLOWED = {"func.call", "func.return", *(f"stablehlo.{name}" for name in NAMES.split())}
"""Operations that only compute, whatever their operands are."""
COMPARED = ("stablehlo.custom_call", "stablehlo.composite", "stablehlo.sort")
"""Operations that must equal one of JAX's."""
MODULE = {"jax.uses_shape_polymorphism", "mhlo.num_partitions", "mhlo.num_replicas", "sym_name"}
"""Attributes of JAX's modules."""
MESH = {"sym_name": '"empty_mesh"', "mesh": "#sdy.mesh<[]>", "stablehlo.mesh": "{axes = []}"}
"""Attributes of the mesh without axes, for which JAX lowers constraints of keys."""
NO_SHARDING = re.compile(r"#sdy\.sharding<@empty_mesh, \[(\{\??\}(, )?)*\]>")
FUNCTION = {"arg_attrs", "function_type", "res_attrs", "sym_name", "sym_visibility"}
"""Attributes of JAX's functions; of the attributes of arguments and results only the names of results are allowed."""
DEPTH = 200
"""Largest depth of nested regions, and of nested calls: deeper programs exhaust the stack of the compiler."""
DTYPES = {
    "i1": "bool",
    "bf16": "bfloat16",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""Dtypes of arrays by their names in StableHLO."""
ELEMENTWISE = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "erf_inv", "erfc", "sinh", "tan")

_la, _TWO = lax.linalg, (False, True)
_SOLVE = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")


def _each(function: Callable[..., Any], *names: str) -> list[Callable[..., Any]]:
    """Return a function of (size, operands) for each combination of options."""
    options = [dict(zip(names, values, strict=True)) for values in product(_TWO, repeat=len(names))]
    return [lambda _, *operands, named=named: function(*operands, **named) for named in options]


CALLS: dict[str, list[Callable[..., Any]]] = {
    "potrf": [lambda _, x: _la.cholesky(x, symmetrize_input=False)],
    "geqrf": [lambda _, x: _la.qr(x, full_matrices=False)],
    "gqr": _each(_la.householder_product),
    "getrf": _each(_la.lu),
    "lu_pivots_to_permutation": [lambda size, x: _la.lu_pivots_to_permutation(x, size)],
    "evd": _each(lambda x, lower: _la.eigh(x, lower=lower, symmetrize_input=False), "lower"),
    "geev": _each(_la.eig, "compute_left_eigenvectors", "compute_right_eigenvectors"),
    "gees": _each(_la.schur, "compute_schur_vectors"),
    # The kernels for GPUs take wide matrices transposed.
    "ges": _each(
        lambda x, turned, **options: _la.svd(x.mT if turned else x, **options), "turned", "full_matrices", "compute_uv"
    ),
    "gehrd": _each(_la.hessenberg),
    "trd": _each(_la.tridiagonal, "lower"),
    "trsm": _each(_la.triangular_solve, *_SOLVE),
    "gtsv": _each(_la.tridiagonal_solve),
    "threefry2x32": _each(threefry2x32_p.bind),
    "chlo.top_k": [lambda size, x: lax.top_k(x, size)],
    **{f"chlo.{name}": _each(getattr(lax, name)) for name in ELEMENTWISE if hasattr(lax, name)},
}
"""Functions of JAX by a part of the name of the call that they make; `size` is the last dimension of a result."""


def impurity(exported: export.Exported) -> str:
    """Return the first reason why a program may do more than compute; empty if there is none."""
    if exported.ordered_effects or exported.unordered_effects:
        return "side effects"
    if len(exported.platforms) != 1 or exported.nr_devices != 1:
        return "several platforms or devices"
    try:
        with mlir.make_ir_context(), mlir.ir.Location.unknown():
            module = exported.mlir_module(serialized=False)
            module.operation.verify()
            return next(_reasons(module, exported), "")
    # The bindings raise errors of many classes, and JAX refuses operands and platforms of calls that it does not make.
    except Exception as error:
        return f"a part that cannot be checked ({' '.join(str(error).split())[:200]})"


def _reasons(module: Any, exported: export.Exported) -> Iterator[str]:
    functions = {}
    if unknown := {*module.operation.attributes} - MODULE:
        yield f"the attribute '{min(unknown)}'"
    for function in module.body:
        if function.operation.name == "sdy.mesh" and _text(function.operation) == MESH:
            continue
        if function.operation.name != "func.func":
            yield f"the operation {function.operation.name}"
            return
        functions[function.operation.attributes["sym_name"].value] = function.operation
    if (main := functions.get("main")) is None:
        yield "no function 'main'"
        return
    if str(main.attributes["function_type"].value) != _expected_type(exported):
        yield "other arguments or results of 'main' than stated"
    calls: dict[str, dict[str, int]] = {}
    for name, function in functions.items():
        calls[name] = {}
        if not [*function.regions[0]]:
            yield f"the function '{name[:80]}' without a body"
            return
        yield from _in_function(function, exported.platforms[0], calls[name])
    depths: dict[str, int] = {}
    for _ in range(DEPTH):
        for name in [name for name in calls if name not in depths and calls[name].keys() <= depths.keys()]:
            depths[name] = max((depth + 1 + depths[called] for called, depth in calls[name].items()), default=0)
    if deep := sorted(name for name in calls if depths.get(name, DEPTH) >= DEPTH):
        yield f"the function '{deep[0][:80]}', which calls itself or nests more than {DEPTH} calls"


def _expected_type(exported: export.Exported) -> str:
    """Return the type of 'main' that the arguments and results of a program need."""

    def types(avals: Any) -> list[Any]:
        leaves = [jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf for leaf in avals]
        return [mlir.ir.RankedTensorType.get(leaf.shape, mlir.dtype_to_ir_type(leaf.dtype)) for leaf in leaves]

    inputs, outputs = exported.in_avals, exported.out_avals
    trees: tuple[Any, Any] = (exported.in_tree, exported.out_tree)
    if [tree.num_leaves for tree in trees] != [len(inputs), len(outputs)]:
        return ""
    kept = [inputs[number] for number in exported.module_kept_var_idx if number in range(len(inputs))]
    return str(mlir.ir.FunctionType.get(types(kept), types(outputs)))


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _in_function(function: Any, platform: str, calls: dict[str, int]) -> Iterator[str]:
    """Yield the reasons in a function, and add the called functions to `calls`, with the depth of the call."""
    described = function.attributes
    named = {
        name.name for key in ("arg_attrs", "res_attrs") if key in described for one in described[key] for name in one
    }
    if unknown := ({*described} - FUNCTION) | (named - {"jax.result_info"}):
        yield f"the attribute '{min(unknown)}'"
    if not _are_arrays(function):
        yield "values that are not arrays of fixed shapes"
    for operation, depth in _inside(function):
        name = operation.name
        if depth > DEPTH:
            yield f"more than {DEPTH} nested regions"
            return
        if name in COMPARED:
            if "decomposition" in operation.attributes:
                _deepest(calls, operation.attributes["decomposition"].value, depth)
            if not _is_of_jax(operation, platform):
                yield _title(operation)
        elif name == "sdy.sharding_constraint":
            if {*_text(operation)} != {"sharding"} or not NO_SHARDING.fullmatch(_text(operation)["sharding"]):
                yield "a constraint of devices"
        elif name not in ALLOWED:
            yield f"the operation {name}"
        else:
            # Other attributes, as of XLA's frontend, may change the way in which XLA executes an operation.
            known = type(operation.opview)
            if foreign := [attribute for attribute in operation.attributes if not hasattr(known, attribute)]:
                yield f"the attribute '{foreign[0]}'"
            if name == "func.call":
                _deepest(calls, operation.attributes["callee"].value, depth)
        if not _are_arrays(operation):
            yield "values that are not arrays of fixed shapes"


def _deepest(calls: dict[str, int], name: str, depth: int) -> None:
    calls[name] = max(depth, calls.get(name, 0))


def _inside(parent: Any) -> Iterator[tuple[Any, int]]:
    """Yield the operations inside an operation, each with its depth."""
    waiting = [(parent, 0)]
    while waiting:
        operation, depth = waiting.pop()
        for region in operation.regions:
            for block in region:
                for inner in block.operations:
                    found = inner.operation
                    yield found, depth
                    if depth <= DEPTH and len(found.regions):
                        waiting.append((found, depth + 1))


def _text(operation: Any) -> dict[str, str]:
    return {name: str(operation.attributes[name]) for name in operation.attributes}


def _are_arrays(operation: Any) -> bool:
    """Return whether the results of an operation and the arguments of its regions are arrays of fixed shapes."""
    arguments = [value for region in operation.regions for block in region for value in block.arguments]
    return all(_is_array(value.type) for value in [*operation.results, *arguments])


def _is_array(kind: Any) -> bool:
    if not isinstance(kind, mlir.ir.RankedTensorType) or not kind.has_static_shape or kind.encoding is not None:
        return False
    # Types of other dialects, as quantised numbers, begin with '!'.
    return not str(kind.element_type).startswith("!")


def _title(operation: Any) -> str:
    kind = operation.name.removeprefix("stablehlo.")
    called = operation.attributes
    for key in ("call_target_name", "name"):
        if kind != "sort" and key in called:
            return f"the {kind} '{called[key].value[:80]}', which JAX does not make for these types"
    return "a sort with a comparison that is not JAX's"


def _is_of_jax(operation: Any, platform: str) -> bool:
    """Return whether JAX lowers a function to this operation, for operands of the same types."""
    types = tuple(_array(operand.type) for operand in operation.operands)
    if None in types or not types:
        return False
    if operation.name == "stablehlo.sort":
        comparison = _comparison(operation)
        return bool(comparison) and comparison in _comparisons(tuple(dtype for _, dtype in types))  # type: ignore[misc]
    named = operation.attributes["call_target_name" if "call_target_name" in operation.attributes else "name"].value
    # The signature contains the whole name.
    family = max((part for part in CALLS if part in named), key=len, default=None)
    if family is None:
        return False
    result = _array(operation.results[0].type) if len(operation.results) else None
    size = result[0][-1] if result and result[0] else 0
    return _signature(operation) in _calls(family, size, types, platform)


def _array(kind: Any) -> tuple[tuple[int, ...], str] | None:
    """Return shape and dtype of a type; None if the type is not an array's, or has another dtype than `DTYPES`."""
    dtype = DTYPES.get(str(kind.element_type)) if _is_array(kind) else None
    return (tuple(kind.shape), dtype) if dtype else None


def _signature(operation: Any) -> tuple[str, ...]:
    """Return types and attributes of a call as text."""
    attributes = sorted(f"{key}={value}" for key, value in _text(operation).items() if key != "decomposition")
    types = [str([str(value.type) for value in values]) for values in (operation.operands, operation.results)]
    return (operation.name, *types, *attributes)


def _comparison(operation: Any) -> str:
    """Return the comparison of a sort as text, in which values have numbers; empty if JAX makes none of this kind."""
    blocks = [*operation.regions[0]]
    if len(blocks) != 1 or not {*operation.attributes} <= {"dimension", "is_stable"}:
        return ""
    numbers = {value: number for number, value in enumerate(blocks[0].arguments)}
    lines = [str([str(value.type) for value in numbers])]
    for inner in blocks[0].operations:
        operands = [numbers.get(operand, _constant(operand)) for operand in inner.operation.operands]
        if len(inner.operation.regions) or None in operands:
            return ""
        lines.append(f"{operands} {_signature(inner.operation)}")
        for result in inner.operation.results:
            numbers[result] = len(numbers)
    return "\n".join(lines)


def _constant(value: Any) -> str | None:
    """Return a constant as text; None if the value is not a constant."""
    owner = value.owner
    if isinstance(owner, mlir.ir.Block) or owner.name != "stablehlo.constant":
        return None
    return str(owner.attributes["value"])


@lru_cache(maxsize=256)
def _calls(
    family: str, size: int, types: tuple[tuple[tuple[int, ...], str], ...], platform: str
) -> frozenset[tuple[str, ...]]:
    """Return the signatures of the calls in JAX's lowering of the functions of a family."""
    functions = [lambda *operands, function=function: function(size, *operands) for function in CALLS[family]]
    return frozenset(
        _signature(operation)
        for operation in _lowered(functions, types, platform)
        if operation.name in COMPARED and operation.name != "stablehlo.sort"
    )


@lru_cache(maxsize=256)
def _comparisons(dtypes: tuple[str, ...]) -> frozenset[str]:
    """Return JAX's comparisons of elements; they do not depend on shapes."""
    functions: list[Callable[..., Any]] = [
        lambda *operands, keys=keys: lax.sort(operands, num_keys=keys) for keys in range(1, len(dtypes) + 1)
    ]
    # `top_k` sorts in descending order, with positions.
    if len(dtypes) == 2:
        functions.append(lambda x, _: lax.top_k(x, 1))
    types = tuple(((2,), dtype) for dtype in dtypes)
    return frozenset(
        _comparison(operation) for operation in _lowered(functions, types, "cpu") if operation.name == "stablehlo.sort"
    )


def _lowered(functions: list[Callable[..., Any]], types: Any, platform: str) -> Iterator[Any]:
    """Yield the operations of JAX's lowering of each function that accepts operands of these types."""
    with jax.enable_x64(any(dtype in ("float64", "complex128", "int64", "uint64") for _, dtype in types)):
        operands = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types]  # type: ignore[no-untyped-call]
        accepted = [function for function in functions if _accepts(function, operands)]
        jitted = jax.jit(lambda *given: [f(*given) for f in accepted])
        exported = export.export(jitted, platforms=(platform,))(*operands)
    with mlir.make_ir_context(), mlir.ir.Location.unknown():
        for inner in exported.mlir_module(serialized=False).body:
            for operation, _ in _inside(inner.operation):
                yield operation


def _accepts(function: Callable[..., Any], operands: list[Any]) -> bool:
    """Return whether the shapes of the operands fit a function.

    A function with options, as the side of a triangular solve, fits some shapes only; JAX says so by a ValueError.
    """
    try:
        jax.eval_shape(function, *operands)
    except ValueError:
        return False
    return True
