"""The report and the version's description: complete, offline, and true to the record."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from configs.code import Described
from configs.home import Home
from neorl_core.plants import PLANTS
from neorl_core.types import Constraint
from tasks.evidence.certificate import NON_CLAIMS
from tasks.files.canonical import canonical_json
from tasks.files.spec import spec_record
from tasks.gates import judge
from tasks.judgement import screen, screen_process
from tasks.record import VERDICTS, Record
from tasks.references import (
    Champion,
    Gate,
    Identification,
    IdentifiedConstant,
    Interval,
    LearnedModel,
    ModelEstimate,
    Protection,
    Source,
)
from tasks.report import describe, draw_plots, interval, limit, number, report, signed
from tests.judged import evidence, process_evidence
from tests.judged import interval as interval_of
from tests.sample_record import CLAIM, sample_record

NAN = float("nan")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A record whose gates all passed."""
    return sample_record(tmp_path_factory.mktemp("sample"))[0]


@pytest.fixture(scope="module")
def plots(sample: Record, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Its pictures."""
    return draw_plots(tmp_path_factory.mktemp("plots"), sample)


def changed(record: Record, **changes: object) -> Record:
    """The record with other fields."""
    return record.model_copy(update=changes)


class _Page(HTMLParser):
    """Collects the text, and every address that a browser would load by itself."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.loads: list[str | None] = []
        self.links: list[str | None] = []
        self.open_tags: list[str] = []
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
    html = report(Home(home), sample, plots).page.read_text()
    page = _Page(html)
    assert page.open_tags == []
    assert len(page.loads) == 5
    assert all(str(address).startswith("data:image/png;base64,") for address in page.loads)
    assert "@import" not in html
    assert "url(" not in html
    first_screen, _, rest = page.text.partition("Behaviour")
    for words in (
        VERDICTS["waiting"],
        sample.headline,
        "version 2",
        CLAIM,
        "+0.103 [+0.091, +0.115]",
        "servability: the bundle loads",
    ):
        assert words in first_screen
    digests = [value for _, value in sample.digests]
    told = ("46,512", "31 out of order", "neorl audit verify", "75.0 s", sample.run_key)
    for words in (*NON_CLAIMS, *digests, *told, sample.ledger.signed if sample.ledger else ""):
        assert words in rest
    assert set(sample.links.values()) <= set(page.links)
    assert report(Home(home), sample, plots).page.read_text() == html


def test_the_result_is_drawn_once_it_is_known(sample: Record, home: Path) -> None:
    # Whatever depends on the verdict is drawn with the report; the other pictures were made before.
    first, second = (
        report(Home(home / verdict), changed(sample, verdict=verdict), {}).glance for verdict in ("waiting", "promoted")
    )
    assert first is not None
    assert second is not None
    assert first.read_bytes() != second.read_bytes()
    assert report(Home(home), changed(sample, rollouts=None), {}).glance is None


def test_what_a_log_says_cannot_become_markup(sample: Record, home: Path) -> None:
    sources = (Source(path="<script>alert(1)</script>", sha256="0"),)
    gates = (Gate(name="data", passed=False, detail="column 'a|b'\n<script> is & stays text"),)
    record = changed(sample, dataset=sample.dataset.model_copy(update={"sources": sources}), gates=gates)
    html = report(Home(home), record, {}).page.read_text()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    text = describe(record)
    assert (
        "| data: the logs meet every expectation | **FAIL** | column 'a\\|b' &lt;script> is &amp; stays text |\n"
        in text
    )
    assert "<script>" not in text


def test_a_refusal_is_plain(sample: Record, home: Path) -> None:
    gates = (
        Gate(name="ope", passed=False, detail="lower bound -0.1"),
        Gate(name="statistical", passed=None, detail="not attempted"),
    )
    refused = changed(
        sample,
        verdict="refused",
        headline="No candidate beats the plant's controller.",
        gates=gates,
        certificate=None,
        rollouts=None,
    )
    text = _Page(report(Home(home), refused, {}).page.read_text()).text
    for words in (VERDICTS["refused"], "FAIL", "not run", "Certificate of the plant controller"):
        assert words in text
    markdown = describe(refused)
    assert "**FAIL**" in markdown
    assert "Claim** (plant controller; the candidate has no certificate)" in markdown
    assert set(draw_plots(home / "plots", refused)) == {"curves"}


def test_a_process_is_shown_without_what_only_a_simulator_tells(
    sample: Record, plots: dict[str, Path], home: Path
) -> None:
    numbers = process_evidence()
    spec = PLANTS[sample.run.plant].spec._replace(name="mill", constraints=())
    described = Described(spec=canonical_json(spec_record(spec)).decode())
    process = changed(
        sample,
        run=sample.run.model_copy(update={"plant": "mill", "source": described}),
        verdict="refused",
        gates=judge(numbers),
        evaluation=sample.evaluation.model_copy(update={"ranking": None}),
        rollouts=None,
        certificate=None,
        fallback=None,
        champion=None,
        model=LearnedModel(digest="0" * 64, weights=home, residuals=home, prediction=numbers.model),
        protection=Protection(fallback=numbers.fallback, bounds=numbers.bounds, support=numbers.support),
        estimate=ModelEstimate(
            returns=interval_of(-2.0, -1.0),
            fallback_returns=interval_of(-3.0, -2.0),
            violated=0.0,
            fallback_violated=0.0,
            handed_over=0.1,
            horizon=20,
            episodes=9,
        ),
    )
    page = _Page(report(Home(home), process, {"curves": plots["curves"]}).page.read_text())
    assert not page.open_tags
    assert "There are no hard limits" in page.text
    assert "Behaviour" not in page.text
    assert "held-out logs are a veto" not in page.text
    assert "score by rollouts" not in page.text
    assert "gain over the logged controller" in page.text
    assert "certificate verify" not in page.text
    simulated = _Page(report(Home(home), sample, {}).page.read_text()).text
    assert "score by rollouts" in simulated
    assert "Departure from the logs" in simulated
    assert "action coolant temperature beyond its logged range5.5 %0.0 %1.0 %" in simulated
    assert "Selected by rollouts on 256 fresh episodes, behind the shield; held-out logs are a veto." in simulated


def test_a_member_that_the_logs_do_not_support_says_why(home: Path, sample: Record) -> None:
    lost, *others = sample.evaluation.members
    why = {"supported": False, "reason": "fitted Q evaluation carries errors too far on too many guesses"}
    found = sample.evaluation.model_copy(update={"members": (lost.model_copy(update=why), *others)})
    found = found.model_copy(update={**why, "selected": 0, "horizon": 5_000})
    # The gate says it in the same words.
    known = (sample.run, sample.validation, evidence().simulator, found, sample.rollouts)
    judged = screen(*known, Champion(), sample.fallback)
    numbers = process_evidence()
    model = LearnedModel(digest="0" * 64, weights=home, residuals=home, prediction=numbers.model)
    guard = Protection(fallback=numbers.fallback, bounds=numbers.bounds, support=numbers.support)
    for screened in (judged, screen_process(sample.run, sample.validation, model, found, guard)):
        assert why["reason"] in next(gate.detail for gate in screened.gates if gate.name == "ope")
        # Of 5,000 steps a discount of 0.99 weighs a hundred.
        assert screened.evidence.unweighed == found.unweighed != ""
    found = found.model_copy(update={"difference": Interval(value=NAN, lower=NAN, upper=NAN)})
    assert "gain over the logged controller not supported by the logs." in describe(changed(sample, evaluation=found))
    page = _Page(report(Home(home), changed(sample, evaluation=found), {}).page.read_text())
    assert "not supported by the logs" in page.text
    assert page.text.count("no: fitted Q evaluation carries errors too far on too many guesses") == 1
    assert "no: " not in _Page(report(Home(home), sample, {}).page.read_text()).text


@pytest.mark.parametrize(
    ("fallback", "words"),
    [
        (True, "The candidate is refused, and there is no champion"),
        (False, "Neither the candidate nor the plant's own controller is certified: there is no champion"),
    ],
)
def test_a_refusal_without_a_champion_says_that_nothing_stands(
    sample: Record, home: Path, fallback: bool, words: str
) -> None:
    gates = (
        Gate(name="ope", passed=False, detail="lower bound -0.1"),
        Gate(name="fallback", passed=fallback, detail="9 violations in 300 episodes"),
    )
    refused = changed(sample, verdict="refused", gates=gates, certificate=None, champion=None)
    text = _Page(report(Home(home), refused, {}).page.read_text()).text
    assert words in text
    assert "There is no champion yet" in text
    assert "the champion stays" not in text
    assert describe(refused).startswith(f"### {words}\n")


def test_a_fallback_champion_shows_its_own_certificate(sample: Record) -> None:
    assert sample.certificate is not None
    failed = sample.certificate.model_copy(update={"claim": "Not certified: P(...)", "passed": False})
    text = describe(changed(sample, verdict="fallback", certificate=failed))
    assert f"**Claim** (plant controller): {CLAIM}" in text


def test_a_plant_controller_that_waits_is_said_to_wait(sample: Record) -> None:
    text = describe(changed(sample, verdict="fallback_waiting"))
    assert text.startswith(f"### {VERDICTS['fallback_waiting']}")
    assert f"**Claim** (plant controller): {CLAIM}" in text


def test_the_fallback_s_version_claims_nothing_of_the_candidate_before_a_decision(sample: Record) -> None:
    other = sample.digests.model_copy(update={"composite": "f" * 64})
    text = describe(changed(sample, verdict="passed", digests=other))
    assert text.startswith("### The tuned controller is certified\n")
    assert f"**Claim** (plant controller): {CLAIM}" in text
    assert "no part of it was trained" in text


@pytest.mark.slow
def test_the_selected_member_s_curve_is_found_by_its_index(sample: Record, tmp_path: Path) -> None:
    # Members can be fewer than the curves' rows: a member whose parameters are not finite is left out.
    population = sample.population.model_copy(update={"members": sample.population.members[2:]})
    estimates = sample.evaluation.members[2:]
    evaluation = sample.evaluation.model_copy(update={"selected": 1, "members": estimates})
    fewer = changed(sample, population=population, evaluation=evaluation)
    assert fewer.selected.seed == 3
    whole = draw_plots(tmp_path / "whole", sample)["curves"].read_bytes()
    assert draw_plots(tmp_path / "fewer", fewer)["curves"].read_bytes() == whole


def test_the_description_is_decided_from_its_first_lines(sample: Record) -> None:
    text = describe(sample, "http://host/#/experiments/1/runs/r", "get-artifact?path=p.png")
    assert text.startswith(f"### {VERDICTS['waiting']}\n")
    assert len(text) <= 5000  # the column's width in MLflow's schema, which PostgreSQL enforces
    order = [
        text.index(words)
        for words in (sample.headline, CLAIM, "plant controller", "servability: the bundle loads", "Not claimed")
    ]
    assert order == sorted(order)
    assert "![" in text
    assert "&emsp;" not in text
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_prefect_s_artifact_has_no_picture_and_no_entities(sample: Record) -> None:
    text = describe(sample, "http://host/#/experiments/1/runs/r", page=Path("reports/chemical_reactor/1.html"))
    assert "![" not in text
    assert "get-artifact" not in text
    assert "&" not in text
    assert {c for c in text if not c.isprintable()} == {"\n"}
    assert "`reports/chemical_reactor/1.html`" in text


def test_numbers_for_people() -> None:
    assert number(46512) == "46,512"
    assert number(-0.12346) == "−0.1235"
    assert number(None) == number(NAN) == "–"
    assert signed(0.1) == "+0.1"
    assert interval(Interval(value=1.0, lower=-0.5, upper=2.5)) == "1 [−0.5, 2.5]"
    assert interval(Interval(value=1.0, lower=NAN, upper=NAN), True) == "+1"
    assert interval(Interval(value=NAN, lower=NAN, upper=NAN)) == interval(None) == "–"
    assert limit(Constraint("level", "m", 0.5, 4.0)) == "level within 0.5 to 4 m"
    assert limit(Constraint("level", "m", float("-inf"), 4.0)) == "level at most 4 m"
    assert limit(Constraint("level", "m", 0.5, float("inf"))) == "level at least 0.5 m"


@pytest.mark.slow
def test_a_narrow_screen_cuts_nothing_but_tables(sample: Record, plots: dict[str, Path], home: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine: `make services` installs it")
    script = (
        "document.title = 'cut: ' + [...document.querySelectorAll('body *')].filter(e => (e.matches('table, pre') || "
    )
    script += "!e.closest('table, pre')) && e.getBoundingClientRect().right > innerWidth).map(e => e.tagName)"
    measured = home / "measured.html"
    page = report(Home(home), sample, plots).page.read_text()
    # The page's policy forbids scripts.
    page = page.replace("Content-Security-Policy", "")
    measured.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home / 'browser'}"]
    command = [browser, *options, "--window-size=500,900", "--dump-dom", measured.as_uri()]
    dom = subprocess.run(command, check=True, capture_output=True, timeout=120, text=True).stdout
    assert re.findall("<title>(.*?)</title>", dom, re.DOTALL) == ["cut: "]


@pytest.mark.slow
def test_a_browser_shows_the_report(sample: Record, plots: dict[str, Path], home: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine: `make services` installs it")
    path = report(Home(home), sample, plots).page
    shot = home / "report.png"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home / 'browser'}"]
    command = [browser, *options, "--window-size=1280,900", f"--screenshot={shot}", path.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert shot.stat().st_size > 50_000  # a blank page is some 5 kB


def test_what_was_identified_is_shown_with_its_intervals(sample: Record, home: Path) -> None:
    assert "identified from the logs" not in describe(sample)
    told = {"law": "log-normal", "lower": 2.05, "upper": 2.15, "prior": 2.092, "deviation": 0.03}
    known = IdentifiedConstant(name="cooling_rate", estimate=2.1, share=0.1, identified=True, **told)
    test = "moving coolant_temperature by +1 K and holding it for 9 steps would identify it"
    unknown = IdentifiedConstant(name="pump", entry=1, estimate=2.1, share=0.9, identified=False, test=test, **told)
    found = Identification(dataset="5" * 64, episodes=12, constants=(known, unknown))
    record = sample.model_copy(update={"identification": found})
    page = report(Home(home), record, {}).page.read_text()
    text = describe(record)
    for words in ("cooling_rate", "pump[1]", "2.092 ± 3 %", f"no: {test}"):
        assert words in page, words
        assert words in text, words
    assert "| cooling_rate | 2.1 [2.05, 2.15] | 2.092 ± 3 % | yes |" in text
