"""A controller that keeps its state for its caller: a trained policy, bare or behind its shield."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from neorl_core.algorithms import check_actions, usual
from neorl_core.fit import Fitted, fitted, known_algorithm
from neorl_core.history import History, begins, stacked_spec, stacked_transitions
from neorl_core.networks import Policy, policy_act
from neorl_core.safety.composite import Composite, composite_controller, first_applied
from neorl_core.training.loop import resident, schedule, train
from neorl_core.training.parameters import with_optimisers
from neorl_core.training.population import (
    Algorithm,
    TrainState,
    configure,
    init_population,
    members,
    warm_up_updates,
)
from neorl_core.training.preparation import Scaling, moments, scaled, scaling
from neorl_core.types import Controller, Params, Plant, PlantSpec, Process, Transition


def _alone(policy: Policy, memory: tuple[()], observation: Float[Array, " O"], applied: Float[Array, " A"]) -> Any:
    return memory, policy_act(policy, observation)


POLICY_ALONE = Controller(lambda policy, observation: (), _alone)


@cache
def _act(controller: Controller) -> Callable[..., Any]:
    return jax.jit(controller.act)


class Agent:
    """`agent(observation)` gives the next action, `agent.reset()` begins an episode, `agent.train(dataset)` goes on
    training its policy.

    A composite keeps its policy's history itself and is given plain observations; a policy alone is given what its spec
    names, earlier values included.

    Args:
        params: a policy, or a composite of policy, shield and fallback.
        spec: names and bounds of what it observes and does.
        plant: whose fallback and model the composite uses; a bare policy needs none.
        algorithm: what `train` goes on with; without one what is usual for its kind of actions.
        hyperparameters: that differ from the algorithm's defaults.

    Raises:
        ValueError: on an unknown algorithm or hyper-parameter, or a composite without its plant.

    Example:
        >>> agent = Agent(learned.policies[0], spec)  # doctest: +SKIP
        >>> action = agent(observation)  # doctest: +SKIP
    """

    def __init__(
        self,
        params: Policy | Composite,
        spec: PlantSpec,
        plant: Plant | Process | None = None,
        algorithm: str | Algorithm | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(params, Composite) and plant is None:
            raise ValueError("expected the plant of a composite, got none: its fallback and model belong to it.")
        self.params, self.spec, self.plant = params, spec, plant
        algorithm = usual(spec) if algorithm is None else algorithm
        self.algorithm = known_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
        self._hyperparameters = dict(hyperparameters or {})
        self.config = configure(self.algorithm, self._hyperparameters)
        shielded = isinstance(params, Composite) and plant is not None
        self._controller = composite_controller(plant) if shielded and plant else POLICY_ALONE
        self._begun: _Begun | None = None
        self.reset()

    @property
    def policy(self) -> Policy:
        """The policy alone.

        Raises:
            ValueError: when the composite is a fallback without a policy.
        """
        policy = self.params.policy if isinstance(self.params, Composite) else self.params
        if policy is None:
            raise ValueError("expected a composite with a policy, got a fallback alone: there is nothing to train.")
        return policy

    @property
    def history(self) -> History | None:
        """Which earlier values a composite's policy sees."""
        return self.params.history if isinstance(self.params, Composite) else None

    def reset(self) -> None:
        """Forget the episode: the next observation is a first one."""
        self._memory: Params | None = None
        self._action: Float[Array, " A"] | None = None

    def __call__(
        self, observation: Float[np.ndarray, " O"], applied: Float[np.ndarray, " A"] | None = None
    ) -> Float[np.ndarray, " A"]:
        """The action (A,) for an observation (O,), both in physical units.

        Args:
            observation: measurements in the order of `spec.observation`.
            applied: what the actuators really did since the last call; by default what was commanded then.

        Raises:
            ValueError: on an observation or an applied action of another shape.
        """
        seen = jnp.asarray(observation, self.policy_dtype)
        if seen.shape != (self.spec.observation.size,):
            raise ValueError(
                f"expected an observation ({self.spec.observation.size},), got {seen.shape}: pass one row."
            )
        done = None if applied is None else jnp.asarray(applied, seen.dtype)
        if done is not None and done.shape != (self.spec.action.size,):
            raise ValueError(
                f"expected an applied action ({self.spec.action.size},), got {done.shape}: pass that of every actuator."
            )
        if self._memory is None:
            self._memory = self._controller.init(self.params, seen)
            if isinstance(self.params, Composite) and self.plant is not None:
                self._action = first_applied(self.plant, self.params, seen)
            else:
                self._action = jnp.zeros(self.spec.action.size, seen.dtype)
        before = self._action if done is None else done
        self._memory, self._action = _act(self._controller)(self.params, self._memory, seen, before)
        return np.array(self._action)

    @property
    def policy_dtype(self) -> Any:
        """The precision of its numbers."""
        return jax.tree.leaves(self.params)[0].dtype

    def train(self, dataset: Transition, updates: int = 10_000, seed: int = 0, batch_size: int = 256) -> Fitted:
        """Go on training the policy on logged transitions; what it scales by stays as it is, so its weights keep
        their meaning.

        The first call begins with the policy's weights and fresh critics (or a fresh model, which it teaches first;
        `bptt` has the policy clone the logged actions meanwhile). Later ones go on with what the last has learned, with
        fresh optimisers, schedules of their own length and new draws. They scale rewards as the first did, so that
        critics keep their meaning, too, and they do not teach a learned model, which another agent would have to learn
        from new logs. A composite keeps its shield and fallback, but what comes of it is no longer what was certified.

        Args:
            dataset: (N, ...), physical units; a composite's has plain observations, in the order of time.
            updates: gradient steps; rounded up as `training.loop.schedule` says.
            seed: seed of what is fresh and of the batches drawn.
            batch_size: transitions per gradient step.

        Returns:
            Policy and curves. The agent has the policy, and has forgotten its episode.

        Raises:
            FloatingPointError: when training diverged; the agent is then as it was.
            ValueError: when the algorithm is of another kind of actions.
        """
        policy, algorithm, spec = self.policy, self.algorithm, stacked_spec(self.spec, self.history)
        check_actions(algorithm, spec)
        dataset, begun = self._stacked(dataset), self._begun
        config = configure(algorithm, self._hyperparameters, updates, warmed=begun is not None)
        alone = members([seed], {})
        fresh = init_population(algorithm, spec, config, alone)
        if begun is None:
            warm_up = warm_up_updates(algorithm, config)
            start = fresh._replace(learner=_with_policy(algorithm, fresh, policy))
            how = scaling(moments(dataset), spec)._replace(normaliser=policy.normaliser)
        else:
            warm_up, start, how = 0, _onward(begun, fresh), begun.scaling
        plan = schedule(updates, 500, algorithm.batches_per_update, warm_up)
        reached = train(algorithm, start, resident(scaled(how, dataset)), plan, batch_size, limit=how.limit)
        self.config = config
        self._begun = _Begun(reached.population.learner, how, (begun.updates if begun else 0) + reached.done)
        found = fitted(algorithm, config, alone, how, plan, reached)
        (trained,) = found.policies
        self.params = self.params._replace(policy=trained) if isinstance(self.params, Composite) else trained
        self.reset()
        return found

    def _stacked(self, dataset: Transition) -> Transition:
        """Logged rows as the policy sees them; an episode begins where a row does not continue the one before it."""
        if not isinstance(self.params, Composite) or self.plant is None or self.history is None:
            return dataset
        starts = begins(dataset)
        seen = jnp.asarray(np.asarray(dataset.observation)[starts])
        applied = jax.vmap(partial(first_applied, self.plant, self.params))(seen)
        return stacked_transitions(self.history, dataset, starts, np.asarray(applied))


class _Begun(NamedTuple):
    """What earlier calls of `Agent.train` have come to."""

    learner: Any
    scaling: Scaling
    """That of the first call, whose rewards critics and models have learned."""
    updates: int
    """Gradient steps of all of them."""


def _onward(begun: _Begun, fresh: TrainState) -> TrainState:
    """What has been learned, under fresh optimisers and a key that no earlier call has drawn by."""
    key = jax.random.fold_in(jax.random.wrap_key_data(fresh.key[0], impl="threefry2x32"), begun.updates)
    return fresh._replace(learner=with_optimisers(begun.learner, fresh.learner), key=jax.random.key_data(key)[None])


def _with_policy(algorithm: Algorithm, fresh: TrainState, policy: Policy) -> Any:
    """The fresh learner of one member with its actor, and its target if it has one, set to a policy's weights.

    `algorithm.actor` picks entries of the state, so its transpose puts entries back where they were picked from.

    Raises:
        ValueError: when the policy's layers are others than the algorithm makes.
    """
    one = jax.tree.map(lambda x: x[0], fresh.learner)
    wanted, made = (jax.tree.map(jnp.shape, tree) for tree in (policy.params, algorithm.actor(one)))
    if wanted != made:
        raise ValueError(
            f"expected a policy of the layers that {algorithm.name} makes, got others: pass the hyper-parameters that "
            "it was trained with."
        )
    numbers, rest = _split(one)

    @jax.jit
    def placed(numbers: list[Any], params: Params) -> list[Any]:
        actor, put_back = jax.vjp(lambda numbers: algorithm.actor(_joined(numbers, rest)), numbers)
        (marks,), (values,) = put_back(jax.tree.map(jnp.ones_like, actor)), put_back(params)
        return [jnp.where(mark != 0, new, old) for mark, new, old in zip(marks, values, numbers, strict=True)]

    learner = _joined(placed(numbers, policy.params), rest)
    # Of a discrete action the values are the policy, and their target is its.
    targets = {"actor_target", "critic_target"} if algorithm.discrete else {"actor_target"}
    for target in targets & set(getattr(learner, "_fields", ())):
        learner = learner._replace(**{target: jax.tree.map(jnp.copy, policy.params)})
    return jax.tree.map(lambda x: x[None], learner)


def _split(tree: Any) -> tuple[list[Any], Any]:
    """The floats of a tree, and all that is needed to put it together again."""
    leaves, structure = jax.tree.flatten(tree)
    floating = [bool(jnp.issubdtype(x.dtype, jnp.floating)) for x in leaves]
    numbers = [x for x, yes in zip(leaves, floating, strict=True) if yes]
    return numbers, (structure, floating, leaves)


def _joined(numbers: list[Any], rest: Any) -> Any:
    structure, floating, leaves = rest
    given = iter(numbers)
    return jax.tree.unflatten(structure, [next(given) if yes else x for x, yes in zip(leaves, floating, strict=True)])
