"""One cell of the study: logs of a hidden plant, gates and training of the pipeline, and the comparison."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from benchmarks.transfer.hidden import HIDDEN, KNOWN, Known, difference_of, nominal, unhidden
from configs.run import OpenedRun
from neorl_core.control.behaviour import Behaviour, BehaviourParams, blended
from neorl_core.identify import Unknown, identify
from neorl_core.identify.forecast import episodes_of
from neorl_core.networks import Normaliser
from neorl_core.online import LEARNERS
from neorl_core.online.analytic_gradient import State, update
from neorl_core.online.learner import CHUNK, Setting, composite_of, observe, without_rows
from neorl_core.plants.base import EpisodeResult, Trajectory, rollout, rollouts
from neorl_core.plants.hidden import Difference, Domain, Recentred, hide, recentre
from neorl_core.plants.replay import LoggedEpisodes, replay_errors
from neorl_core.safety.bounds import clopper_pearson_lower, paired_difference_interval
from neorl_core.safety.composite import Composite, composite_controller
from neorl_core.safety.shield import ShieldParams, envelope_of
from neorl_core.training import loop
from neorl_core.training.population import Algorithm, Member, TrainState, configure, init_population, policies
from neorl_core.types import Controller, Params, Plant, Transition
from tasks.data.synthetic.behaviours import policy_of
from tasks.gates import simulator_detail
from tasks.models.plants.known import plant_of
from tasks.simulate import (
    LONGEST_EPISODE,
    SIMULATED_PLANTS,
    SIMULATED_ROWS,
    STEPS_AHEAD,
    domain_of,
    score,
    signal_errors,
)
from tasks.training.in_simulator import OBSERVED_SEED
from tasks.training.shielding import shield_of
from tasks.versions.verdicts import domain_explains

VARIANTS = ("standard", "identified", "nominal")
"""Constants in the training: drawn from the operating domain, from this domain around estimates, or nominal."""
PRIOR = 0.1
"""Prior standard deviation of the constants A and B in the identification, relative to the nominal value."""
IDENTIFYING = 64
"""Training episodes that the identification uses."""
EPISODES = 2_048
"""Paired episodes on the hidden plant, and as many on the simulator for the gates."""
LOGGED = 200
"""Logged episodes."""
TIE = 1.0
"""Loss in points up to which a policy ties with the tuned controller."""
SIMULATED = ("gain", "low", "violations", "tuned_violations")
"""Results on the simulator that a row keeps."""
LOG_SEED, PLAY_SEED, GATE_SEED = 30_270_000, 30_280_000, 30_290_000
"""Seeds of the logs, of the episodes on the hidden plant, and of the episodes for the gates."""


class Simulator(NamedTuple):
    """Numbers of a simulator: one program serves all simulators of a plant."""

    params: Params
    """Constants with which the simulator and the shield predict."""
    domain: Recentred


class Learning(NamedTuple):
    """State of a training, with the simulator."""

    learner: State
    simulator: Simulator


class Logs(NamedTuple):
    """Logs of a hidden plant under the controller of the logs, split by episode."""

    training: Trajectory
    held_out: Trajectory


class Study:
    """Everything that the cells of one plant share: programs, scales, and trainings before the shield acts."""

    def __init__(self, run: OpenedRun, episodes: int = EPISODES, updates: int | None = None) -> None:
        """Prepare the study of a run's plant.

        Args:
            episodes: paired episodes of a cell.
            updates: gradient steps of a training; those of the run if None.
        """
        self.run, self.episodes = run, episodes
        self.plant = plant_of(run).simulator()
        self.known: Known = KNOWN[run.plant]
        self.domain = jax.tree.map(float, domain_of(self.plant, run))
        self.drawing = recentre(self.plant)
        self.hidden = hide(self.drawing, self.known.lagging)
        self.standard = Simulator(self.plant.params, self._around({}, {}))
        learner = LEARNERS[run.train.algorithm].unbound
        steps = run.train.updates if updates is None else updates
        self.config = configure(learner, run.train.hyperparameters, steps)
        self.plan = loop.schedule(steps, CHUNK, 1, self.config.warm_up_updates)
        key = jax.random.key(OBSERVED_SEED + run.seed)
        self.normaliser: Normaliser = observe(self.plant._replace(domain=self.domain), key)
        self.learner = learner_of(
            Setting(self.drawing, shield_of(self.plant.spec, run.shield), self.normaliser, self.config),
            self.standard,
        )
        self.controllers: tuple[Controller, Controller] = composite_controller(self.plant), self.plant.fallback
        self.warm: dict[str, TrainState] = {}
        self.tuned: dict[str, EpisodeResult] = {}

    def logs(self, hidden: str) -> Logs:
        """Generate logs of a hidden plant, as `neorl generate` does with the controller of the logs."""
        policy = policy_of(self.plant, "pid")
        (behaviour,) = policy.parts.values()
        keys = jax.random.split(jax.random.key(LOG_SEED + HIDDEN.index(hidden)), LOGGED)
        domain = Domain(self.standard.domain, difference_of(self.known, hidden))
        found = jax.device_get(
            _played(self.hidden, self.plant, policy.base, policy.base_params, behaviour, keys, _single(domain))
        )
        count = round(LOGGED * self.run.data.held_out)
        training = jax.tree.map(lambda x: x[count:], found)
        return Logs(training, jax.tree.map(lambda x: x[:count], found))

    def explained(self, logs: Trajectory, simulator: Simulator) -> tuple[bool, str]:
        """Return whether the simulator gate passes on logs, and the gate's words."""
        keys = jax.random.split(jax.random.key(self.run.seed), SIMULATED_PLANTS)
        chosen, (_, domain) = _chosen(logs), simulator
        params = jax.tree.map(jnp.float32, simulator.params)
        found = jax.device_get(
            replay_errors(self.drawing, params, chosen, jnp.asarray(STEPS_AHEAD), keys, _single(domain))
        )
        errors = signal_errors(self.plant.spec.observation.names, found, chosen, STEPS_AHEAD)
        return domain_explains(errors), simulator_detail(errors)

    def identified(self, logs: Trajectory) -> tuple[Simulator, dict[str, Any]]:
        """Estimate constants A and B from training logs, and return the simulator around the estimates.

        A constant that the logs do not identify keeps its nominal value.

        Returns:
            The simulator, and the estimates relative to the nominal values.
        """
        unknowns = [
            Unknown(edge.name, PRIOR, entry=None if np.ndim(value) == 0 else i)
            for edge in self.known.edges
            for value in [getattr(self.plant.params, edge.name)]
            for i in range(np.size(value))
        ]
        some = jax.tree.map(lambda x: x[:IDENTIFYING], logs)
        found = jax.device_get(identify(self.plant, unknowns, episodes_of(some), inputs=self.known.inputs))
        known = found.identified & bool(found.converged)
        away = found.prior.scale * np.sqrt(np.diagonal(found.covariance))
        centre, deviation = (
            {
                edge.name: [float(x[i]) for i, u in enumerate(unknowns) if u.name == edge.name]
                for edge in self.known.edges
            }
            for x in (np.where(known, found.estimate / found.prior.centre, 1.0), np.where(known, away, 0.0))
        )
        domain = self._around(centre, deviation)
        params = self.plant.params
        for name, factor in domain.centre.items():
            params = params._replace(**{name: factor * jnp.asarray(getattr(params, name))})
        return Simulator(params, domain), {"estimates": centre, "deviations": deviation}

    def _around(self, centre: dict[str, Any], deviation: dict[str, Any]) -> Recentred:
        """Return the run's domain with other centres and deviations; 1 and 0 where not given."""

        def each(values: dict[str, Any], usual: float) -> dict[str, jax.Array]:
            shapes = {edge.name: np.shape(getattr(self.plant.params, edge.name)) for edge in self.known.edges}
            return {
                name: jnp.reshape(jnp.asarray(values.get(name, np.full(shape, usual)), jnp.float32), shape)
                for name, shape in shapes.items()
            }

        return Recentred(self.domain, each(centre, 1.0), each(deviation, 0.0))

    def shield(self, logs: Logs) -> ShieldParams:
        """Return the run's shield with the envelope of the training logs, as `in_simulator.shield_around` does."""
        rows = logs.training.observations[logs.training.alive]
        low, high, deviation = (jnp.float32(x) for x in (rows.min(0), rows.max(0), rows.std(0, dtype=np.float64)))
        envelope = envelope_of(low, high, deviation, self.run.shield.envelope)
        return shield_of(self.plant.spec, self.run.shield, envelope)

    def train(self, simulator: Simulator, shield: ShieldParams) -> Composite:
        """Train a policy in a simulator behind a shield.

        The updates before the shield acts do not depend on its envelope, so all cells with one simulator share them.

        Raises:
            FloatingPointError: if the training diverges.
        """
        learner, rows = self.learner, without_rows(self.plant.spec)
        advance = partial(loop.train, learner, data=rows, batch_size=1, limit=math.inf)
        simulator = _single(simulator)
        if (name := _name(simulator)) not in self.warm:
            fresh = init_population(learner, self.plant.spec, self.config, [Member(0, self.run.seed, {})])
            own = fresh.learner.learner._replace(shield=_stacked(shield), normaliser=_stacked(self.normaliser))
            begun = fresh._replace(learner=Learning(own, _stacked(simulator)))
            first = self.plan._replace(updates=self.plan.warm_up)
            self.warm = {name: advance(fresh=begun, plan=first).population}
        warm = self.warm[name]
        protected = warm.learner._replace(learner=warm.learner.learner._replace(shield=_stacked(shield)))
        trained = advance(fresh=warm._replace(learner=protected), plan=self.plan)
        (policy,) = policies(learner, trained.population, self.normaliser)
        composite = composite_of(policy.params, Setting(self.plant, shield, self.normaliser, self.config))
        return composite._replace(model=jax.tree.map(jnp.asarray, simulator.params))

    def compare(self, composite: Composite, domain: Recentred, difference: Difference, seed: int) -> dict[str, Any]:
        """Compare a composite with the tuned controller on the same episodes of a hidden plant."""
        keys = jax.random.split(jax.random.key(seed), self.episodes)
        everything = _single(Domain(domain, difference))
        shielded, tuned = self.controllers
        ours = jax.device_get(rollouts(self.hidden, shielded, composite, keys, everything, trace=True))
        name = _name((everything, seed))
        if name not in self.tuned:
            self.tuned[name] = jax.device_get(
                rollouts(self.hidden, tuned, self.plant.fallback_params, keys, everything)
            )
        theirs = self.tuned[name]
        steps = ours.trajectory
        points, tuned_points = (self._points(result) for result in (ours, theirs))
        gain = paired_difference_interval(points, tuned_points)
        more, fewer = int(np.sum(ours.violated & ~theirs.violated)), int(np.sum(theirs.violated & ~ours.violated))
        return {
            "learned": float(points.mean()),
            "tuned": float(tuned_points.mean()),
            "gain": float(gain.value),
            "low": float(gain.lower),
            "high": float(gain.upper),
            "violations": int(ours.violated.sum()),
            "tuned_violations": int(theirs.violated.sum()),
            "only_learned": more,
            "only_tuned": fewer,
            "p": by_chance(more, fewer),
            "taken_over": float(steps.handed_over.sum() / steps.alive.sum()),
            "episodes": self.episodes,
        }

    def _points(self, result: EpisodeResult) -> npt.NDArray[np.float64]:
        return np.asarray([score(self.plant.spec, ret) for ret in np.asarray(result.ret, np.float64)])

    def cell(self, hidden: str, variant: str) -> dict[str, Any]:
        """Return the row of one cell and variant: the first gate that refuses, or the comparison on the hidden plant.

        A candidate that a gate on rollouts refuses is compared as well, which shows whether the refusal was right.
        """
        started, logs = time.monotonic(), self.logs(hidden)
        row: dict[str, Any] = {"plant": self.run.plant, "hidden": hidden, "variant": variant}
        judged = self.standard
        if variant == "identified":
            judged, found = self.identified(logs.training)
            row |= found
        passed, row["simulator"] = self.explained(logs.held_out, judged)
        row["gate"] = "" if passed else "simulator"
        narrow = self.standard.domain._replace(known=nominal(self.known, self.domain))
        try:
            composite = self.train(
                judged if variant != "nominal" else judged._replace(domain=narrow), self.shield(logs)
            )
            on_simulator = self.compare(composite, judged.domain, unhidden(self.known), GATE_SEED + self.run.seed)
            row["gate"] = row["gate"] or refusing(on_simulator, self.run.certify.p0)
            row |= {
                f"simulated_{name}": on_simulator[name] for name in ("gain", "low", "violations", "tuned_violations")
            }
            seed = PLAY_SEED + HIDDEN.index(hidden)
            row |= self.compare(composite, self.standard.domain, difference_of(self.known, hidden), seed)
        except FloatingPointError:
            row["gate"] = row["gate"] or "training"
        row["verdict"] = verdict(row)
        return row | {"seconds": round(time.monotonic() - started, 1)}


def learner_of(setting: Setting, standard: Simulator) -> Algorithm:
    """Return the analytic policy gradient with shield, normaliser and simulator in its state.

    Args:
        standard: first simulator of the state.
    """
    plant, _, _, settings = setting
    bound = LEARNERS["analytic_gradient"].bind(setting)

    def init(key: jax.Array, spec: Any, config: Any) -> Learning:
        return Learning(bound.init(key, spec, config), _single(standard))

    def taken(protected: bool, state: Learning, batches: Transition, key: jax.Array) -> Any:
        own, (params, domain) = state
        # Closures, because the composite's controller is cached by the plant, and arrays have no hash.
        numbered = plant._replace(
            sample_params=lambda key, _: plant.sample_params(key, domain),
            predict=lambda observation, action, _: plant.predict(observation, action, params),
        )
        learner_setting = Setting(numbered, own.shield, own.normaliser, settings._replace(**own.hyper))
        following, metrics = update(own, learner_setting, key, protected)
        return state._replace(learner=following), metrics

    return bound._replace(
        init=init, update=partial(taken, True), warm_up=partial(taken, False), actor=lambda state: state.learner.actor
    )


def by_chance(more: int, fewer: int) -> float:
    """Return the probability of at least `more` of the differing pairs at equal risks (exact binomial test).

    P(K >= more) with K ~ Binomial(more + fewer, 1/2): McNemar's exact test, one-sided.

    Args:
        more: pairs in which only the learned policy violates a limit.
        fewer: pairs in which only the tuned controller does.
    """
    if not more + fewer:
        return 1.0
    return float(binomtest(more, more + fewer, 0.5, alternative="greater").pvalue)


def refusing(simulated: dict[str, Any], p0: float) -> str:
    """Return the first gate on rollouts that refuses a candidate, or an empty string.

    Args:
        simulated: comparison on the simulator.
        p0: largest allowed violation probability. `fallback` and `statistical` compare p0 with the estimate that the
            episodes give, because certification has many more episodes.
    """
    if not simulated["low"] > 0:
        return "rollouts"
    for gate, count in (("fallback", "tuned_violations"), ("statistical", "violations")):
        if clopper_pearson_lower(simulated[count], simulated["episodes"], 0.05) > p0:
            return gate
    return ""


def verdict(row: dict[str, Any]) -> str:
    """Return refused, beats, ties or worse."""
    if row["gate"]:
        return "refused"
    if row["low"] > 0:
        return "beats"
    return "ties" if row["gain"] >= -TIE else "worse"


def _single(tree: Any) -> Any:
    """Return all numbers as float32 arrays."""
    return jax.tree.map(jnp.float32, tree)


def _name(tree: Any) -> str:
    """Return all numbers as a string, which is equal for equal trees."""
    return repr([np.asarray(x).tolist() for x in jax.tree.leaves(tree)])


def _stacked(tree: Any) -> Any:
    """Add the leading axis of a population with one member."""
    return jax.tree.map(lambda x: jnp.asarray(x)[None], tree)


def _chosen(logs: Trajectory) -> LoggedEpisodes:
    """Return the first steps of the first episodes, as many as the simulator gate of a retraining uses."""
    longest = min(logs.alive.shape[1], LONGEST_EPISODE)
    count = max(SIMULATED_ROWS // longest, 1)
    parts = (logs.observations, logs.actions, logs.next_observations, logs.alive)
    return LoggedEpisodes(*(jnp.asarray(np.asarray(part)[:count, :longest]) for part in parts))


@partial(jax.jit, static_argnames=("hidden", "plant", "base"))
def _played(
    hidden: Plant,
    plant: Plant,
    base: Controller,
    base_params: Params,
    behaviour: Behaviour,
    keys: jax.Array,
    domain: Params,
) -> Trajectory:
    """Play episodes of the controller of the logs on a hidden plant; `plant` is the simulator."""
    controller = blended(base, plant)

    def episode(key: jax.Array) -> Trajectory:
        key_constants, key_run, key_act = jax.random.split(key, 3)
        constants = hidden.sample_params(key_constants, domain)
        return rollout(hidden, controller, BehaviourParams(base_params, behaviour, key_act), key_run, constants)

    return jax.vmap(episode)(keys)
