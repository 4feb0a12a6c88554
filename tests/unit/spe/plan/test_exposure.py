"""The warning of a starting process that strangers can connect to."""

from __future__ import annotations

import pytest

from spe.plan.exposure import unlocked
from spe.plan.plan import Security

NO_TLS, TLS = Security(), Security(certificates="keys")


@pytest.mark.parametrize(
    ("security", "address", "token", "said"),
    [
        (NO_TLS, "10.0.0.5:7000", "", "without TLS or a token"),
        (NO_TLS, "0.0.0.0:7000", "", "without TLS or a token"),
        (NO_TLS, "[::]:7000", "", "without TLS or a token"),
        (Security(insecure=True), "10.0.0.5:7000", "", "without TLS or a token"),
        (NO_TLS, "10.0.0.5:7000", "secret", ""),
        (NO_TLS, "127.0.0.1:7000", "", ""),
        (NO_TLS, "localhost:7000", "", ""),
        (NO_TLS, "[::1]:7000", "", ""),
        (NO_TLS, "", "", ""),
        (TLS, "10.0.0.5:7000", "", "TLS without a token"),
        (TLS, "127.0.0.1:7000", "", "TLS without a token"),
        (TLS, "", "", "TLS without a token"),
        (TLS, "10.0.0.5:7000", "secret", ""),
    ],
)
def test_open_addresses_without_a_token_give_a_warning(security: Security, address: str, token: str, said: str) -> None:
    found = unlocked(security, address, token)
    assert said in found
    assert bool(found) == bool(said)
