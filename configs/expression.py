"""Formulas over signals, with a whitelist of operators and functions, and a check of units.

Example: `-(next.temperature - setpoint) ** 2 / quantity(1, "K") ** 2 - 0.1 * valve`. Names are signals. `next.` reads a
signal one control period later, and `quantity(number, unit)` is a constant with a unit. The operators are + - * / **
and, inside `where`, comparisons; FUNCTIONS lists the functions. Text is parsed but never executed as Python.
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

TOO_DEEP = f"the formula has more than {MAX_LEVELS} nested levels: move a part into a derived quantity"

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
"""Number of arguments by name. exp and log need a ratio; min, max, clip and where need arguments of one unit."""
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
    """A checked formula."""

    text: str
    names: frozenset[str]
    """Signals that the formula reads; 'next.x' is x one period later."""
    compute: Compute
    """Function of the values by name, in their declared units; returns the result in the requested unit."""


class _Part(NamedTuple):
    dimension: Any
    compute: Compute
    rotation: Rotation = Rotation()

    def counted_as(self, other: Rotation) -> _Part:
        """Convert the quantity so that rotation is measured as in `other`: in turns, angles or cycles."""
        factor = cycles(self.rotation, other, self.dimension)
        if factor == 1.0:
            return self
        return _Part(self.dimension, lambda values: factor * self.compute(values), other)


def compile_expression(text: str, units: Mapping[str, str], unit: str) -> Expression:
    """Check and compile a formula.

    Values are converted to SI base units first, so degC becomes K. Write a temperature difference in K or delta_degC.

    Args:
        units: unit of each allowed signal by name, with `next.` names if the formula may read them.
        unit: unit of the result.

    Returns:
        The compiled formula, for arrays of shape (n,).

    Raises:
        ValueError: if a part of the formula is not allowed or has the wrong unit; the message names the part.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the formula has {len(text)} characters, at most {MAX_LENGTH} are allowed: divide it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the whitelist rejects everything that Python warns about
            tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{text[:60]}' is no formula: {getattr(error, 'msg', error)}") from error
    if (parts := sum(1 for _ in ast.walk(tree))) > MAX_NODES:
        raise ValueError(f"the formula has {parts} parts, at most {MAX_NODES} are allowed: divide it")
    reader = _Reader(units)
    try:
        part = reader.read(tree.body)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    wanted = dimensions(unit)
    if part.dimension != wanted:
        raise ValueError(
            f"'{text[:60]}' must be a {kind(wanted)} in '{unit}', got a {kind(part.dimension)}: divide by "
            "quantity(1, unit) to remove a unit"
        )
    scale, offset = to_base(unit)
    result = part.counted_as(rotation(unit))

    def compute(values: Values) -> Any:
        with np.errstate(all="ignore"):  # row checks find values that are not finite
            return (result.compute(values) - offset) / scale

    return Expression(text, frozenset(reader.names), compute)


class _Reader:
    """Compile a syntax tree. A node outside the whitelist raises an error that names the node."""

    def __init__(self, units: Mapping[str, str]) -> None:
        self.units = units
        self.names: set[str] = set()
        self.level = 0

    def read(self, node: ast.expr) -> _Part:
        """Return how to compute an expression, and the dimension of the result."""
        self.level += 1
        if self.level > MAX_LEVELS:
            raise ValueError(TOO_DEEP)
        part = self._read(node)
        self.level -= 1
        return part

    def _read(self, node: ast.expr) -> _Part:
        if isinstance(node, ast.Constant):
            number = _number(node.value)
            return _Part(dimensions("1"), lambda values: number)
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
            f"'{ast.unparse(node)[:60]}' is not allowed: use numbers, signals, + - * / ** and {', '.join(FUNCTIONS)}"
        )

    def _name(self, name: str) -> _Part:
        if name not in self.units:
            raise ValueError(f"unknown signal '{name}': choose from {', '.join(self.units)}")
        self.names.add(name)
        scale, offset = to_base(self.units[name])
        unit = self.units[name]
        return _Part(dimensions(unit), lambda values: scale * values[name] + offset, rotation(unit))

    def _binary(self, node: ast.BinOp) -> _Part:
        left = self.read(node.left)
        if isinstance(node.op, ast.Pow):
            return self._power(node, left)
        if type(node.op) not in ARITHMETIC:
            raise ValueError(f"'{ast.unparse(node)[:60]}' has an unknown operator: use + - * / or **")
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
        exponent, sign = _signed(node.right)
        if not isinstance(exponent, ast.Constant):
            raise ValueError(f"the exponent in '{ast.unparse(node)[:60]}' must be a number, such as 2: correct it")
        power = sign * _number(exponent.value)
        if not abs(power) <= MAX_POWER:
            raise ValueError(f"an exponent must be at most {MAX_POWER}, got {power:g}: use a smaller exponent")
        counts = Rotation().times(base.rotation, power)
        return _Part(base.dimension**power, lambda values: np.power(base.compute(values), power), counts)

    def _call(self, node: ast.Call, name: str) -> _Part:
        if name not in FUNCTIONS or len(node.args) != FUNCTIONS[name]:
            wanted = ", ".join(f"{key} {n}" for key, n in FUNCTIONS.items())
            text = ast.unparse(node)[:60]
            raise ValueError(f"'{text}' is no known call: the functions and their numbers of arguments are {wanted}")
        if name == "quantity":
            return self._quantity(node)
        if name == "where":
            return self._where(node)
        parts = [self.read(argument) for argument in node.args]
        parts = [self._same(node, part, parts[-1])[0] for part in parts]
        dimension, counts = parts[-1].dimension, parts[-1].rotation
        if name in ("exp", "log") and dimension != dimensions("1"):
            raise ValueError(f"{name} needs a ratio, got a {kind(dimension)}: divide it by quantity(1, unit)")
        if name == "sqrt":
            dimension, counts = dimension**0.5, Rotation().times(counts, 0.5)
        apply = PLAIN[name]
        return _Part(dimension, lambda values: apply(*(part.compute(values) for part in parts)), counts)

    def _quantity(self, node: ast.Call) -> _Part:
        (plain, sign), unit = _signed(node.args[0]), node.args[1]
        if not (isinstance(unit, ast.Constant) and isinstance(unit.value, str) and isinstance(plain, ast.Constant)):
            raise ValueError(f"'{ast.unparse(node)[:60]}' must have the form quantity(number, 'unit')")
        scale, offset = to_base(unit.value)
        value = scale * _number(plain.value) * sign + offset
        return _Part(dimensions(unit.value), lambda values: value, rotation(unit.value))

    def _where(self, node: ast.Call) -> _Part:
        test = node.args[0]
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in COMPARISONS):
            raise ValueError(
                f"'{ast.unparse(test)[:60]}' must be a comparison with < <= > or >=: write where(comparison, yes, no)"
            )
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

    def _same(self, node: ast.expr, left: _Part, right: _Part) -> tuple[_Part, _Part]:
        """Check that two quantities have one dimension, and measure rotation in `left` as in `right`."""
        if left.dimension != right.dimension:
            raise ValueError(
                f"'{ast.unparse(node)[:60]}' mixes a {kind(left.dimension)} and a {kind(right.dimension)}: use "
                "one kind of quantity"
            )
        return left.counted_as(right.rotation), right


def _signed(node: ast.expr) -> tuple[ast.expr, float]:
    """Return an expression without its minus sign, and the sign."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return (node.operand, -1.0) if isinstance(node, ast.UnaryOp) and negative else (node, 1.0)


def _number(value: object) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError(f"{repr(value)[:60]} must be a finite number: correct it")
