"""The documentation's site builds with warnings as errors, offers what the code has, and asks nobody for anything."""

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
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_the_reference_has_every_command_and_every_key(site: Path) -> None:
    from configs.run import OpenedRun
    from flows.cli.main import PANELS

    commands = (site / "reference" / "commands.html").read_text()
    for function in (function for functions in PANELS.values() for function in functions):
        assert f"neorl {function.__name__.replace('_', '-')}" in commands, function
    keys = (site / "reference" / "yaml.html").read_text()
    assert [
        name for name, field in OpenedRun.model_fields.items() if field.repr and f"<code>{name}</code>" not in keys
    ] == []
    algorithms = (site / "reference" / "algorithms.html").read_text()
    assert "neorl_core.algorithms.td3_bc" in algorithms


@pytest.mark.slow
def test_nothing_comes_from_elsewhere(site: Path) -> None:
    found = [(page.name, ELSEWHERE.findall(page.read_text())) for page in site.rglob("*.html")]
    assert len(found) > 20
    assert [(name, links) for name, links in found if links] == []
