"""Makes the passwords, keys and certificates of infra/compose.yaml and infra/kubernetes: `make secrets`.

Each is random and made once; a folder that is there is left alone. The folder is its owner's alone, and its files can
be read by the containers that they are mounted into, whatever user they run as.
"""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FOLDER = Path(__file__).parent / "secrets"
DATABASES = ("ledger", "prefect", "mlflow")
"""Each has a role of its own: what reaches Prefect's database does not reach the ledger."""
BUCKET = "neorl"
YEARS = 3


def main(folder: Path = FOLDER) -> None:
    """Make the folder, or say that it is there."""
    if folder.exists():
        sys.exit(f"expected no folder at {folder}, got one: remove it, and the volumes that were made with it.")
    folder.mkdir(mode=0o700)
    for name, text in {**passwords(), **certificates()}.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o444)
    print(f"wrote {folder}")


def passwords() -> dict[str, str]:
    """The files with passwords, by name: what a server reads, and the environment of its clients."""
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
    """A certificate authority of Dask's own, whose key is forgotten, and the certificate of all who speak Dask."""
    now, authority, key = (
        datetime.now(UTC),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )

    def certificate(name: str, subject: ec.EllipticCurvePrivateKey, *, ca: bool) -> str:
        named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "neorl dask authority")])
        built = (
            x509.CertificateBuilder()
            .subject_name(named)
            .issuer_name(issuer)
            .public_key(subject.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=365 * YEARS))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
            .sign(authority, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM).decode()

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "dask-ca.pem": certificate("neorl dask authority", authority, ca=True),
        "dask.pem": certificate("neorl dask", key, ca=False),
        "dask-key.pem": private.decode(),
    }


def _lines(**variables: str) -> str:
    return "".join(f"{name}={value}\n" for name, value in variables.items())


if __name__ == "__main__":
    main()
