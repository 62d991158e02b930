"""The committed pages of studies equal the kept results, and the index lists every study."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchmarks import history, learn_study, pages, summary, training
from benchmarks.calibration import drift
from benchmarks.cartpole import __main__ as cartpole
from benchmarks.cartpole import online as cartpole_online
from benchmarks.chaos import __main__ as chaos
from benchmarks.chaos.races import kept_races
from benchmarks.identify import reactors
from benchmarks.ope_study import page as ope
from benchmarks.ope_study.table import PAGE as OPE
from benchmarks.plants import page as plants
from benchmarks.plants.kept import PAGE as PLANTS
from benchmarks.plants_pipeline import __main__ as pipeline
from benchmarks.season import __main__ as season
from benchmarks.season import page as season_page
from benchmarks.study import page as study
from benchmarks.study.table import PAGE as STUDY
from benchmarks.transfer import page as transfer


def _read(path: Path) -> Mapping[str, object]:
    found: Mapping[str, object] = json.loads(path.read_text())
    return found


def _chaos() -> str:
    trials, earlier = ([trial for name in chaos.SITES for trial in chaos.kept(name, part)] for part in PARTS)
    return chaos.page(trials, kept_races(), 200, 100, earlier)


PARTS = ("trials", "earlier")
WRITERS: dict[str, tuple[Path, Callable[[], str]]] = {
    "cartpole": (cartpole.PAGE, lambda: cartpole.page(_read(cartpole.RESULTS), _read(cartpole_online.RESULTS))),
    "chaos": (chaos.PAGE, _chaos),
    "data": (summary.PAGE, summary.page),
    "learn": (learn_study.PAGE, lambda: learn_study.page(learn_study.kept())),
    "drift": (drift.PAGE, lambda: drift.page(drift.Results.model_validate(_read(drift.RESULTS)).rows)),
    "history": (history.PAGE, lambda: history.page(_read(history.RESULTS))),
    "identify": (reactors.PAGE, lambda: reactors.page(dict(_read(reactors.RESULTS)))),
    "index": (pages.INDEX, pages.index),
    "ope": (OPE, ope.page),
    "pipeline": (pipeline.PAGE, lambda: pipeline.page(json.loads(pipeline.RESULTS.read_text()))),
    "plants": (PLANTS, plants.page),
    "retraining": (STUDY, study.page),
    "transfer": (transfer.PAGE, lambda: transfer.page(transfer.kept())),
    "speed": (training.PAGE, lambda: training.page(_read(training.RESULTS))),
}


@pytest.mark.parametrize("name", WRITERS)
def test_page_equals_the_kept_results(name: str) -> None:
    path, write = WRITERS[name]
    assert path.read_text(encoding="utf-8") == write()


def test_season_page_equals_the_kept_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(season_page, "PICTURE", tmp_path / "season.png")
    days = season.DAYS.validate_json(season.RESULTS.read_bytes())
    assert season_page.PAGE.read_text(encoding="utf-8") == season_page.page(days)
