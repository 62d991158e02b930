"""Maximum a posteriori estimation of a plant's unknown constants from multi-step forecast errors.

phi(x) = 1/2 |x|^2 + 1/2 sum_t |e_t(x)|^2,   e_t = C^-1/2 R^-1/2 S_j^-1 (y_t - f_t(x))

- x: the unknowns in the coordinates of `unknowns.Prior`; y: measurements; f: forecasts of `forecast.forecast`.
- S_j: standard deviations of the signals' errors j steps after the start of a segment (diagonal).
- R: correlation between signals; C: inflation of the remaining errors by correlation in time (diagonal).

Assumptions:

- Any controller may have produced the logs, because forecasts use the logged actions.
- A segment starts from measurements, so their noise is part of the errors. The noise also biases estimates, by a share
  of about (noise / range of the signal)^2. Longer segments reduce this bias. Noisy starts can be estimated (`Start`).
- Disturbances last longer than a step, so errors are correlated in time. C reduces the weight of the data to the weight
  of fewer, independent errors (see `inflation_of`). R accounts for disturbances that affect several signals.
- Disturbances of different episodes are independent, with mean zero over all episodes. A disturbance with a nonzero
  mean cannot be distinguished from a change of the constants.
- Intervals use the spread of scores between episodes, because the covariance of errors is not modelled (sandwich, White
  1982, Econometrica 50; clusters: Liang and Zeger 1986, Biometrika 73).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.special import stdtrit

from neorl_core.control.mpc import Predict
from neorl_core.identify.forecast import Episodes, Noise, errors, forecast, noise_of
from neorl_core.identify.unknowns import Prior, Unknown, constants, prior_of, with_constants
from neorl_core.types import Params

ROUNDS = 5
"""Rounds of the estimation. Each round computes weights from the errors, then fits the constants with these weights."""
MOST_STEPS = 25
"""Maximum number of Levenberg-Marquardt steps per round."""
FIRST_DAMPING, MOST_DAMPING = 1e-3, 1e8
SMALL = 1e-3
"""Step size, in prior deviations, that ends a round."""
IDENTIFIED = 0.7
"""Largest posterior deviation of an identified constant, as a share of the prior deviation."""


class Start(NamedTuple):
    """Normal prior for the unknown value of a signal at the start of each episode."""

    signal: int
    spread: float
    """Prior standard deviation, in the signal's unit."""
    centre: float | None = None
    """Prior mean; None for the measurement."""


class Posterior(NamedTuple):
    """Posterior of P unknowns. All fields are arrays, with leading axes if many plants were identified at once."""

    estimate: Float[Array, "*n P"]
    """In the constants' own units."""
    low: Float[Array, "*n P"]
    high: Float[Array, "*n P"]
    """Ends of the interval of each constant."""
    mean: Float[Array, "*n P"]
    """Standardised coordinates of the estimate: the prior has mean 0 and covariance 1."""
    covariance: Float[Array, "*n P P"]
    """In standardised coordinates."""
    prior: Prior
    identified: Bool[Array, "*n P"]
    """Whether the posterior deviation is at most `IDENTIFIED` times the prior deviation."""
    starts: Float[Array, "*n E H"]
    """Estimated starts of each episode, in the signals' units."""
    residuals: Float[Array, "*n E T O"]
    """Measurement minus forecast, zero where not measured."""
    noise: Noise
    degrees: Float[Array, "*n P"]
    """Degrees of freedom of each interval's t distribution."""
    converged: Bool[Array, "*n"]


class _Linear(NamedTuple):
    """Forecast errors and their slopes at given unknowns, for E episodes."""

    residuals: Float[Array, "E T O"]
    slopes: Float[Array, "E T O Q"]
    """Slopes of the forecasts with respect to the P unknowns and the H starts of the episode."""


class _Point(NamedTuple):
    """Unknowns, and starts of each episode, standardised."""

    x: Float[Array, " P"]
    z: Float[Array, "E H"]


class _Search(NamedTuple):
    """State of the search."""

    point: _Point
    linear: _Linear
    damping: Float[Array, ""]
    moved: Float[Array, ""]
    tries: Float[Array, ""]


@partial(jax.jit, static_argnames=("predict", "unknowns", "segment", "starts", "inputs", "confidence"))
def estimate(
    predict: Predict,
    params: Params,
    unknowns: tuple[Unknown, ...],
    episodes: Episodes,
    segment: int,
    starts: tuple[Start, ...] = (),
    inputs: tuple[int, ...] = (),
    confidence: float = 0.95,
) -> Posterior:
    """Return the posterior of the unknowns. `jax.vmap` over `episodes` identifies many plants at once.

    Each round computes weights from the errors, then fits the constants by Levenberg-Marquardt (Marquardt 1963, SIAM J.
    11). The first round ignores correlation in time (C = 1), because wrong constants also cause correlated errors.

    Args:
        predict: the plant's model of one step.
        params: nominal constants of the plant.
        unknowns: P constants with priors.
        episodes: E episodes, NaN where not measured.
        segment: steps S of a forecast before it restarts from the measurements.
        starts: priors of H signals with unknown values at the start of each episode.
        inputs: indices of signals that act on the plant, such as weather; forecasts use their measurements.
    """
    prior = prior_of(params, unknowns)
    observations, actions = jnp.asarray(episodes.observations), jnp.asarray(episodes.actions)
    precision = observations.dtype
    prior = jax.tree.map(lambda a: a.astype(precision), prior)
    is_input = jnp.zeros(observations.shape[-1], bool).at[jnp.asarray(inputs, int)].set(True)
    where = jnp.asarray([start.signal for start in starts], int)
    first = jnp.where(jnp.isfinite(observations[:, 0]), observations[:, 0], 0.0)
    centres = [jnp.full(len(first), s.centre) if s.centre is not None else first[:, s.signal] for s in starts]
    origin = jnp.stack(centres, axis=-1).astype(precision) if starts else jnp.zeros((len(first), 0), precision)
    reach = jnp.asarray([start.spread for start in starts], precision)

    # Exclude inputs, because their 'forecast' is the measurement itself.
    measured = (jnp.isfinite(observations[:, 1:]) & ~is_input).astype(precision)

    def residuals(
        x: Float[Array, " P"],
        z: Float[Array, " H"],
        centre: Float[Array, " H"],
        begin: Float[Array, " O"],
        seen: Float[Array, "T1 O"],
        done: Float[Array, "T A"],
    ) -> Float[Array, "T O"]:
        now = with_constants(params, unknowns, constants(prior, unknowns, x))
        begin = begin.at[where].set(centre + reach * z) if where.size else begin
        return errors(forecast(predict, now, begin, seen, done, segment, is_input), seen)

    def linear_at(point: _Point) -> _Linear:
        def one(z: Float[Array, " H"], *rest: Array) -> tuple[Array, Array]:
            def both(q: Float[Array, " Q"]) -> tuple[Array, Array]:
                r = residuals(q[: len(unknowns)], q[len(unknowns) :], *rest)
                return r, r

            slopes, r = jax.jacfwd(both, has_aux=True)(jnp.concatenate([point.x, z]))
            return r, -slopes

        r, slopes = jax.vmap(one)(point.z, origin, first, observations, actions)
        return _Linear(measured * r, measured[..., None] * slopes)

    eps = np.finfo(precision).eps
    floor = jnp.square(8.0 * eps * jnp.max(jnp.abs(first), axis=0)) + eps**4

    def fit_round(i: Array, search: _Search) -> _Search:
        noise = noise_of(search.linear.residuals, measured, segment, floor)
        plain = jnp.where(i > 0, noise.inflation, 1.0)
        return _search(linear_at, search, partial(_whitened, noise._replace(inflation=plain)))

    nowhere = _Point(jnp.zeros(len(unknowns), precision), jnp.zeros((len(first), len(starts)), precision))
    result = jax.lax.fori_loop(0, ROUNDS, fit_round, _begin(nowhere, linear_at(nowhere)))
    point, linear = result.point, result.linear
    noise = noise_of(linear.residuals, measured, segment, floor)
    covariance, degrees = _covariance(_whitened(noise, linear), point)
    deviation = jnp.sqrt(jnp.diagonal(covariance))
    half = _quantile(degrees, len(first), confidence) * deviation
    return Posterior(
        estimate=constants(prior, unknowns, point.x),
        low=constants(prior, unknowns, point.x - half),
        high=constants(prior, unknowns, point.x + half),
        mean=point.x,
        covariance=covariance,
        prior=prior,
        identified=deviation <= IDENTIFIED,
        starts=origin + reach * point.z,
        residuals=linear.residuals,
        noise=noise,
        degrees=degrees,
        converged=result.moved <= SMALL,
    )


def _whitened(noise: Noise, linear: _Linear) -> _Linear:
    """Scale errors and slopes so that independent errors have variance 1 and correlated errors have less weight."""
    residuals, slopes = linear
    segment = noise.deviation.shape[0]
    scale = noise.deviation[jnp.arange(residuals.shape[1]) % segment]
    turn = noise.whitening / jnp.sqrt(noise.inflation)[None, :]
    turned = jnp.einsum("etoq,op->etpq", slopes / scale[..., None], turn)
    return _Linear((residuals / scale) @ turn, turned)


def _normal(linear: _Linear) -> tuple[Float[Array, "E Q Q"], Float[Array, "E Q"]]:
    """Return the information `J'J` and score `J'r` of each episode, whitened."""
    information = jnp.einsum("etoq,etop->eqp", linear.slopes, linear.slopes)
    return information, jnp.einsum("etoq,eto->eq", linear.slopes, linear.residuals)


def _begin(point: _Point, linear: _Linear) -> _Search:
    one = jnp.ones((), point.x.dtype)
    return _Search(point, linear, FIRST_DAMPING * one, jnp.inf * one, jnp.zeros((), jnp.int32))


def _search(linear_at: Callable[[_Point], _Linear], search: _Search, whiten: Callable[[_Linear], _Linear]) -> _Search:
    """Minimise by Levenberg-Marquardt with given weights."""

    def objective(point: _Point, linear: _Linear) -> Float[Array, ""]:
        value = jnp.sum(whiten(linear).residuals ** 2) + jnp.sum(point.x**2) + jnp.sum(point.z**2)
        return jnp.where(jnp.isfinite(value), value, jnp.inf)

    def unfinished(s: _Search) -> Bool[Array, ""]:
        return (s.tries < MOST_STEPS) & (s.moved > SMALL) & (s.damping < MOST_DAMPING)

    def step(s: _Search) -> _Search:
        move = _move(*_normal(whiten(s.linear)), s.point, s.damping)
        tried: _Point = jax.tree.map(jnp.add, s.point, move)
        there = linear_at(tried)
        better = objective(tried, there) <= objective(s.point, s.linear)
        moved = jnp.max(jnp.abs(jnp.concatenate([move.x, move.z.ravel()])))
        point, linear = jax.tree.map(lambda new, old: jnp.where(better, new, old), (tried, there), (s.point, s.linear))
        return _Search(
            point=point,
            linear=linear,
            damping=jnp.where(better, 0.1, 10.0) * s.damping,
            # A small step that rounding prevents from improving is rejected, but still ends the round.
            moved=jnp.where(better | (moved <= SMALL), moved, jnp.inf),
            tries=s.tries + 1,
        )

    result: _Search = jax.lax.while_loop(unfinished, step, _begin(search.point, search.linear))
    return result


def _move(
    information: Float[Array, "E Q Q"], score: Float[Array, "E Q"], point: _Point, damping: Float[Array, ""]
) -> _Point:
    """Return the step `(H + damping diag H) d = -gradient`, eliminating the starts by episode (Schur complement)."""
    size = point.x.shape[0]
    xx, xz, zz = _blocks(information, size)
    descent_x = jnp.sum(score[:, :size], axis=0) - point.x
    descent_z = score[:, size:] - point.z
    xx = xx + damping * jnp.diag(jnp.diagonal(xx))
    if not point.z.shape[1]:
        return _Point(jnp.linalg.solve(xx, descent_x), point.z)
    zz = zz * (1.0 + damping * jnp.eye(zz.shape[-1], dtype=zz.dtype))
    through = jnp.linalg.solve(zz, jnp.swapaxes(xz, 1, 2))
    alone = jnp.linalg.solve(zz, descent_z[..., None])[..., 0]
    x = jnp.linalg.solve(xx - jnp.sum(xz @ through, axis=0), descent_x - jnp.einsum("exz,ez->x", xz, alone))
    return _Point(x, alone - through @ x)


def _blocks(information: Float[Array, "E Q Q"], size: int) -> tuple[Array, Array, Array]:
    """Return the information with priors: of the unknowns (P, P), of both (E, P, H), of the starts (E, H, H)."""
    starts = information.shape[-1] - size
    xx = jnp.sum(information[:, :size, :size], axis=0) + jnp.eye(size, dtype=information.dtype)
    return xx, information[:, :size, size:], information[:, size:, size:] + jnp.eye(starts, dtype=information.dtype)


def _covariance(linear: _Linear, point: _Point) -> tuple[Float[Array, "P P"], Float[Array, " P"]]:
    """Return `H^-1 (1 + K) H^-1`, the covariance of the error averaged over the prior, and the degrees of freedom.

    `H = 1 + A` is the curvature, A the sum of the information a_e of each episode. K is the covariance of the total
    score, estimated from the scores of E episodes with E - 1 degrees of freedom (Cameron and Miller 2015, Journal of
    Human Resources 50, section VI). This estimate is unreliable if only a few episodes inform about a constant (section
    VI.D). So E is replaced by the effective number of informative episodes, `n = (sum a_e)^2 / sum a_e^2 <= E`. `N^-1 A
    N^-1`, N = diag n, is added to keep K positive if scores do not spread: 1 % of A with ten episodes, all of A with
    one episode. The prior's part of `1 + K` is known, so the n - 1 degrees of freedom grow by `((1 + K) / K)^2`
    (Satterthwaite 1946, Biometrics Bulletin 2), up to E - 1. A constant without information keeps its prior.
    """
    size = point.x.shape[0]
    information, score = _normal(linear)
    pull, curvature = score[:, :size], information[:, :size, :size]
    if point.z.shape[1]:
        _, xz, zz = _blocks(information, size)
        through = jnp.linalg.solve(zz, jnp.swapaxes(xz, 1, 2))
        pull = pull - jnp.einsum("ezx,ez->ex", through, score[:, size:] - point.z)
        curvature = curvature - xz @ through
    expected = jnp.sum(curvature, axis=0)
    episodes = pull.shape[0]
    tell = jnp.diagonal(curvature, axis1=1, axis2=2)
    tell = tell / jnp.maximum(jnp.max(tell, axis=0), np.finfo(tell.dtype).tiny)
    telling = jnp.maximum(jnp.sum(tell, axis=0) ** 2 / jnp.maximum(jnp.sum(tell**2, axis=0), 1e-6), 1.0)
    apart = pull - jnp.mean(pull, axis=0, keepdims=True)
    seen = apart.T @ apart * (episodes / max(episodes - 1, 1)) + expected / jnp.outer(telling, telling)
    identity = jnp.eye(size, dtype=expected.dtype)
    inverse = jnp.linalg.inv(identity + expected)
    covariance: Float[Array, "P P"] = inverse @ (identity + seen) @ inverse
    share = jnp.diagonal(seen) / (1.0 + jnp.diagonal(seen))
    degrees = jnp.maximum(jnp.round(telling) - 1.0, 1.0) / jnp.maximum(share, 1e-3) ** 2
    return covariance, jnp.clip(jnp.floor(degrees), 1.0, max(episodes - 1, 1))


def _quantile(degrees: Float[Array, " P"], episodes: int, confidence: float) -> Float[Array, " P"]:
    """Return quantiles (P,) of the t distribution from a table, because JAX has no such function."""
    table = stdtrit(np.arange(1, max(episodes, 2)), 0.5 + confidence / 2)
    return jnp.asarray(table, degrees.dtype)[degrees.astype(int) - 1]
