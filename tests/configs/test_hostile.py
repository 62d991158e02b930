"""Configuration by someone who means harm: one sentence, in little memory and time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from configs.errors import BadInput
from configs.expression import compile_expression
from configs.mapping import HistorianMapping
from configs.run import OpenedRun
from configs.units import parse
from configs.yaml_files import document, load_yaml
from tests.limited import read_limited

MAPPING = Path(__file__).resolve().parents[2] / "configs" / "mappings" / "chemical_reactor.yaml"
LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))

HOSTILE = {
    "a billion laughs": (LAUGHS, "an alias"),
    "an alias of itself": ("a: &a [*a]\n", "an alias"),
    "an alias that is unknown": ("a: *b\n", "an alias"),
    "merged keys": ("a: &a {b: 1}\nc:\n  <<: *a\n", "an alias"),
    "deep lists": ("a: " + "[" * 100_000, "more than 20 levels deep"),
    "deep mappings": ("a: " + "{b: " * 50_000, "more than 20 levels deep"),
    "deep blocks": ("- " * 100_000, "more than 20 levels deep"),
    "deep questions": ("? " * 100_000, "more than 20 levels deep|key that is"),
    "many values": ("a: [" + "1," * 60_000 + "]\n", "more than 50000 values"),
    "a long file": ("#\n" * 200_000, "more than 262,144 bytes"),
    "a long value": ("plant: " + "x" * 100_000 + "\n", "the limit is 4096"),
    "a long number": ("seed: " + "9" * 4_000 + "\n", "the limit is 40"),
    "a long hexadecimal number": ("seed: 0x" + "f" * 4_000 + "\n", "the limit is 40"),
    "a large float": ("plant: double_mass\ntrain: {memory_mb: 1e999}\n", "got inf|finite"),
    "a list as a key": ("[a, b]: 1\n", "key that is a list"),
    "a mapping as a key": ("{a: b}: 1\n", "key that is a list"),
    "a number as a key": ("1: 2\nplant: double_mass\n", "keys|known key"),
    "a tag": ("a: !!bool x\n", "a tag"),
    "a python tag": ("a: !!python/object/apply:os.system [ls]\n", "a tag"),
    "a directive": ("%YAML 1.1\n---\na: 0o9\n", "YAML directive"),
    "a date that is none": ("plant: 2024-13-45\n", "month must be"),
    "two documents": ("a: 1\n---\nb: 2\n", "found another document"),
    "control characters": ("a: \x00\n", "is not valid YAML"),
    "tabs": ("a:\n\t- b\n", "is not valid YAML"),
    "a set": ("? a\n? b\n", "known key"),
}


def load_run_file(path: Path) -> OpenedRun:
    """What `read_limited` calls."""
    return load_yaml(path, OpenedRun)


@pytest.mark.slow
def test_hostile_yaml_is_one_sentence_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "sound.yaml").write_text("plant: double_mass\n")
    paths = [tmp_path / f"{i}.yaml" for i in range(len(HOSTILE))]
    for path, (text, _) in zip(paths, HOSTILE.values(), strict=True):
        path.write_text(text)
    found = read_limited("tests.configs.test_hostile:load_run_file", tmp_path / "sound.yaml", paths, megabytes=128)
    for (kind, message), (name, (_, said)) in zip(found, HOSTILE.items(), strict=True):
        assert kind == "BadInput", name
        assert "\n" not in message, name
        assert len(message) < 600, name
        with pytest.raises(BadInput, match=said):
            raise BadInput(message)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path("/dev/zero")):
        with pytest.raises(BadInput, match="got a device or pipe"):
            load_yaml(path, OpenedRun)


def test_yaml_of_other_readers_is_bounded_too() -> None:
    assert document("keys:\n  - {id: a, note: '1'}\n", Path("trust.yaml"))[0] == {"keys": [{"id": "a", "note": "1"}]}
    assert document("", Path("trust.yaml"))[0] is None
    with pytest.raises(BadInput, match=r"trust\.yaml, line 2 is not valid YAML, got an alias"):
        document("a: &a 1\nb: *a\n", Path("trust.yaml"))


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.text(max_size=6)), min_size=1, max_size=3))
@example([(0.0, "? [")])
def test_changed_mappings_never_give_anything_but_a_sentence(tmp_path: Path, changes: list[tuple[float, str]]) -> None:
    text = MAPPING.read_text()
    for place, piece in changes:
        at = int(place * len(text))
        text = text[:at] + piece + text[at + 1 :]
    path = tmp_path / "a.yaml"
    path.write_text(text, errors="replace")
    with suppress(BadInput):
        load_yaml(path, HistorianMapping)


@pytest.mark.parametrize(
    "text",
    [
        "-" * 900 + "1",
        "(" * 400 + "1" + ")" * 400,
        "abs(" * 60 + "1" + ")" * 60,
        "~" * 90 + "x",
        "1" + "0" * 400,
        "1e999",
        "x ** 1" + "0" * 400,
        "x ** True",
        "x ** 'a'",
        "9 ** 9 ** 9 ** 9",
        "quantity(1" + "0" * 400 + ", 'm')",
        "quantity(1j, 'm')",
        "quantity(1, 'm**9**9**9')",
        "1 if x else 2",
        "1if x else 2",
        "x" * 1001,
        "\x00",
        "\ud800",
    ],
)
def test_hostile_formulas_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        compile_expression(text, {"x": "m"}, "m")
    assert len(str(caught.value)) < 1300


def test_formulas_of_powers_of_powers_are_numbers() -> None:
    text = "(" * 16 + "x / quantity(1, 'm'))" + " ** 8)" * 15
    assert compile_expression(text, {"x": "m"}, "1").compute({"x": np.asarray([2.0])}) == [np.inf]


@pytest.mark.parametrize(
    "text", ["m**9**9**9", "m^9^9^9", "m**(9**9**9)", "(m**9)**9**9", "9**9**9 m", "m**99999", "m" * 41]
)
def test_units_of_huge_powers_are_refused_before_they_are_computed(text: str) -> None:
    with pytest.raises(ValueError, match="is no unit such as"):
        parse(text)


def test_units_of_ordinary_powers_are_read() -> None:
    assert str(parse("kg*m**2/s**3").dimensionality) == str(parse("W").dimensionality)
    assert parse("m^0.5").dimensionality == parse("m**(0.5)").dimensionality
    assert parse("W/(m**2 K)").dimensionality == parse("W/m2/K").dimensionality
