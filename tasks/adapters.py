"""Old import path of the MLflow models that NeoRL logged before `tasks.models.mlflow_entry` existed.

The code stored with these MLflow models imports `tasks.adapters.models.bundle`. No other code uses this module.
"""

import sys

from tasks.models import bundles
from tasks.models.bundles import bundle

__path__: list[str] = []
sys.modules[f"{__name__}.models"] = bundles
sys.modules[f"{__name__}.models.bundle"] = bundle
