"""A stateful agent around a controller: a trained policy, bare or behind a shield."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from neorl_core.algorithms import check_actions, default_algorithm
from neorl_core.fit import FitResult, get_algorithm, make_result
from neorl_core.history import episode_starts, stacked_spec, stacked_transitions
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
from neorl_core.training.preparation import Scaling, make_scaling, moments, scale_rows
from neorl_core.types import Controller, History, Params, Plant, PlantSpec, Process, Transition


def _alone(policy: Policy, memory: tuple[()], observation: Float[Array, " O"], applied: Float[Array, " A"]) -> Any:
    return memory, policy_act(policy, observation)


POLICY_ALONE = Controller(lambda policy, observation: (), _alone)


@cache
def _act(controller: Controller) -> Callable[..., Any]:
    return jax.jit(controller.act)


class Agent:
    """`agent(observation)` returns the next action, `agent.reset()` starts an episode, `agent.train(dataset)` trains.

    A composite keeps the policy's history itself and takes plain observations; a bare policy takes the observations of
    its spec, including earlier values.

    Args:
        params: a policy, or a composite of policy, shield and fallback.
        spec: names and bounds of observation and action.
        plant: the plant of a composite; not needed for a bare policy.
        algorithm: algorithm of `train`; by default the usual one for the kind of actions.
        hyperparameters: values that differ from the algorithm's defaults.

    Raises:
        ValueError: on an unknown algorithm or hyper-parameter, or a composite without a plant.

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
            raise ValueError(f"a composite for {spec.name} needs its plant: pass `plant`, which has fallback and model")
        self.params, self.spec, self.plant = params, spec, plant
        algorithm = default_algorithm(spec) if algorithm is None else algorithm
        self.algorithm = get_algorithm(algorithm) if isinstance(algorithm, str) else algorithm
        self._hyperparameters = dict(hyperparameters or {})
        self.config = configure(self.algorithm, self._hyperparameters)
        shielded = isinstance(params, Composite) and plant is not None
        self._controller = composite_controller(plant) if shielded and plant else POLICY_ALONE
        self._begun: _Begun | None = None
        self.reset()

    @property
    def policy(self) -> Policy:
        """The policy.

        Raises:
            ValueError: if the composite is a fallback without a policy.
        """
        policy = self.params.policy if isinstance(self.params, Composite) else self.params
        if policy is None:
            raise ValueError(f"the composite for {self.spec.name} has no policy, only a fallback: it cannot be trained")
        return policy

    @property
    def history(self) -> History | None:
        """Earlier values that a composite's policy observes."""
        return self.params.history if isinstance(self.params, Composite) else None

    def reset(self) -> None:
        """Forget the episode, so that the next observation starts a new one."""
        self._memory: Params | None = None
        self._action: Float[Array, " A"] | None = None

    def __call__(
        self, observation: Float[np.ndarray, " O"], applied: Float[np.ndarray, " A"] | None = None
    ) -> Float[np.ndarray, " A"]:
        """Return the action (A,) for an observation (O,), both in physical units.

        Args:
            observation: (O,), in the order of `spec.observation`.
            applied: (A,), action applied since the last call; by default the last returned action.

        Raises:
            ValueError: on an observation or an applied action with the wrong shape.
        """
        seen = jnp.asarray(observation, self.policy_dtype)
        if seen.shape != (self.spec.observation.size,):
            raise ValueError(
                f"observation must have the shape ({self.spec.observation.size},), got {seen.shape}: pass one row"
            )
        done = None if applied is None else jnp.asarray(applied, seen.dtype)
        if done is not None and done.shape != (self.spec.action.size,):
            raise ValueError(
                f"applied must have the shape ({self.spec.action.size},), got {done.shape}: pass one value per actuator"
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
        """Precision of the parameters."""
        return jax.tree.leaves(self.params)[0].dtype

    def train(self, dataset: Transition, updates: int = 10_000, seed: int = 0, batch_size: int = 256) -> FitResult:
        """Continue training the policy on logged transitions, with the same scaling of observations and actions.

        The first call starts from the policy's weights and fresh critics, or a fresh model, which is trained first
        (`bptt` clones the logged actions meanwhile). Later calls continue from the last learner, with fresh optimisers,
        new schedules and new draws. They keep the first call's scaling of rewards, so that critics stay valid, and do
        not train a learned model again; use a new agent to learn a model from new logs. A composite keeps its shield
        and fallback, but a trained composite is no longer certified.

        Args:
            dataset: (N, ...), in physical units; for a composite, plain observations in the order of time.
            updates: gradient steps, rounded up by `training.loop.schedule`.
            seed: seed of fresh parameters and of batches.
            batch_size: transitions per gradient step.

        Returns:
            Policy and curves. The agent uses the new policy and forgets its episode.

        Raises:
            FloatingPointError: if training diverges; the agent does not change.
            ValueError: if the algorithm does not fit the kind of actions.
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
            how = make_scaling(moments(dataset), spec)._replace(normaliser=policy.normaliser)
        else:
            warm_up, start, how = 0, _onward(begun, fresh), begun.scaling
        plan = schedule(updates, 500, algorithm.batches_per_update, warm_up)
        reached = train(algorithm, start, resident(scale_rows(how, dataset)), plan, batch_size, limit=how.limit)
        self.config = config
        self._begun = _Begun(reached.population.learner, how, (begun.updates if begun else 0) + reached.done)
        result = make_result(algorithm, config, alone, how, plan, reached)
        (trained,) = result.policies
        self.params = self.params._replace(policy=trained) if isinstance(self.params, Composite) else trained
        self.reset()
        return result

    def _stacked(self, dataset: Transition) -> Transition:
        """Add the history to logged rows; a row that does not continue the previous one starts an episode."""
        if not isinstance(self.params, Composite) or self.plant is None or self.history is None:
            return dataset
        starts = episode_starts(dataset)
        seen = jnp.asarray(np.asarray(dataset.observation)[starts])
        applied = jax.vmap(partial(first_applied, self.plant, self.params))(seen)
        return stacked_transitions(self.history, dataset, starts, np.asarray(applied))


class _Begun(NamedTuple):
    """State after earlier calls of `Agent.train`."""

    learner: Any
    scaling: Scaling
    """Scaling of the first call, which critics and models depend on."""
    updates: int
    """Total number of gradient steps."""


def _onward(begun: _Begun, fresh: TrainState) -> TrainState:
    """Continue the learner with fresh optimisers and an unused key."""
    key = jax.random.fold_in(jax.random.wrap_key_data(fresh.key[0], impl="threefry2x32"), begun.updates)
    return fresh._replace(learner=with_optimisers(begun.learner, fresh.learner), key=jax.random.key_data(key)[None])


def _with_policy(algorithm: Algorithm, fresh: TrainState, policy: Policy) -> Any:
    """Return the fresh learner of one member with actor, and target if any, set to a policy's weights.

    `algorithm.actor` selects entries of the state, so its transpose writes entries back.

    Raises:
        ValueError: if the policy's layers differ from the algorithm's.
    """
    one = jax.tree.map(lambda x: x[0], fresh.learner)
    trees = (policy.params, algorithm.actor(one))
    wanted, made = (jax.tree.map(jnp.shape, tree) for tree in trees)
    if wanted != made:
        shapes = [[jnp.shape(x) for x in jax.tree.leaves(tree)] for tree in trees]
        raise ValueError(
            f"the policy's layers {shapes[0]} do not fit {algorithm.name}, which makes {shapes[1]}: pass the "
            "hyper-parameters of the policy's training"
        )

    @jax.jit
    def placed(state: Any, params: Params) -> Any:
        actor, put_back = jax.vjp(algorithm.actor, state)
        (marks,), (values,) = put_back(jax.tree.map(jnp.ones_like, actor)), put_back(params)

        def replaced(mark: Array, new: Array, old: Array) -> Array:
            # Integers have no gradient: the actor holds none.
            return old if mark.dtype == jax.dtypes.float0 else jnp.where(mark != 0, new, old)

        return jax.tree.map(replaced, marks, values, state)

    learner = placed(one, policy.params)
    # For discrete actions the critic is the policy, so its target is set as well.
    targets = {"actor_target", "critic_target"} if algorithm.discrete else {"actor_target"}
    for target in targets & set(getattr(learner, "_fields", ())):
        learner = learner._replace(**{target: jax.tree.map(jnp.copy, policy.params)})
    return jax.tree.map(lambda x: x[None], learner)
