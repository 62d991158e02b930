"""Check tables with pandera and Great Expectations, and write the results as a web page that opens offline."""

from __future__ import annotations

import errno
import html
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tasks.files.canonical import make_folder, unwritable_is_bad_input

Columns = Mapping[str, npt.NDArray[Any]]

ORDER = ("min", "mean", "max")
MAX_CASES = 3


@dataclass(frozen=True)
class Check:
    """A rule for a column of a summary table: its values, or their median, must be from `low` to `high`."""

    table: Literal["episodes", "dataset"]
    column: str
    low: float | None
    high: float | None
    refuses: bool
    """Whether a failure rejects the dataset; if False, a failure is only a warning."""
    reason: str
    of: Literal["values", "median"] = "values"


def check_episode_table(columns: Columns) -> list[str]:
    """Check numbers, lengths and statistics in a table with one line per episode; return a message for each fault."""
    import pandera.polars as pa
    import polars as pl
    from pandera.errors import SchemaErrors

    frame = pl.DataFrame(dict(columns))
    # pandera's nullable=False accepts infinite values, so finiteness is checked separately.
    finite = pa.Check(lambda data: data.lazyframe.select(pl.col(data.key).is_finite()), name="is finite")
    schema = pa.DataFrameSchema(
        {
            "episode": pa.Column(pl.Int64, unique=True),
            "length": pa.Column(pl.Int64, pa.Check.ge(1)),
        }
        | {name: pa.Column(pl.Float64, finite) for name in columns if name not in ("episode", "length")},
        strict=True,
    )
    reasons: list[str] = []
    try:
        schema.validate(frame, lazy=True)
    except SchemaErrors as error:
        reasons = [
            f"column {case['column']} of the table of episodes fails the check {case['check']}, got "
            f"{case['failure_case']}: correct the source and ingest it again."
            for case in error.failure_cases.head(MAX_CASES).to_dicts()
        ]
    for name in (key.removesuffix(" mean") for key in columns if key.endswith(" mean")):
        slack = 1e-6 * (1 + frame[f"{name} max"].abs())
        ordered = (frame[f"{name} min"] <= frame[f"{name} mean"] + slack) & (
            frame[f"{name} mean"] <= frame[f"{name} max"] + slack
        )
        if not ordered.all():
            episode, *values = frame.filter(~ordered).select("episode", *(f"{name} {x}" for x in ORDER)).row(0)
            reasons.append(
                f"{name} must have min <= mean <= max, got {', '.join(f'{x:g}' for x in values)} in episode {episode}: "
                "ingest the dataset again."
            )
    return reasons


def check_tables(
    plant: str,
    digest: str,
    tables: Mapping[str, Columns],
    checks: Sequence[Check],
    found: Sequence[str],
    accounted: Sequence[str],
    pictures: Mapping[str, str],
    folder: Path,
) -> tuple[list[Check], Path]:
    """Check tables with Great Expectations and write a page with the results; return the failed checks and the page.

    Args:
        tables: the tables by name; each has its columns by name.
        found: reasons to reject the dataset that were found before; they are shown on the page.
        accounted: lines about used and lost rows, to show on the page.
        pictures: SVG texts by title, to show on the page.
        folder: folder for the page; its contents are replaced.
    """
    gx = _great_expectations()
    import pandas as pd

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_pandas(plant)
    failed: list[Check] = []
    missed: dict[str, str] = {}
    for name, columns in tables.items():
        asset = source.add_dataframe_asset(name)
        # Add all expectations at once: adding one to a suite rewrites the whole suite.
        expected = [_expectation(gx.expectations, check, i) for i, check in enumerate(checks) if check.table == name]
        suite = context.suites.add(gx.ExpectationSuite(name=f"{plant} {name}", expectations=expected))
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(
                name=f"{plant} {name}", data=asset.add_batch_definition_whole_dataframe("all"), suite=suite
            )
        )
        frame = pd.DataFrame({key: np.asarray(values) for key, values in columns.items()})
        checkpoint = gx.Checkpoint(name=name, validation_definitions=[definition], actions=[])
        context.checkpoints.add(checkpoint)
        ran = checkpoint.run(
            batch_parameters={"dataframe": frame}, run_id=gx.RunIdentifier(run_name=f"dataset {digest[:12]}")
        )
        for result in ran.run_results.values():
            for one in (one for one in result.results if not one.success):
                check = checks[one.expectation_config.meta["check"]]
                failed.append(check)
                missed[check.column] = _missed(one.result)
    page = _page(plant, digest, tables["dataset"], checks, failed, missed, found, accounted, pictures)
    return failed, _replace(folder, page)


def _missed(result: Any) -> str:
    if "unexpected_count" not in result:
        return f"got {_number(float(result['observed_value']))}" if "observed_value" in result else ""
    some = ", ".join(f"{float(value):.4g}" for value in result.get("partial_unexpected_list", ())[:MAX_CASES])
    return f"not in {result['unexpected_count']:,} of {result['element_count']:,} episodes, such as {some}"


def _replace(folder: Path, page: str) -> Path:
    """Write the page into a new folder, and replace `folder` by it, so that no reader sees an incomplete page."""
    make_folder(folder.parent)
    with unwritable_is_bad_input(folder):
        building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".data_docs."))
    building.chmod(0o755)
    try:
        (building / "index.html").write_text(page, encoding="utf-8")
        while True:
            try:
                os.replace(building, folder)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            # Another validation may create the folder between the two moves.
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".data_docs."))
            try:
                with suppress(FileNotFoundError):
                    os.replace(folder, old)
            finally:
                shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder / "index.html"


def _great_expectations() -> Any:
    """Import Great Expectations without telemetry. The import takes seconds, so it is done only when needed."""
    os.environ.update(GX_ANALYTICS_ENABLED="false", DO_NOT_TRACK="true")
    with warnings.catch_warnings():
        # Great Expectations imports sre_constants, which is deprecated since Python 3.11.
        warnings.simplefilter("ignore", DeprecationWarning)
        import great_expectations
    return great_expectations


def _expectation(kinds: Any, check: Check, number: int) -> Any:
    kind = kinds.ExpectColumnValuesToBeBetween if check.of == "values" else kinds.ExpectColumnMedianToBeBetween
    return kind(
        column=check.column,
        min_value=check.low,
        max_value=check.high,
        severity="critical" if check.refuses else "warning",
        meta={"check": number},
    )


STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2733;margin:0;background:#fff}
main{max-width:1100px;margin:0 auto;padding:1rem 1.5rem}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.4rem 0 .4rem}
table{border-collapse:collapse;width:100%;margin:.4rem 0}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #dde3ea;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
svg{max-width:100%;height:auto}
.badge{background:#e8edf3;border-radius:3px;padding:0 .35em;font-family:ui-monospace,monospace}
.ok{color:#186a3b}.no{color:#a93226}.warn{color:#9a6700}
i{font-style:normal;font-weight:700}
.verdict{font-size:1.15rem;font-weight:600}
"""


def _page(
    plant: str,
    digest: str,
    dataset: Columns,
    checks: Sequence[Check],
    failed: Sequence[Check],
    missed: Mapping[str, str],
    found: Sequence[str],
    accounted: Sequence[str],
    pictures: Mapping[str, str],
) -> str:
    """Return the verdict, reasons, pictures and checks as one HTML page without scripts or external files."""
    say = html.escape
    refusals = [*found, *(check.reason for check in failed if check.refuses)]
    warnings = [check.reason for check in failed if not check.refuses]
    verdict = '<span class="no">refused</span>' if refusals else '<span class="ok">passed</span>'
    body = [
        f"<h1>Data validation of {say(plant)}</h1>",
        f'<p class="verdict">{verdict}: {len(checks) - len(failed)} of {len(checks)} checks passed</p>',
        f'<p>Dataset <span class="badge">{say(digest[:12])}</span></p>',
    ]
    sections = ("Reasons", "no", refusals), ("Warnings", "warn", warnings), ("Use of the rows", "", accounted)
    for title, kind, sentences in sections:
        if sentences:
            items = "".join(f'<li class="{kind}">{say(sentence)}</li>' for sentence in sentences)
            body.append(f"<h2>{title}</h2><ul>{items}</ul>")
    body += [f"<h2>{say(title)}</h2>{picture}" for title, picture in pictures.items()]
    by_column = {check.column: check for check in checks if check.table == "dataset"}

    def cell(name: str) -> str:
        check = by_column.get(name)
        mark = "" if check is None else _mark(check, check in failed) + " "
        value, wanted = _number(float(dataset[name][0])), say(_interval(check)) if check else ""
        return f'<td class="n" title="{wanted}">{mark}{value}</td>'

    whole = [name for name in dataset if ": " not in name]
    rows = "".join(
        f"<tr><td>{say(name)}</td>{cell(name)}<td>{_interval(by_column[name]) if name in by_column else ''}</td></tr>"
        for name in whole
    )
    head = "<tr><th>Quantity</th><th>Observed</th><th>Expected</th></tr>"
    body.append(f"<h2>Dataset</h2><table>{head}{rows}</table>")
    pairs = [name.split(": ", 1) for name in dataset if ": " in name]
    quantities = list(dict.fromkeys(quantity for _, quantity in pairs))
    head = "".join(f"<th>{say(quantity)}</th>" for quantity in quantities)
    rows = "".join(
        f"<tr><td>{say(signal)}</td>"
        + "".join(cell(f"{signal}: {x}") if f"{signal}: {x}" in dataset else "<td></td>" for x in quantities)
        + "</tr>"
        for signal in dict.fromkeys(signal for signal, _ in pairs)
    )
    body.append(f"<h2>Signals</h2><table><tr><th>Signal</th>{head}</tr>{rows}</table>")
    limits = "".join(
        f"<tr><td>{_mark(check, check in failed)}</td><td>{say(check.column)}</td><td>{say(_interval(check))}</td>"
        f"<td>{say(missed.get(check.column, ''))}</td></tr>"
        for check in checks
        if check.table == "episodes"
    )
    body.append(f"<h2>Checks of each episode</h2><table>{limits}</table>")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
        f"<title>Data validation of {say(plant)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _mark(check: Check, failed: bool) -> str:
    if not failed:
        return '<i class="ok">✓</i>'
    return '<i class="no">✗</i>' if check.refuses else '<i class="warn">!</i>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() else f"{value:.4g}"


def _interval(check: Check) -> str:
    if check.low is not None and check.high is not None:
        return f"{check.low:.4g} to {check.high:.4g}"
    return f"at least {check.low:.4g}" if check.low is not None else f"at most {check.high:.4g}"
