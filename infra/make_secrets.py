"""Create the passwords, keys and certificates of infra/compose.yaml and infra/kubernetes (`make secrets`).

An existing folder is left unchanged. Only the folder's owner can enter it. All users can read the files inside, because
containers that mount these files run as other users.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from tasks.files.certificates import issue_certificate

FOLDER = Path(__file__).parent / "secrets"
DATABASES = ("ledger", "prefect", "mlflow")
"""Databases, each with its own user, so that access to Prefect's database gives no access to the ledger."""
BUCKET = "neorl"


def main(folder: Path = FOLDER) -> None:
    """Write all files to a new folder."""
    if folder.exists():
        sys.exit(f"{folder} exists: remove it and the volumes that were created with it.")
    folder.mkdir(mode=0o700)
    for name, text in {**passwords(), **certificates()}.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o444)
    print(f"wrote {folder}")


def passwords() -> dict[str, str]:
    """Return the contents of the files with passwords, by file name."""
    new = {name: secrets.token_urlsafe(32) for name in (*DATABASES, "postgres", "redis", "login", "storage")}
    urls = {name: f"postgresql://{name}:{new[name]}@postgres:5432/{name}" for name in DATABASES}
    roles = [f"CREATE ROLE {name} LOGIN PASSWORD '{new[name]}';" for name in DATABASES]
    made = [f"CREATE DATABASE {name} OWNER {name};" for name in DATABASES]
    login = f"neorl:{new['login']}"
    return {
        "postgres_password": new["postgres"],
        "databases.sql": "\n".join([*roles, *made]) + "\n",
        "redis.conf": f'port 6379\nrequirepass {new["redis"]}\nsave ""\n',
        "key_passphrase": secrets.token_urlsafe(32),
        "storage.env": _lines(ROOT_ACCESS_KEY="neorl", ROOT_SECRET_KEY=new["storage"]),
        "prefect.env": _lines(
            NEORL_PREFECT_DATABASE_URL=urls["prefect"],
            NEORL_REDIS_URL=f"redis://:{new['redis']}@redis:6379/0",
            NEORL_SERVICE_LOGIN=login,
        ),
        "mlflow.env": _lines(
            NEORL_MLFLOW_DATABASE_URL=urls["mlflow"],
            NEORL_ARTIFACTS_URL=f"s3://{BUCKET}/mlflow",
            AWS_ACCESS_KEY_ID="neorl",
            AWS_SECRET_ACCESS_KEY=new["storage"],
            AWS_DEFAULT_REGION="us-east-1",
            AWS_ENDPOINT_URL="http://storage:7070",
            NEORL_SERVICE_LOGIN=login,
        ),
        "team.env": _lines(
            NEORL_LEDGER_URL=urls["ledger"],
            PREFECT_API_AUTH_STRING=login,
            MLFLOW_TRACKING_USERNAME="neorl",
            MLFLOW_TRACKING_PASSWORD=new["login"],
        ),
    }


def certificates() -> dict[str, str]:
    """Return the files of Dask's certificate and of its authority; the private key of the authority is not kept."""
    made = issue_certificate("neorl dask")
    return {
        "dask-ca.pem": made.authority.decode(),
        "dask.pem": made.certificate.decode(),
        "dask-key.pem": made.key.decode(),
    }


def _lines(**variables: str) -> str:
    return "".join(f"{name}={value}\n" for name, value in variables.items())


if __name__ == "__main__":
    main()
