"""The model that MLflow stores as code: a pyfunc around a bundle, which is verified before it answers.

MLflow runs this file when it loads the model; the arrays come from the bundle, never from a pickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd


class ShieldedPolicy(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """Answers a table of observations (one row each, physical units) with a table of actions.

    Each row is taken as the first of an episode, so that rows do not depend on each other. A controller that keeps
    its memory from step to step uses the bundle with `neorl_core.safety.composite` instead.
    """

    def load_context(self, context: Any) -> None:
        import jax

        from neorl_core.safety.composite import composite_controller
        from tasks.adapters.models.bundle import load_bundle

        self.plant, self.composite = load_bundle(Path(context.artifacts["bundle"]), context.model_config["digest"])
        controller = composite_controller(self.plant)

        @jax.jit
        @jax.vmap
        def first_action(observation: Any) -> Any:
            memory = controller.init(self.composite, observation)
            return controller.act(self.composite, memory, observation, self.plant.applied(observation))[1]

        self.first_action = first_action

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        names = list(self.plant.spec.observation.names)
        rows = model_input[names].to_numpy(np.float32)
        return pd.DataFrame(np.asarray(self.first_action(rows), float), columns=list(self.plant.spec.action.names))


mlflow.models.set_model(ShieldedPolicy())
