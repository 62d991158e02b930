"""MLflow pages of version 1, as commit 89a12a2 rendered them from a ledger with every kind of decision."""

from __future__ import annotations

import json
import lzma
from datetime import datetime
from pathlib import Path

from tasks.evidence.ledger.ledger import Entry
from tasks.evidence.ledger.protocol import Artefact
from tasks.lifecycle.pages import wanted_pages
from tasks.versions.versions import VERSIONS

STORED = json.loads(lzma.decompress(Path(__file__).with_name("pages_1.json.xz").read_bytes()))


def test_pages_of_version_1_are_rendered_as_at_commit_89a12a2() -> None:
    rows = [{**row, "artefacts": tuple(Artefact(*file) for file in row["artefacts"])} for row in STORED["entries"]]
    entries = [Entry(**{**row, "envelope": row["envelope"].encode()}) for row in rows]
    statuses = set()
    for snapshot in STORED["pages"]:
        now = datetime.fromisoformat(snapshot["now"])
        pages = wanted_pages(entries[: snapshot["entries"]], snapshot["plant"], now, VERSIONS[1].texts)
        assert {v: [page.tags["neorl.status"], page.description] for v, page in pages.items()} == snapshot["pages"]
        statuses |= {page.tags["neorl.status"] for page in pages.values()}
    assert len(statuses) == 13
