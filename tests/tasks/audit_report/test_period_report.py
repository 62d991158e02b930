"""The audit report: correct for a ledger with known dates, complete, offline, and printable."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from configs.errors import Refused
from configs.home import Home
from flows.cli.main import run
from flows.period_report import report_period
from tasks.audit_report.collect import collect, timeline
from tasks.audit_report.decisions import decisions_in, in_force_in, incidents_in
from tasks.audit_report.tables import Period, Report
from tasks.evidence.audit.audit import audit
from tasks.evidence.decisions import verdicts
from tasks.evidence.decisions.champions import WithdrawalBody
from tasks.evidence.ledger.ledger import Ledger
from tasks.evidence.ledger.signing import read_heads
from tasks.evidence.rules import RefusalBody
from tasks.files.canonical import sha256_hex
from tests.evidence import PLANT, attempt_for, certificate_of, crown, forge, open_ledger, put, signer_at, verdict

A, B, C = (sha256_hex(name) for name in (b"a", b"b", b"c"))
WHY = "the valve <b>was</b> replaced & it is another plant"
LATER = datetime(2026, 1, 15, 12, tzinfo=UTC)
JANUARY = Period(first=date(2025, 12, 1), last=date(2025, 12, 31))


class Clock:
    """A clock set by tests."""

    def __init__(self) -> None:
        self.now = datetime(2025, 11, 20, 8, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def set(self, *when: int) -> None:
        self.now = datetime(2025, *when, tzinfo=UTC)


@pytest.fixture
def ledger(home: Path) -> Ledger:
    """Version 'a' from 20 November, 'b' from 10 December to its withdrawal on the 20th; 'c' was rejected."""
    clock = Clock()
    ledger = open_ledger(Home(home), clock)
    crown(ledger, A)
    # The first and the last moment of December, and the moments beside them.
    for when in ((11, 30, 23, 59, 59, 999999), (12, 1, 0, 0, 0, 0), (12, 10, 9, 30)):
        clock.set(*when)
        ledger.append("refusal", RefusalBody(reason=f"at {when}", sources=("/a/path", A)), plant=PLANT)
    first = next(e for e in ledger.entries("promotion"))
    put(ledger, verdicts.approve(ledger, PLANT, verdict(ledger, B, by="Ada", note="compared")), first.digest)
    clock.set(12, 12)
    verdicts.reject(ledger, PLANT, verdict(ledger, C, by="Grace", note="too nervous").model_copy(
        update={"meaning": "rejected"}
    ))  # fmt: skip
    clock.set(12, 15)
    attempt_for(ledger, sha256_hex(b"abandoned"))
    clock.set(12, 20, 18)
    last = ledger.entries("promotion")[-1]
    body = WithdrawalBody(composite=B, promotion=last.digest, version="", by="Ada", why=WHY)
    ledger.append("withdrawal", body, plant=PLANT)
    clock.set(12, 31, 23, 59, 59, 999999)
    ledger.append("refusal", RefusalBody(reason="at the last moment"), plant=PLANT)
    clock.now = datetime(2026, 1, 1, tzinfo=UTC)
    ledger.append("refusal", RefusalBody(reason="in January"), plant=PLANT)
    return ledger


def told(ledger: Ledger, period: Period = JANUARY, plant: str | None = None) -> Report:
    with signer_at(ledger.home):
        return collect(ledger.home, period, plant, LATER)


def test_the_report_shows_the_ledger_of_the_period(ledger: Ledger) -> None:
    found = told(ledger)
    champions = [(row.composite, row.time[:16], row.until and row.until[:16], row.ended) for row in found.in_force]
    assert champions == [
        (A, "2025-11-20T08:00", "2025-12-10T09:30", "replaced by version "),
        (B, "2025-12-10T09:30", "2025-12-20T18:00", f"withdrawn by Ada: {WHY}"),
    ]
    # A second before the period and one after it are left out; its first and its last moment are in it.
    assert [row.time[:16] for row in found.refusals] == ["2025-12-01T00:00", "2025-12-10T09:30", "2025-12-31T23:59"]
    assert found.refusals[0].sources == (A,)
    assert [(row.what, row.by, row.why) for row in found.decisions] == [
        ("approved", "Ada", "compared"),
        ("rejected", "Grace", "too nervous"),
        ("withdrew", "Ada", WHY),
    ]
    assert [(row.what, row.detail) for row in found.incidents] == [("champion withdrawn", f"version , by Ada: {WHY}")]
    # Attempts 1 to 4 may spend 0.05 (1/2 + 1/6 + 1/12 + 1/20) = 0.05 * 4/5; the first was before the period.
    (lineage,) = found.lineages
    assert (lineage.attempts, lineage.in_period, lineage.without_result) == (4, 3, 1)
    assert lineage.spent == pytest.approx(0.04)
    assert lineage.allowed == 0.05
    # No champion at the end of the period, so that only ended ones are reported.
    assert [(row.composite, row.passed, row.attempt) for row in found.certificates] == [(B, True, 2), (C, True, 3)]
    assert found.over
    assert any("neither a champion nor a shadow at the end" in line for line in found.attention)
    assert any("1 of 4 attempts" in line for line in found.attention)
    numbers = [row.sequence for row in found.entries]
    assert numbers == [e.sequence for e in ledger.entries() if e.timestamp.startswith("2025-12")]


def test_a_period_is_reported_as_of_then(ledger: Ledger) -> None:
    november = told(ledger, Period(first=date(2025, 11, 1), last=date(2025, 11, 30)))
    (row,) = november.in_force
    assert (row.composite, row.until, row.ended) == (A, None, "")
    # From 20 November on, 3660 days later: 2035-11-28 by hand (ten years with leap days 2028 and 2032, and 8 days).
    (certificate,) = november.certificates
    assert (certificate.state, str(certificate.expires)[:10]) == ("valid, of the champion", "2035-11-28")
    later = told(ledger, Period(first=date(2026, 1, 1), last=date(2026, 1, 14)))
    assert (later.in_force, later.decisions, len(later.refusals)) == ((), (), 1)


def test_counts_agree_with_their_verbs(ledger: Ledger) -> None:
    assert any(line.startswith("3 decisions are in the home's name") for line in told(ledger).attention)
    day = date(2025, 12, 10)
    assert any(line.startswith("One decision is in") for line in told(ledger, Period(first=day, last=day)).attention)


def test_a_rollback_ends_one_champion_and_brings_another_back(ledger: Ledger) -> None:
    first, second = ledger.entries("promotion")
    body = {"composite": A, "candidate": first.body["candidate"], "version": "1", "restores": first.digest}
    body |= {"replaces": second.digest, "leaves": B, "by": "Ada", "role": "", "why": "oscillates", "signed": ""}
    entry = forge(ledger.home, "rollback", {**body, "signature": ""})
    period = Period(first=date(2025, 12, 1), last=date.fromisoformat(entry.timestamp[:10]))
    history = ledger.entries()
    # Before the withdrawal, so that the rollback ends the second champion.
    history = [e for e in history if e.kind != "withdrawal"]
    assert [(row.composite, row.ended, row.approver) for row in in_force_in(history, period)] == [
        (A, "replaced by version ", "a reviewer"),
        (B, "rolled back to version 1 by Ada: oscillates", "Ada"),
        (A, "", "Ada"),
    ]
    (decision,) = [row for row in decisions_in(history, period) if row.what.startswith("rolled")]
    assert (decision.version, decision.by, decision.why) == ("1", "Ada", "oscillates")
    assert "champion rolled back" in {row.what for row in incidents_in(history, period)}


class _Page(HTMLParser):
    """Collects text and addresses, and checks that tags are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.addresses, self.open_tags = "", list[str](), list[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for name, value in attrs if name in ("href", "src", "action")]
        if tag not in ("meta", "br", "wbr"):
            self.open_tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def written(ledger: Ledger, plant: str | None = None) -> Path:
    with signer_at(ledger.home):
        return report_period(ledger.home, JANUARY.first, JANUARY.last, plant, clock=lambda: LATER).path


def test_the_page_is_self_contained_and_its_head_reveals_truncation(ledger: Ledger) -> None:
    path = written(ledger)
    assert path == ledger.home.root / "reports" / "by-period" / "2025-12-01_2025-12-31.html"
    html = path.read_text()
    page = _Page(html)
    assert (page.open_tags, page.addresses) == ([], [])
    assert not re.search(r"file:|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    assert WHY in page.text
    assert "<b>was</b>" not in html
    for words in ("Grace", "too nervous", B[:12], "Needs attention", "0.04 of 0.05", "every file that it names"):
        assert words in page.text, words
    assert written(ledger, PLANT).name == f"{PLANT}_2025-12-01_2025-12-31.html"
    assert audit(ledger.home, read_heads(path)).passed
    with sqlite3.connect(ledger.home.ledger) as database:
        for (name,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f"drop trigger {name}")
        database.execute("delete from ledger where sequence = (select max(sequence) from ledger)")
    failed = {check.name for check in audit(ledger.home, read_heads(path)).failures}
    assert "heads" in failed
    before = path.read_bytes()
    with pytest.raises(Refused, match=r"the ledger is invalid \(heads: "):
        written(ledger)
    assert path.read_bytes() == before


def test_audit_failures_are_reported_and_set_the_exit_code(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    certificate = certificate_of(ledger, B)
    assert certificate is not None
    certificate.path.unlink()
    with signer_at(ledger.home):
        assert run(["report", "--from", "2025-12-01", "--to", "2025-12-31", "--json"]) == 1
    said = capsys.readouterr()
    (line,) = said.out.splitlines()
    told = json.loads(line)
    assert told["failed"] == ["files", "certificates"]
    assert "checks of the audit failed: files, certificates: read " in told["error"]
    assert (said.err, told["exit_code"]) == (f"neorl: {told['error']}\n", 1)
    text = _Page(Path(told["path"]).read_text()).text
    assert "The audit failed" in text
    assert f"certificates/{certificate.path.name} (" in text


def test_the_picture_has_every_champion_and_what_happened(ledger: Ledger) -> None:
    drawn = timeline(told(ledger))
    # 31 days over 778 units from 168 on: 'b' from 9.396 days to 19.75 days.
    bars = [(float(x), float(width)) for x, width in re.findall(r'<rect x="([\d.]+)" y="40.0" width="([\d.]+)"', drawn)]
    assert bars == [
        (168.0, pytest.approx(778 * 9.3958 / 31, abs=0.2)),
        (pytest.approx(168 + 778 * 9.3958 / 31, abs=0.2), pytest.approx(778 * 10.3542 / 31, abs=0.2)),
    ]
    marks = re.findall(r"translate\(([\d.]+) 34\.0\)", drawn)
    dates = re.findall(r'font-size="11" fill="#5B6570">([^<]+)<', drawn)
    # Thirty-one days in at most twelve steps: of seven days.
    assert dates[:-1] == ["01 Dec", "08 Dec", "15 Dec", "22 Dec", "29 Dec"]
    assert len(marks) == 5  # a rejection, a withdrawal, three refusals
    assert _Page(drawn).open_tags == []
    assert timeline(told(ledger, Period(first=date(2026, 1, 2), last=date(2026, 1, 14)))) == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "2025-12-01"], "--to must be a day such as 2026-11-01, got ''"),
        (["--from", "December", "--to", "2025-12-31"], "--from must be a day such as 2026-11-01, got 'December'"),
        (["--from", "2025-12-02", "--to", "2025-12-01"], "ends on 2025-12-01, before its first day 2025-12-02"),
        (["--from", "9999-01-01", "--to", "9999-12-31"], "begins on 9999-01-01, but today is"),
        (["--from", "2025-12-01", "--to", "2025-12-31"], "there is no ledger at"),
        ([], "neither a plant nor --from and --to"),
        (["nowhere", "--from", "2025-12-01", "--to", "2025-12-31"], "unknown plant 'nowhere'"),
    ],
)
def test_wrong_input_is_one_sentence(
    home: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said
    assert not home.exists()


def test_an_entry_that_cannot_be_read_is_one_sentence(ledger: Ledger) -> None:
    forge(ledger.home, "withdrawal", {"composite": 3})
    with signer_at(ledger.home), pytest.raises(Refused, match="an entry cannot be read"):
        report_period(ledger.home, date(2025, 12, 1), date(9999, 12, 31))


@pytest.mark.slow
def test_a_browser_prints_it_with_no_table_cut(ledger: Ledger, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine: `make services` installs it")
    path, pdf = written(ledger), tmp_path / "report.pdf"
    options = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    command = [*options, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", path.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    data = pdf.read_bytes()
    assert data.startswith(b"%PDF")
    # A4 is 210 by 297 mm, 595 by 842 points.
    sizes = {tuple(map(round, map(float, box))) for box in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", data)}
    assert sizes == {(595, 842)}
    # As wide as the paper between its margins, 180 mm: whatever is wider than that would be cut.
    measured = tmp_path / "measured.html"
    script = "document.title = 'cut: ' + [...document.querySelectorAll('table, pre, svg, p, li, h1, h2')].filter("
    script += "e => e.getBoundingClientRect().right > innerWidth).map(e => e.tagName + e.textContent.slice(0, 40))"
    page = path.read_text().replace("@media print", "@media all")
    # The page's policy forbids scripts.
    page = page.replace("Content-Security-Policy", "")
    measured.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
    command = [*options, "--window-size=680,1000", "--dump-dom", measured.as_uri()]
    dom = subprocess.run(command, check=True, capture_output=True, timeout=120, text=True).stdout
    assert re.findall("<title>(.*?)</title>", dom, re.DOTALL)[:1] == ["cut: "]
