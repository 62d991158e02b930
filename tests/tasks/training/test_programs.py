"""Compiled programs: their memory, by Linux's count of mappings, and their digests beside checkpoints."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from configs.errors import Refused
from tasks.training.checkpointing import keep_programs
from tasks.training.programs import forget_programs

MAPS = Path("/proc/self/maps")


def _mappings() -> int:
    return MAPS.read_bytes().count(b"\n")


@pytest.mark.skipif(not MAPS.exists(), reason="only Linux counts a process's memory mappings")
def test_forgotten_programs_give_their_memory_back_and_are_compiled_again() -> None:
    compiled = []

    @jax.jit
    def scaled(x: jax.Array) -> jax.Array:
        compiled.append(x.shape)
        return jnp.tanh(2.0 * x).sum()

    forget_programs(most=0)
    before = _mappings()
    for size in range(1, 41):
        scaled(jnp.ones(size))
    held = _mappings()
    assert held > before + 40
    # There is room, so all is kept.
    forget_programs(most=held + 1_000)
    scaled(jnp.ones(7))
    assert len(compiled) == 40
    forget_programs(most=0)
    assert _mappings() < (before + held) / 2
    assert scaled(jnp.zeros(7)) == 0.0
    assert len(compiled) == 41


@pytest.mark.parametrize("content", ["[]", "null", '{"a": 5}'])
def test_an_altered_file_of_programs_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "programs.json"
    keep_programs(path, {"a": "1" * 64})
    keep_programs(path, {"a": "1" * 64, "b": "2" * 64})
    with pytest.raises(Refused, match="gives program 333333333333 instead of 222222222222"):
        keep_programs(path, {"b": "3" * 64})
    path.write_text(content)
    with pytest.raises(Refused, match="instead of digests of programs: delete"):
        keep_programs(path, {"a": "1" * 64})
