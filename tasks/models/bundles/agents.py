"""Agents that can be loaded from policy files and bundles, and saved as policy files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from configs.code import UserCode
from configs.errors import BadInput
from configs.run import Setting
from neorl_core.fit import get_algorithm
from neorl_core.history import stacked_spec
from neorl_core.training.optimisers import Recipe
from neorl_core.training.population import Algorithm
from neorl_core.wrappers import agent
from tasks.models.bundles.bundle import load_bundle
from tasks.models.bundles.policy_file import MadeBy, load_policy, save_policy


class Agent(agent.Agent):
    """`neorl_core.wrappers.agent.Agent` that can be loaded and saved."""

    @classmethod
    def load(
        cls,
        path: Path | str,
        expected_digest: str | None = None,
        *,
        source: UserCode | None = None,
        algorithm: str | Algorithm | None = None,
        hyperparameters: Mapping[str, Setting] | None = None,
    ) -> Agent:
        """Load an agent from a policy file (`policy.npz` of `neorl train`) or a bundle (a folder).

        By default, an agent from a policy file is trained further with the file's algorithm and hyper-parameters. For
        an agent from a bundle, the defaults depend on the kind of action.

        Args:
            expected_digest: digest of a bundle, from registry, ledger or certificate.
            source: user code of the bundle's plant, from `find_code`; None for other plants.

        Raises:
            BadInput: if there is no such file, or an algorithm or hyper-parameter is unknown.
            Refused: if the file was altered.
        """
        path = Path(path)
        try:
            if path.is_dir():
                plant, params = load_bundle(path, expected_digest, source)
                return cls(params, plant.spec, plant, algorithm, hyperparameters)
            policy, spec, made_by = load_policy(path)
            if hyperparameters is None and made_by.algorithm is not None:
                hyperparameters = _given(made_by.algorithm, made_by.hyperparameters)
            return cls(policy, spec, None, algorithm or made_by.algorithm, hyperparameters)
        except (ValueError, TypeError) as error:
            raise BadInput(str(error)) from error

    def save(self, path: Path, made_by: MadeBy | None = None) -> str:
        """Write the policy, without shield and history, as a policy file; return the digest."""
        making = (made_by or MadeBy())._replace(algorithm=self.algorithm.name, hyperparameters=self.config._asdict())
        return save_policy(Path(path), self.policy, stacked_spec(self.spec, self.history), making)


def _given(algorithm: str, hyperparameters: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return stored hyper-parameters with recipes as tuples, which JSON turned into lists.

    Warm-up and decaying schedules are left out, because their lengths fit only the finished training.
    """
    values, known = dict(hyperparameters), get_algorithm(algorithm)
    for name, default in known.Config()._asdict().items():
        value = values.get(name)
        if known.usual_updates and (name == "warm_up_updates" or (isinstance(default, Recipe) and default.steps)):
            values.pop(name, None)
            continue
        if isinstance(default, Recipe) and isinstance(value, list):
            recipe: dict[str, float | int | str | None] = dict(zip(Recipe._fields, value, strict=True))
            values[name] = recipe
    return values
