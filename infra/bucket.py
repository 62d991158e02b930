"""Makes the bucket that NEORL_ARTIFACTS_URL names, once the storage answers; one that is there stays as it is."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

PATIENCE = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 10})
"""Some minutes: the storage may be starting."""
OURS = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}


def main() -> None:
    """Make it."""
    bucket = urlsplit(os.environ["NEORL_ARTIFACTS_URL"]).hostname
    try:
        boto3.client("s3", config=PATIENCE).create_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] not in OURS:
            raise


if __name__ == "__main__":
    main()
