"""N plants as one Gymnasium vector environment. One compiled call simulates a step of all plants."""

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

from neorl_core.plants.base import AnyArray
from neorl_core.types import Constraint, History, Params, Plant, Timestep
from neorl_core.wrappers.episodes import (
    Running,
    action_space,
    advance,
    as_vectors,
    box,
    check_options,
    check_process,
    domain_of,
    draw_root,
    observed_spec,
    plant_of,
    start,
    table_name,
    violations,
)

Step = Callable[
    [Params, Running, Bool[AnyArray, " N"], Float[AnyArray, "N A"], Any],
    tuple[Running, Timestep, Float[Array, "N O"]],
]
"""Function (domain, episodes, which ended before, actions, step limit) -> (episodes, timestep, observations)."""


def _where(choice: Bool[AnyArray, " N"], yes: Any, no: Any) -> Any:
    def chosen(a: Array, b: Array) -> Array:
        return jnp.where(choice.reshape(choice.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(chosen, yes, no)


@cache
def step_program(plant: Plant, physical: bool, mode: AutoresetMode, history: History | None) -> Step:
    """Return the compiled step of N plants. The mode says when a new episode starts after an episode has ended.

    - NEXT_STEP: in the next call, which returns the new episode's first observation and reward 0.
    - SAME_STEP: in the same call, which returns the old episode's reward and the new episode's first observation.
    - DISABLED: never.
    """

    def renewed(domain: Params, running: Running, shown: Float[Array, "N O"], which: Bool[Array, " N"]) -> Any:
        """Start the next episode of the plants in `which`."""

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
    """Return a compiled function that starts N episodes: (domain, roots, numbers) -> (episodes, observations)."""
    return jax.jit(lambda domain, roots, episodes: jax.vmap(partial(start, plant, history, domain))(roots, episodes))


class PlantVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """N independent copies of a plant. Each copy behaves like a `PlantEnv` with the same seed.

    Args:
        plant: name of a built-in plant, or a plant.
        domain: parameters of the operating domain that differ from the plant's defaults, by name.
        physical: whether actions are in the plant's units instead of -1 to 1.
        autoreset_mode: when the next episode starts after an episode has ended: an `AutoresetMode`, or its value.
        max_episode_steps: longest episode, in steps. The plant's horizon limits it, and is used for None and -1.
        render_mode: must be None, because this environment draws no pictures.
        history: earlier values in the observation, as for `PlantEnv`.

    Raises:
        ValueError: if a name or mode is unknown, a render mode is given, or `max_episode_steps` is not positive.
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
                f"PlantVectorEnv draws no pictures, got render_mode {render_mode!r}: use a single PlantEnv, or "
                "vectorization_mode='sync'"
            )
        if max_episode_steps not in (None, -1) and max_episode_steps < 1:
            raise ValueError(
                f"max_episode_steps must be at least 1, got {max_episode_steps}: use -1 for the plant's horizon"
            )
        self.plant = plant_of(plant)
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        seen = observed_spec(self.plant, history)
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
        """Start episodes of all plants, or only of selected plants. Return the observations (N, O) and an empty info.

        Args:
            seed: with an integer s, plant i has the seed s + i. A sequence gives one seed per plant. With None, each
                plant starts the next episode of its last seed.
            options: `reset_mask`, boolean (N,), selects the plants. No other option is allowed.

        Raises:
            ValueError: if the number of seeds, the mask or an option is wrong.
            RuntimeError: if this process was forked from a process in which JAX was running.
        """
        check_process()
        check_options(options, ("reset_mask",))
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        seeds = [None] * self.num_envs if seeds is None else list(seeds)
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if len(seeds) != self.num_envs or mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ValueError(
                f"got {len(seeds)} seeds and a reset_mask of {mask.dtype} {mask.shape}: give {self.num_envs} seeds, "
                f"and a boolean mask of {self.num_envs} values with at least one true"
            )
        if self._running is None and not mask.all():
            raise gymnasium.error.ResetNeeded(
                f"reset_mask selects only {int(mask.sum())} of {self.num_envs} plants: the first reset needs all plants"
            )
        old = self._running
        roots = np.zeros((self.num_envs, 2), np.uint32) if old is None else np.array(old.root)
        episodes = np.zeros(self.num_envs, np.int32) if old is None else np.array(old.episode) + 1
        for i in np.flatnonzero(mask):
            if seeds[i] is not None or old is None:
                roots[i] = draw_root(gymnasium.utils.seeding.np_random(seeds[i])[0])
                episodes[i] = 0
        begun = self._start(self._domain, roots, episodes)
        self._running, self._shown = begun if old is None else _where(mask, begun, (old, self._shown))
        self._ended = self._ended & ~mask
        return np.array(self._shown), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Simulate one control period of all plants.

        Args:
            actions: (N, A), or numbers of choices (N,) if the action is discrete.

        Returns:
            Observations (N, O), rewards, terminations and truncations (N,), and infos. In the infos, the mask `_name`
            says for which plants the entry `name` is valid. With SAME_STEP, `final_obs` and `final_info` contain the
            last observation and info of episodes that ended in this step.

        Raises:
            ValueError: if the actions have the wrong shape or contain NaN.
            gymnasium.error.ResetNeeded: if `reset` was never called, or an episode has ended and the mode is DISABLED.
        """
        if self._running is None:
            raise gymnasium.error.ResetNeeded("step() was called before reset(): call reset() first")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise gymnasium.error.ResetNeeded(
                f"the episodes of plants {np.flatnonzero(self._ended).tolist()} have ended: reset them with "
                "options={'reset_mask': mask}"
            )
        actions = as_vectors(self.plant.spec, actions, (self.num_envs,))
        self._running, now, self._shown = self._step(self._domain, self._running, self._ended, actions, self._longest)
        now, shown = jax.device_get((now, self._shown))
        ends = now.terminated | now.truncated
        limits = self.plant.spec.constraints
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos = {**_final(limits, now, ends), **infos_of(limits, now.margins, ~ends)}
        else:
            # A plant that only restarted in this call has no step and therefore no info.
            began = self._ended if self.autoreset_mode is AutoresetMode.NEXT_STEP else np.zeros_like(ends)
            infos = infos_of(limits, now.margins, ~began)
        self._ended = ends
        # Copies, because arrays from JAX are read-only.
        flags = np.array(now.terminated), np.array(now.truncated)
        return np.array(shown), np.asarray(now.reward, np.float64), *flags, infos


def infos_of(
    constraints: tuple[Constraint, ...], margins: Float[np.ndarray, "N K"], present: Bool[np.ndarray, " N"]
) -> dict[str, Any]:
    """Return the infos of a step of N plants in Gymnasium's format. Plants that are not in `present` get zeros."""
    if not present.any():
        return {}

    def by_name(values: Float[np.ndarray, "N K"]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for k, limit in enumerate(constraints):
            infos[limit.name] = np.where(present, values[:, k], 0.0).astype(np.float64)
            infos[f"_{limit.name}"] = present.copy()
        return infos

    costs = violations(margins)
    entries = {"margins": by_name(margins), "costs": by_name(costs)}
    cost = np.where(present, np.any(costs > 0, axis=1), 0.0).astype(np.float64)
    infos: dict[str, Any] = {}
    for name, value in {**entries, "cost": cost}.items():
        infos[name], infos[f"_{name}"] = value, present.copy()
    return infos


def _final(constraints: tuple[Constraint, ...], now: Timestep, ends: Bool[np.ndarray, " N"]) -> dict[str, Any]:
    if not ends.any():
        return {}
    observations = np.full(len(ends), None, dtype=object)
    for i in np.flatnonzero(ends):
        observations[i] = np.array(now.observation[i])
    final = infos_of(constraints, np.asarray(now.margins), ends)
    return {"final_obs": observations, "_final_obs": ends.copy(), "final_info": final, "_final_info": ends.copy()}
