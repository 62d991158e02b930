"""Write the pages of docs/studies: a question, its answer, the command that measures it, and tables.

    python -m benchmarks.pages    # writes docs/studies/index.md from the other pages

This module uses the standard library only, because benchmarks.accelerator runs without the pipeline's packages.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "docs" / "studies"
INDEX = STUDIES / "index.md"
INTRODUCTION = """\
# Studies

Each study answers one question with measurements. Its command measures again and writes the page. If a command takes
hours, you can stop it; started again, the command makes only the missing measurements. The folder `benchmarks/results`
stores all numbers, with the commit of the measured code. A *score* is a policy's mean return in points of the plant's
scale: about 0 for a constant action, about 100 for the best known controller. *Cells* of a study are its combinations
of settings, such as plant and logs.
"""


def study(title: str, question: str, answer: str, command: str, *parts: str) -> str:
    """Return the text of a page of docs/studies.

    Args:
        title: the heading.
        question: one sentence that ends with a question mark.
        answer: two sentences.
        command: the command in backticks, then its duration in a few words.
        parts: headings, tables and paragraphs, in order; empty strings are left out.
    """
    head = [f"**{name}.** {text}" for name, text in (("Question", question), ("Answer", answer), ("Command", command))]
    return "\n\n".join([f"# {title}", *map(wrap, head), *filter(None, parts)]) + "\n"


def wrap(text: str) -> str:
    """Break a paragraph into lines of at most 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    cells = (" | ".join(str(cell).replace("|", "\\|") for cell in row) for row in (head, ["---"] * len(head), *rows))
    return "\n".join(f"| {row} |" for row in cells)


def listed(names: Iterable[str]) -> str:
    """Return names separated by commas, or "none"."""
    return ", ".join(names) or "none"


def yes(met: bool) -> str:
    """Return "yes" or "no"."""
    return "yes" if met else "no"


def index() -> str:
    """Return docs/studies/index.md: title, question and command of every study."""
    rows = []
    for path in sorted(STUDIES.glob("*.md")):
        if path != INDEX:
            title, *parts = path.read_text(encoding="utf-8").split("\n\n")[:4]
            question, _, command = (re.sub(r"^\*\*\w+\.\*\* ", "", " ".join(part.split())) for part in parts)
            start = re.match(r"`[^`]+`", command)
            rows.append((f"[{title[2:]}]({path.name})", question, start.group() if start else ""))
    return f"{INTRODUCTION}\n{table(('study', 'question', 'command'), rows)}\n"


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
