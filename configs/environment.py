"""Variables of the environment: where a team keeps what one machine keeps in its home, and what stops telemetry.

All settings of a team are optional and nothing else changes with them. A value may hold a password, so none is shown,
logged or handed to a command as an argument.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from configs.errors import BadInput

PREFECT_DATABASE = "NEORL_PREFECT_DATABASE_URL"
"""PostgreSQL database of the Prefect server that `neorl up` starts; SQLite in the home without it."""
MLFLOW_DATABASE = "NEORL_MLFLOW_DATABASE_URL"
"""PostgreSQL database of the MLflow server that `neorl up` starts; SQLite in the home without it."""
REDIS = "NEORL_REDIS_URL"
"""Redis by which several Prefect servers share events, locks and background work; this process's memory without it."""
ARTIFACTS = "NEORL_ARTIFACTS_URL"
"""S3-like bucket and prefix of MLflow's artefacts; a folder of the home without it. Keys and endpoint are those of
every S3 client: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL."""
DATASETS = "NEORL_DATASETS_URL"
"""S3-like bucket and prefix of datasets' shards, which one ledger has for itself; a folder of the home without it.
Keys and endpoint as with `ARTIFACTS`."""
DASK = "NEORL_DASK_SCHEDULER"
"""Address of a Dask scheduler whose workers share certification's episodes, the policies of off-policy evaluation and
a fleet's sites; this process alone, or processes of this machine, without it."""
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_MODEL_CATALOG_URI": "",
    "GX_ANALYTICS_ENABLED": "false",
}
"""Environment variables, set before the libraries are imported."""

LOOPBACK = ("127.0.0.1", "localhost")
"""How a home's own servers are addressed."""

FORMS = {
    PREFECT_DATABASE: ("postgresql", "postgresql://USER:PASSWORD@HOST/DATABASE"),
    MLFLOW_DATABASE: ("postgresql", "postgresql://USER:PASSWORD@HOST/DATABASE"),
    REDIS: ("redis rediss", "redis://:PASSWORD@HOST:6379/0"),
    ARTIFACTS: ("s3", "s3://BUCKET/PREFIX"),
    DATASETS: ("s3", "s3://BUCKET/PREFIX"),
    DASK: ("tcp tls", "tls://HOST:8786"),
}


def setting(name: str) -> str:
    """The value of one of these variables; empty where it is not set.

    Raises:
        BadInput: when it has another form, without the value itself, which may hold a password.

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
        urlsplit(value).port  # noqa: B018  # a port that is no number is refused where it is read
    except ValueError:
        scheme = host = ""
    if value and not (scheme in schemes.split() and host):
        raise BadInput(f"expected {name} as {example}, got {f'one of {scheme}' if scheme else 'no URL'}: correct it.")
    return value


def with_driver(url: str, driver: str) -> str:
    """A database's URL with the driver that a program needs.

    Example:
        >>> with_driver("postgresql://user@host/name", "asyncpg")
        'postgresql+asyncpg://user@host/name'
    """
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}+{driver}{separator}{rest}" if url else ""


def past_proxies() -> dict[str, str]:
    """The variables by which no client asks a proxy for this machine's own servers, and so hands it their login.

    What the user excepts stays, and a team's server elsewhere is asked through the user's proxy. Clients differ in the
    spelling that they prefer, so that both name all of it.
    """
    said = {name: os.environ.get(name, "").strip() for name in ("no_proxy", "NO_PROXY")}
    either = said["no_proxy"] or said["NO_PROXY"]
    return {name: _with_loopback(text or either) for name, text in said.items()}


def _with_loopback(excepted: str) -> str:
    # '*' excepts every host, and only where it stands alone.
    names = [name.strip() for name in excepted.split(",") if name.strip()]
    return excepted if names == ["*"] else ",".join([*names, *(name for name in LOOPBACK if name not in names)])
