"""Fixtures of the tests of estimates."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def double() -> Iterator[None]:
    """Numbers of double precision, where a law must hold to many digits."""
    with jax.enable_x64(True):
        yield
