"""Random tables in random dialects are guessed and read exactly, or reported as ambiguous."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.mapping import HistorianMapping
from configs.process import described_spec
from configs.yaml_files import load_yaml
from tasks.data.historian.guess.mapping import start_mapping
from tests.tasks.data.historian.whole import read_historian

NAMES = ("Temp. [°C]", "Flow (m³/h)", "Level", "Valve opening [%]", "P-101.PV", "Druck [bar]", "x y", "T_out")
ISO = "%Y-%m-%dT%H:%M:%SZ"
FORMS = {
    **dict.fromkeys((ISO, "%Y%m%dT%H%M%S", "%Y-%m-%d %H:%M:%S", "%Y:%m:%d %H:%M:%S", "%Y/%m/%d %H:%M:%S"), None),
    **{form: form for form in ("%d.%m.%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%y %H:%M:%S", "%d-%b-%Y %H:%M:%S")},
    **{"%Y%m%d%H%M%S": "%Y%m%d%H%M%S"},
}
"""Spelling of times, and the format that a person would fill in if required."""


class Made(NamedTuple):
    """A file and the true contents."""

    text: str
    encoding: str
    values: dict[str, np.ndarray]
    form: str | None
    period: int
    decimal: str


@st.composite
def tables(draw: st.DrawFn) -> Made:
    count, width = draw(st.integers(12, 30)), draw(st.integers(2, 5))
    digits, offset = draw(st.integers(0, 4)), draw(st.integers(-3000, 3000))
    names = draw(st.permutations(NAMES))[:width]
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = {name: np.round(offset + np.arange(count) + random.uniform(0, 1, count), digits) for name in names}
    delimiter = draw(st.sampled_from([",", ";", "\t", "|"]))
    decimal = "." if delimiter == "," else draw(st.sampled_from([".", ","]))
    quote = draw(st.booleans())
    form = draw(st.sampled_from([None, *FORMS]))
    period = draw(st.sampled_from([1, 60, 600, 3600, 86400]))
    begin = np.datetime64("2014-01-01T00:00:00") + draw(st.integers(0, 20_000)) * 3600
    columns = [[name, *(f"{x:.{digits}f}".replace(".", decimal) for x in values[name])] for name in names]
    if form is not None:
        times = (begin + period * np.arange(count)).astype(object)
        columns.insert(0, ["Time", *(time.strftime(form) for time in times)])
    transposed = draw(st.booleans())
    rows = columns if transposed else [list(row) for row in zip(*columns, strict=True)]
    cells = (delimiter.join(f'"{cell}"' if quote else cell for cell in row) for row in rows)
    before = draw(st.lists(st.sampled_from(["Export of plant 7", "", "made by hand"]), max_size=3))
    text = draw(st.sampled_from(["\n", "\r\n"])).join([*before, *cells]) + draw(st.sampled_from(["", "\n"]))
    return Made(text, draw(st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16"])), values, form, period, decimal)


def is_ambiguous(made: Made, key: str) -> bool:
    """Whether the file is truly ambiguous about a key."""
    texts = [
        cell.strip('"')
        for line in made.text.splitlines()
        for cell in line.replace(";", "\t").replace("|", "\t").split("\t")
    ]
    if key == "period_seconds":
        return made.form is None
    if key == "decimal":
        return all(
            cell.partition(",")[2].isdigit() and len(cell.partition(",")[2]) == 3 for cell in texts if "," in cell
        )
    return key == "format" and made.form in ("%d.%m.%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%y %H:%M:%S")


@pytest.mark.slow
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(tables())
def test_random_tables_are_read_exactly_or_reported_as_ambiguous(made: Made) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        log.write_bytes(made.text.encode(made.encoding))
        started = start_mapping(log, Path(folder))
        lines = started.mapping.read_text().splitlines()
        truth = {"period_seconds": str(made.period), "decimal": f"'{made.decimal}'", "format": f"'{made.form}'"}
        for line in started.fill_in:
            number, key = line.split(":")[0].removeprefix("line ").split(", ")
            assert is_ambiguous(made, key), line
            at = int(number) - 1
            lines[at] = f"{lines[at].split(':')[0]}: {truth[key]}"
        started.mapping.write_text("\n".join(lines))
        mapping = load_yaml(started.mapping, HistorianMapping)
        spec = described_spec(mapping)
        log_read = read_historian(log, mapping, spec, None)
        assert set(mapping.tags) == set(made.values)
        by_signal = {str(tag.signal): made.values[name] for name, tag in mapping.tags.items()}
        for key, names in (("observations", spec.observation.names), ("actions", spec.action.names)):
            wanted = np.stack([by_signal[name][:-1] for name in names], axis=1)
            np.testing.assert_array_equal(log_read.rows[key], wanted)
        assert mapping.period_seconds == made.period
