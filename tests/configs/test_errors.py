"""Sentences quote names and values of files, whoever made those: on a terminal they must show and do nothing."""

from __future__ import annotations

import pytest

from configs.errors import BadInput, printable


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("22,5 °C – 温度", "22,5 °C – 温度"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x00\x9b2J\r", r"\x00\x9b2J\r"),
        ("tag\u202etxt.exe", r"tag\u202etxt.exe"),
        ("a\nneorl: promoted", "a\nneorl: promoted"),
    ],
    ids=["letters", "title of a window", "other controls", "direction of writing", "lines"],
)
def test_signs_that_a_terminal_obeys_are_written_out(given: str, shown: str) -> None:
    assert printable(given) == shown


def test_an_error_is_one_line_whatever_it_quotes() -> None:
    refused = BadInput("expected a column 'time', got a\nneorl: the candidate is champion.\x1b[8m: rename it.")
    assert str(refused) == r"expected a column 'time', got a\nneorl: the candidate is champion.\x1b[8m: rename it."
