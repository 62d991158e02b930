"""JSON form of a plant's spec: round trip and refusal of invalid records."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from neorl_core.plants import PLANTS
from neorl_core.types import Clock, Constraint
from tasks.files.canonical import digest_json
from tasks.files.spec import same_limits, spec_of_record, spec_record

SPEC = PLANTS["chemical_reactor"].spec


@pytest.mark.parametrize("name", sorted(PLANTS))
def test_round_trip(name: str) -> None:
    spec = PLANTS[name].spec
    record = json.loads(json.dumps(spec_record(spec), allow_nan=False))
    assert spec_of_record(record) == spec
    assert spec_record(spec_of_record(record)) == record


def test_digest_of_the_form_is_stable() -> None:
    # Digests of existing bundles and datasets depend on this form; they were made with this score range.
    spec = SPEC._replace(score_range=(-0.143, -0.0057))
    assert digest_json(spec_record(spec)) == "e1c5b5324c902a584a8d61627bb5faa7c441fd54126f21830aeb5bc9e82166bb"


def test_same_limits_ignores_the_clock() -> None:
    timed = SPEC._replace(clock=Clock("temperature", 350.0))
    assert same_limits(SPEC, timed)
    assert not same_limits(SPEC, timed._replace(horizon=7))
    assert spec_of_record(json.loads(json.dumps(spec_record(timed)))) == timed


def test_bounds_may_be_infinite() -> None:
    spec = SPEC._replace(constraints=(Constraint("level", "m", -math.inf, 2.0),))
    record = spec_record(spec)
    assert record["constraints"][0]["low"] == "-inf"
    assert spec_of_record(record) == spec


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("horizon",), 2.5, "horizon must be a positive number of steps, got 2.5"),
        (("horizon",), True, "horizon must be"),
        (("horizon",), 0, "horizon must be"),
        (("dt",), "fast", "dt must be a number, got 'fast'"),
        (("dt",), 0, "dt must be positive"),
        (("dt",), 10**400, "dt must be"),
        (("dt",), "nan", "dt must be"),
        (("dt",), math.nan, "dt must be"),
        (("name",), 3, "name must be text"),
        (("score_range",), [1.0], "score_range"),
        (("score_range",), None, "score_range must be a list, got None"),
        (("constraints",), {}, "constraints must be a list"),
        (("constraints", 0), [], r"constraints\.0"),
        (("constraints", 0, "low"), [], r"constraints\.low"),
        (("observation",), [1], "observation must have the keys names, units, low, high"),
        (("observation", "names"), "abcd", "names must be a list"),
        (("observation", "names", 0), None, r"observation\.names must be text"),
        (("observation", "names", 0), "temperature", "unique names"),
        (("action", "low"), [], "one unit, low and high per name"),
        (("action", "extra"), 1, "action must have the keys"),
        (("extra",), 1, "spec must have the keys"),
        (("clock",), {"name": "period"}, "clock must have the keys name, end"),
        (("clock",), {"name": "period", "end": 3.0}, "clock must be an observation .* got period"),
        (("clock",), {"name": "temperature", "end": "inf"}, "with a finite end, got temperature and inf"),
    ],
)
def test_invalid_values_are_named(place: tuple[str | int, ...], value: Any, message: str) -> None:
    record = copy.deepcopy(spec_record(SPEC))
    node: Any = record
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    with pytest.raises(ValueError, match=message) as caught:
        spec_of_record(record)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("record", [None, [], "spec", 3, {}])
def test_other_json_is_refused(record: Any) -> None:
    with pytest.raises(ValueError, match="spec must have the keys"):
        spec_of_record(record)
