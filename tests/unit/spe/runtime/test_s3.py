"""Where S3 is, by what is given and the environment; and what its errors say."""

from __future__ import annotations

import pytest

from spe.errors import SpeError
from spe.runtime.s3 import NO_BUCKET, S3Service, is_final, reason

pytest.importorskip("pyarrow")
HERE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_DEFAULT_REGION": "eu-west-1"}


def test_given_options_override_the_environment() -> None:
    assert S3Service.of("b", environment=HERE) == S3Service("http://127.0.0.1:9000", "eu-west-1")
    found = S3Service.of("b", endpoint="https://other", region="eu-central-1", anonymous=True, environment=HERE)
    assert found == S3Service("https://other", "eu-central-1", True)
    assert S3Service.of("b", environment={**HERE, "AWS_ENDPOINT_URL_S3": "http://s3", "AWS_REGION": "r"}) == S3Service(
        "http://s3", "r"
    )


def test_another_service_needs_no_region() -> None:
    assert S3Service.of("b", endpoint="http://here", environment={}).region == "us-east-1"


def test_endpoint_that_is_no_url_is_reported() -> None:
    with pytest.raises(SpeError, match="AWS_ENDPOINT_URL: expected a URL such as https://host:9000, got 'host:9000'"):
        S3Service.of("b", environment={"AWS_ENDPOINT_URL": "host:9000"})


def test_a_process_has_one_client_for_a_service() -> None:
    assert S3Service.of("b", environment=HERE).system is S3Service.of("c", environment=HERE).system


@pytest.mark.parametrize(
    ("text", "said", "final"),
    [
        ("AWS Error NO_SUCH_BUCKET during X: gone", NO_BUCKET, True),
        ("Bucket 'b' not found", NO_BUCKET, True),
        ("AWS Error ACCESS_DENIED during GetObject: no", "access was denied", True),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadObject", "access was denied", True),
        ("AWS Error UNKNOWN (HTTP status 400) during HeadObject", "HTTP status 400", True),
        ("AWS Error NETWORK_CONNECTION during X: curlCode: 7, refused", "the service is not reached", False),
        ("AWS Error SLOW_DOWN (HTTP status 503): later\nmore", "AWS Error SLOW_DOWN (HTTP status 503): later", False),
    ],
)
def test_s3_errors_get_a_reason_and_finality(text: str, said: str, final: bool) -> None:
    assert said in reason(OSError(text))
    assert is_final(OSError(text)) is final
