"""The model that MLflow stores as code: a pyfunc around a bundle, which is verified before it answers.

MLflow runs this file when it loads the model; the arrays come from the bundle, never from a pickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class ShieldedPolicy(PythonModel):
    """Answers a table of observations (one row each, physical units) with a table of actions.

    Each row is taken as the first of an episode, so that rows do not depend on each other. A controller that keeps
    its memory from step to step uses the bundle with `neorl_core.safety.composite` instead.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the bundle, after its digest has been checked, and compile the answer to a table."""
        import jax

        from neorl_core.safety.composite import composite_controller, first_applied
        from tasks.models.bundles.bundle import load_bundle

        plant, composite = load_bundle(Path(context.artifacts["bundle"]), context.model_config["digest"])
        controller = composite_controller(plant)

        @jax.jit
        @jax.vmap
        def first_action(observation: jax.Array) -> jax.Array:
            memory = controller.init(composite, observation)
            applied = first_applied(plant, composite, observation)
            return controller.act(composite, memory, observation, applied)[1]

        self.spec, self.first_action = plant.spec, first_action

    # MLflow's own signature: it passes the parameters of a request on, of which this model has none.
    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Actions for a table of observations.

        Args:
            context: MLflow's; unused, for everything was loaded before.
            model_input: a column for each observed signal, a row for each first step, in physical units.
            params: unused.
        """
        rows = model_input[list(self.spec.observation.names)].to_numpy(np.float32)
        return pd.DataFrame(np.asarray(self.first_action(rows), float), columns=list(self.spec.action.names))


set_model(ShieldedPolicy())
