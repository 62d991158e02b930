"""Code that MLflow stores with each model: an MLflow "pyfunc" that loads a bundle after checking the bundle's digest.

MLflow runs a copy of this file when it loads a model, also with later versions of NeoRL. Therefore this file imports
`tasks.models.mlflow_entry`, which never moves, and nothing else of NeoRL. The arrays come from the bundle, never from
a pickle.
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

    Each row counts as the first step of an episode, so rows do not depend on each other. A controller that keeps its
    memory from step to step uses the bundle with `neorl_core.safety.composite` instead.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Load the bundle after checking its digest, and prepare the answer to a table."""
        from tasks.models.mlflow_entry import load_policy

        self.policy = load_policy(Path(context.artifacts["bundle"]), context.model_config["digest"])

    # MLflow's own signature: it passes the parameters of a request, and this model has none.
    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return actions for a table of observations.

        Args:
            context: unused; everything was loaded before.
            model_input: a column for each observed signal, a row for each first step, in physical units.
            params: unused.
        """
        rows = model_input[list(self.policy.observations)].to_numpy(np.float32)
        return pd.DataFrame(self.policy.first_actions(rows), columns=list(self.policy.actions))


set_model(ShieldedPolicy())
