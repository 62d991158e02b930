"""Pages that commands write are what these make of the results that are kept: nothing of them is typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import training
from benchmarks.ope_study import page as ope_page
from benchmarks.ope_study.table import PAGE as OPE
from benchmarks.plants_pipeline import __main__ as pipeline
from benchmarks.study import page as study_page
from benchmarks.study.table import PAGE as STUDY

MADE: dict[str, tuple[Path, Callable[[], str]]] = {
    "benchmarks": (training.TABLES, lambda: training.table(json.loads(training.RESULTS.read_text()))),
    "ope": (OPE, ope_page.page),
    "pipeline": (pipeline.PAGE, lambda: pipeline.page(json.loads(pipeline.RESULTS.read_text()))),
    "results": (STUDY, study_page.page),
}


@pytest.mark.parametrize("name", MADE)
def test_a_page_is_what_its_command_makes_of_the_results(name: str) -> None:
    path, made = MADE[name]
    assert path.read_text(encoding="utf-8") == made()
