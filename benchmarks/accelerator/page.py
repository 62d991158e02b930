"""Write docs/studies/accelerators.md from the kept records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import pages
from benchmarks.accelerator.learners import LEARNERS, PRECISIONS, programs
from benchmarks.accelerator.scores import BEHAVIOUR, PLANT
from benchmarks.pages import wrap
from benchmarks.speed import ROWS
from neorl_core.safety.bounds import paired_difference_interval

SHOWN = (1, 32, 128, 1024)
"""Populations in the table of speeds."""
Record = Mapping[str, Any]
Row = Mapping[str, Any]


def page(records: Sequence[Record]) -> str:
    """Return the page for the kept results of all devices, with accelerators before CPUs."""
    order = sorted(records, key=lambda record: record["platform"] == "cpu")
    parts = [devices(order), wrap(_DEVICES), "## Gradient steps per second", wrap(_SPEED), _COLUMNS, speeds(order)]
    parts += [machines(order), "## Scores", wrap(_SCORES), _DISTRIBUTION, scores(order)]
    return pages.study("Accelerators", QUESTION, answer(order), COMMAND, *parts)


QUESTION = "How fast does an accelerator train many members at once, and how much score does bfloat16 cost?"
COMMAND = """`make bench-accelerator` measures the device that JAX finds, and makes only the missing measurements.
`python -m benchmarks.accelerator --page` only writes this page."""
_DEVICES = """A *product error* is the relative error of a matrix product compared with float64. The product multiplies
256 rows by the weights of a layer with 64 units. *float32* is JAX's default: the device chooses the precision. NVIDIA
GPUs since Ampere round the factors to 10 bits of mantissa. *float32, exact* forces full precision. *Peak memory* is
the largest device memory in use."""
_SPEED = f"""Every program trains on {ROWS:,} random transitions with 11 observations and 3 actions, which are in the
device's memory. A batch has 256 rows. Networks have the sizes of a default retraining; `edac` and `cql` use the
algorithm's own defaults. Rates are medians over several time windows after compilation."""
_COLUMNS = """- *learner*: learning algorithm; `bptt` first trains a model, then a policy, which are measured separately
- *members*: policies that are trained at the same time
- *steps/s*: gradient steps of all members together per second, in float32
- */ one member*: this rate divided by the rate with one member
- *bfloat16*: gradient steps per second with matrix products in bfloat16
- */ float32*: the bfloat16 rate divided by the float32 rate
- *memory*: device memory that the compiled program plans to use
- *compile*: seconds of tracing and compiling"""
_SCORES = f"""Each row is one training of a whole population on generated `{BEHAVIOUR}` episodes of `{PLANT}`, with the
settings of a default retraining and one seed per member. All members play the same simulated episodes, in float32 and
without a shield."""
_DISTRIBUTION = """- *products*: precision of matrix products in the training
- *seconds*: wall-clock time of the training; *compiling*: the part of it that is compilation
- *mean* to *95 %*: mean, minimum, quantiles and median of the members' scores
- *diverged*: number of members with a diverged training"""


def answer(records: Sequence[Record]) -> str:
    """Return the answer in two sentences."""
    if not records:
        return "Not measured yet."
    first = records[0]
    rates = _rates(first["speed"])
    most = max((members for _, members in rates), default=1)
    factors = [rates[name, most] / rates[name, 1] for name, size in rates if size == most and (name, 1) in rates]
    costs = _costs(first["scores"])
    loss = max((-gain.value for _, precision, gain, _ in costs if precision == "bfloat16"), default=float("nan"))
    return (
        f"With {most:,} members, {first['device']} makes {min(factors, default=1):.0f} to "
        f"{max(factors, default=1):.0f} times as many gradient steps per second as with one member. bfloat16 costs at "
        f"most {loss:.2f} points of score and makes most large populations slower."
    )


def devices(records: Sequence[Record]) -> str:
    """Return one row for each device, with the errors of matrix products."""
    rows = []
    for record in records:
        errors = (f"{record['product_error'][name]:.1e}" for name in PRECISIONS)
        peak = record["memory_peak_bytes"]
        about = (record["device"], record["host"], record["date"], record["jax"], record["commit"][:7])
        rows.append((*about, *errors, f"{peak / 1e9:.1f}" if peak else "–"))
    names = (f"product error, {name}" for name in PRECISIONS)
    return pages.table(("device", "host", "measured", "JAX", "commit", *names, "peak memory, GB"), rows)


def speeds(records: Sequence[Record]) -> str:
    """Return a table for each device."""
    return "\n\n".join(f"### {record['device']}\n\n{_speed(record['speed'])}" for record in records)


def _speed(rows: Sequence[Row]) -> str:
    found = {(row["program"], row["members"], row["precision"]): row for row in rows}
    sizes = sorted({row["members"] for row in rows} & set(SHOWN))
    halves = any(row["precision"] == "bfloat16" for row in rows)
    head = ("learner", "members", "steps/s", "/ one member")
    head += (*(("bfloat16", "/ float32") if halves else ()), "memory, GB", "compile, s")
    table = []
    for program in programs():
        one = _rate(found.get((program.words, 1, "float32")))
        for size in sizes:
            row = found.get((program.words, size, "float32"))
            half = found.get((program.words, size, "bfloat16"))
            if row is None and half is None:
                continue
            cells = [program.words, f"{size:,}", _shown(row), _ratio(_rate(row), one)]
            if halves:
                cells += [_shown(half), _ratio(_rate(half), _rate(row))]
            known = row or {}
            cells += [
                f"{known['megabytes'] / 1e3:.2f}" if "megabytes" in known else "–",
                f"{known['compile_seconds']:.1f}" if "compile_seconds" in known else "–",
            ]
            table.append(cells)
    most = max((row.get("side_by_side", 1) for row in rows), default=1)
    note = f"\n\nUp to {most} programs compiled at the same time, so each took longer." if most > 1 else ""
    return pages.table(head, table) + note


def machines(records: Sequence[Record]) -> str:
    """Compare accelerators with a CPU, if both were measured."""
    cpus = [record for record in records if record["platform"] == "cpu"]
    others = [record for record in records if record["platform"] != "cpu"]
    if not cpus or not others:
        return "No CPU was measured for comparison."
    cpu = cpus[0]
    theirs = _rates(cpu["speed"])
    lines = [
        "### Compared with a CPU",
        wrap(
            f"Float32 steps/s divided by those of {cpu['device']}. *best of each*: with the fastest population of each."
        ),
    ]
    for record in others:
        ours = _rates(record["speed"])
        sizes = sorted({size for _, size in ours} & {size for _, size in theirs})
        rows = []
        for program in programs():
            name = program.words
            each = [_ratio(ours.get((name, size)), theirs.get((name, size))) for size in sizes]
            best = [max((rate for (who, _), rate in of.items() if who == name), default=None) for of in (ours, theirs)]
            rows.append((name, *each, _ratio(*best)))
        lines.append(
            pages.table((f"{record['device']}: members", *(f"{size:,}" for size in sizes), "best of each"), rows)
        )
    return "\n\n".join(lines)


def _rates(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    return {
        (row["program"], row["members"]): row["steps_per_second"]
        for row in rows
        if row["precision"] == "float32" and "steps_per_second" in row
    }


def _rate(row: Row | None) -> float | None:
    return None if row is None else row.get("steps_per_second")


def _shown(row: Row | None) -> str:
    """Return a rate, or the reason why there is none."""
    if row is None:
        return "–"
    if "error" in row:
        return "does not fit" if "RESOURCE_EXHAUSTED" in row["error"] else "fails"
    return f"{row['steps_per_second']:,.0f}" + ("" if row["quiet"] else " (not quiet)")


def _ratio(one: float | None, other: float | None) -> str:
    if not one or not other:
        return "–"
    return f"{one / other:.2f}" if one / other < 10 else f"{one / other:.0f}"


def scores(records: Sequence[Record]) -> str:
    """Return a table of the members' scores, and score differences between the precisions."""
    table, notes = [], []
    for record in records:
        rows = sorted(record["scores"], key=_place)
        table += [(record["device"], row["algorithm"], row["precision"], *_distribution(row)) for row in rows]
        notes += [_about(record, rows), costs(record["device"], rows)]
    head = ("device", "learner", "products", "members", "seconds", "compiling", "mean", "lowest", "5 %", "median")
    return "\n\n".join([pages.table((*head, "95 %", "diverged"), table), *filter(None, notes)])


def _place(row: Row) -> tuple[int, int]:
    return list(LEARNERS).index(row["algorithm"]), list(PRECISIONS).index(row["precision"])


def _distribution(row: Row) -> list[str]:
    if "error" in row:
        return ["–"] * 8 + ["all"]
    low, median, high = np.quantile(row["scores"], [0.05, 0.5, 0.95])
    times = (f"{len(row['scores'])}", f"{row['seconds']:.0f}", f"{row['compile_seconds']:.0f}")
    values = (f"{value:.1f}" for value in (np.mean(row["scores"]), min(row["scores"]), low, median, high))
    return [*times, *values, str(row["diverged"])]


def _about(record: Record, rows: Sequence[Row]) -> str:
    """Describe the data and the reference scores of a device."""
    done = [row for row in rows if "error" not in row]
    if not done:
        return ""
    updates = ", ".join(f"{name} {number:,}" for name, number in {r["algorithm"]: r["updates"] for r in done}.items())
    return wrap(
        f"{record['device']}: {done[0]['rows']:,} training rows; gradient steps: {updates}; {done[0]['episodes']} "
        f"episodes per score. The logged controller scores {record['behaviour']:.1f}, the tuned controller "
        f"{record['controller']:.1f}."
    )


def _costs(rows: Sequence[Row]) -> list[tuple[str, str, Any, float]]:
    """Return for each learner and precision the score difference from float32 and that of the 5 % quantiles."""
    known = {(row["algorithm"], row["precision"]): row["scores"] for row in rows if "error" not in row}
    found = []
    for (name, precision), values in known.items():
        plain = known.get((name, "float32"))
        if precision != "float32" and plain is not None and len(plain) == len(values) > 1:
            low = float(np.quantile(values, 0.05) - np.quantile(plain, 0.05))
            found.append((name, precision, paired_difference_interval(values, plain, 0.95), low))
    return found


def costs(device: str, rows: Sequence[Row]) -> str:
    """Return differences of scores from float32, with 95 % intervals over seeds; empty without two precisions."""
    table = [
        (name, precision, f"{gain.value:+.2f} ({gain.lower:+.2f} to {gain.upper:+.2f})", f"{low:+.2f}")
        for name, precision, gain, low in _costs(rows)
    ]
    if not table:
        return ""
    about = wrap(
        f"On {device}, these are the differences from the scores of the same seeds with default float32. Intervals are "
        "95 % intervals over the seeds."
    )
    return f"{about}\n\n" + pages.table(
        ("learner", "products", "mean difference", "difference of 5 % quantiles"), table
    )
