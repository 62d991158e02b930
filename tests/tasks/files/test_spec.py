"""A plant's spec in JSON: what is written comes back, and what cannot have been written is named."""

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
def test_what_is_written_comes_back(name: str) -> None:
    spec = PLANTS[name].spec
    record = json.loads(json.dumps(spec_record(spec), allow_nan=False))
    assert spec_of_record(record) == spec
    assert spec_record(spec_of_record(record)) == record


def test_digests_of_bundles_and_datasets_that_exist_rest_on_this_form() -> None:
    # With the scale of scores that those were made with.
    spec = SPEC._replace(score_range=(-0.143, -0.0057))
    assert digest_json(spec_record(spec)) == "e1c5b5324c902a584a8d61627bb5faa7c441fd54126f21830aeb5bc9e82166bb"


def test_a_clock_is_no_limit() -> None:
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
    ("place", "value", "says"),
    [
        (("horizon",), 2.5, "expected a number of steps for horizon, got 2.5"),
        (("horizon",), True, "for horizon"),
        (("horizon",), 0, "for horizon"),
        (("dt",), "fast", "for dt, got 'fast'"),
        (("dt",), 0, "positive dt"),
        (("dt",), 10**400, "for dt"),
        (("dt",), "nan", "for dt"),
        (("dt",), math.nan, "for dt"),
        (("name",), 3, "for name"),
        (("score_range",), [1.0], "score_range"),
        (("score_range",), None, "a list for score_range, got None"),
        (("constraints",), {}, "a list for constraints"),
        (("constraints", 0), [], r"constraints\.0"),
        (("constraints", 0, "low"), [], r"constraints\.low"),
        (("observation",), [1], "expected observation with names, units, low, high"),
        (("observation", "names"), "abcd", "a list for names"),
        (("observation", "names", 0), None, r"text for observation\.names"),
        (("observation", "names", 0), "temperature", "each name once"),
        (("action", "low"), [], "as many names"),
        (("action", "extra"), 1, "expected action with"),
        (("extra",), 1, "expected spec with"),
        (("clock",), {"name": "period"}, "expected clock with name, end"),
        (("clock",), {"name": "period", "end": 3.0}, "expected an observation as clock .* got period"),
        (("clock",), {"name": "temperature", "end": "inf"}, "what it reads at the end, got temperature and inf"),
    ],
)
def test_what_cannot_have_been_written_is_named(place: tuple[str | int, ...], value: Any, says: str) -> None:
    record = copy.deepcopy(spec_record(SPEC))
    node: Any = record
    for step in place[:-1]:
        node = node[step]
    node[place[-1]] = value
    with pytest.raises(ValueError, match=says) as caught:
        spec_of_record(record)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("record", [None, [], "spec", 3, {}])
def test_what_is_no_record_is_named(record: Any) -> None:
    with pytest.raises(ValueError, match="expected spec with"):
        spec_of_record(record)
