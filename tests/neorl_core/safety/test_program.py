"""Programs of simulators and episodes: identity, storage and refused calls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neorl_core.plants.base import rollouts
from neorl_core.safety.certify import episode_keys
from neorl_core.safety.program import (
    ImpureProgram,
    episode_program,
    first_difference,
    read_program,
    run_episodes,
    simulator_program,
)
from neorl_core.types import Plant, Timestep
from tests.neorl_core.safety.test_certify import AUTOREGRESSION, REST, Band

DOMAIN = Band(5.0)


def changed(change: Any) -> Plant:
    """Return the plant with another reward."""

    def step(key: Any, state: Any, action: Any, params: Any) -> tuple[Any, Timestep]:
        following, seen = AUTOREGRESSION.step(key, state, action, params)
        return following, seen._replace(reward=change(seen.reward))

    return AUTOREGRESSION._replace(step=step)


def test_a_stored_program_gives_the_bits_of_rollouts() -> None:
    program = episode_program(AUTOREGRESSION, REST, (), DOMAIN, 8)
    keys = episode_keys(b"seed", 0, 8)
    expected = rollouts(AUTOREGRESSION, REST, (), keys, DOMAIN)
    for stored in (program, read_program(program.serialise())):
        found = run_episodes(stored)(keys, (), DOMAIN)
        for one, other in zip(found[:5], expected[:5], strict=True):
            np.testing.assert_array_equal(one, other)
    assert read_program(program.serialise()).digest == program.digest


def test_a_stored_program_has_derivatives() -> None:
    """Truth: the least margin is limit − max |x|, with derivative 1 by the limit in each episode."""
    program = read_program(episode_program(AUTOREGRESSION, REST, (), DOMAIN, 4).serialise(derivatives=True))
    key_data = jax.random.key_data(episode_keys(b"seed", 0, 4))
    leaves = [jnp.float32(leaf) for leaf in DOMAIN]
    slope = jax.grad(lambda limit: program.exported.call(key_data, limit, *leaves[1:])[3].sum())(leaves[0])
    assert slope == 4.0


def test_a_loop_of_unknown_length_is_stored_without_derivatives() -> None:
    def halved(reward: Any) -> Any:
        return jax.lax.while_loop(lambda x: x > 1.0, lambda x: x / 2, reward)

    program = simulator_program(changed(halved), DOMAIN)
    assert read_program(program.serialise(derivatives=True)).digest == program.digest


def test_the_digest_depends_on_every_constant_and_not_on_names() -> None:
    def scaled(factor: float) -> str:
        return simulator_program(changed(lambda reward: reward * factor), DOMAIN).digest

    def renamed(reward: Any) -> Any:
        product = reward * 2.0
        return product

    assert scaled(2.0) == simulator_program(changed(renamed), DOMAIN).digest
    assert len({scaled(2.0), scaled(np.nextafter(np.float32(2.0), np.float32(3.0)).item()), scaled(0.0)}) == 3


def test_calls_of_the_host_and_unknown_custom_calls_are_refused() -> None:
    def printing(reward: Any) -> Any:
        jax.debug.print("{}", reward)
        return reward

    def calling(reward: Any) -> Any:
        return jax.pure_callback(lambda x: x, reward, reward, vmap_method="sequential")

    def inside_a_loop(reward: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda _, x: calling(x), reward)

    def foreign(reward: Any) -> Any:
        return jax.ffi.ffi_call("own_target", jax.ShapeDtypeStruct((), jnp.float32))(reward)

    for change in (printing, calling, inside_a_loop):
        with pytest.raises(ImpureProgram, match="calls the host by"):
            simulator_program(changed(change), DOMAIN)
    with pytest.raises(ImpureProgram, match="'ffi_call', which may write anywhere"):
        simulator_program(changed(foreign), DOMAIN)


def test_linear_algebra_is_allowed_and_named() -> None:
    def solved(reward: Any) -> Any:
        return jnp.linalg.solve(jnp.eye(2) * (1 + reward**2), jnp.ones(2))[0]

    assert "lapack_sgetrf_ffi" in simulator_program(changed(solved), DOMAIN).custom_calls


def test_the_first_difference_is_the_changed_line() -> None:
    assert first_difference("a\nb\nc", "a\nb\nc") == ""
    assert first_difference("a\nb\nc", "a\nd\nc") == "b / d"
    assert first_difference("a\nb", "a\nb\nc") == "nothing / c"
