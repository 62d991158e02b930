"""Tests and commands named in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flows.cli.main import run

ROOT = Path(__file__).parents[3]
PAGES = ("reference/standards", "explanation/threat-model")


@pytest.mark.parametrize("page", PAGES)
def test_every_named_test_exists(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/-]*test_\w+\.py)`(?! beside)", text))
    assert len(named) > 15
    tests = [f"/{path.relative_to(ROOT)}" for path in (ROOT / "tests").rglob("test_*.py")]
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in tests)] == []


def test_every_named_command_exists(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "reference" / "standards.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"`neorl ([a-z]+(?: (?:show|verify|sign|pin))?)", text))
    assert len(commands) > 6
    for command in commands:
        assert run([*command.split(), "--help"]) == 0, command
        capsys.readouterr()
    attacks = set(re.findall(r"^    (?:Attack\(\"(\w+)\")", _attacks(), flags=re.M))
    named = set(
        re.findall(r"\b(\d{1,2}[a-z])\b(?=[,;)` ])", " ".join(re.findall(r"`make redteam`, ([^|]*?)[);|]", text)))
    )
    assert named <= attacks, named - attacks


def _attacks() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "benchmarks" / "redteam").glob("*.py")))
