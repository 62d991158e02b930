"""Formulas over signals: read with Python's own parser, held to a whitelist, checked for units, never evaluated.

`-(next.temperature - setpoint) ** 2 / quantity(1, "K") ** 2 - 0.1 * valve`: names are signals, `next.` is what they are
one control period later, `quantity(number, unit)` is a constant with a unit, and + - * / **, comparisons within `where`
and the functions of FUNCTIONS are all there is.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.units import Rotation, cycles, dimensions, kind, rotation, to_base

MAX_LENGTH = 1000
MAX_NODES = 200
MAX_LEVELS = 40
MAX_POWER = 8

TOO_DEEP = f"expected a formula of at most {MAX_LEVELS} levels, got a deeper one: derive a tag from a part of it"

Values = Mapping[str, npt.NDArray[np.float64]]
Compute = Callable[[Values], Any]

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: np.divide,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
FUNCTIONS = {"abs": 1, "sqrt": 1, "exp": 1, "log": 1, "min": 2, "max": 2, "clip": 3, "where": 3, "quantity": 2}
"""name -> number of arguments; exp and log want ratios, min, max, clip and where arguments of one unit."""
PLAIN: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "min": np.minimum,
    "max": np.maximum,
    "clip": np.clip,
}


class Expression(NamedTuple):
    """A formula that has been checked."""

    text: str
    names: frozenset[str]
    """Signals that it reads; 'next.x' where it looks a period ahead."""
    compute: Compute
    """Values by name, in the units that were declared -> the result, in the unit that was asked for."""


class _Part(NamedTuple):
    dimension: Any
    compute: Compute
    rotation: Rotation = Rotation()

    def counted_as(self, other: Rotation) -> _Part:
        """The same quantity, counting turns, angles or cycles as another does."""
        factor = cycles(self.rotation, other, self.dimension)
        if factor == 1.0:
            return self
        return _Part(self.dimension, lambda values: factor * self.compute(values), other)


def compile_expression(text: str, units: Mapping[str, str], unit: str) -> Expression:
    """Check a formula and make it computable.

    All is computed in SI base units, so that degC are kelvin inside a formula; a difference of temperatures is asked
    for in K or delta_degC.

    Args:
        text: the formula.
        units: unit by name of each signal that may occur; names with 'next.' among them where looking ahead is allowed.
        unit: of the result.

    Returns:
        The formula, over arrays (n,).

    Raises:
        ValueError: naming what in the formula is not allowed or does not fit.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"expected a formula of at most {MAX_LENGTH} characters, got {len(text)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python warns of is refused below
            tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected a formula, got '{text}', in which {getattr(error, 'msg', error)}") from error
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise ValueError(f"expected a formula of at most {MAX_NODES} parts, got a longer one: derive a tag from some")
    reader = _Reader(units)
    try:
        part = reader.read(tree.body)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    wanted = dimensions(unit)
    if part.dimension != wanted:
        raise ValueError(
            f"expected '{text}' to be a {kind(wanted)} in '{unit}', got a {kind(part.dimension)}: "
            "divide by quantity(1, unit) to take a unit off"
        )
    scale, offset = to_base(unit)
    result = part.counted_as(rotation(unit))

    def compute(values: Values) -> Any:
        with np.errstate(all="ignore"):  # what is not finite is found by the row checks
            return (result.compute(values) - offset) / scale

    return Expression(text, frozenset(reader.names), compute)


class _Reader:
    """Walks a tree of the whitelist; anything else is named and refused."""

    def __init__(self, units: Mapping[str, str]) -> None:
        self.units = units
        self.names: set[str] = set()
        self.level = 0

    def read(self, node: ast.expr) -> _Part:
        """What an expression computes, and the dimension of it."""
        self.level += 1
        if self.level > MAX_LEVELS:
            raise ValueError(TOO_DEEP)
        part = self._read(node)
        self.level -= 1
        return part

    def _read(self, node: ast.expr) -> _Part:
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "next":
            return self._name(f"next.{node.attr}")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            part = self.read(node.operand)
            sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
            return part._replace(compute=lambda values: sign * part.compute(values))
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self._call(node, node.func.id)
        raise ValueError(
            f"expected numbers, signals, + - * / ** and {', '.join(FUNCTIONS)}, got '{ast.unparse(node)[:60]}'"
        )

    def _constant(self, node: ast.Constant) -> _Part:
        number = _number(node.value)
        return _Part(dimensions("1"), lambda values: number)

    def _name(self, name: str) -> _Part:
        if name not in self.units:
            raise ValueError(f"expected a signal among {', '.join(self.units)}, got '{name}'")
        self.names.add(name)
        scale, offset = to_base(self.units[name])
        unit = self.units[name]
        return _Part(dimensions(unit), lambda values: scale * values[name] + offset, rotation(unit))

    def _binary(self, node: ast.BinOp) -> _Part:
        left = self.read(node.left)
        if isinstance(node.op, ast.Pow):
            return self._power(node, left)
        if type(node.op) not in ARITHMETIC:
            raise ValueError(f"expected + - * / or **, got '{ast.unparse(node)[:60]}'")
        right = self.read(node.right)
        apply = ARITHMETIC[type(node.op)]
        if isinstance(node.op, ast.Mult):
            dimension, counts = left.dimension * right.dimension, left.rotation.times(right.rotation)
        elif isinstance(node.op, ast.Div):
            dimension, counts = left.dimension / right.dimension, left.rotation.times(right.rotation, -1.0)
        else:
            left, right = self._same(node, left, right)
            dimension, counts = right.dimension, right.rotation
        return _Part(dimension, lambda values: apply(left.compute(values), right.compute(values)), counts)

    def _power(self, node: ast.BinOp, base: _Part) -> _Part:
        exponent, sign = node.right, 1.0
        if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
            exponent, sign = exponent.operand, -1.0
        if not isinstance(exponent, ast.Constant):
            raise ValueError(f"expected a number as exponent, got '{ast.unparse(node)[:60]}'")
        power = sign * _number(exponent.value)
        if not abs(power) <= MAX_POWER:
            raise ValueError(f"expected an exponent of at most {MAX_POWER}, got {power:g}")
        counts = Rotation().times(base.rotation, power)
        return _Part(base.dimension**power, lambda values: np.power(base.compute(values), power), counts)

    def _call(self, node: ast.Call, name: str) -> _Part:
        if name not in FUNCTIONS or len(node.args) != FUNCTIONS[name]:
            wanted = ", ".join(f"{key}({n})" for key, n in FUNCTIONS.items())
            raise ValueError(f"expected a function with its number of arguments among {wanted}, got '{name}'")
        if name == "quantity":
            return self._quantity(node)
        if name == "where":
            return self._where(node)
        parts = [self.read(argument) for argument in node.args]
        parts = self._alike(node, parts)
        dimension, counts = parts[-1].dimension, parts[-1].rotation
        if name in ("exp", "log") and dimension != dimensions("1"):
            raise ValueError(f"expected a ratio within {name}, got a {kind(dimension)} in '{ast.unparse(node)[:60]}'")
        if name == "sqrt":
            dimension, counts = dimension**0.5, Rotation().times(counts, 0.5)
        apply = PLAIN[name]
        return _Part(dimension, lambda values: apply(*(part.compute(values) for part in parts)), counts)

    def _quantity(self, node: ast.Call) -> _Part:
        number, unit = node.args
        negative = isinstance(number, ast.UnaryOp) and isinstance(number.op, ast.USub)
        plain = number.operand if isinstance(number, ast.UnaryOp) and negative else number
        if not (isinstance(unit, ast.Constant) and isinstance(unit.value, str) and isinstance(plain, ast.Constant)):
            raise ValueError(f"expected quantity(number, 'unit'), got '{ast.unparse(node)[:60]}'")
        scale, offset = to_base(unit.value)
        value = scale * _number(plain.value) * (-1.0 if negative else 1.0) + offset
        return _Part(dimensions(unit.value), lambda values: value, rotation(unit.value))

    def _where(self, node: ast.Call) -> _Part:
        test = node.args[0]
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in COMPARISONS):
            raise ValueError(f"expected one of < <= > >= first in where, got '{ast.unparse(test)[:60]}'")
        left, right = self._same(test, self.read(test.left), self.read(test.comparators[0]))
        compare = COMPARISONS[type(test.ops[0])]
        yes, no = self._same(node, self.read(node.args[1]), self.read(node.args[2]))
        return _Part(
            yes.dimension,
            lambda values: np.where(
                compare(left.compute(values), right.compute(values)), yes.compute(values), no.compute(values)
            ),
            no.rotation,
        )

    def _alike(self, node: ast.expr, parts: list[_Part]) -> list[_Part]:
        """Quantities of one dimension, all counting alike."""
        return [self._same(node, part, parts[-1])[0] for part in parts]

    def _same(self, node: ast.expr, left: _Part, right: _Part) -> tuple[_Part, _Part]:
        """Two quantities of one dimension, counting alike: rpm that meet Hz become cycles of a second."""
        if left.dimension != right.dimension:
            raise ValueError(
                f"expected one unit on both sides of '{ast.unparse(node)[:60]}', got a {kind(left.dimension)} and a "
                f"{kind(right.dimension)}"
            )
        return left.counted_as(right.rotation), right


def _number(value: object) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError(f"expected a number, got {repr(value)[:60]}")
