"""Write docs/studies/data.md from the kept results of five commands without a page of their own.

python -m benchmarks.summary
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks import pages
from benchmarks.pages import ROOT, STUDIES

PAGE = STUDIES / "data.md"


def kept(name: str) -> Any:
    """Return the kept results of a command."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def page() -> str:
    """Return the page."""
    historian, store, streaming, resume, fleet = map(kept, ("historian", "store", "streaming", "resume", "fleet"))
    same = sum(row["same"] for row in resume["rows"])
    kills = sum(row["kills"] for row in resume["rows"])
    shares = [row["share"] for row in streaming["results"]]
    rows = [
        (
            "ingest raw tag rows",
            f"{historian['rate']['ingest'] / 1e6:.1f} million rows/s, {historian['share']:.0%} of polars' reading rate",
            f"{historian['rows'] / 1e6:.0f} million rows, at most {historian['peak_gib']:.2f} GiB",
            "`make historian`",
        ),
        (
            "write a dataset with digests",
            f"{store['mb_per_second']['write']:.0f} MB/s, {store['shares']['write / copy']:.2f} times a copy's rate",
            f"{store['bytes'] / 1e6:.0f} MB",
            "`make store`",
        ),
        (
            "read a verified dataset",
            f"{store['mb_per_second']['read']:.0f} MB/s, {store['shares']['read / sha256']:.2f} times SHA-256 alone",
            f"{store['bytes'] / 1e6:.0f} MB",
            "`make store`",
        ),
        (
            "validate transitions",
            f"{store['validation']['rows_per_second'] / 1e6:.1f} million rows/s",
            f"{store['validation']['rows'] / 1e6:.0f} million rows, at most {store['validation']['resident_mib']:.0f} "
            "MiB",
            "`make store`",
        ),
        (
            "train on streamed data",
            f"{min(shares):.2f} to {max(shares):.2f} times the steps/s with all data in memory",
            "data four times as large as the allowed memory",
            "`make streaming`",
        ),
        (
            "resume a killed training",
            f"the same bits as without a kill, for {same} of {len(resume['rows'])} algorithms",
            f"{kills} kills at random steps",
            "`make resume`",
        ),
        (
            "resume a killed fleet",
            f"{fleet['decided']} of {fleet['sites']} sites get a decision, the site with a broken log is refused; one "
            f"more run adds {fleet['again']['new_entries']} ledger entries",
            f"killed after {fleet['ended_before_kill']} finished sites",
            "`make fleet`",
        ),
    ]
    return pages.study(
        "Data and resuming",
        "How fast are ingestion, the dataset store and training on streamed data, and do killed runs resume exactly?",
        f"Ingestion reads {historian['rate']['ingest'] / 1e6:.0f} million rows per second on two cores, and streaming "
        f"slows training by at most {max(1 - min(shares), 0):.0%}. With {same} of {len(resume['rows'])} algorithms a "
        "killed and resumed training gives the same bits as an undisturbed one.",
        "`python -m benchmarks.summary` writes this page from the results of the commands in the table.",
        pages.wrap(
            "Rates are medians. *Size* describes the data or the kills. The number after *at most* is the peak "
            "memory. A copy includes fsync, which waits for the disk."
        ),
        pages.table(("task", "result", "size", "command"), rows),
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
