"""N plants as one Gymnasium vector environment: a step of all of them, resets included, is one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from jaxtyping import Array, Bool, Float, Int

from neorl_core.history import History
from neorl_core.plants.base import AnyArray
from neorl_core.types import Constraint, Params, Plant, Timestep
from neorl_core.wrappers.episodes import (
    Running,
    action_space,
    advance,
    as_vectors,
    box,
    check_options,
    domain_of,
    plant_of,
    root_of,
    seen_of,
    start,
    table_name,
    violations,
)
from neorl_core.wrappers.forks import check_process

Step = Callable[
    [Params, Running, Bool[AnyArray, " N"], Float[AnyArray, "N A"], Any],
    tuple[Running, Timestep, Float[Array, "N O"]],
]
"""(domain, running, ended before, actions, longest) -> (running, timestep, observations shown)."""


def _where(choice: Bool[AnyArray, " N"], yes: Any, no: Any) -> Any:
    def chosen(a: Array, b: Array) -> Array:
        return jnp.where(choice.reshape(choice.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(chosen, yes, no)


@cache
def step_program(plant: Plant, physical: bool, mode: AutoresetMode, history: History | None) -> Step:
    """One step of N plants.

    NEXT_STEP: plants that had ended begin anew instead, at no reward. SAME_STEP: plants that end begin anew at once;
    the timestep is the old episode's, what is shown is the new one's. DISABLED: nothing begins anew.

    Args:
        plant: the simulator.
        physical: whether actions are in physical units rather than between -1 and 1.
        mode: when plants that ended begin anew.
        history: earlier values that are shown beside the observation.
    """

    def renewed(domain: Params, running: Running, shown: Float[Array, "N O"], which: Bool[Array, " N"]) -> Any:
        """`running` and `shown` with some episodes begun anew; nothing is computed where none is."""

        def begin() -> Any:
            begun = jax.vmap(partial(start, plant, history, domain))(running.root, running.episode + 1)
            return _where(which, begun, (running, shown))

        return jax.lax.cond(jnp.any(which), begin, lambda: (running, shown))

    @jax.jit
    def step(
        domain: Params,
        running: Running,
        ended: Bool[Array, " N"],
        actions: Float[Array, "N A"],
        longest: Int[Array, ""],
    ) -> tuple[Running, Timestep, Float[Array, "N O"]]:
        following, now = jax.vmap(partial(advance, plant, physical, history))(running, actions)
        now = now._replace(truncated=now.truncated | (following.step >= longest))
        if mode is AutoresetMode.DISABLED:
            return following, now, now.observation
        if mode is AutoresetMode.SAME_STEP:
            following, shown = renewed(domain, following, now.observation, now.terminated | now.truncated)
            return following, now, shown
        following, shown = renewed(domain, _where(ended, running, following), now.observation, ended)
        idle = now._replace(
            reward=jnp.zeros_like(now.reward),
            terminated=jnp.zeros_like(now.terminated),
            truncated=jnp.zeros_like(now.truncated),
        )
        return following, _where(ended, idle, now), shown

    return step


@cache
def start_program(plant: Plant, history: History | None) -> Callable[..., tuple[Running, Float[Array, "N O"]]]:
    """(domain, roots, episodes) -> (running, observations) of N plants."""
    return jax.jit(lambda domain, roots, episodes: jax.vmap(partial(start, plant, history, domain))(roots, episodes))


class PlantVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """N plants in one jitted call. Plant i, given seed i, does what `PlantEnv` does with that seed.

    Args:
        plant: a key of `PLANTS`, or a plant of your own.
        num_envs: N.
        domain: values of the operating domain that differ from the plant's own.
        physical: take actions in the plant's units.
        autoreset_mode: `AutoresetMode`, or its value.
        max_episode_steps: steps after which an episode is cut, at most the plant's horizon, which is also what None and
            Gymnasium's -1 mean.
        render_mode: None, for nobody looks at many plants at once.
        history: earlier values that are shown behind the observation, as of `PlantEnv`.

    Raises:
        ValueError: on an unknown plant, domain value, signal or mode, a way to render, or episodes without a step.
    """

    def __init__(
        self,
        plant: str | Plant,
        num_envs: int = 1,
        domain: Mapping[str, float] | None = None,
        physical: bool = False,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        history: Mapping[str, int] | None = None,
    ) -> None:
        if render_mode is not None:
            raise ValueError(
                f"expected no render_mode of plants that are stepped together, got {render_mode!r}: make one plant, or "
                "give vectorization_mode='sync'."
            )
        if max_episode_steps not in (None, -1) and max_episode_steps < 1:
            raise ValueError(
                f"expected max_episode_steps from 1, got {max_episode_steps}: -1 leaves episodes their whole length."
            )
        self.plant = plant_of(plant)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        seen = seen_of(self.plant, history)
        self.single_observation_space = box(seen.observation)
        self.single_action_space = action_space(self.plant.spec, physical)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._domain = domain_of(self.plant, domain)
        self._physical, self._history = physical, seen.history
        self._compile()
        self._longest = np.int32(self.plant.spec.horizon if max_episode_steps in (None, -1) else max_episode_steps)
        self._running: Running | None = None
        self._shown: Any = None
        self._ended = np.zeros(num_envs, np.bool_)

    def _compile(self) -> None:
        self._start = start_program(self.plant, self._history)
        self._step = step_program(self.plant, self._physical, self.autoreset_mode, self._history)

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name not in ("_start", "_step")}
        now = jax.device_get((self._running, self._shown))
        return kept | {"plant": table_name(self.plant), "_running": now[0], "_shown": now[1]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"plant": plant_of(state["plant"])})
        self._compile()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, "N O"], dict[str, Any]]:
        """Begin episodes: of all plants, or of those in `options["reset_mask"]` (N,), which has to hold booleans.

        Args:
            seed: s seeds plant i with s + i; a sequence seeds each with its own; without, each goes on from its seed.
            options: `reset_mask`, as Gymnasium's own vector environments take it.

        Raises:
            ValueError: on another number of seeds, another shape of the mask, or other options.
            RuntimeError: in a process that was forked from one where JAX runs.
        """
        check_process()
        check_options(options, ("reset_mask",))
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        seeds = [None] * self.num_envs if seeds is None else list(seeds)
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if len(seeds) != self.num_envs or mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ValueError(
                f"expected {self.num_envs} seeds and a mask of as many booleans, at least one of them true, got "
                f"{len(seeds)} and {mask.dtype} {mask.shape}: pass one for each plant."
            )
        if self._running is None and not mask.all():
            raise gymnasium.error.ResetNeeded("expected a reset of all plants first, got a mask: reset without one.")
        old = self._running
        roots = np.zeros((self.num_envs, 2), np.uint32) if old is None else np.array(old.root)
        episodes = np.zeros(self.num_envs, np.int32) if old is None else np.array(old.episode) + 1
        for i in np.flatnonzero(mask):
            if seeds[i] is not None or old is None:
                roots[i] = root_of(gymnasium.utils.seeding.np_random(seeds[i])[0])
                episodes[i] = 0
        begun = self._start(self._domain, roots, episodes)
        self._running, self._shown = begun if old is None else _where(mask, begun, (old, self._shown))
        self._ended = self._ended & ~mask
        return np.array(self._shown), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One control period under actions (N, A), or the numbers (N,) of choices.

        Returns:
            Observations (N, O), rewards, terminations and truncations (N,), and infos as Gymnasium batches them:
            an entry `name` has a mask `_name` of the plants that gave it. With SAME_STEP, `final_obs` and `final_info`
            tell of the episodes that ended.

        Raises:
            ValueError: on actions of another shape, or with NaN.
            gymnasium.error.ResetNeeded: before the first reset, and with DISABLED for a plant that has ended.
        """
        if self._running is None:
            raise gymnasium.error.ResetNeeded("expected reset() before step(), got none: call it first.")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise gymnasium.error.ResetNeeded(
                f"expected plants under way, got ended ones {np.flatnonzero(self._ended).tolist()}: reset them with "
                "options={'reset_mask': mask}."
            )
        actions = as_vectors(self.plant.spec, actions, (self.num_envs,))
        self._running, now, self._shown = self._step(self._domain, self._running, self._ended, actions, self._longest)
        now, shown = jax.device_get((now, self._shown))
        ends = now.terminated | now.truncated
        limits = self.plant.spec.constraints
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos = {**_final(limits, now, ends), **infos_of(limits, now.margins, ~ends)}
        else:
            # Where an episode has just begun there was no step to tell of.
            began = self._ended if self.autoreset_mode is AutoresetMode.NEXT_STEP else np.zeros_like(ends)
            infos = infos_of(limits, now.margins, ~began)
        self._ended = ends
        # Copies: what JAX hands out cannot be written to.
        flags = np.array(now.terminated), np.array(now.truncated)
        return np.array(shown), np.asarray(now.reward, np.float64), *flags, infos


def infos_of(
    constraints: tuple[Constraint, ...], margins: Float[np.ndarray, "N K"], told: Bool[np.ndarray, " N"]
) -> dict[str, Any]:
    """`episodes.info_of` of many plants as Gymnasium batches it; zeros where nothing was told.

    Args:
        constraints: K limits.
        margins: (N, K), distance to each limit, in its unit.
        told: (N,), which plants have something to tell.
    """
    if not told.any():
        return {}

    def by_name(values: Float[np.ndarray, "N K"]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for k, limit in enumerate(constraints):
            found[limit.name] = np.where(told, values[:, k], 0.0).astype(np.float64)
            found[f"_{limit.name}"] = told.copy()
        return found

    costs = violations(margins)
    entries = {"margins": by_name(margins), "costs": by_name(costs)}
    cost = np.where(told, np.any(costs > 0, axis=1), 0.0).astype(np.float64)
    infos: dict[str, Any] = {}
    for name, value in {**entries, "cost": cost}.items():
        infos[name], infos[f"_{name}"] = value, told.copy()
    return infos


def _final(constraints: tuple[Constraint, ...], now: Timestep, ends: Bool[np.ndarray, " N"]) -> dict[str, Any]:
    if not ends.any():
        return {}
    observations = np.full(len(ends), None, dtype=object)
    for i in np.flatnonzero(ends):
        observations[i] = np.array(now.observation[i])
    told = infos_of(constraints, np.asarray(now.margins), ends)
    return {"final_obs": observations, "_final_obs": ends.copy(), "final_info": told, "_final_info": ends.copy()}
