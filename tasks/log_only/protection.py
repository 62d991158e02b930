"""Fallback of a log-only plant, and a shield calibrated on logs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from configs.errors import BadInput
from configs.fallback import Fallback
from configs.home import Home
from configs.run import OpenedRun
from neorl_core.control import fallbacks
from neorl_core.control.fallbacks import Hold, LinearLaw, PIDLoops, fit_linear_law
from neorl_core.history import resting_action
from neorl_core.networks import Policy, actor_apply, actor_init, normalise, to_unit
from neorl_core.safety.composite import Composite
from neorl_core.safety.shield import envelope_of
from neorl_core.safety.support import (
    SupportShield,
    conformal_quantile,
    support_score,
)
from neorl_core.training import optimisers
from neorl_core.training.optimisers import Optimiser, Recipe
from neorl_core.training.preparation import make_scaling, moments
from neorl_core.types import Params, PlantSpec
from tasks.data.store import reader
from tasks.data.store.episodes import Logs, halves, read_logs
from tasks.evaluation.support import logged_support, steps_of, thinned
from tasks.models.plants.known import plant_of
from tasks.references import Bundle, Dataset
from tasks.stages import cached
from tasks.training.train import keep_bundle

RETURN_SHARE = 0.8
"""The policy regains control within this share of the radius, which prevents rapid switching."""
LEAST_RATE = 1e-3
"""Smallest rate limit per step, as a share of the action's range, for actions that hardly move in the logs."""
CLONING_STEPS = 2_000
CLONING_HIDDEN = (32,)


@cached(name="fallback")
def protect(home: Home, run: OpenedRun, dataset: Dataset) -> Bundle:
    """Store a composite without policy: the fallback, and a shield that is calibrated on logs.

    Args:
        dataset: training episodes determine references, rates and a cloned law, held-out episodes the radius.

    Raises:
        BadInput: if the fallback names unknown signals or actions, or there are fewer than two held-out episodes.
    """
    plant = plant_of(run)
    store = reader.StoredDataset.open(dataset.store, dataset.digest)
    training, held_out = (read_logs(store, episodes) for episodes in store.split(run.data.held_out))
    shield = calibrated_shield(run, plant.spec, training, halves(held_out)[0])
    composite = Composite(None, shield, make_fallback(run, plant.spec, training, shield), ())
    return keep_bundle(home, composite, plant)


def calibrated_shield(run: OpenedRun, spec: PlantSpec, training: Logs, calibration: Logs) -> SupportShield:
    """Return a shield with bounds from the spec, rates and references from training, and the radius from held-out logs.

    Args:
        training: logged steps for rates and references.
        calibration: held-out steps for the radius.
    """
    logged, unseen, observed = logged_support(spec, training, run.seed), steps_of(calibration), spec.observation.size
    low, high = logged.low[:observed], logged.high[:observed]
    envelope = envelope_of(
        jnp.asarray(low, float),
        jnp.asarray(high, float),
        jnp.asarray(logged.scale[:observed], float),
        run.shield.envelope,
    )
    shield = SupportShield(
        action_low=jnp.asarray(spec.action.low, float),
        action_high=jnp.asarray(spec.action.high, float),
        rate_limit=jnp.asarray(_rates(run, spec, training), float),
        rest=jnp.asarray(resting_action(training.transitions.action, spec.action.low, spec.action.high), float),
        hold=jnp.asarray(run.shield.hold, jnp.int32),
        observation_low=envelope[0],
        observation_high=envelope[1],
        centre=jnp.asarray(logged.centre, float),
        scale=jnp.asarray(logged.scale, float),
        references=logged.references,
        radius=jnp.asarray(jnp.inf, float),
        return_radius=jnp.asarray(jnp.inf, float),
    )
    scores = jax.jit(jax.vmap(support_score, (None, 0, 0)))(shield, unseen[:, :observed], unseen[:, observed:])
    radius = conformal_quantile(scores, run.support.quantile)
    return shield._replace(radius=jnp.asarray(radius, float), return_radius=jnp.asarray(RETURN_SHARE * radius, float))


def make_fallback(run: OpenedRun, spec: PlantSpec, training: Logs, shield: SupportShield) -> fallbacks.Fallback:
    """Return the fallback that a run describes.

    Args:
        shield: its rest action and rate limits are the defaults for a hold.

    Raises:
        BadInput: if the run has no fallback, or the fallback names unknown signals or actions.
    """
    check_fallback(run, spec)
    assert run.fallback is not None
    match run.fallback.kind:
        case "pid":
            return _loops(run.fallback, spec)
        case "hold":
            names, given = spec.action.names, run.fallback
            target = [given.toward.get(name, float(shield.rest[i])) for i, name in enumerate(names)]
            rate = [
                given.rate.get(name, float(shield.rate_limit[i])) if name in given.toward else 0.0
                for i, name in enumerate(names)
            ]
            return Hold(jnp.asarray(target, float), jnp.asarray(rate, float))
        case "cloned":
            return _cloned(run, spec, training)


def check_fallback(run: OpenedRun, spec: PlantSpec) -> None:
    """Check the settings `fallback` and `shield` of a log-only plant before any data are read.

    Raises:
        BadInput: if a key of `fallback`, `shield` or the mapping is missing or does not fit; names the key.
    """
    given = run.fallback
    if given is None:
        raise BadInput(
            f"the run of log-only plant {run.plant} needs 'fallback': add the controller that takes over, such as "
            "{kind: hold, toward: {" + f"{spec.action.names[0]}: 0.0" + "}}"
        )
    if not np.isfinite([spec.action.low, spec.action.high]).all():
        name = next(
            n for n, lo, hi in zip(*spec.action[:1], *spec.action[2:], strict=True) if not np.isfinite([lo, hi]).all()
        )
        raise BadInput(
            f"action {name} needs a two-sided 'range': add the actuator's limits to its tag in "
            f"{run.data.mapping or 'the mapping'}, such as range: [0, 100]"
        )
    if run.shield.dwell > 1:
        raise BadInput(
            f"shield.dwell is {run.shield.dwell}, but {run.plant} has continuous actions: use shield.rate_limits"
        )
    predicting = [name for name in ("look_ahead", "buffers", "return_buffers") if name in run.shield.model_fields_set]
    if predicting:
        raise BadInput(f"'shield.{predicting[0]}' needs a simulator, which {run.plant} does not have: remove it")
    acting = [*(loop.action for loop in given.loops), *given.toward, *given.rate, *run.shield.rate_limits]
    observed = [loop.measured for loop in given.loops]
    observed += [loop.set_point for loop in given.loops if isinstance(loop.set_point, str)]
    for kind, names, known in (("action", acting, spec.action.names), ("signal", observed, spec.observation.names)):
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise BadInput(
                f"'fallback' or 'shield' names the unknown {kind} '{unknown}': choose from {', '.join(known)}"
            )
    _check_safe_values(given, spec)


def _check_safe_values(given: Fallback, spec: PlantSpec) -> None:
    """Check that safe values are within the action's range, because a value in a wrong unit would be clipped."""
    ranges = {name: (low, high) for name, low, high in zip(spec.action.names, *spec.action[2:], strict=True)}
    values = [("safe value", name, value) for name, value in given.toward.items()]
    values += [("bias", loop.action, loop.bias) for loop in given.loops if loop.bias is not None]
    for setting, name, value in values:
        low, high = ranges[name]
        if not low <= value <= high:
            raise BadInput(
                f"the {setting} of {name} must be within {low:g} to {high:g}, got {value:g}: use the action's unit"
            )


def fallback_in_words(given: Fallback, spec: PlantSpec) -> str:
    """Describe a fallback in a few words for the report."""
    match given.kind:
        case "pid":
            loops = ", ".join(f"{loop.action} on {loop.measured}" for loop in given.loops)
            held = [name for name in spec.action.names if name not in {loop.action for loop in given.loops}]
            return f"PID loops of the run's file ({loops})" + (f", {', '.join(held)} held" if held else "")
        case "cloned":
            return f"a {given.law} law cloned from the logged actions"
        case "hold":
            toward = ", ".join(f"{name} toward {value:g}" for name, value in given.toward.items())
            return f"holding the last action{f', {toward} at a rate limit' if toward else ''}"


def _loops(given: Fallback, spec: PlantSpec) -> PIDLoops:
    by_action = {loop.action: loop for loop in given.loops}
    observed, columns = list(spec.observation.names), dict[str, list[float]]()
    for i, name in enumerate(spec.action.names):
        loop = by_action.get(name)
        constant = loop.set_point if loop is not None and not isinstance(loop.set_point, str) else 0.0
        named = loop is not None and isinstance(loop.set_point, str)
        row = {
            "measured": observed.index(loop.measured) if loop else 0,
            "set_point": observed.index(str(loop.set_point)) if loop and named else len(observed) + i,
            "constant": constant,
            # With zero gains, a loop keeps the applied action.
            "kp": loop.kp if loop else 0.0,
            "ki": loop.ki if loop else 0.0,
            "kd": loop.kd if loop else 0.0,
            "bias": loop.bias or 0.0 if loop else 0.0,
            "positional": bool(loop and loop.bias is not None),
            "low": spec.action.low[i],
            "high": spec.action.high[i],
            "dt": spec.dt,
        }
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    kinds = {"measured": jnp.int32, "set_point": jnp.int32, "positional": jnp.bool_}
    return PIDLoops(**{key: jnp.asarray(values, kinds.get(key, float)) for key, values in columns.items()})


def _cloned(run: OpenedRun, spec: PlantSpec, training: Logs) -> LinearLaw | Policy:
    t, given = training.transitions, run.fallback
    observation, action = thinned(np.asarray(t.observation)), thinned(np.asarray(t.action))
    if given is not None and given.law == "linear":
        return fit_linear_law(observation, action, spec.action.low, spec.action.high)
    normaliser = make_scaling(moments(t), spec).normaliser
    x, u = normalise(normaliser, jnp.asarray(observation)), to_unit(normaliser, jnp.asarray(action))
    params = actor_init(jax.random.key(run.seed), spec.observation.size, spec.action.size, CLONING_HIDDEN)
    recipe = Recipe(schedule="cosine", steps=CLONING_STEPS)

    @jax.jit
    def clone(params: Params) -> Params:
        def step(carry: tuple[Params, Optimiser], number: jax.Array) -> tuple[tuple[Params, Optimiser], None]:
            weights, optimiser = carry
            rows = jax.random.randint(jax.random.fold_in(jax.random.key(run.seed), number), (256,), 0, x.shape[0])
            gradient = jax.grad(lambda w: jnp.mean((actor_apply(w, x[rows]) - u[rows]) ** 2))(weights)
            return optimisers.step(weights, gradient, optimiser, jnp.asarray(1e-2, x.dtype)), None

        begun = (params, optimisers.init(recipe, params))
        (weights, _), _ = jax.lax.scan(step, begun, jnp.arange(CLONING_STEPS))
        return weights

    return Policy(clone(params), normaliser)


def _rates(run: OpenedRun, spec: PlantSpec, training: Logs) -> list[float]:
    """Return the rate limits of the run, or the largest logged change of each action in a step."""
    action = np.asarray(training.transitions.action, np.float64)
    moved = np.abs(np.diff(action, axis=0))[training.followed[:-1]]
    largest = moved.max(axis=0) if len(moved) else np.zeros(spec.action.size)
    least = LEAST_RATE * (np.asarray(spec.action.high) - np.asarray(spec.action.low))
    logged = np.maximum(largest, least)
    return [run.shield.rate_limits.get(name, float(logged[i])) for i, name in enumerate(spec.action.names)]
