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
    """Return True where a standard deviation exceeds the float32 rounding error of the mean; False for NaN."""
    # Relative precision of float32, and its smallest normal number.
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
    """Number of earlier values of each signal and action in a stacked observation."""

    observation: tuple[int, ...]
    """(O,) per observation component."""
    action: tuple[int, ...]
    """(A,) per action component."""


class Clock(NamedTuple):
    """An observation that shows when an episode is over."""

    name: str
    end: float
    """Value of the observation after the last step of an episode, and after no other step."""


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
    """Largest number of steps of an episode. An episode that reaches it is truncated, not terminated."""
    score_range: tuple[float, float]
    """Returns that score 0 and 100 points."""
    history: History | None = None
    """Earlier values in the observation; None if the observation has current values only."""
    choices: tuple[str, ...] | None = None
    """Names of the choices of a discrete action, which are numbered from 0; None for continuous actions."""
    layout: Layout | None = None
    """Graph layout of observation and action for graph policies; None without a graph."""
    clock: Clock | None = None
    """Clock of a plant that runs in batches; learners expect no rewards after a batch. None without batches."""

    def over(self, observation: Any) -> Bool[np.ndarray, "*n"]:
        """Return (...,) whether the clock shows the episode's end at observations (..., O); False without a clock."""
        import numpy as np

        values = np.asarray(observation)
        if self.clock is None:
            return np.zeros(values.shape[:-1], bool)
        left = np.abs(values[..., self.observation.names.index(self.clock.name)] - self.clock.end)
        return left <= 1e-6 * max(1.0, abs(self.clock.end))

    @property
    def acting(self) -> int:
        """Size U of a unit action: the number of components, or of choices if the action is discrete."""
        return self.action.size if self.choices is None else len(self.choices)


class Transition(NamedTuple):
    """Logged steps; every field has the leading axis (N,) in a dataset or (B,) in a batch."""

    observation: Float[Array, "*n O"]
    action: Float[Array, "*n A"]
    reward: Float[Array, "*n"]
    cost: Float[Array, "*n"]
    next_observation: Float[Array, "*n O"]
    terminated: Float[Array, "*n"]
    next_action: Float[Array, "*n A"] | None = None
    """Action logged at `next_observation`, or +inf if no action was logged; set by `training.prepare`."""


class Timestep(NamedTuple):
    """A plant's response to an action."""

    observation: Float[Array, " O"]
    reward: Float[Array, ""]
    margins: Float[Array, " K"]
    """Signed distance to each limit, in the unit of the limit; negative if the limit is violated."""
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class Controller(NamedTuple):
    """A map from observations to physical actions: PID, LQR, a trained policy or the shielded composite.

    `applied` is the action in force during the step before `observation`. It may differ from the controller's last
    action, because a shield or an operator can override the controller. Integral action starts from `applied`.
    """

    init: Callable[[Params, Float[Array, " O"]], Params]
    """(params, first observation) -> controller state."""
    act: Callable[[Params, Params, Float[Array, " O"], Float[Array, " A"]], tuple[Params, Float[Array, " A"]]]
    """(params, controller state, observation, applied) -> (controller state, action)."""


class SetPoints(NamedTuple):
    """Set points of a plant's controller that a policy may move. Levels, targets and table entries are set points."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    reach: tuple[float, ...]
    """(K,), largest shift of each set point, in its unit."""
    shifted: Callable[[Params, Float[Array, " K"]], Params]
    """(parameters of the controller, shift) -> parameters with shifted set points; equal to the given ones at 0."""


class AgentView(NamedTuple):
    """Components of the plant's observation and action that belong to one agent."""

    name: str
    observation: tuple[int, ...]
    """Indices into the plant's observation."""
    action: tuple[int, ...]
    """Indices into the plant's action; each component belongs to exactly one agent."""


class Panel(NamedTuple):
    """Plot of a controlled quantity, with its set point and limit in one unit."""

    name: str
    signals: tuple[str, ...] = ()
    """Names of the signals to plot; if empty, the margin of the limit is plotted."""
    set_point: str = ""
    """Name of the signal that is the set point."""
    limit: str = ""
    """Name of the limit."""
    unit: str = ""
    """Unit of the plot; by default the unit of the signals, or of the limit. K and °C are converted."""


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
    """(observation, action, params) -> (next observation, smallest margins during the step), without noise."""
    applied: Callable[[Float[Array, " O"]], Float[Array, " A"]]
    """observation -> action in force, or the resting action if the observation does not show it."""
    fallback: Controller
    """The plant's own controller (PI or LQR)."""
    fallback_params: Params
    """Well-tuned parameters of the fallback, which is also the baseline of gates and tables."""
    found_params: Params = None
    """Parameters of the controller that produced the logs; None if equal to `fallback_params`."""
    reference: Controller | None = None
    """Best known controller, found by a search or a planner; for comparison only."""
    reference_params: Params = None
    idle: tuple[float, ...] | None = None
    """(A,) constant idle action, which scores 0; None if the idle action is the action in force at the start."""
    resume: Callable[[PRNGKeyArray, Params, Float[Array, " O"], Params], tuple[Params, Params]] | None = None
    """(key, state, observation, params) -> (state, params) that match an observation of the plant, after subtraction of
    sampled measurement noise. Parts that the observation does not show stay unchanged. None if not implemented."""
    agents: tuple[AgentView, ...] = ()
    """Agents that control the plant together, such as inverters on a feeder; empty for a single controller."""
    drawn: tuple[Panel, ...] = ()
    """Panels of episode plots; if empty, `panels.make_panels` derives them from names of signals and limits."""
    set_points: SetPoints | None = None
    """Set points of the fallback that a learned policy moves; None if the policy corrects the fallback's action."""


class Process(NamedTuple):
    """A log-only plant: signals, bounds and limits without a simulator."""

    spec: PlantSpec
