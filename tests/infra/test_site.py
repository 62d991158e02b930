"""The documentation builds with warnings as errors and loads nothing from other sites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = re.compile(r"""(?:src|href)=["'](?:https?:)?//[^"']+\.(?:js|css|woff2?)["']""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_api_pages(site: Path) -> None:
    algorithms = (site / "reference" / "api" / "algorithms.html").read_text()
    assert "neorl_core.algorithms.td3_bc" in algorithms


@pytest.mark.slow
def test_no_page_loads_a_file_from_another_site(site: Path) -> None:
    pages = [(page.name, ELSEWHERE.findall(page.read_text())) for page in site.rglob("*.html")]
    assert len(pages) > 20
    assert [(name, links) for name, links in pages if links] == []
