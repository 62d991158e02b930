"""The vocabulary of the core: what a plant is, what a transition is, what a controller is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    # What describes a plant is also read where nothing is computed: importing JAX takes longer than that.
    import numpy as np
    from jaxtyping import Array, Bool, Float, PRNGKeyArray

    from neorl_core.graph.layout import Layout
    from neorl_core.history import History

Params = Any
"""A pytree of arrays (physical constants, network weights, controller gains)."""


def moves(mean: Any, deviation: Any) -> Any:
    """Whether signals deviate from their means by more than rounding to single precision does, whatever their units.

    Args:
        mean: (...) of each signal.
        deviation: (...) about it; one that is no number does not move.
    """
    # The precision of single numbers, and the least that has all of it.
    return (deviation > 2.0**-23 * abs(mean)) & (deviation > 2.0**-126)


class Space(NamedTuple):
    """Names, units and bounds of a vector, in physical units."""

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


class Clock(NamedTuple):
    """An observation that tells when an episode is over."""

    name: str
    end: float
    """What it reads after the episode's last step, and after no other."""


class PlantSpec(NamedTuple):
    """What is fixed about a plant and may be hashed, written down and compared."""

    name: str
    observation: Space
    action: Space
    constraints: tuple[Constraint, ...]
    dt: float
    """Control period, in `time_unit`."""
    time_unit: str
    horizon: int
    """Steps of an episode; reaching it truncates, it never terminates."""
    score_range: tuple[float, float]
    """Returns that score 0 and 100 (for double_mass: the published NeoRL-2 normalisation)."""
    history: History | None = None
    """Which earlier values the observation ends with, where it is a stacked one; a plant's own has none."""
    choices: tuple[str, ...] | None = None
    """Names of what a discrete action chooses among: its one component is their number, from 0 on. None of continuous
    actions."""
    layout: Layout | None = None
    """How observation and action lie on a graph, for graph policies; None of a plant that is none."""
    clock: Clock | None = None
    """Where the task ends with the episode and the observation tells when: learners take nothing to follow. None of a
    plant that runs on, of which an episode is a piece."""

    def over(self, observation: Any) -> Bool[np.ndarray, "*n"]:
        """Whether the clock tells of observations (..., O) that their episode is over; of none without a clock.

        A clock in single precision may miss its end by a millionth of itself.
        """
        import numpy as np

        seen = np.asarray(observation)
        if self.clock is None:
            return np.zeros(seen.shape[:-1], bool)
        left = np.abs(seen[..., self.observation.names.index(self.clock.name)] - self.clock.end)
        return left <= 1e-6 * max(1.0, abs(self.clock.end))

    @property
    def acting(self) -> int:
        """Numbers of an action as learners see it: its components, or one for each choice of a discrete one."""
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
    """What was logged at `next_observation`, +inf where nothing was; `training.prepare` finds it.

    Not NaN, which differs from itself: processes that share an array compare what each of them holds.
    """


class Timestep(NamedTuple):
    """What a plant answers to an action."""

    observation: Float[Array, " O"]
    reward: Float[Array, ""]
    margins: Float[Array, " K"]
    """Signed distance to each limit in the limit's unit, positive while it holds."""
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class Controller(NamedTuple):
    """Maps observations to physical actions. PID, LQR, a trained policy and the shielded composite are all controllers.

    `applied` is the action that was really in force during the step before `observation` (a shield or an
    operator may have overruled this controller), so that integral action tracks it without a bump.
    """

    init: Callable[[Params, Float[Array, " O"]], Params]
    """(params, first observation) -> controller state."""
    act: Callable[[Params, Params, Float[Array, " O"], Float[Array, " A"]], tuple[Params, Float[Array, " A"]]]
    """(params, controller state, observation, applied) -> (controller state, action)."""


class AgentView(NamedTuple):
    """What one of a plant's several agents sees and moves."""

    name: str
    observation: tuple[int, ...]
    """Components of the plant's observation."""
    action: tuple[int, ...]
    """Components of the plant's action; each belongs to exactly one agent."""


class Panel(NamedTuple):
    """A controlled quantity as pictures show it, with its set point and its limit, in one unit."""

    name: str
    signals: tuple[str, ...] = ()
    """Components of the observation; without any it is drawn by its limit's margin."""
    set_point: str = ""
    """Component of the observation that it is to follow."""
    limit: str = ""
    """Name of the limit on it."""
    unit: str = ""
    """To draw it in; that of the signals otherwise, or the limit's. Kelvin and degrees Celsius become each other."""


class Plant(NamedTuple):
    """A simulated plant: pure functions and their default constants."""

    spec: PlantSpec
    params: Params
    """Nominal physical constants, a NamedTuple of scalars."""
    domain: Params
    """Default operating domain, a NamedTuple of Python floats (spreads, noise, disturbances)."""
    sample_params: Callable[[PRNGKeyArray, Params], Params]
    """(key, domain) -> plant params drawn from the operating domain."""
    reset: Callable[[PRNGKeyArray, Params], tuple[Params, Float[Array, " O"]]]
    """(key, params) -> (state, observation)."""
    step: Callable[[PRNGKeyArray, Params, Float[Array, " A"], Params], tuple[Params, Timestep]]
    """(key, state, action, params) -> (state, timestep)."""
    predict: Callable[[Float[Array, " O"], Float[Array, " A"], Params], tuple[Float[Array, " O"], Float[Array, " K"]]]
    """(observation, action, params) -> (next observation, least margins on the way): the shield's noise-free model."""
    applied: Callable[[Float[Array, " O"]], Float[Array, " A"]]
    """The action in force when `observation` was taken, as far as the observation tells; else the resting action."""
    fallback: Controller
    """The plant's own controller (PI or LQR)."""
    fallback_params: Params
    """As a good practitioner tunes it: what the shield hands over to, and gates and tables compare with."""
    found_params: Params = None
    """As it was found on the plant, whose logs it wrote; None where that is `fallback_params`."""
    reference: Controller | None = None
    """The best known controller, the top of the scale: found by a search or a planner, for comparison only."""
    reference_params: Params = None
    idle: tuple[float, ...] | None = None
    """(A,) the action of a sensible idle, held throughout, which scores 0; None where the action in force at the start
    is held."""
    resume: Callable[[PRNGKeyArray, Params, Float[Array, " O"], Params], tuple[Params, Params]] | None = None
    """(key, state, observation, params) -> (state, params) as an observation of the plant tells them: measurement noise
    is drawn by the key and taken off, and what the observation does not tell stays. None where nobody wrote it."""
    agents: tuple[AgentView, ...] = ()
    """What each agent sees and does, where several share a plant (inverters on a feeder, stages of a supply chain)."""
    drawn: tuple[Panel, ...] = ()
    """What pictures of it show; where it is empty, `panels.panels_of` reads it off the names."""


class Process(NamedTuple):
    """A plant without a simulator: nothing is known of it but its signals, bounds and limits."""

    spec: PlantSpec
