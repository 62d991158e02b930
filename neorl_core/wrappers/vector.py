"""N plants as one Gymnasium vector environment; a step of all plants, including resets, is one compiled call."""

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
"""(domain, running, ended before, actions, step limit) -> (running, timestep, returned observations)."""


def _where(choice: Bool[AnyArray, " N"], yes: Any, no: Any) -> Any:
    def chosen(a: Array, b: Array) -> Array:
        return jnp.where(choice.reshape(choice.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(chosen, yes, no)


@cache
def step_program(plant: Plant, physical: bool, mode: AutoresetMode, history: History | None) -> Step:
    """Return the compiled step of N plants.

    NEXT_STEP: ended plants restart instead of stepping, with reward 0. SAME_STEP: plants restart in the step in which
    they end; the timestep is of the old episode, the returned observation of the new one. DISABLED: no restarts.
    """

    def renewed(domain: Params, running: Running, shown: Float[Array, "N O"], which: Bool[Array, " N"]) -> Any:
        """Restart some episodes; computes nothing if none restarts."""

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
    """Return the compiled start of N plants: (domain, roots, episodes) -> (running, observations)."""
    return jax.jit(lambda domain, roots, episodes: jax.vmap(partial(start, plant, history, domain))(roots, episodes))


class PlantVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """N plants in one jitted call. Plant i with seed i behaves like `PlantEnv` with that seed.

    Args:
        plant: a key of `PLANTS`, or a plant.
        num_envs: N.
        domain: values of the operating domain that differ from the plant's default.
        physical: take actions in the plant's units.
        autoreset_mode: an `AutoresetMode`, or its value.
        max_episode_steps: step limit of an episode, at most the plant's horizon; None and Gymnasium's -1 mean the
            horizon.
        render_mode: must be None, because many plants are not rendered.
        history: earlier values in the observation, as for `PlantEnv`.

    Raises:
        ValueError: on an unknown plant, domain value, signal or mode, a render mode, or an empty episode.
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
                f"plants that are stepped together have no render_mode, got {render_mode!r}: make a single plant, or "
                "use vectorization_mode='sync'"
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
        """Start episodes of all plants, or of those in the boolean mask `options["reset_mask"]` (N,).

        Args:
            seed: s seeds plant i with s + i; a sequence has one seed per plant; None continues each plant's sequence.
            options: `reset_mask`, as in Gymnasium's own vector environments.

        Raises:
            ValueError: on a wrong number of seeds, a wrong mask, or other options.
            RuntimeError: in a process forked from one in which JAX runs.
        """
        check_process()
        check_options(options, ("reset_mask",))
        super().reset(seed=seed if isinstance(seed, int) else None)
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        seeds = [None] * self.num_envs if seeds is None else list(seeds)
        mask = np.asarray((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if len(seeds) != self.num_envs or mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ValueError(
                f"seeds and reset_mask must have {self.num_envs} entries, the mask boolean with at least one true, got "
                f"{len(seeds)} seeds and a mask of {mask.dtype} {mask.shape}"
            )
        if self._running is None and not mask.all():
            raise gymnasium.error.ResetNeeded(
                f"reset_mask selects {int(mask.sum())} of {self.num_envs} plants in the first reset: reset all first"
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
        """Simulate one control period under actions (N, A), or the numbers (N,) of choices.

        Returns:
            Observations (N, O), rewards, terminations and truncations (N,), and infos as Gymnasium batches them: an
            entry `name` has a mask `_name` of the plants that set it. With SAME_STEP, `final_obs` and `final_info` are
            those of the ended episodes.

        Raises:
            ValueError: on actions with the wrong shape or NaN.
            gymnasium.error.ResetNeeded: before the first reset, and with DISABLED for an ended plant.
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
            # A restarted episode had no step to report.
            began = self._ended if self.autoreset_mode is AutoresetMode.NEXT_STEP else np.zeros_like(ends)
            infos = infos_of(limits, now.margins, ~began)
        self._ended = ends
        # Copies, because arrays from JAX are read-only.
        flags = np.array(now.terminated), np.array(now.truncated)
        return np.array(shown), np.asarray(now.reward, np.float64), *flags, infos


def infos_of(
    constraints: tuple[Constraint, ...], margins: Float[np.ndarray, "N K"], present: Bool[np.ndarray, " N"]
) -> dict[str, Any]:
    """Batch `episodes.info_of` of the plants in `present` (N,) as Gymnasium does, with zeros elsewhere."""
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
