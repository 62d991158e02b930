"""Plants as Gymnasium environments, with ids such as `neorl/ChemicalReactor-v0`.

Import this module before `gymnasium.make`, because Gymnasium 1.x does not find the ids by itself. Or name the module in
the id: `gymnasium.make("neorl_core.wrappers.gymnasium:neorl/ChemicalReactor-v0")`. Libraries that support the entry
point group `gymnasium.envs` find the ids without an import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt8

from neorl_core.plants import PLANTS
from neorl_core.types import Plant
from neorl_core.wrappers.episodes import (
    Running,
    action_space,
    as_vectors,
    box,
    check_options,
    check_process,
    domain_of,
    draw_root,
    info_of,
    observed_spec,
    plant_of,
    programs,
    table_name,
    to_command,
)
from neorl_core.wrappers.picture import Moment, frame_of

Observation = Float[np.ndarray, " O"]
NAMESPACE = "neorl"
ABBREVIATIONS = ("hvac",)
"""Parts of a plant's name that are written in capitals in the id."""


class PlantEnv(gymnasium.Env[Observation, Float[np.ndarray, " A"]]):
    """A simulated plant. Each episode draws new constants from the operating domain. Equal seeds give equal episodes.

    Observations are in physical units, clipped to the sensors' ranges. Actions are from -1 to 1, the ends of each
    actuator's range; a discrete action is the number of a choice, from 0. `info` has three entries: `margins` (distance
    to each limit by name, negative beyond the limit), `costs` (amount of each violation by name), and `cost` (1 if a
    limit is violated, otherwise 0). Environments can be pickled at any time.

    Args:
        plant: name of a built-in plant, or a plant.
        domain: parameters of the operating domain that differ from the plant's defaults, by name.
        physical: whether actions are in the plant's units instead of -1 to 1.
        render_mode: "rgb_array" if `render` shall return pictures of the episode; otherwise None.
        history: number of earlier values to append to the observation, by name of a signal or action. Earlier actions
            are in physical units.

    Raises:
        ValueError: if the plant, a domain parameter, a signal or the render mode is unknown.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012  (Gymnasium's name and type)

    def __init__(
        self,
        plant: str | Plant,
        domain: Mapping[str, float] | None = None,
        physical: bool = False,
        render_mode: str | None = None,
        history: Mapping[str, int] | None = None,
    ) -> None:
        self.plant = plant_of(plant)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be 'rgb_array' or None, got {render_mode!r}: use one of the two")
        self.render_mode = render_mode
        seen = observed_spec(self.plant, history)
        self.observation_space = box(seen.observation)
        self.action_space = action_space(self.plant.spec, physical)
        self._domain = domain_of(self.plant, domain)
        self._physical, self._history = physical, seen.history
        self._programs = programs(self.plant, physical, seen.history)
        self._moments: list[Moment] = []
        self._root: np.ndarray[Any, Any] | None = None
        self._episode = 0
        self._running: Running | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode. Return the first observation and an empty info.

        Args:
            seed: starts a new sequence of episodes. Without a seed, the next episode of the last sequence starts.
            options: must be empty.

        Raises:
            ValueError: if there are options.
            RuntimeError: if this process was forked from a process in which JAX was running.
        """
        check_process()
        check_options(options)
        super().reset(seed=seed)
        if seed is not None or self._root is None:
            self._root, self._episode = draw_root(self.np_random), 0
        else:
            self._episode += 1
        self._running, observation = self._programs.start(self._domain, self._root, np.int32(self._episode))
        self._moments = []
        self._keep(np.array(observation))
        return np.array(observation), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Simulate one control period. Return observation, reward, terminated, truncated and info.

        Args:
            action: action (A,), or the number of a choice if the action is discrete.

        Raises:
            ValueError: if the action has the wrong shape or contains NaN.
            gymnasium.error.ResetNeeded: if `reset` was never called.
        """
        if self._running is None:
            raise gymnasium.error.ResetNeeded("step() was called before reset(): call reset() first")
        chosen = as_vectors(self.plant.spec, action)
        self._running, now = self._programs.step(self._running, chosen)
        now = jax.device_get(now)
        self._keep(np.array(now.observation), chosen, np.array(now.margins))
        info = info_of(self.plant.spec.constraints, now.margins)
        return np.array(now.observation), float(now.reward), bool(now.terminated), bool(now.truncated), info

    def _keep(
        self,
        observation: Observation,
        action: Float[np.ndarray, " A"] | None = None,
        margins: Float[np.ndarray, " K"] | None = None,
    ) -> None:
        """Store a step for `render`, if a render mode is set."""
        if self.render_mode is None:
            return
        spec = self.plant.spec
        if action is not None and margins is not None:
            command = np.asarray(to_command(spec, jnp.asarray(action), self._physical))
            within = np.clip(command, spec.action.low, spec.action.high)
            self._moments[-1] = self._moments[-1]._replace(action=within, margins=margins)
        nothing = np.full(spec.action.size, np.nan), np.full(len(spec.constraints), np.nan)
        self._moments.append(Moment(observation[: spec.observation.size], *nothing))

    def render(self) -> UInt8[np.ndarray, "Y X 3"] | None:
        """Return a picture of the episode so far; None without a `render_mode`.

        Raises:
            gymnasium.error.ResetNeeded: if `reset` was never called.
        """
        if self.render_mode is None:
            return None
        if not self._moments:
            raise gymnasium.error.ResetNeeded("render() was called before reset(): call reset() first")
        spec = self.plant.spec
        return frame_of(spec, self.plant.drawn, self._moments, max(spec.horizon, len(self._moments) - 1))

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name != "_programs"}
        return kept | {"plant": table_name(self.plant), "_running": jax.device_get(self._running)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"plant": plant_of(state["plant"])})
        self._programs = programs(self.plant, self._physical, self._history)


def environment_id(name: str) -> str:
    """Return the Gymnasium id of a plant: `hvac_control` -> `neorl/HVACControl-v0`."""
    words = [word.upper() if word in ABBREVIATIONS else word.capitalize() for word in name.split("_")]
    return f"{NAMESPACE}/{''.join(words)}-v0"


def register_plants() -> None:
    """Register all built-in plants in Gymnasium, unless they are registered already."""
    for name, plant in PLANTS.items():
        if environment_id(name) not in gymnasium.registry:
            gymnasium.register(
                environment_id(name),
                entry_point="neorl_core.wrappers.gymnasium:PlantEnv",
                vector_entry_point="neorl_core.wrappers.vector:PlantVectorEnv",
                max_episode_steps=plant.spec.horizon,
                kwargs={"plant": name},
            )


register_plants()
