"""The fleet report works offline, links to each site's report and escapes names."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from configs.home import Home
from tasks.fleet.records import Standing
from tasks.fleet.report import headline, write_page
from tasks.references import ChampionInForce

NOW = datetime(2026, 11, 24, 8, 0, tzinfo=UTC)


def standing(site: str, root: Path, gain: float) -> Standing:
    champion = ChampionInForce(
        version="3",
        url="",
        composite="0f" * 32,
        since="2026-11-24T07:00:00+00:00",
        approver="rule: auto",
        claim="P <= 1",
    )
    return Standing(
        site=site,
        plant=f"reactors_{site}",
        kind="chemical_reactor",
        state="decided",
        verdict="promoted",
        champion=champion,
        report=root / "reports" / f"reactors_{site}" / "00.html",
        measures={"gain": gain, "lost": 0.01},
    )


def test_report_ranks_sites_and_names_outliers(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    sites = [standing(f"s{i}", home.root, gain) for i, gain in enumerate((1.0, 1.1, 0.9, 1.05, 9.0))]
    refused = Standing(site="s5", plant="reactors_s5", kind="chemical_reactor", state="refused", headline="<b>no</b>")
    page = write_page(home, "reactors", [*sites, refused], NOW)
    text = page.path.read_text()
    assert page.headline == "5 of 6 sites decided: 5 with a trained champion; 1 refused."
    assert re.findall(r'class="s">(s\d)', text)[:6] == ["s4", "s1", "s3", "s0", "s2", "s5"]
    # Median 1.05, MAD 0.05: 0.6745 * 7.95 / 0.05.
    assert page.outliers == ("s4: gain 9, robust z +107.2",)
    assert "s4: gain 9, robust z +107.2, outlier" in text
    assert 'href="../reactors_s1/00.html"' in text
    assert "s5 was refused: &lt;b&gt;no&lt;/b&gt;" in text
    # The page fetches nothing.
    assert not re.search(r"https?://|<script|<img|@import", text)
    assert write_page(home, "reactors", [*sites, refused], NOW).path.read_bytes() == text.encode()


def test_new_fleet_has_a_report(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    new = [Standing(site="a", plant="tanks_a", kind="tank", state="new")]
    assert headline(new) == "0 of 1 sites decided: none in force; 1 not retrained yet."
    assert "no retraining yet" in write_page(home, "tanks", new, NOW).path.read_text()
