"""The generated reference pages match the code."""

from __future__ import annotations

import pytest

from configs.run import RunFile
from flows.cli.main import PANELS
from infra.reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run 'make reference'"


def test_reference_lists_every_command_and_key() -> None:
    commands = PAGES["cli.md"]()
    for function in (function for functions in PANELS.values() for function in functions):
        assert f"## neorl {function.__name__.replace('_', '-')}\n" in commands
    keys = PAGES["configuration.md"]()
    for name, field in RunFile.model_fields.items():
        assert not field.repr or f"\n{name}:" in keys
