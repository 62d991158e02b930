"""Write a mapping file from guesses: YAML with a reason beside each guess, and lines that the user must fill in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from configs.dialect import Dialect
from tasks.data.historian.guess.columns import ASSUMED, TagGuess, stem

FILL_IN = "FILL IN"
NO_REWARD = "a log does not show the control objective: write it, such as -abs(next.level - quantity(2, 'm'))"


class Draft(NamedTuple):
    """Guessed contents of a mapping; for a value of None, the user must fill in the line."""

    log: str
    name: str
    horizon: tuple[int, str]
    period: tuple[float | None, str]
    layout: tuple[str, str]
    dialect: tuple[Dialect, dict[str, str], dict[str, str]]
    columns: tuple[tuple[str, str | None, str], ...]
    """Entries of `columns` in the mapping: (key, name of the column, reason)."""
    clock: tuple[tuple[str, str | float | None, str], ...]
    """Entries of `clock` in the mapping: (key, value, reason)."""
    tags: tuple[TagGuess, ...]
    gap: tuple[float, str]


class Written(NamedTuple):
    text: str
    fill_in: tuple[str, ...]
    """Lines that must be filled in before ingestion, each with an explanation."""
    check: tuple[str, ...]


def write(draft: Draft) -> Written:
    page = _Page()
    page.lines += [
        f"# Mapping of {_plain(draft.log)}, guessed, with the reason for each guess. Correct wrong guesses;",
        "# docs/reference/configuration.md lists all keys.",
    ]
    page.add("process", f"{{name: {draft.name}, horizon: {draft.horizon[0]}}}", draft.horizon[1])
    page.add("period_seconds", _number(draft.period[0]), draft.period[1])
    page.add("layout", draft.layout[0], draft.layout[1])
    dialect, reasons, unclear = draft.dialect
    keys = [key for key in Dialect.model_fields if getattr(dialect, key) != getattr(Dialect(), key) or key in unclear]
    if keys:
        page.lines.append("dialect:")
    for key in keys:
        value = None if key in unclear else _scalar(getattr(dialect, key))
        page.add(key, value, unclear.get(key) or reasons.get(key, "some bytes are not UTF-8"), 2)
    for section, entries in (("columns", draft.columns), ("clock", draft.clock)):
        if entries:
            page.lines.append(f"{section}:")
        for key, given, why in entries:
            page.add(key, "null" if section == "columns" and given is None else _scalar(given), why, 2)
    page.lines.append("tags:")
    for tag in draft.tags:
        if tag.role != "ignore":
            page.add(json.dumps(tag.name, ensure_ascii=False), _tag(tag), tag.reason, 2)
    reward, why = _reward(draft.tags)
    page.add("reward", f'{{expression: {json.dumps(reward)}, unit: "1"}}', why)
    ignored = [tag for tag in draft.tags if tag.role == "ignore"]
    if ignored:
        page.lines.append("ignore:")
        page.lines += [f"  - {json.dumps(tag.name, ensure_ascii=False)}  # {_plain(tag.reason)}" for tag in ignored]
    page.add("episodes", f"{{max_gap_seconds: {_number(draft.gap[0])}}}", draft.gap[1])
    check = [f"reward: {NO_REWARD}"] if reward == "0" else []
    check += [f"{tag.name}: {tag.reason.split(';')[0]}" for tag in draft.tags if tag.reason.startswith(ASSUMED)]
    return Written("\n".join(page.lines) + "\n", tuple(page.fill_in), tuple(check))


class _Page:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.fill_in: list[str] = []

    def add(self, key: str, value: str | None, reason: str, indent: int = 0) -> None:
        blanks = " " * indent
        if value is None:
            self.lines.append(f"{blanks}{key}:  # {FILL_IN}: {_plain(reason)}")
            self.fill_in.append(f"line {len(self.lines)}, {key}: {_plain(reason)}")
        else:
            self.lines.append(f"{blanks}{key}: {value}  # {_plain(reason)}")


def _tag(tag: TagGuess) -> str:
    parts = [f"role: {tag.role}"]
    if tag.role != "episode":
        parts += [f"signal: {tag.signal}", f"unit: {json.dumps(tag.unit, ensure_ascii=False)}"]
    parts.append(f"interpolation: {'stepped' if tag.stepped else 'sloped'}")
    if tag.stale:
        parts.append(f"stale_seconds: {_number(tag.stale)}")
    if tag.span:
        parts.append(f"range: [{_number(tag.span[0])}, {_number(tag.span[1])}]")
    if tag.states:
        states = ", ".join(f"{json.dumps(text, ensure_ascii=False)}: {i}" for i, text in enumerate(tag.states))
        parts.append(f"states: {{{states}}}")
    return "{" + ", ".join(parts) + "}"


def _reward(tags: Sequence[TagGuess]) -> tuple[str, str]:
    """Return a formula for the reward, minus the distance of a signal from its set point, or '0'; and the reason."""
    measured = {stem(tag.signal): tag for tag in tags if tag.role == "observation"}
    for tag in tags:
        twin = measured.get(stem(tag.signal)) if tag.role == "set_point" else None
        if twin is not None and twin.unit == tag.unit:
            unit = {"degC": "K", "degF": "K"}.get(tag.unit, tag.unit)
            over = "" if unit == "1" else f" / quantity(1, '{unit}')"
            return (
                f"-abs(next.{twin.signal} - {tag.signal}){over}",
                f"by their names, {twin.name} follows {tag.name}",
            )
    return "0", NO_REWARD


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(text.split()))


def _scalar(value: str | float | None) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return _number(value) if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)


def _number(value: float | None) -> str | None:
    return None if value is None else repr(int(value)) if float(value).is_integer() else repr(value)
