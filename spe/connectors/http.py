"""HTTP: requests that bring rows, and webhooks that take results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from spe.connectors.declaration import CELLS, Guarantees, Reader, check_numbered
from spe.connectors.secret import SecretKeys, placed
from spe.problems import one_of
from spe.values import Address, Model, size_of

#: Largest body of a request: it becomes one record of the source's log.
BODY_BYTES_MAX: Final = 8 << 20


def _body(value: Any) -> int:
    size = size_of(value)
    if size > BODY_BYTES_MAX:
        raise ValueError(f"expected at most {BODY_BYTES_MAX >> 20} MiB, for a request is one record of the log")
    return size


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(value: Any) -> Any:
    return {"listen": value} if isinstance(value, str) else value


class HttpKeys(Model):
    """Where requests come in."""

    listen: Address = Field(description="address where the source listens")
    token: SecretKeys | None = Field(
        default=None,
        description="requests must have `Authorization: Bearer TOKEN`: `{env: NAME}` or `{file: PATH}`; required where "
        "other machines can reach the address",
    )
    certificate: str | None = Field(default=None, description="file with a certificate, for TLS; none: plain text")
    key: str | None = Field(default=None, description="file with its private key")
    bad_rows: Literal["refuse", "pass"] = Field(
        default="refuse",
        description="a row that cannot be understood: its request is refused (`refuse`), or the row goes the way of "
        "`on_malformed`, and the others are taken (`pass`)",
    )
    max_body: Annotated[int, BeforeValidator(_body)] = Field(
        default=4 << 20, description="largest body of a request, at most 8 MiB"
    )

    @model_validator(mode="after")
    def _safe(self) -> HttpKeys:
        if not _is_loopback(self.listen) and self.token is None:
            raise ValueError(f"{self.listen} can be reached from other machines; expected a token")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("expected both certificate and key, or none")
        return self


@dataclass(frozen=True)
class Http(Reader):
    """Rows in the bodies of requests."""

    live: ClassVar = True
    defaults: ClassVar = {"format": "jsonl"}

    def check(self, given: Mapping[str, Any]) -> None:
        super().check(given)
        if given.get("format") == "csv":
            check_numbered(given)
        elif stray := [o for o in ("delimiter", "quote", "null") if o in given]:
            raise ValueError(f"{one_of(stray)} does not go with format jsonl; expected format: csv")

    def reader(self, value: HttpKeys, data: Path) -> dict[str, Any]:
        return placed(value.model_dump(exclude_none=True), data, "certificate", "key")

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"http {reader['listen']}"


_OPTIONS: Final = ("format", *(option for option in CELLS if option != "header"))
HTTP: Final = Http(
    "http",
    Annotated[HttpKeys, BeforeValidator(_listen)],
    "HOST:PORT, or {listen: …}",
    "bodies of [POST requests](../how-to/http.md)",
    _OPTIONS,
    Guarantees(
        durable="the source's log; a request is answered with 200 after the sync of its rows, all or none",
        own_crash="what was answered is there. Of a request without an answer nobody knows: with an `Idempotency-Key` "
        "it is sent again and taken once; without one it may be there twice",
        other_crash="a body that is not complete is dropped. A sender that forgot its number asks with GET",
        failures={
            "the answer is lost, and the request comes again": "it has the number of its sender's last one: answered, "
            "not taken again",
            "a number is missing, or a sender begins anew at 1": "409, with the number that is expected; nothing is "
            "taken",
            "a number comes again with another body": "422; nothing is taken",
            "a row cannot be understood": "400 with row and column, and nothing of the request is taken; or by "
            "`on_malformed` (`bad_rows: pass`)",
            "rows come faster than the disk takes them, or it is full": "503 with `Retry-After`: send it again, with "
            "its key",
            "the body is too large, or has more than 8192 rows": "413; nothing is taken",
            "no token, or a wrong one": "401, and the connection is closed",
            "the body has no `Content-Length`, or is compressed": "411, 415: chunks would have no bound",
            "a sender is slow": "it has 5 s for its headers, and 10 s for its body, with a second more for each "
            "32 KiB; then the connection is closed",
            "a web page sends it": "403 where there is no token: a browser sends `Origin`",
            "more than 256 senders use keys": "further ones get 403; they can send without a key",
        },
    ),
)
