"""Plants with several agents as PettingZoo parallel environments: own actuators, equal rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from jaxtyping import Float, UInt8

from neorl_core.types import Plant
from neorl_core.wrappers.episodes import action_box, as_action, box
from neorl_core.wrappers.gymnasium import PlantEnv

PerAgent = dict[str, Any]


class ParallelPlantEnv(pettingzoo.ParallelEnv[str, Any, Any]):
    """The agents of a plant, stepped together; the episode ends for all agents at once.

    Args:
        plant: a key of `PLANTS` or a plant, with agents.
        domain: values of the operating domain that differ from the plant's default.
        physical: take actions in the plant's units instead of -1 to 1.
        render_mode: as for `PlantEnv`; pictures show the whole plant.

    Raises:
        ValueError: on an unknown plant, domain value or render mode, or a plant without agents.
    """

    def __init__(
        self,
        plant: str | Plant,
        domain: Mapping[str, float] | None = None,
        physical: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self._env = PlantEnv(plant, domain, physical, render_mode)
        spec, views = self._env.plant.spec, self._env.plant.agents
        if not views:
            raise ValueError(f"{spec.name} does not have several agents: use PlantEnv")
        self.metadata = {"name": spec.name, **PlantEnv.metadata}
        self.render_mode = render_mode
        self.views = {view.name: view for view in views}
        self.possible_agents = list(self.views)
        self.agents: list[str] = []
        self.observation_spaces = {view.name: box(spec.observation, view.observation) for view in views}
        self.action_spaces = {view.name: action_box(spec.action, physical, view.action) for view in views}
        self._observation = np.zeros(spec.observation.size, np.float32)

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Box:
        return self.action_spaces[agent]

    def state(self) -> Float[np.ndarray, " O"]:
        """Return the plant's whole observation, for training with a central critic."""
        return self._observation.copy()

    def render(self) -> UInt8[np.ndarray, "Y X 3"] | None:
        """Return the picture of `PlantEnv.render`."""
        return self._env.render()

    def _seen(self) -> PerAgent:
        return {agent: self._observation[list(self.views[agent].observation)] for agent in self.agents}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[PerAgent, PerAgent]:
        """Start an episode, as `PlantEnv.reset`; options are ignored, because PettingZoo's own check passes some."""
        self._observation, _ = self._env.reset(seed=seed)
        self.agents = self.possible_agents.copy()
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: PerAgent) -> tuple[PerAgent, PerAgent, PerAgent, PerAgent, PerAgent]:
        """Simulate one control period under each agent's action.

        Returns:
            Observations, rewards (the plant's, equal for all), terminations, truncations and infos by agent.

        Raises:
            ValueError: if an agent's action is missing or has the wrong shape.
        """
        if set(actions) != set(self.agents):
            raise ValueError(
                f"actions must be given for the agents {self.agents}, got {sorted(actions)}: all agents act at once"
            )
        if not self.agents:
            return {}, {}, {}, {}, {}
        joint = np.zeros(self._env.plant.spec.action.size, np.float32)
        for agent, action in actions.items():
            moved = list(self.views[agent].action)
            joint[moved] = as_action(action, (len(moved),))
        self._observation, reward, terminated, truncated, info = self._env.step(joint)
        here, seen = self.agents, self._seen()
        rewards, terminations, truncations = (dict.fromkeys(here, value) for value in (reward, terminated, truncated))
        infos = {agent: {k: v.copy() if isinstance(v, dict) else v for k, v in info.items()} for agent in here}
        self.agents = [] if terminated or truncated else here
        return seen, rewards, terminations, truncations, infos
