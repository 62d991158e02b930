"""Plants with several agents, as PettingZoo parallel environments. Agents have own actuators and equal rewards."""

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
    """A plant with several agents. All agents act in every step. An episode ends for all agents at the same time.

    Args:
        plant: name of a built-in plant, or a plant. The plant must have agents.
        domain: parameters of the operating domain that differ from the plant's defaults, by name.
        physical: whether actions are in the plant's units; otherwise actions are from -1 to 1.
        render_mode: as for `PlantEnv`. Pictures show the whole plant.

    Raises:
        ValueError: if the plant, a domain parameter or the render mode is unknown, or the plant has no agents.
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
            raise ValueError(f"the plant {spec.name} does not have several agents: use PlantEnv")
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
        """Return the observation of the whole plant, for algorithms with a central critic."""
        return self._observation.copy()

    def render(self) -> UInt8[np.ndarray, "Y X 3"] | None:
        """Return a picture of the episode, as `PlantEnv.render`."""
        return self._env.render()

    def _seen(self) -> PerAgent:
        return {agent: self._observation[list(self.views[agent].observation)] for agent in self.agents}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[PerAgent, PerAgent]:
        """Start an episode, as `PlantEnv.reset`. Options are ignored, because PettingZoo's test passes options."""
        self._observation, _ = self._env.reset(seed=seed)
        self.agents = self.possible_agents.copy()
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: PerAgent) -> tuple[PerAgent, PerAgent, PerAgent, PerAgent, PerAgent]:
        """Simulate one control period with one action for each agent's name.

        Returns:
            Observations, rewards, terminations, truncations and infos, each by the agent's name.

        Raises:
            ValueError: if an agent's action is missing or has the wrong shape.
        """
        if set(actions) != set(self.agents):
            raise ValueError(
                f"the agents are {self.agents}, got actions for {sorted(actions)}: give one action for each agent"
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
