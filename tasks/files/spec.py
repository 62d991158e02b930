"""JSON form of a plant's spec, used by datasets, bundles and policy files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neorl_core.types import Clock, Constraint, History, PlantSpec, Space

if TYPE_CHECKING:
    from neorl_core.graph.layout import Layout

OPTIONAL = ("history", "choices", "layout", "clock")
FLAT = ("context", "flags", "present", "kinds")
"""Fields of a layout that are one list; the other fields are lists of lists."""


def spec_record(spec: PlantSpec) -> dict[str, Any]:
    """Return a plant's spec as a JSON object; infinite bounds become the strings 'inf' and '-inf'.

    Optional fields that are None are omitted, so that older records keep their digests.

    Example:
        >>> from neorl_core.plants import PLANTS
        >>> spec_of_record(spec_record(PLANTS["double_mass"].spec)) == PLANTS["double_mass"].spec
        True
    """
    record: dict[str, Any] = _plain(spec)
    for name in OPTIONAL:
        if record[name] is None:
            del record[name]
    return record


def same_limits(one: PlantSpec, other: PlantSpec) -> bool:
    """Return whether two specs are equal apart from the clock; a certificate for one is then valid for the other."""
    return one._replace(clock=None) == other._replace(clock=None)


def spec_of_record(record: Any) -> PlantSpec:
    """Convert an untrusted JSON object to a spec; raise ValueError if a key is missing, unknown or invalid."""
    left_out = [name for name in OPTIONAL if not isinstance(record, dict) or name not in record]
    whole = _object(record, "spec", tuple(name for name in PlantSpec._fields if name not in left_out))
    limits = [
        _object(limit, f"constraints.{i}", Constraint._fields)
        for i, limit in enumerate(_list(whole["constraints"], "constraints"))
    ]
    horizon = whole["horizon"]
    if not isinstance(horizon, int) or isinstance(horizon, bool) or horizon < 1:
        raise ValueError(f"horizon must be a positive number of steps, got {_short(horizon)}")
    dt, scores = _number(whole["dt"], "dt"), _numbers(whole["score_range"], "score_range")
    if not 0 < dt < math.inf or len(scores) != 2:
        raise ValueError(f"dt must be positive and score_range two numbers, got {dt:g} and {_short(scores)}")
    observation, action = (_space(whole[place], place) for place in ("observation", "action"))
    return PlantSpec(
        name=_text(whole["name"], "name"),
        observation=observation,
        action=action,
        constraints=tuple(
            Constraint(
                _text(limit["name"], "constraints.name"),
                _text(limit["unit"], "constraints.unit"),
                _number(limit["low"], "constraints.low"),
                _number(limit["high"], "constraints.high"),
            )
            for limit in limits
        ),
        dt=dt,
        time_unit=_text(whole["time_unit"], "time_unit"),
        horizon=horizon,
        score_range=(scores[0], scores[1]),
        history=_history(whole["history"], observation.size, action.size) if "history" in whole else None,
        choices=_choices(whole["choices"], action) if "choices" in whole else None,
        layout=_layout(whole["layout"], observation.size, action.size) if "layout" in whole else None,
        clock=_clock(whole["clock"], observation) if "clock" in whole else None,
    )


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _history(value: Any, observed_size: int, acting_size: int) -> History:
    record = _object(value, "history", History._fields)
    observed, acting = (_list(record[name], f"history.{name}") for name in History._fields)
    if not all(type(count) is int and count >= 0 for count in (*observed, *acting)):
        raise ValueError(f"history must contain numbers of steps, 0 or more, got {_short([observed, acting])}")
    if (len(observed) + sum(observed) + sum(acting), len(acting)) != (observed_size, acting_size):
        raise ValueError(
            f"history {_short([observed, acting])} does not fit {observed_size} observations and {acting_size} actions"
        )
    return History(tuple(observed), tuple(acting))


def _layout(value: Any, observed_size: int, acting_size: int) -> Layout:
    from neorl_core.graph.layout import Layout, check_layout

    record = _object(value, "layout", Layout._fields)
    nodes = record["nodes"]
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise ValueError(f"layout.nodes must be a positive number, got {_short(nodes)}")
    parts: dict[str, Any] = {}
    for name in Layout._fields[1:]:
        rows = (
            [_list(row, f"layout.{name}") for row in _list(record[name], f"layout.{name}")]
            if name not in FLAT
            else [_list(record[name], f"layout.{name}")]
        )
        numbers = (int, float) if name.endswith("constants") else (int,)
        if not all(type(number) in numbers for row in rows for number in row):
            raise ValueError(f"layout.{name} must contain numbers only, got {_short(rows)}")
        parts[name] = tuple(map(tuple, rows))
    flat = {name: parts[name][0] for name in FLAT}
    return check_layout(Layout(nodes, **(parts | flat)), observed_size, acting_size)


def _choices(value: Any, action: Space) -> tuple[str, ...]:
    names = tuple(_text(name, "choices") for name in _list(value, "choices"))
    if (action.low, action.high) != ((0.0,), (len(names) - 1.0,)) or len(set(names)) < len(names):
        raise ValueError(
            f"choices must be unique names for an action from 0 to {len(names) - 1}, got {_short(names)} for "
            f"{_short((action.low, action.high))}"
        )
    return names


def _clock(value: Any, observation: Space) -> Clock:
    record = _object(value, "clock", Clock._fields)
    name, end = _text(record["name"], "clock.name"), _number(record["end"], "clock.end")
    if name not in observation.names or not math.isfinite(end):
        raise ValueError(f"clock must be an observation with a finite end, got {name[:80]} and {end:g}")
    return Clock(name, end)


def _space(value: Any, place: str) -> Space:
    record = _object(value, place, Space._fields)
    names, units = (tuple(_text(x, f"{place}.{key}") for x in _list(record[key], key)) for key in ("names", "units"))
    low, high = _numbers(record["low"], f"{place}.low"), _numbers(record["high"], f"{place}.high")
    if not len(names) == len(units) == len(low) == len(high) or len(set(names)) < len(names):
        raise ValueError(
            f"{place} must have unique names, and one unit, low and high per name, got {_short(names)} with "
            f"{len(units)} units, {len(low)} lows and {len(high)} highs"
        )
    return Space(names, units, low, high)


def _object(value: Any, place: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(keys):
        got = sorted(map(str, value)) if isinstance(value, dict) else value
        raise ValueError(f"{place} must have the keys {', '.join(keys)}, got {_short(got)}")
    return value


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{place} must be a list, got {_short(value)}")
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{place} must be text, got {_short(value)}")
    return value


def _numbers(value: Any, place: str) -> tuple[float, ...]:
    return tuple(_number(item, place) for item in _list(value, place))


def _number(value: Any, place: str) -> float:
    try:
        if value in ("inf", "-inf") or (isinstance(value, int | float) and not isinstance(value, bool)):
            number = float(value)
            if not math.isnan(number):
                return number
    except OverflowError:
        pass
    raise ValueError(f"{place} must be a number, got {_short(value)}")


def _short(value: Any) -> str:
    return repr(value)[:80]
