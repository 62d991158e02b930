"""Wait for the object storage, and create the bucket of NEORL_ARTIFACTS_URL if it is missing."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

CONFIG = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 10})
"""Retry for some minutes, because the storage may be starting."""
EXISTS = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}


def main() -> None:
    """Create the bucket."""
    bucket = urlsplit(os.environ["NEORL_ARTIFACTS_URL"]).hostname
    try:
        boto3.client("s3", config=CONFIG).create_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] not in EXISTS:
            raise


if __name__ == "__main__":
    main()
