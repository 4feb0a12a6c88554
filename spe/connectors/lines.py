"""Readers of lines, from connections and from standard input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from spe.connectors.declaration import LEFT_OUT, LIVE_OPTIONS, Guarantees, LiveRows
from spe.values import address_of


@dataclass(frozen=True)
class Lines(LiveRows):
    """Reads lines, which have no header."""

    def check(self, options: Mapping[str, Any]) -> None:
        if "header" in options:
            raise ValueError(
                "header does not go with lines: their columns are in the order of the schema, or as columns says"
            )
        super().check(options)

    def reader(self, value: Any, data: Path) -> dict[str, Any]:
        return {"address": value} if isinstance(value, str) else {}

    def describe(self, reader: Mapping[str, Any]) -> str:
        return f"{self.kind} {reader['address']}" if "address" in reader else self.kind


_BAD_LINES: Final = {
    "a line cannot be understood, or has more than 1 MiB": LEFT_OUT,
    "rows come faster than the disk takes them": "nothing more is read, so that the sender waits",
}
TCP: Final = Lines(
    "tcp",
    Annotated[str, BeforeValidator(address_of)],
    "HOST:PORT",
    "[lines](../how-to/real-input.md#live-lines) from any number of producers, which connect to it",
    LIVE_OPTIONS,
    Guarantees(
        durable="the source's log, from its sync on; a producer is told nothing",
        own_crash="lines that were sent and not yet synced are lost",
        other_crash="a line without its end is no row, unless it is a whole JSON object: it is dropped if the "
        "connection breaks, and counted as one that cannot be understood if it is closed, as when a producer is "
        "killed. What is sent again is taken again",
        failures={
            **_BAD_LINES,
            "the address is taken": "the source stops and says so; what it has logged is still served",
            "lines that have no end yet are more than 32 MiB": "the producer that sends is disconnected",
        },
    ),
    opens="replicas.connectors.tcp:TcpListener",
    example='from: {tcp: "127.0.0.1:9001", format: csv}',
)
STDIN: Final = Lines(
    "stdin",
    Literal[True],
    "true",
    "[lines](../how-to/real-input.md#live-lines) on standard input",
    LIVE_OPTIONS,
    Guarantees(
        durable="the source's log, from its sync on",
        own_crash="lines that were read and not yet synced are lost; so is what is left in a pipe that ends with us",
        other_crash="the end of the input ends the stream and its last line: if the writer was killed, a part of a CSV "
        "line may be a row",
        failures=_BAD_LINES,
    ),
    opens="replicas.connectors.tcp:StandardInput",
    example="from: {stdin: true, format: jsonl}",
)
