"""Environment variables: a team's databases and buckets, and the switches that stop telemetry.

All team settings are optional. Values may contain a password, so they are never shown, logged or passed as arguments.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from configs.errors import BadInput

PREFECT_DATABASE = "NEORL_PREFECT_DATABASE_URL"
"""PostgreSQL database of the Prefect server that `neorl up` starts. If unset, SQLite in the home."""
MLFLOW_DATABASE = "NEORL_MLFLOW_DATABASE_URL"
"""PostgreSQL database of the MLflow server that `neorl up` starts. If unset, SQLite in the home."""
REDIS = "NEORL_REDIS_URL"
"""Redis that several Prefect servers share for events, locks and background work. If unset, each uses its memory."""
ARTIFACTS = "NEORL_ARTIFACTS_URL"
"""S3 bucket and prefix of MLflow's artifacts. If unset, a folder of the home. Keys and endpoint are in
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL."""
DATASETS = "NEORL_DATASETS_URL"
"""S3 bucket and prefix of the shards of datasets, for one ledger only. If unset, a folder of the home. Keys and
endpoint are as for `ARTIFACTS`."""
DASK = "NEORL_DASK_SCHEDULER"
"""Address of a Dask scheduler. Its workers simulate episodes of certification, evaluate policies off-policy, and
retrain sites of a fleet. If unset, this machine does the work."""
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_MODEL_CATALOG_URI": "",
    "GX_ANALYTICS_ENABLED": "false",
}
"""Variables that switch telemetry off; they must be set before the libraries are imported."""

LOOPBACK = ("127.0.0.1", "localhost")
"""Addresses of a home's own servers."""

FORMS = {
    PREFECT_DATABASE: ("postgresql", "postgresql://USER:PASSWORD@HOST/DATABASE"),
    MLFLOW_DATABASE: ("postgresql", "postgresql://USER:PASSWORD@HOST/DATABASE"),
    REDIS: ("redis rediss", "redis://:PASSWORD@HOST:6379/0"),
    ARTIFACTS: ("s3", "s3://BUCKET/PREFIX"),
    DATASETS: ("s3", "s3://BUCKET/PREFIX"),
    DASK: ("tcp tls", "tls://HOST:8786"),
}


def setting(name: str) -> str:
    """Return the value of a variable in `FORMS`; empty if the variable is not set.

    Raises:
        BadInput: if the value has the wrong form. The message does not show the value, which may contain a password.

    Example:
        >>> os.environ[ARTIFACTS] = "s3://plant/mlflow"
        >>> setting(ARTIFACTS)
        's3://plant/mlflow'
        >>> del os.environ[ARTIFACTS]
    """
    value = os.environ.get(name, "")
    schemes, example = FORMS[name]
    try:
        scheme = urlsplit(value).scheme
        host = urlsplit(value).hostname
        urlsplit(value).port  # noqa: B018  # raises if the port is no number
    except ValueError:
        scheme = host = ""
    if value and not (scheme in schemes.split() and host):
        raise BadInput(
            f"{name} must have the form {example}, got {f'scheme {scheme}' if scheme else 'no URL'}: correct it"
        )
    return value


def with_driver(url: str, driver: str) -> str:
    """Return a database URL with the driver that a program needs.

    Example:
        >>> with_driver("postgresql://user@host/name", "asyncpg")
        'postgresql+asyncpg://user@host/name'
    """
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}+{driver}{separator}{rest}" if url else ""


def no_proxy_variables() -> dict[str, str]:
    """Return no_proxy and NO_PROXY with this machine added, so that no client sends a login to a proxy.

    The user's entries stay. Both variables get all entries, because some clients read only one of the two."""
    given = {name: os.environ.get(name, "").strip() for name in ("no_proxy", "NO_PROXY")}
    either = given["no_proxy"] or given["NO_PROXY"]

    def with_loopback(excepted: str) -> str:
        # '*' excepts every host if it is the only entry.
        names = [name.strip() for name in excepted.split(",") if name.strip()]
        return excepted if names == ["*"] else ",".join([*names, *(name for name in LOOPBACK if name not in names)])

    return {name: with_loopback(text or either) for name, text in given.items()}
