"""HTTP servers as peers: their URLs, and our credentials."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from spe.connectors.secret import SecretKeys
from spe.values import Model

#: Usual ports.
_PORTS: Final = {"http": 80, "https": 443}


class Url(NamedTuple):
    """URL of a server.

    Attributes:
      target: path and query, as in a request.
    """

    secure: bool
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, text: str) -> Url:
        """Parses a URL.  Raises ValueError."""
        expected = f"expected http://HOST[:PORT]/PATH or https://…, got {text[:100]!r}"
        if re.search(r"[^\x21-\x7e]", text):
            raise ValueError(f"{expected}; other characters than those of ASCII are written as %XX")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{expected}: {error}") from None
        if "@" in parts.netloc:  # the error does not repeat them
            raise ValueError("expected no user and password in a URL; a token is given by token")
        if parts.scheme not in _PORTS or not parts.hostname or parts.fragment:
            raise ValueError(expected)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme == "https", host, _PORTS[parts.scheme] if port is None else port, target)

    @property
    def authority(self) -> str:
        """Host, and port if it is not the default."""
        usual = self.port == _PORTS["https" if self.secure else "http"]
        return self.host if usual else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        """Returns the URL without the query, which may have secrets."""
        scheme = "https" if self.secure else "http"
        return f"{scheme}://{self.authority}{self.target.partition('?')[0]}"


def _url(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a URL, got {value!r}")
    Url.parse(value)
    return value


class ServerKeys(Model):
    """A server that we send requests to."""

    url: Annotated[str, BeforeValidator(_url)] = Field(description="`http://…` or `https://…`, without a password")
    token: SecretKeys | None = Field(
        default=None, description="sent as `Authorization: Bearer TOKEN`: `{env: NAME}` or `{file: PATH}`"
    )
    ca: str | None = Field(default=None, description="file with certificates of authorities; none: those of the system")

    @model_validator(mode="after")
    def _encrypted(self) -> ServerKeys:
        if self.ca is not None and not Url.parse(self.url).secure:
            raise ValueError("ca goes with https://")
        return self
