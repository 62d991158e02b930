"""Core types: plants, transitions and controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    # Programs that only describe plants avoid the import of JAX, which is slow.
    import numpy as np
    from jaxtyping import Array, Bool, Float, PRNGKeyArray

    from neorl_core.graph.layout import Layout

Params = Any
"""A pytree of arrays (physical constants, network weights, controller gains)."""


def varies(mean: Any, deviation: Any) -> Any:
    """Return whether deviations exceed the rounding of means in single precision; NaN counts as no variation."""
    # Single precision, and the smallest normal number.
    return (deviation > 2.0**-23 * abs(mean)) & (deviation > 2.0**-126)


class Space(NamedTuple):
    """Names, units and bounds of a vector in physical units."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        return len(self.names)


class Constraint(NamedTuple):
    """A hard limit `low <= quantity <= high`; its margin is the signed distance to the nearer limit."""

    name: str
    unit: str
    low: float
    high: float


class History(NamedTuple):
    """Number of earlier values of each signal in a stacked observation; static structure in pytrees."""

    observation: tuple[int, ...]
    """(O,) per observation component."""
    action: tuple[int, ...]
    """(A,) per action component."""


class Clock(NamedTuple):
    """An observation that shows when an episode is over."""

    name: str
    end: float
    """Reading after the episode's last step, and after no other."""


class PlantSpec(NamedTuple):
    """Static description of a plant, hashable and serialisable."""

    name: str
    observation: Space
    action: Space
    constraints: tuple[Constraint, ...]
    dt: float
    """Control period in `time_unit`."""
    time_unit: str
    horizon: int
    """Steps of an episode; reaching it truncates and never terminates."""
    score_range: tuple[float, float]
    """Returns that score 0 and 100 (double_mass: the published NeoRL-2 normalisation)."""
    history: History | None = None
    """Earlier values in a stacked observation; None for the plant itself."""
    choices: tuple[str, ...] | None = None
    """Names of the choices of a discrete action, a single component that numbers them from 0; None if continuous."""
    layout: Layout | None = None
    """Graph layout of observation and action for graph policies; None without a graph."""
    clock: Clock | None = None
    """Clock of a plant that runs in batches, so that learners do not bootstrap past a batch's end; None for
    continuous operation."""

    def over(self, observation: Any) -> Bool[np.ndarray, "*n"]:
        """Return whether the clock in observations (..., O) shows the end, within 1e-6; all False without a clock."""
        import numpy as np

        values = np.asarray(observation)
        if self.clock is None:
            return np.zeros(values.shape[:-1], bool)
        left = np.abs(values[..., self.observation.names.index(self.clock.name)] - self.clock.end)
        return left <= 1e-6 * max(1.0, abs(self.clock.end))

    @property
    def acting(self) -> int:
        """Size of an action as learners see it: its components, or one per choice."""
        return self.action.size if self.choices is None else len(self.choices)


class Transition(NamedTuple):
    """Logged steps, flat over time; leading axes are (N,) or (B,)."""

    observation: Float[Array, "*n O"]
    action: Float[Array, "*n A"]
    reward: Float[Array, "*n"]
    cost: Float[Array, "*n"]
    next_observation: Float[Array, "*n O"]
    terminated: Float[Array, "*n"]
    next_action: Float[Array, "*n A"] | None = None
    """Action logged at `next_observation`, +inf if none (not NaN, which would not compare equal); set by
    `training.prepare`."""


class Timestep(NamedTuple):
    """A plant's response to an action."""

    observation: Float[Array, " O"]
    reward: Float[Array, ""]
    margins: Float[Array, " K"]
    """Signed distance to each limit in the unit of the limit, positive within it."""
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class Controller(NamedTuple):
    """A map from observations to physical actions: PID, LQR, a trained policy or the shielded composite.

    `applied` is the action that was in force during the step before `observation`. A shield or an operator may have
    overridden the controller, so integral action can track it without a bump.
    """

    init: Callable[[Params, Float[Array, " O"]], Params]
    """(params, first observation) -> controller state."""
    act: Callable[[Params, Params, Float[Array, " O"], Float[Array, " A"]], tuple[Params, Float[Array, " A"]]]
    """(params, controller state, observation, applied) -> (controller state, action)."""


class AgentView(NamedTuple):
    """Observation and action components of one of several agents."""

    name: str
    observation: tuple[int, ...]
    """Components of the plant's observation."""
    action: tuple[int, ...]
    """Components of the plant's action; each belongs to exactly one agent."""


class Panel(NamedTuple):
    """A controlled quantity in pictures, with its set point and limit in one unit."""

    name: str
    signals: tuple[str, ...] = ()
    """Observation components; if empty, the margin of the limit is drawn."""
    set_point: str = ""
    """Observation component that is the set point."""
    limit: str = ""
    """Name of the limit."""
    unit: str = ""
    """Unit to draw in; by default that of the signals, else of the limit. Kelvin and degrees Celsius convert."""


class Plant(NamedTuple):
    """A simulator: pure functions and default constants."""

    spec: PlantSpec
    params: Params
    """Nominal physical constants, a NamedTuple of scalars."""
    domain: Params
    """Default operating domain, a NamedTuple of Python floats (spreads, noise, disturbances)."""
    sample_params: Callable[[PRNGKeyArray, Params], Params]
    """(key, domain) -> plant params sampled from the operating domain."""
    reset: Callable[[PRNGKeyArray, Params], tuple[Params, Float[Array, " O"]]]
    """(key, params) -> (state, observation)."""
    step: Callable[[PRNGKeyArray, Params, Float[Array, " A"], Params], tuple[Params, Timestep]]
    """(key, state, action, params) -> (state, timestep)."""
    predict: Callable[[Float[Array, " O"], Float[Array, " A"], Params], tuple[Float[Array, " O"], Float[Array, " K"]]]
    """(observation, action, params) -> (next observation, smallest margins during the step): the shield's noise-free
    model."""
    applied: Callable[[Float[Array, " O"]], Float[Array, " A"]]
    """The action in force at `observation`, as far as it shows; else the resting action."""
    fallback: Controller
    """The plant's own controller (PI or LQR)."""
    fallback_params: Params
    """Well-tuned parameters: the fallback of the shield, and the baseline of gates and tables."""
    found_params: Params = None
    """Parameters as found on the plant, which wrote its logs; None if equal to `fallback_params`."""
    reference: Controller | None = None
    """Best known controller (from a search or a planner), the top of the scale; for comparison only."""
    reference_params: Params = None
    idle: tuple[float, ...] | None = None
    """(A,) constant action of sensible idling, which scores 0; None to keep the action in force at the start."""
    resume: Callable[[PRNGKeyArray, Params, Float[Array, " O"], Params], tuple[Params, Params]] | None = None
    """(key, state, observation, params) -> (state, params) that match an observation of the plant: measurement noise is
    sampled and subtracted, and anything the observation does not show stays. None if not implemented."""
    agents: tuple[AgentView, ...] = ()
    """Views of several agents that share the plant (inverters on a feeder, stages of a supply chain)."""
    drawn: tuple[Panel, ...] = ()
    """Panels of pictures; if empty, `panels.make_panels` derives them from the names."""


class Process(NamedTuple):
    """A log-only plant: signals, bounds and limits without a simulator."""

    spec: PlantSpec
