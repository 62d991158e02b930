"""`make audit-picture`: make a picture of the audit report about the day of the home's newest ledger entry."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from configs.home import Home
from flows.period_report import report_period
from tasks.evidence.ledger.ledger import Ledger

PICTURE = Path(__file__).parents[2] / "docs" / "how-to" / "audit.png"
WIDTH, HEIGHT = 1120, 1180


def main() -> int:
    """Write the picture; return 1 if there is no browser."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("no picture: install Chromium with `make services`")
        return 1
    home = Home.locate()
    day = date.fromisoformat(Ledger.open(home, write=False).entries()[-1].timestamp[:10])
    page = report_period(home, day, day).path
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command = [browser, *options, f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(f"wrote {PICTURE.relative_to(PICTURE.parents[1])}, the first screen of {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
