"""HTTP: sources for requests and server-sent events, and a sink that sends requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from spe.connectors.avro import AvroKeys, placed_avro
from spe.connectors.declaration import (
    CORRECTIONS,
    CURRENT,
    KEPT_ASIDE,
    LIVE_OPTIONS,
    STABLE,
    Guarantees,
    LiveRows,
    SinkDeclaration,
    shorthand,
)
from spe.connectors.secret import SecretKeys, placed
from spe.connectors.server import ServerKeys, Url
from spe.values import Address, Model, Names, PositiveDuration, size_of

#: Pattern of a sender's name.
SENDER: Final = r"[A-Za-z0-9._-]{1,64}"
#: Largest body of a request, which becomes one record of the source's log.
BODY_BYTES_MAX: Final = 8 << 20


def _body(value: Any) -> int:
    size = size_of(value)
    if size > BODY_BYTES_MAX:
        raise ValueError(f"expected at most {BODY_BYTES_MAX >> 20} MiB, for a request is one record of the log")
    return size


class EventsKeys(ServerKeys):
    """A stream of server-sent events."""

    events: Names | None = Field(default=None, description="types of events that are rows; none given: all")
    ids: Literal["required", "optional"] = Field(
        default="required",
        description="an event without an id stops the source (`required`), or is taken; then rows may be missing or "
        "come twice after each reconnect (`optional`)",
    )
    silence: PositiveDuration = Field(
        default=60_000_000, description="connects again when nothing has come for so long, not even a comment"
    )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _numbers(value: Any) -> dict[str, int]:
    if (
        isinstance(value, dict)
        and value
        and all(
            isinstance(sender, str) and re.fullmatch(SENDER, sender) and type(number) is int and number >= 1
            for sender, number in value.items()
        )
    ):
        return {str(sender): number for sender, number in value.items()}
    raise ValueError(f"expected a mapping of senders to the numbers of their last requests, got {value!r}")


class HttpKeys(Model):
    """The address for requests, and its limits."""

    listen: Address = Field(description="address where the source listens")
    token: SecretKeys | None = Field(
        default=None,
        description="requests must have `Authorization: Bearer TOKEN`: `{env: NAME}` or `{file: PATH}`; required where "
        "other machines can reach the address",
    )
    certificate: str | None = Field(
        default=None, description="file with a certificate, for TLS, renewed without a restart; none: plain text"
    )
    key: str | None = Field(default=None, description="file with its private key")
    bad_rows: Literal["refuse", "pass"] = Field(
        default="refuse",
        description="a row that cannot be understood, or that `ahead` refuses: its request is refused (`refuse`), or "
        "only the row is left out (`pass`; a malformed one may stop the source by `on_malformed`)",
    )
    avro: AvroKeys | None = Field(
        default=None,
        description="of `format: avro`: a body is a container file, not compressed; or, with `{registry: URL}` or "
        "`{file: PATH}`, one message",
    )
    until: Annotated[dict[str, int], BeforeValidator(_numbers)] | None = Field(
        default=None,
        description="sender → number of its last request: the stream ends behind all of these; others may not send, "
        "and each request needs a key",
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
class Http(LiveRows):
    """Reads rows in the bodies of requests."""

    formats: tuple[str, ...] = ("jsonl", "csv", "avro")

    def fits(self, value: HttpKeys, options: Mapping[str, Any]) -> None:
        if value.avro is not None and options.get("format") != "avro":
            raise ValueError("avro goes with format: avro")

    def reader(self, value: HttpKeys, data: Path) -> dict[str, Any]:
        return placed_avro(placed(value.model_dump(exclude_none=True), data, "certificate", "key"), data)

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"http {reader['listen']}"


@dataclass(frozen=True)
class Events(LiveRows):
    """Reads rows in the data of events."""

    def reader(self, value: EventsKeys, data: Path) -> dict[str, Any]:
        return placed(value.model_dump(exclude_none=True), data, "ca")

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"sse {Url.parse(reader['url'])}"


HTTP: Final = Http(
    "http",
    Annotated[HttpKeys, shorthand("listen")],
    "HOST:PORT, or {listen: …}",
    "bodies of [POST requests](../how-to/http.md)",
    LIVE_OPTIONS,
    Guarantees(
        durable="the source's log; a request is answered with 200 after the sync of its rows, all or none",
        own_crash="what was answered is there. A request without an answer is sent again: with an `Idempotency-Key` "
        "it is taken once, without one perhaps twice",
        other_crash="a body that is not complete is dropped. A sender that forgot its number asks with GET",
        failures={
            "the answer is lost, and the request comes again": "it has the number of its sender's last one: answered, "
            "with the same `left_out`, not taken again",
            "a number is missing, or a sender begins anew at 1": "409, with the number that is expected; nothing is "
            "taken",
            "a number comes again with another body": "422; nothing is taken",
            "a row cannot be understood, or `ahead` refuses it": "400 with row and column, nothing of the request is "
            "taken, and its key is not used up; or (`bad_rows: pass`) 200 with `left_out`, and the row is "
            f"{KEPT_ASIDE}, or stops the source (`on_malformed`)",
            "rows come faster than the disk takes them, or it is full": "503 with `Retry-After`: send it again, with "
            "its key",
            "the body is too large, or has more than 8192 rows": "413; nothing is taken",
            "of Avro: the schema registry is away, or refuses us": "503 with `Retry-After`, and the status says so",
            "with `until`: a request beyond it, without a key, or of another sender": "410, 403; nothing is taken. "
            "Once the stream has ended, repeats are answered for 5 s, then the address is closed",
            "no token, or a wrong one": "401, and the connection is closed",
            "the body has no `Content-Length`, or is compressed": "411, 415: chunks would have no bound",
            "a sender is slow": "it has 5 s for its headers, and 10 s for its body, with a second more for each "
            "32 KiB; then the connection is closed",
            "a web page sends it": "403 where there is no token: a browser sends `Origin`",
            "more than 256 senders use keys": "further ones get 403; they can send without a key",
        },
    ),
    opens="replicas.connectors.http.source:HttpReceiver",
    example='from: {http: {listen: "127.0.0.1:9000", bad_rows: pass}, format: csv}',
)
SSE: Final = Events(
    "sse",
    Annotated[EventsKeys, shorthand("url")],
    "URL, or {url: …}",
    "[server-sent events](../how-to/http.md#read-a-stream-of-events), whose data are rows",
    LIVE_OPTIONS,
    Guarantees(
        durable="the server, as long as it can resume; and the source's log, from the sync of a row on",
        own_crash="goes on behind the id of the last row of the log (`Last-Event-ID`): no event twice, none missing, "
        "if the server keeps that",
        other_crash="what the server still has behind that id comes. A server that begins elsewhere is not noticed",
        failures={
            "the server is away, ends the stream, or answers 408, 425, 429 or 5xx": "the source says so and connects "
            "again, after `Retry-After`, the stream's `retry`, or longer and longer, up to 5 s; no silence counts",
            "it answers 204": "the stream ends",
            "it answers another status, leads elsewhere, or sends no `text/event-stream`": "the source stops and says "
            "what came; what it has logged is still served",
            "an event has no id of its own": "the rows before it are taken, then the source stops; or it is taken "
            "without the guarantees above (`ids: optional`)",
            "two events that follow each other have one id": "the source stops: between them it could not resume",
            "an event cannot be understood, or has more than 1 MiB": f"it is counted, {KEPT_ASIDE} with its id and "
            "left out, or stops the source (`on_malformed`)",
            "nothing comes, not even a comment": "after `silence` it connects again",
        },
    ),
    opens="replicas.connectors.http.events:EventReader",
    example='from: {sse: {url: "https://prices.example/stream", token: {env: PRICES_TOKEN}}}',
)


def _id(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,40}", value):
        return value
    raise ValueError(f"expected at most 40 letters, digits, '.', '_' and '-', got {value!r}")


class HttpSinkKeys(ServerKeys):
    """The receiver of results."""

    id: Annotated[str, BeforeValidator(_id)] | None = Field(
        default=None,
        description="begins the sender's name in keys; `spe` if not given. Clients that share a storage and a URL need "
        "different ones",
    )
    timeout: PositiveDuration = Field(default=30_000_000, description="longest time for an answer")
    max_body: Annotated[int, BeforeValidator(_body)] = Field(
        default=1 << 20, description="largest body of a request, but for a single row that is larger; at most 8 MiB"
    )


class HttpSinkDeclaration(SinkDeclaration):
    """Sends results in requests with keys."""

    def sink(self, value: HttpSinkKeys) -> dict[str, Any]:
        return placed(value.model_dump(exclude_none=True), None)

    def place(self, sink: Mapping[str, Any]) -> str:
        text = str(Url.parse(str(sink["url"])))
        return f"{text}, id {sink['id']}" if sink.get("id") else text


HTTP_SINK: Final = HttpSinkDeclaration(
    "http",
    Annotated[HttpSinkKeys, shorthand("url")],
    "URL, or {url: …}",
    "[POST requests](../how-to/http.md#send-results) of JSON lines",
    {
        STABLE: "final rows only, with `_stream`, `_partition`, `_id` and `_time`",
        CURRENT: "rows, with `_kind` `insert` and `_tentative`, and undos, each of which withdraws all rows of its "
        "stream and partition with a larger `_id`: applied in order they give the newest answer. A correction is one "
        "request, unless it is large or takes longer than a second",
        CORRECTIONS: "every insert, undo and done, with its `_kind`, also of rows that are withdrawn at once",
    },
    Guarantees(
        durable="the receiver, once it has answered 2xx; only then are rows acknowledged. Until then a request is in "
        "the client's storage (`sinks`), and is repeated with the same bytes and `Idempotency-Key: SENDER:NUMBER`; "
        "numbers are 1, 2, 3, …",
        own_crash="what was not answered is sent again. **Exactly once** if the receiver stores each sender's number "
        "in one transaction with the rows, and answers a request up to it with 2xx, as `from: http` does; else **at "
        "least once**",
        other_crash="what it answered with 2xx must be there; the rest is sent again",
        failures={
            "the receiver is away, slow, or answers 408, 425, 429 or 5xx": "the client says so, tries again after "
            "`Retry-After`, or longer and longer, up to 5 s; its buffer fills, then it takes nothing more",
            "it answers another status": "the client ends and says which, and the beginning of the body; started "
            "again, it sends the same request",
            "the client's storage is lost": "results that nodes still have are sent again, under another sender; if "
            "they have forgotten some, the client ends and says so",
            "its disk is full": "nothing is sent that is not in the storage; the client waits and says so",
            "another client uses the storage, URL and id": "the one that came last ends and says so",
            "the storage holds results of another query or mode": "the client refuses it and ends",
        },
    ),
    opens="replicas.connectors.http.sink:HttpSink",
    example='sinks: [{http: {url: "https://shop.example/totals", token: {env: SHOP_TOKEN}}, mode: current}]',
)
