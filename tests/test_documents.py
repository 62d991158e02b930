"""Limits on the length of README, CHANGELOG and glossary."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_readme_has_at_most_100_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_changelog_entries_are_few_and_short() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert releases
    for release in releases:
        entries = re.findall(r"^- (.*)$", release, flags=re.MULTILINE)
        assert len(entries) <= 40
        assert [entry for entry in entries if len(entry.split()) > 20] == []
        assert [entry for entry in entries if not re.match(r"(Add|Fix|Change|Remove) ", entry)] == []
        # Every line of a release is a heading, a one-line entry or blank.
        assert [line for line in release.splitlines()[1:] if line and not line.startswith(("### ", "- "))] == []


def test_glossary_has_at_most_40_words() -> None:
    rows = re.findall(r"^\| (.+?) \| .+ \|$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for row in rows if row != "word" for word in row.split(", ")]
    assert len(words) == len(set(words))
    assert len(words) <= 40


def test_documents_named_in_the_repository_exist() -> None:
    command = ["git", "grep", "-ohE", r"docs/[A-Za-z0-9_/.-]+\.(md|png)\b"]
    names = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    assert len(names) > 30
    assert sorted(name for name in names if not (ROOT / name).exists()) == []


def test_documents_outside_studies_have_at_most_35000_words() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "studies" not in path.relative_to(ROOT).parts]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()) <= 35_000
