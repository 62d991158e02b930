"""The report and the version's description: complete, offline, and true to the record."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from configs.home import Home
from tasks.adapters.ledger.certificate import NON_CLAIMS
from tasks.register import describe, draw_plots, metrics, parameters
from tasks.report import VERDICTS, Record, interval, number, report, signed
from tests.sample_record import CLAIM, sample_record


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A record whose gates all passed."""
    return sample_record(tmp_path_factory.mktemp("sample"))[0]


@pytest.fixture(scope="module")
def plots(sample: Record, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Its pictures."""
    return draw_plots(tmp_path_factory.mktemp("plots"), sample)


class _Page(HTMLParser):
    """Collects the text, and every address that a browser would load by itself."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.loads, self.links, self.open_tags = "", [], [], []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a":
            self.links.append(found["href"])
        elif "src" in found or tag in ("link", "script", "iframe"):
            self.loads.append(found.get("src") or found.get("href"))
        if tag not in ("meta", "img", "br"):
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_report_loads_nothing_and_tells_everything(sample: Record, plots: dict[str, Path], home: Path) -> None:
    html = report(Home(home), sample, plots).read_text()
    page = _Page(html)
    assert page.open_tags == []
    assert len(page.loads) == 4
    assert all(str(address).startswith("data:image/png;base64,") for address in page.loads)
    assert "@import" not in html
    assert "url(" not in html
    first_screen, _, rest = page.text.partition("Behaviour")
    for words in (VERDICTS["waiting"], sample.headline, "version 2", CLAIM, "+0.103 [+0.091, +0.115]", "Servability"):
        assert words in first_screen
    for words in (*NON_CLAIMS, *sample.digests.values(), "46,512", "neorl audit verify", "75.0 s", sample.run_key):
        assert words in rest
    assert set(sample.links.values()) <= set(page.links)
    assert report(Home(home), sample, plots).read_text() == html


def test_what_a_log_says_cannot_become_markup(sample: Record, home: Path) -> None:
    sources = [{"path": "<script>alert(1)</script>", "sha256": "0"}]
    html = report(Home(home), replace(sample, dataset={**sample.dataset, "sources": sources}), {}).read_text()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_a_refusal_is_plain(sample: Record, home: Path) -> None:
    gates = [
        {"name": "ope", "passed": False, "detail": "lower bound -0.1"},
        {"name": "statistical", "passed": None, "detail": "not attempted"},
    ]
    changed = replace(
        sample,
        verdict="refused",
        headline="No candidate beats the plant's controller.",
        gates=gates,
        certificates={"candidate": None, "fallback": sample.certificates["fallback"]},
        champion=None,
        evaluation={**sample.evaluation, "rollouts": None},
    )
    text = _Page(report(Home(home), changed, {}).read_text()).text
    for words in (
        VERDICTS["refused"],
        "FAIL",
        "not run",
        "There is no champion yet",
        "Certificate of the plant controller",
    ):
        assert words in text
    markdown = describe(changed)
    assert "**FAIL**" in markdown
    assert "Claim** (plant controller; the candidate has none)" in markdown
    assert set(draw_plots(home / "plots", changed)) == {"curves"}


def test_a_fallback_champion_shows_its_own_certificate(sample: Record) -> None:
    failed = {**(sample.certificates["candidate"] or {}), "claim": "Not shown: P(...)", "passed": False}
    changed = replace(sample, verdict="fallback", certificates={**sample.certificates, "candidate": failed})
    text = describe(changed)
    assert f"**Claim** (plant controller): {CLAIM}" in text


def test_a_plant_controller_that_waits_is_said_to_wait(sample: Record) -> None:
    text = describe(replace(sample, verdict="fallback_waiting"))
    assert text.startswith(f"### {VERDICTS['fallback_waiting']}")
    assert f"**Claim** (plant controller): {CLAIM}" in text


def test_the_selected_member_s_curve_is_found_by_its_index(sample: Record, tmp_path: Path) -> None:
    # Members can be fewer than the curves' rows: a member whose parameters are not finite is left out.
    population = {**sample.population, "members": sample.population["members"][2:]}
    fewer = replace(sample, population=population, evaluation={**sample.evaluation, "selected": 1})
    assert parameters(fewer)["selected.seed"] == 3
    whole = draw_plots(tmp_path / "whole", sample)["curves"].read_bytes()
    assert draw_plots(tmp_path / "fewer", fewer)["curves"].read_bytes() == whole


def test_the_description_is_decided_from_its_first_lines(sample: Record) -> None:
    text = describe(sample, "http://host/#/experiments/1/runs/r", "get-artifact?path=p.png")
    assert text.startswith(f"### {VERDICTS['waiting']}\n")
    assert len(text) <= 5000  # the column's width in MLflow's schema, which PostgreSQL enforces
    order = [text.index(words) for words in (sample.headline, CLAIM, "plant controller", "Servability", "Not claimed")]
    assert order == sorted(order)
    assert "![" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_numbers_for_people() -> None:
    assert number(46512) == "46,512"
    assert number(-0.12346) == "−0.1235"
    assert number(None) == "–"
    assert signed(0.1) == "+0.1"
    assert interval({"value": 1.0, "lower": -0.5, "upper": 2.5}) == "1 [−0.5, 2.5]"
    assert interval({"value": 1.0}, True) == "+1"
    assert interval(None) == "–"


def test_parameters_and_metrics_are_flat(sample: Record) -> None:
    flat: dict[str, Any] = parameters(sample)
    assert flat["train.algorithm"] == sample.run.train.algorithm
    assert flat["selected.alpha"] == 2.5
    found = metrics(sample)
    assert found["difference/plant_controller/lower"] == pytest.approx(0.091)
    assert found["difference/logged_controller_OPE/lower"] == pytest.approx(0.15)
    assert found["score"] == 87.5


def test_a_browser_shows_the_report(sample: Record, plots: dict[str, Path], home: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine: `make services` installs it")
    path = report(Home(home), sample, plots)
    shot = home / "report.png"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home / 'browser'}"]
    command = [browser, *options, "--window-size=1280,900", f"--screenshot={shot}", path.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert shot.stat().st_size > 50_000  # a blank page is some 5 kB
