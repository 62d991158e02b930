"""A plant's spec as JSON: the one form that datasets, bundles and policy files hold it in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neorl_core.types import Clock, Constraint, PlantSpec, Space

if TYPE_CHECKING:
    from neorl_core.graph.layout import Layout
    from neorl_core.history import History

OPTIONAL = ("history", "choices", "layout", "clock")
"""Fields that are left out where they are None."""
FLAT = ("context", "flags", "present", "kinds")
"""Parts of a layout that are one list each."""


def spec_record(spec: PlantSpec) -> dict[str, Any]:
    """A plant's names, units, bounds and limits as JSON; an infinite bound becomes the string 'inf' or '-inf'.

    Only the spec of a stacked observation has a history, only that of a discrete action choices, only that of a plant
    that lies on a graph a layout, and only that of a task that ends by an observed clock a clock, so that other records
    are what they were without.

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
    """Whether specs differ at most in the clock, which learners alone read: what is certified under one holds under
    the other."""
    return one._replace(clock=None) == other._replace(clock=None)


def spec_of_record(record: Any) -> PlantSpec:
    """The spec that `spec_record` wrote.

    Args:
        record: the JSON value, which may come from anywhere.

    Raises:
        ValueError: when a key is missing, unknown or of another type; it names the key.
    """
    left_out = [name for name in OPTIONAL if not isinstance(record, dict) or name not in record]
    whole = _object(record, "spec", tuple(name for name in PlantSpec._fields if name not in left_out))
    limits = [
        _object(limit, f"constraints.{i}", Constraint._fields)
        for i, limit in enumerate(_list(whole["constraints"], "constraints"))
    ]
    horizon = whole["horizon"]
    if not isinstance(horizon, int) or isinstance(horizon, bool) or horizon < 1:
        raise ValueError(f"expected a number of steps for horizon, got {_shown(horizon)}")
    dt, scores = _number(whole["dt"], "dt"), _numbers(whole["score_range"], "score_range")
    if not 0 < dt < math.inf or len(scores) != 2:
        raise ValueError("expected a positive dt and a score_range of two numbers, got others")
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
    from neorl_core.history import History

    held = _object(value, "history", History._fields)
    observed, acting = (_list(held[name], f"history.{name}") for name in History._fields)
    if not all(type(count) is int and count >= 0 for count in (*observed, *acting)):
        raise ValueError("expected numbers of steps in history, got others")
    if (len(observed) + sum(observed) + sum(acting), len(acting)) != (observed_size, acting_size):
        raise ValueError("expected a history of the observation's and action's own signals, got others")
    return History(tuple(observed), tuple(acting))


def _layout(value: Any, observed_size: int, acting_size: int) -> Layout:
    from neorl_core.graph.layout import Layout, checked

    held = _object(value, "layout", Layout._fields)
    nodes = held["nodes"]
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        raise ValueError(f"expected a number of nodes, got {_shown(nodes)}")
    parts: dict[str, Any] = {}
    for name in Layout._fields[1:]:
        rows = (
            [_list(row, f"layout.{name}") for row in _list(held[name], f"layout.{name}")]
            if name not in FLAT
            else [_list(held[name], f"layout.{name}")]
        )
        numbers = (int, float) if name.endswith("constants") else (int,)
        if not all(type(number) in numbers for row in rows for number in row):
            raise ValueError(f"expected numbers in layout.{name}, got others")
        parts[name] = tuple(map(tuple, rows))
    flat = {name: parts[name][0] for name in FLAT}
    return checked(Layout(nodes, **(parts | flat)), observed_size, acting_size)


def _choices(value: Any, action: Space) -> tuple[str, ...]:
    names = tuple(_text(name, "choices") for name in _list(value, "choices"))
    if (action.low, action.high) != ((0.0,), (len(names) - 1.0,)) or len(set(names)) < len(names):
        raise ValueError("expected one action from 0 to the number of its choices, each name once, got others")
    return names


def _clock(value: Any, observation: Space) -> Clock:
    held = _object(value, "clock", Clock._fields)
    name, end = _text(held["name"], "clock.name"), _number(held["end"], "clock.end")
    if name not in observation.names or not math.isfinite(end):
        raise ValueError(f"expected an observation as clock and what it reads at the end, got {name[:80]} and {end:g}")
    return Clock(name, end)


def _space(value: Any, place: str) -> Space:
    held = _object(value, place, Space._fields)
    names, units = (tuple(_text(x, f"{place}.{key}") for x in _list(held[key], key)) for key in ("names", "units"))
    low, high = _numbers(held["low"], f"{place}.low"), _numbers(held["high"], f"{place}.high")
    if not len(names) == len(units) == len(low) == len(high) or len(set(names)) < len(names):
        raise ValueError(f"expected as many names, units and bounds of {place}, each name once, got others")
    return Space(names, units, low, high)


def _object(value: Any, place: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(keys):
        got = sorted(map(str, value)) if isinstance(value, dict) else value
        raise ValueError(f"expected {place} with {', '.join(keys)}, got {_shown(got)}")
    return value


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list for {place}, got {_shown(value)}")
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text for {place}, got {_shown(value)}")
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
    raise ValueError(f"expected a number for {place}, got {_shown(value)}")


def _shown(value: Any) -> str:
    return repr(value)[:80]
