"""What keeps Prefect, MLflow and Great Expectations from telling others that they run."""

from __future__ import annotations

TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_MODEL_CATALOG_URI": "",
    "GX_ANALYTICS_ENABLED": "false",
}
"""Environment variables, set before the libraries are imported."""
