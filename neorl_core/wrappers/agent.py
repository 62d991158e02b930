"""An agent: an object that remembers the state of its controller. The controller is a policy alone or a composite."""

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
    """A policy or composite as an object: `agent(observation)` returns the next action, `agent.train(dataset)` trains.

    If the policy uses earlier values: for a composite, pass only current observations. For a policy alone, each
    observation must include the earlier values.

    Args:
        params: a policy, or a composite of policy, shield and fallback.
        spec: spec of the plant; for a policy alone with earlier values, the spec with history.
        plant: the plant; needed only for a composite.
        algorithm: algorithm of `train`. Default: the default algorithm for continuous or discrete actions.
        hyperparameters: hyper-parameters that differ from the algorithm's defaults, by name.

    Raises:
        ValueError: if the algorithm or a hyper-parameter is unknown, or a composite has no plant.

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
            raise ValueError(f"the plant of the composite for {spec.name} is missing: pass the argument `plant`")
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
        """The policy, also if a composite contains it.

        Raises:
            ValueError: if the composite has only a fallback, or its policy moves the fallback.
        """
        if isinstance(self.params, Composite) and self.params.policy and self.params.moves_fallback:
            raise ValueError(
                f"the policy of the composite for {self.spec.name} moves the plant's controller, and has no "
                "action without it: use the composite"
            )
        policy = self.params.policy if isinstance(self.params, Composite) else self.params
        if policy is None:
            raise ValueError(f"the composite for {self.spec.name} has no policy, only a fallback: use a policy")
        return policy

    @property
    def history(self) -> History | None:
        """Which earlier values the policy of a composite uses; None for a policy alone."""
        return self.params.history if isinstance(self.params, Composite) else None

    def reset(self) -> None:
        """Forget the current episode. The next observation starts a new episode."""
        self._memory: Params | None = None
        self._action: Float[Array, " A"] | None = None

    def __call__(
        self, observation: Float[np.ndarray, " O"], applied: Float[np.ndarray, " A"] | None = None
    ) -> Float[np.ndarray, " A"]:
        """Return the action (A,) for an observation (O,), both in physical units.

        Args:
            observation: (O,), in the order of `spec.observation`.
            applied: (A,), action that the plant applied since the last call. Default: the last returned action.

        Raises:
            ValueError: if the observation or the applied action has the wrong shape.
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
        """Data type of the weights, such as float32."""
        return jax.tree.leaves(self.params)[0].dtype

    def train(self, dataset: Transition, updates: int = 10_000, seed: int = 0, batch_size: int = 256) -> FitResult:
        """Train the agent's policy further on logged transitions. The scaling of observations and actions stays.

        The first call starts from the policy's weights, with new critics. An algorithm with a learned model first
        trains a new model in its warm-up. Later calls continue from the weights of the previous call, with new
        optimisers and schedules. They keep the first call's scaling of rewards, and do not train the learned model
        again. To learn a model from new logs, use a new agent. A composite keeps its shield and fallback, but its
        certificate does not cover the new policy.

        Args:
            dataset: (N, ...), in physical units. For a composite: observations without earlier values, in time order.
            updates: gradient steps, rounded up by `training.loop.schedule`.

        Returns:
            The new policy and its learning curves. The agent also uses the new policy, in a new episode.

        Raises:
            FloatingPointError: if training diverges. The agent does not change.
            ValueError: if the algorithm is for discrete actions and the plant's actions are continuous, or vice versa.
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
        """Add earlier values to logged observations. A row that does not follow the previous row starts an episode."""
        if not isinstance(self.params, Composite) or self.plant is None or self.history is None:
            return dataset
        starts = episode_starts(dataset)
        seen = jnp.asarray(np.asarray(dataset.observation)[starts])
        applied = jax.vmap(partial(first_applied, self.plant, self.params))(seen)
        return stacked_transitions(self.history, dataset, starts, np.asarray(applied))


class _Begun(NamedTuple):
    """State of the learner after a call of `Agent.train`, from which the next call continues."""

    learner: Any
    scaling: Scaling
    """Scaling of the first call. Critics and learned models are only valid with this scaling."""
    updates: int
    """Gradient steps of all calls together."""


def _onward(begun: _Begun, fresh: TrainState) -> TrainState:
    """Return the training state that continues from `begun`, with new optimisers and a new random key."""
    key = jax.random.fold_in(jax.random.wrap_key_data(fresh.key[0], impl="threefry2x32"), begun.updates)
    return fresh._replace(learner=with_optimisers(begun.learner, fresh.learner), key=jax.random.key_data(key)[None])


def _with_policy(algorithm: Algorithm, fresh: TrainState, policy: Policy) -> Any:
    """Return the state of a population of one member, with actor and target networks set to a policy's weights.

    `algorithm.actor` selects arrays of the state. The transpose of this linear function finds where to write them.

    Raises:
        ValueError: if the layer sizes of policy and algorithm differ.
    """
    one = jax.tree.map(lambda x: x[0], fresh.learner)
    trees = (policy.params, algorithm.actor(one))
    wanted, made = (jax.tree.map(jnp.shape, tree) for tree in trees)
    if wanted != made:
        shapes = [[jnp.shape(x) for x in jax.tree.leaves(tree)] for tree in trees]
        raise ValueError(
            f"the policy has weights of shapes {shapes[0]}, but {algorithm.name} needs {shapes[1]}: pass the "
            "hyper-parameters with which the policy was trained"
        )

    @jax.jit
    def placed(state: Any, params: Params) -> Any:
        actor, put_back = jax.vjp(algorithm.actor, state)
        (marks,), (values,) = put_back(jax.tree.map(jnp.ones_like, actor)), put_back(params)

        def replaced(mark: Array, new: Array, old: Array) -> Array:
            # Integer arrays have no gradient, and the actor contains no integers.
            return old if mark.dtype == jax.dtypes.float0 else jnp.where(mark != 0, new, old)

        return jax.tree.map(replaced, marks, values, state)

    learner = placed(one, policy.params)
    # For discrete actions the critic is the policy, so the critic's target needs the weights, too.
    targets = {"actor_target", "critic_target"} if algorithm.discrete else {"actor_target"}
    for target in targets & set(getattr(learner, "_fields", ())):
        learner = learner._replace(**{target: jax.tree.map(jnp.copy, policy.params)})
    return jax.tree.map(lambda x: x[None], learner)
