"""S3 and compatible services, by Arrow's client: the place of the service, and the meaning of its errors.

Each machine gets credentials as the AWS SDK does: from the environment, ``~/.aws``, or the machine's role.  They are in
no option, no URL and no report.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from spe.errors import SpeError

#: Variables with the endpoint of a service other than Amazon's, and with its region.
_ENDPOINT: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
#: Longest time to connect, longest time for an answer, and number of attempts.
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 10.0
_ATTEMPTS: Final = 3
#: Patterns of the service's errors in Arrow's messages.
_CODE: Final = re.compile(r"AWS Error (\w+)")
_STATUS: Final = re.compile(r"HTTP status (\d+)")
_DENIED: Final = (
    "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID",
    "UNRECOGNIZED_CLIENT", "EXPIRED_TOKEN",
)  # fmt: skip
NO_BUCKET: Final = "there is no such bucket"


@dataclass(frozen=True)
class S3Service:
    """The service that has a bucket.  Holds no credentials, so it may be sent to other machines.

    Attributes:
      endpoint: URL of the service; "": Amazon's.
      anonymous: without credentials.
    """

    endpoint: str
    region: str
    anonymous: bool = False

    @classmethod
    def of(
        cls,
        bucket: str,
        *,
        endpoint: str = "",
        region: str = "",
        anonymous: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> S3Service:
        """Returns the service by the arguments, or else the environment; asks Amazon for a missing region.

        Raises:
          SpeError: the environment's endpoint is no URL, or Arrow is missing.
          OSError: there is no such bucket, or Amazon does not answer.
        """
        if not endpoint:
            endpoint = next((environment[name] for name in _ENDPOINT if environment.get(name)), "")
            if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc):
                raise SpeError(f"{' or '.join(_ENDPOINT)}: expected a URL such as https://host:9000, got {endpoint!r}")
        region = region or next((environment[name] for name in _REGION if environment.get(name)), "")
        return cls(endpoint, region or ("us-east-1" if endpoint else _region(bucket)), anonymous)

    @property
    def system(self) -> Any:
        """The ``pyarrow.fs.FileSystem``, one per process.  Raises SpeError: Arrow is missing."""
        return _system(self)


def reason(error: object) -> str:
    """Translates an error of Arrow into a sentence."""
    text = str(error)
    if is_no_bucket(text):
        return NO_BUCKET
    if _is_denied(text):
        return (
            "access was denied: expected credentials that may use this bucket, in the environment (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY), in ~/.aws/credentials, or of the machine's role"
        )
    if _code(text) == "NETWORK_CONNECTION":
        return f"the service is not reached ({text.rpartition(': ')[2].strip()}); see AWS_ENDPOINT_URL, AWS_REGION"
    return text.strip().partition("\n")[0]


def is_final(error: object) -> bool:
    """Is this a permanent error?"""
    text = str(error)
    return is_no_bucket(text) or _is_denied(text) or _status(text) == "400"


def is_no_bucket(text: str) -> bool:
    return _code(text) == "NO_SUCH_BUCKET" or re.search(r"Bucket '.*' not found", text) is not None


def _is_denied(text: str) -> bool:
    return _code(text) in _DENIED or _status(text) in ("401", "403")


def _code(text: str) -> str:
    return "" if (match := _CODE.search(text)) is None else match[1]


def _status(text: str) -> str:
    return "" if (match := _STATUS.search(text)) is None else match[1]


def _arrow() -> Any:
    try:
        from pyarrow import fs
    except ImportError as error:
        raise SpeError("S3 needs Arrow: pip install '.[parquet]'") from error
    return fs


@lru_cache
def _region(bucket: str) -> str:
    """Asks Amazon for the region of a bucket, once."""
    return str(_arrow().resolve_s3_region(bucket))


@lru_cache
def _system(service: S3Service) -> Any:
    fs, parts = _arrow(), urlsplit(service.endpoint)
    return fs.S3FileSystem(
        region=service.region,
        anonymous=service.anonymous,
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        **({"endpoint_override": parts.netloc, "scheme": parts.scheme} if service.endpoint else {}),
    )
