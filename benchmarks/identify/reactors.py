"""`make identify`: identify constants of reactors from logs, and certify a controller over the posterior.

    python -m benchmarks.identify.reactors                # 100 reactors, 1,000 trials
    python -m benchmarks.identify.reactors --trials 100   # fewer trials
    python -m benchmarks.identify.reactors --page         # docs/studies/identify.md from the kept results

Each reactor has a reaction rate k0 and a heat transfer UA within 5 % of the nominal values. The PI controller logs 10
episodes for identification and four held-out episodes, each with 60 steps of 26 s. Results are kept in
benchmarks/results/identify.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks import pages
from benchmarks.pages import ROOT, STUDIES, wrap
from neorl_core.identify import Episodes, Unknown, episodes_of, identified_plant
from neorl_core.identify.estimate import Posterior, estimate
from neorl_core.identify.fit import SEGMENT
from neorl_core.identify.unknowns import with_constants
from neorl_core.plants import chemical_reactor as reactor
from neorl_core.plants.base import rollout, rollouts
from neorl_core.plants.replay import LoggedEpisodes, ReplayErrors, replay_errors
from neorl_core.safety.bounds import clopper_pearson_lower, clopper_pearson_upper
from neorl_core.safety.certify import certify
from neorl_core.safety.composite import composite_controller, make_composite
from neorl_core.types import Plant, Timestep
from tasks.files.canonical import read_json, write_json
from tasks.simulate import SIMULATED_PLANTS, STEPS_AHEAD, signal_errors
from tasks.versions.verdicts import domain_explains

RESULTS = ROOT / "benchmarks" / "results" / "identify.json"
PAGE = STUDIES / "identify.md"
PLANT = reactor.PLANT
UNKNOWNS = (Unknown("reaction_rate", 0.03), Unknown("cooling_rate", 0.03))
NAMES = ("k0", "UA")
SPREAD = 0.05
"""Largest relative difference of the true constants from the nominal ones. The prior's standard deviation is 0.03."""
EPISODES, HELD_OUT = 10, 4
"""Logged episodes for identification, and held-out episodes."""
WRONG = ((1.05, 1.0), (0.95, 1.0), (1.0, 1.05), (1.0, 0.95), (1.05, 1.05), (0.95, 0.95))
"""Factors on k0 and UA of a wrong simulator."""
P0, ALPHA, BUDGET = 0.05, 0.05, 400
"""p0, error probability and most episodes of a certificate, which needs 65 episodes and 50 more for each violation."""
UNSAFE = 0.3
"""Wanted share of plants with a risk above p0; the limits are narrowed until this share is reached."""
TRUE_EPISODES = 1024
"""Episodes that measure a risk, the probability of a violated episode. The standard error at p0 is 0.007."""


class Logged(NamedTuple):
    """Reactors and their logs, with a leading axis of reactors."""

    true: Array
    """(N, 2), k0 [1/min] and κ [1/min]."""
    episodes: Episodes
    held_out: Episodes


@partial(jax.jit, static_argnames="count")
def log_reactors(key: Array, count: int) -> Logged:
    """Draw reactors and play the PI controller as found, with the domain's noise and disturbances."""
    domain = reactor.Domain(reaction_spread=SPREAD, cooling_spread=SPREAD)

    def one(key: Array) -> Logged:
        key_constants, key_runs = jax.random.split(key)
        params = reactor.sample_params(key_constants, domain)
        keys = jax.random.split(key_runs, EPISODES + HELD_OUT)
        run = jax.vmap(lambda k: rollout(PLANT, PLANT.fallback, PLANT.found_params, k, params))(keys)
        every = episodes_of(run)
        fitted, held_out = (
            jax.tree.map(lambda x, part=part: x[part], every) for part in (slice(EPISODES), slice(EPISODES, None))
        )
        return Logged(jnp.stack([params.reaction_rate, params.cooling_rate]), fitted, held_out)

    return jax.vmap(one)(jax.random.split(key, count))


@jax.jit
def identify_all(episodes: Episodes) -> Posterior:
    """Return the posterior of each reactor."""
    one = partial(estimate, PLANT.predict, PLANT.params, UNKNOWNS, segment=SEGMENT)
    return jax.vmap(lambda logged: one(episodes=logged))(episodes)


def in_parts(episodes: Episodes, size: int = 100) -> Posterior:
    """Run `identify_all` in parts of one size, which bounds the memory."""
    count = len(episodes.actions)
    size = min(size, count)
    parts = [identify_all(jax.tree.map(lambda x, i=i: x[i : i + size], episodes)) for i in range(0, count, size)]
    return jax.tree.map(lambda *x: np.concatenate([np.asarray(each) for each in x]), *parts)


def accuracy(true: Array, posterior: Posterior) -> dict[str, Any]:
    """Return errors of the estimates, and how often intervals cover the true constants."""
    error = np.asarray(posterior.estimate) / np.asarray(true) - 1
    before = np.asarray(posterior.prior.centre) / np.asarray(true) - 1
    covered = (np.asarray(posterior.low) <= true) & (true <= np.asarray(posterior.high))
    found: dict[str, Any] = {"reactors": len(error), "converged": int(np.sum(posterior.converged))}
    for i, name in enumerate(NAMES):
        found[name] = {
            "rms_percent": 100 * float(np.sqrt(np.mean(error[:, i] ** 2))),
            "prior_rms_percent": 100 * float(np.sqrt(np.mean(before[:, i] ** 2))),
            "worse_than_prior": float(np.mean(np.abs(error[:, i]) > np.abs(before[:, i]))),
            "covered": float(np.mean(covered[:, i])),
        }
    return found


def domains_of(plant: Plant, posterior: Posterior) -> tuple[Plant, list[Any]]:
    """Return one plant that draws from posteriors, and the domain of each posterior."""
    count = len(posterior.estimate)
    known = [identified_plant(plant, UNKNOWNS, jax.tree.map(lambda x, i=i: x[i], posterior)) for i in range(count)]
    return known[0]._replace(params=plant.params, domain=plant.domain), [each.domain for each in known]


def gates(logged: Logged, posterior: Posterior, key: Array) -> dict[str, Any]:
    """Return the shares of identified simulators that the gate passes, and of wrong ones that it refuses."""
    plant, domains = domains_of(PLANT, posterior)
    stacked = jax.tree.map(lambda *x: jnp.asarray(x), *domains)
    names = [f"identified_{unknown.name}" for unknown in UNKNOWNS]

    def replayed(domain: Any, logs: LoggedEpisodes, key: Array, factor: Array) -> ReplayErrors:
        values = jnp.stack([getattr(domain, name) for name in names]) * factor
        domain = domain._replace(**dict(zip(names, values, strict=True)))
        params = with_constants(PLANT.params, UNKNOWNS, values)
        keys = jax.random.split(key, SIMULATED_PLANTS)
        return replay_errors(plant, params, logs, jnp.asarray(STEPS_AHEAD), keys, domain)

    logs = jax.vmap(logged_episodes)(logged.held_out)

    def share(factor: Sequence[float]) -> float:
        keys = jax.random.split(key, len(domains))
        found = jax.device_get(jax.vmap(replayed, (0, 0, 0, None))(stacked, logs, keys, jnp.asarray(factor)))
        passed = 0
        for i in range(len(domains)):
            errors, its = (jax.tree.map(lambda x, i=i: x[i], of) for of in (found, logs))
            passed += domain_explains(signal_errors(PLANT.spec.observation.names, errors, its, STEPS_AHEAD))
        return passed / len(domains)

    wrong = {f"k0 × {a:g}, UA × {b:g}": 1 - share((a, b)) for a, b in WRONG}
    return {"passed": share((1.0, 1.0)), "refused": float(np.mean(list(wrong.values()))), "refused_by_error": wrong}


def logged_episodes(episodes: Episodes) -> LoggedEpisodes:
    """Return episodes in the gate's format; steps after the end of an episode are marked as absent."""
    seen, then = episodes.observations[:, :-1], episodes.observations[:, 1:]
    present = jnp.all(jnp.isfinite(then), axis=-1)
    before = jnp.where(present[..., None], seen, seen[:, :1])
    return LoggedEpisodes(before, episodes.actions, jnp.where(present[..., None], then, before), present)


def tightened(plant: Plant, by: float) -> Plant:
    """Return the plant with both limits moved inwards by `by`, in the unit of the limits; the plant trips there."""

    def step(key: Array, state: Any, action: Array, params: Any) -> tuple[Any, Timestep]:
        following, now = plant.step(key, state, action, params)
        margins = now.margins - by
        return following, now._replace(margins=margins, terminated=now.terminated | ~jnp.all(margins >= 0))

    return plant._replace(step=step)


def set_limits(plant: Plant, domains: Sequence[Any], key: Array) -> float:
    """Return how far to move the limits inwards, so that about a share UNSAFE of the domains has a risk above p0."""
    controller, composite = composite_controller(plant), make_composite(plant)
    keys = jax.random.split(key, TRUE_EPISODES)
    least = [np.min(rollouts(plant, controller, composite, keys, domain).min_margins, axis=1) for domain in domains]
    return float(np.quantile([np.quantile(each, P0) for each in least], UNSAFE))


def trials(count: int, seed: int) -> dict[str, Any]:
    """Identify reactors, certify a fixed composite over each posterior, and compare with the true risks."""
    started = time.perf_counter()
    pilot = log_reactors(jax.random.key(seed), 40)
    by = set_limits(*domains_of(PLANT, in_parts(pilot.episodes)), jax.random.key(seed + 1))
    key = jax.random.key(seed + 2)
    rows: list[tuple[float, float, bool]] = []
    covered = []
    while len(rows) < count:
        key, key_logs, key_risk, key_true = jax.random.split(key, 4)
        logged = log_reactors(key_logs, min(100, count))
        posterior = in_parts(logged.episodes)
        covered.append(accuracy(logged.true, posterior))
        plant, domains = domains_of(PLANT, posterior)
        # Use one object per plant, because a new object would compile all programs again.
        plant = _TIGHT.setdefault(plant, tightened(plant, by))
        controller, composite = composite_controller(plant), make_composite(plant)

        def risk(domain: Any, key: Array, plant: Plant = plant, run: Any = (controller, composite)) -> float:
            return float(np.mean(rollouts(plant, *run, jax.random.split(key, TRUE_EPISODES), domain).violated))

        for i, domain in enumerate(domains[: count - len(rows)]):
            exact = {name: float(v) for name, v in zip(_centres(domain), logged.true[i], strict=True)}
            exact |= {name: 0.0 for name in domain._fields if name.startswith("identified_") and name not in exact}
            verdict = certify(
                plant,
                controller,
                composite,
                domain,
                seed * 10**6 + len(rows),
                p0=P0,
                alpha=ALPHA,
                max_episodes=BUDGET,
                batch=BUDGET,
            )
            risks = (
                risk(domain, jax.random.fold_in(key_risk, i)),
                risk(domain._replace(**exact), jax.random.fold_in(key_true, i)),
            )
            rows.append((*risks, verdict.certified))
        print(f"{len(rows)} trials, {time.perf_counter() - started:.0f} s", flush=True)
    return _summary(np.asarray(rows), covered, by) | {"seconds": time.perf_counter() - started}


_TIGHT: dict[Plant, Plant] = {}


def _centres(domain: Any) -> list[str]:
    return [name for name in (f"identified_{unknown.name}" for unknown in UNKNOWNS) if name in domain._fields]


def _summary(rows: np.ndarray, covered: Sequence[dict[str, Any]], by: float) -> dict[str, Any]:
    risk, true, certified = rows[:, 0], rows[:, 1], rows[:, 2] > 0
    unsafe, false = int(np.sum(risk > P0)), int(np.sum(certified & (risk > P0)))
    limit = reactor.LIMIT
    return {
        "trials": len(rows),
        "p0": P0,
        "alpha": ALPHA,
        "episodes": BUDGET,
        "limits": [limit.low + by, limit.high - by],
        "unsafe": unsafe,
        "falsely_certified": false,
        "falsely_certified_interval": [
            clopper_pearson_lower(false, max(unsafe, 1), 0.025),
            clopper_pearson_upper(false, max(unsafe, 1), 0.025),
        ],
        "certified": int(np.sum(certified)),
        "certified_of_safe": float(np.mean(certified[risk <= P0])),
        "certified_true_risk_above_p0": int(np.sum(certified & (true > P0))),
        "true_risk_below_p0_of_certified": float(np.mean(true[certified] <= P0)),
        "covered": {name: float(np.mean([each[name]["covered"] for each in covered])) for name in NAMES},
    }


def page(found: dict[str, Any]) -> str:
    """Return docs/studies/identify.md."""
    one, gate, many = found["accuracy"], found["gate"], found["trials"]
    low, high = many["falsely_certified_interval"]
    constants = [
        (
            name,
            f"{one[name]['rms_percent']:.2f} %",
            f"{one[name]['prior_rms_percent']:.2f} %",
            f"{one[name]['worse_than_prior']:.0%}",
            f"{one[name]['covered']:.0%}",
        )
        for name in NAMES
    ]
    trials = [
        ("trials with a risk over the posterior above p0", many["unsafe"]),
        ("certified among these", f"{many['falsely_certified']} (95 % interval {low:.1%} to {high:.1%})"),
        ("certified among the other trials", f"{many['certified_of_safe']:.0%}"),
        (
            f"share of the {many['certified']} certified plants whose true risk is at most p0",
            f"{many['true_risk_below_p0_of_certified']:.1%}",
        ),
        *((f"{name} within the 95 % interval", f"{many['covered'][name]:.1%}") for name in NAMES),
    ]
    return pages.study(
        "Constants from logs",
        "Does identification find a plant's constants from logs, and are certificates for identified plants valid?",
        f"Identification reduces the error of k0 from {one['k0']['prior_rms_percent']:.1f} % to "
        f"{one['k0']['rms_percent']:.2f} % and of UA from {one['UA']['prior_rms_percent']:.1f} % to "
        f"{one['UA']['rms_percent']:.2f} %. Of {many['unsafe']} identified plants with a risk above the "
        f"claimed one, {many['falsely_certified']} get a certificate.",
        f"`make identify` takes {found['seconds']:.0f} s.",
        wrap(
            f"{one['reactors']} simulated reactors have a reaction rate k0 and a heat transfer UA within 5 % of the "
            "nominal values. Each has 10 logged episodes of 60 steps with the PI controller. Before identification "
            "both constants are known to 3 % (the prior); the posterior is the estimate with its uncertainty. The "
            f"simulator gate passes {gate['passed']:.0%} of the identified simulators and refuses "
            f"{gate['refused']:.1%} of simulators with constants that are 5 % wrong. Columns:"
        ),
        COLUMNS,
        pages.table(("constant", "rms error", "prior", "worse than prior", "covered by the 95 % interval"), constants),
        wrap(
            f"In each of {many['trials']} trials, a new reactor is identified and the PI controller is certified for "
            "the posterior. The claim: the temperature leaves the range from "
            f"{many['limits'][0]:.2f} to {many['limits'][1]:.2f} K "
            f"with a probability below p0 = {many['p0']:g}. The error probability is α = {many['alpha']:g}; a trial "
            f"has at most {many['episodes']} episodes. A *risk* is the share of {TRUE_EPISODES:,} episodes that "
            "violate a limit. "
            "For the risk *over the posterior*, each episode draws its constants from the posterior. The *true risk* "
            "uses the true constants."
        ),
        pages.table(("quantity", "result"), trials),
    )


COLUMNS = """- *rms error*: root mean square relative error of the identified constant
- *prior*: the same error before identification
- *worse than prior*: share of reactors with a larger error after identification
- *covered by the 95 % interval*: share of reactors with the true constant inside the interval"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reactors", type=int, default=100)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(read_json(RESULTS)))
        return
    started = time.perf_counter()
    key_logs, key_gate = jax.random.split(jax.random.key(options.seed))
    logged = log_reactors(key_logs, options.reactors)
    posterior = in_parts(logged.episodes)
    found: dict[str, Any] = {"accuracy": accuracy(logged.true, posterior)}
    print(found["accuracy"], f"{time.perf_counter() - started:.0f} s", flush=True)
    found["gate"] = gates(logged, posterior, key_gate)
    print(found["gate"], f"{time.perf_counter() - started:.0f} s", flush=True)
    found["trials"] = trials(options.trials, options.seed + 1)
    found["seconds"] = time.perf_counter() - started
    print(found["trials"])
    write_json(options.out, found)
    if options.out == RESULTS:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
