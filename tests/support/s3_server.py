"""An S3 server for tests: moto's, in a thread of this process, on loopback.

It can be stopped and started again with all that it holds.  Clients find it by ``environment``.
"""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest

ACCESS_KEY, SECRET_KEY, REGION = "tester", "only for trying", "us-east-1"


class S3Server:
    """Attributes:
    endpoint: ``http://127.0.0.1:PORT``, the same after a restart.
    environment: credentials and region, as clients of AWS look for them.
    """

    def __init__(self) -> None:
        self._server: Any = None
        self._port = 0
        self.start()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.environment: Mapping[str, str] = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Does nothing where it runs."""
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request otherwise
        if self._server is None:
            self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
            self._server.start()
            self._port = self._server.get_host_and_port()[1]

    def stop(self) -> None:
        """Connections are refused from now on; what is stored stays."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def client(self) -> Any:
        """A client of boto3, for tests that put files there."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """Skips the test where moto is missing, and says so."""
    if find_spec("moto") is None:
        pytest.skip("needs an S3 server: moto[server] is not installed")
    server = S3Server()
    try:
        yield server
    finally:
        server.stop()


#: The bucket of :func:`s3_with_keys`.
BUCKET = "bucket"


@dataclass(frozen=True)
class S3WithKeys:
    """A server that takes one pair of keys, with an empty bucket BUCKET.

    Attributes:
      environment: where it is, and the keys, as users of Arrow and our commands look for them.
    """

    environment: Mapping[str, str]


@contextmanager
def s3_with_keys() -> Iterator[S3WithKeys]:
    """Skips the test where moto is missing, and says so."""
    with running_s3() as server:
        _say(server, "reset")
        server.client().create_bucket(Bucket=BUCKET)
        key = _user(server)
        _say(server, "reset-auth", "0")  # keys are checked from the next request on
        try:
            keys = {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
            where = {"AWS_ENDPOINT_URL": server.endpoint, "AWS_REGION": REGION}
            yield S3WithKeys({**server.environment, **where, **keys})
        finally:
            _say(server, "reset-auth", "inf")


def _user(server: S3Server) -> Any:
    """The keys of one who may do everything."""
    import boto3

    iam = boto3.client(
        "iam",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    iam.create_user(UserName="tester")
    everything = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
    iam.put_user_policy(UserName="tester", PolicyName="all", PolicyDocument=everything)
    return iam.create_access_key(UserName="tester")["AccessKey"]


def _say(server: S3Server, what: str, how: str = "") -> None:
    plain = {"Content-Type": "text/plain"}
    request = urllib.request.Request(
        f"{server.endpoint}/moto-api/{what}", data=how.encode(), headers=plain, method="POST"
    )
    urllib.request.urlopen(request, timeout=30).close()
