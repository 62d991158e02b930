"""docs/studies/accelerators.md from the records that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.accelerator.learners import LEARNERS, PRECISIONS, programs
from benchmarks.accelerator.scores import BEHAVIOUR, PLANT
from benchmarks.speed import ROWS
from neorl_core.safety.bounds import paired_difference_interval

Record = Mapping[str, Any]
Row = Mapping[str, Any]


def page(records: Sequence[Record]) -> str:
    """The whole page; accelerators come before CPUs."""
    order = sorted(records, key=lambda record: record["platform"] == "cpu")
    parts = [_INTRODUCTION, devices(order), _SPEED, speeds(order), machines(order), _SCORES, scores(order)]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
# Accelerators

Made by `make bench-accelerator`, which measures the device that JAX finds and keeps a record of each: populations of
one member to a thousand, at the sizes that a default retrain has (two hidden layers of 64, in the model of `bptt` of
32; of `edac` and `cql`, which take no part in it, the algorithms' own defaults), batch 256. The error of a product is
that of 256 rows through a layer of 64 units, beside float64: JAX leaves it to the device how exact a product of float32
numbers is, and NVIDIA's GPUs since Ampere round both operands to 10 bits of mantissa unless they are asked for
more."""

_SPEED = f"""\
## Gradient steps per second

Steps of all members count. {ROWS:,} random transitions of 11 observations and 3 actions lie on the device, as in
[benchmarks](speed.md). Medians of windows after compilation. `bptt` first learns a model of the plant, which is a
program of its own. Memory is what the compiled program was planned to take: what goes in (of the transitions, which
are 0.1 GB, what it uses), what comes out, and what is between; it and the time of compiling are those of float32."""

_SCORES = f"""\
## Scores

Whole trainings from transitions to policies, every member with a seed of its own and all else as a default retrain has
it, on generated episodes of `{PLANT}` of {BEHAVIOUR} quality; afterwards each member's mean score over the same
episodes of the simulator, in float32 whatever it was trained in, without a shield, and nothing selected. Seconds are of
the whole training, compiling included; how many of them went into compiling is told by the first chunk of each program
beside its others."""


def devices(records: Sequence[Record]) -> str:
    """What was measured on, and how exact its products are."""
    lines = [
        "| device | host | measured | JAX | commit of the core | error of a product: "
        + " | ".join(PRECISIONS)
        + " | most memory taken, GB |",
        "|---" * (6 + len(PRECISIONS)) + "|",
    ]
    for record in records:
        errors = " | ".join(f"{record['product_error'][name]:.1e}" for name in PRECISIONS)
        peak = record["memory_peak_bytes"]
        about = " | ".join([record["device"], record["host"], record["date"], record["jax"], record["commit"][:12]])
        lines.append(f"| {about} | {errors} | {f'{peak / 1e9:.1f}' if peak else '–'} |")
    return "\n".join(lines)


def speeds(records: Sequence[Record]) -> str:
    """A table for each device."""
    return "\n\n".join(f"### {record['device']}\n\n{_speed(record['speed'])}" for record in records)


def _speed(rows: Sequence[Row]) -> str:
    found = {(row["program"], row["members"], row["precision"]): row for row in rows}
    sizes = sorted({row["members"] for row in rows})
    halves = any(row["precision"] == "bfloat16" for row in rows)
    lines = [
        "| learner | members | steps/s, float32 | beside one member | "
        + ("bfloat16 | beside float32 | " if halves else "")
        + "memory, GB | trace and compile, s |",
        "|---" * (8 if halves else 6) + "|",
    ]
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
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines + _beside(rows))


def _beside(rows: Sequence[Row]) -> list[str]:
    """How many programs were compiled at a time, where that was more than one."""
    most = max((row.get("side_by_side", 1) for row in rows), default=1)
    return ["", f"Programs of one population and precision were compiled {most} at a time."] if most > 1 else []


def machines(records: Sequence[Record]) -> str:
    """What accelerators do beside a CPU, where both were measured."""
    cpus = [record for record in records if record["platform"] == "cpu"]
    others = [record for record in records if record["platform"] != "cpu"]
    if not cpus or not others:
        return "No CPU was measured beside an accelerator yet."
    cpu = cpus[0]
    theirs = _rates(cpu["speed"])
    lines = [
        "### Beside a CPU",
        "",
        f"Steps per second in float32 over those of {cpu['device']}: ratios of two machines, neither of which was "
        "chosen to match the other. The last column compares each at the population that suits it best.",
        "",
    ]
    for record in others:
        ours = _rates(record["speed"])
        sizes = sorted({size for _, size in ours} & {size for _, size in theirs})
        heads = " | ".join(f"{size:,}" for size in sizes)
        lines += [
            f"| {record['device']}: members | {heads} | best of each |",
            "|---" * (len(sizes) + 2) + "|",
        ]
        for program in programs():
            name = program.words
            each = [_ratio(ours.get((name, size)), theirs.get((name, size))) for size in sizes]
            best = [max((rate for (who, _), rate in of.items() if who == name), default=None) for of in (ours, theirs)]
            lines.append(f"| {name} | " + " | ".join([*each, _ratio(*best)]) + " |")
    return "\n".join(lines)


def _rates(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    return {
        (row["program"], row["members"]): row["steps_per_second"]
        for row in rows
        if row["precision"] == "float32" and "steps_per_second" in row
    }


def _rate(row: Row | None) -> float | None:
    return None if row is None else row.get("steps_per_second")


def _shown(row: Row | None) -> str:
    """A rate, or why there is none."""
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
    """How the members' scores are distributed, and what a precision costs seed by seed."""
    lines = [
        "| device | learner | products | members | seconds | of that compiling | mean score | lowest | 5 % | median "
        "| 95 % | diverged |",
        "|---" * 12 + "|",
    ]
    notes = []
    for record in records:
        rows = sorted(record["scores"], key=_place)
        for row in rows:
            lines.append(f"| {record['device']} | {row['algorithm']} | {row['precision']} | {_distribution(row)} |")
        notes += [_about(record, rows), *costs(record["device"], rows)]
    return "\n".join([*lines, "", *notes]).rstrip()


def _place(row: Row) -> tuple[int, int]:
    return list(LEARNERS).index(row["algorithm"]), list(PRECISIONS).index(row["precision"])


def _distribution(row: Row) -> str:
    if "error" in row:
        return " | ".join(["–"] * 8 + ["all"])
    low, median, high = np.quantile(row["scores"], [0.05, 0.5, 0.95])
    return (
        f"{len(row['scores'])} | {row['seconds']:.0f} | {row['compile_seconds']:.0f} | {np.mean(row['scores']):.1f} "
        f"| {min(row['scores']):.1f} | {low:.1f} | {median:.1f} | {high:.1f} | {row['diverged']}"
    )


def _about(record: Record, rows: Sequence[Row]) -> str:
    """What the scores of a device are of."""
    done = [row for row in rows if "error" not in row]
    if not done:
        return ""
    updates = ", ".join(f"{name} {number:,}" for name, number in {r["algorithm"]: r["updates"] for r in done}.items())
    return (
        f"{record['device']}: {done[0]['rows']:,} rows, gradient steps {updates}, {done[0]['episodes']} episodes for "
        f"each score; the behaviour has {record['behaviour']:.1f}, the plant's own controller "
        f"{record['controller']:.1f}.\n"
    )


def costs(device: str, rows: Sequence[Row]) -> list[str]:
    """Differences of scores from float32's, seed by seed, with 95 % intervals over seeds."""
    known = {(row["algorithm"], row["precision"]): row["scores"] for row in rows if "error" not in row}
    lines = []
    for (name, precision), found in known.items():
        plain = known.get((name, "float32"))
        if precision == "float32" or plain is None or len(plain) != len(found) or len(plain) < 2:
            continue
        gain = paired_difference_interval(found, plain, 0.95)
        low = np.quantile(found, 0.05) - np.quantile(plain, 0.05)
        lines.append(
            f"| {name} | {precision} | {gain.value:+.2f} ({gain.lower:+.2f} to {gain.upper:+.2f}) | {low:+.2f} |"
        )
    if not lines:
        return []
    return [
        f"Beside float32 as {device} multiplies it by default, seed by seed, with 95 % intervals over the seeds:\n",
        "| learner | products | mean difference of the score | difference of the 5 % quantiles |\n|---|---|---|---|",
        "\n".join(lines) + "\n",
    ]
