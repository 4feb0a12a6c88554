"""The sink for Delta tables, in a folder or in S3."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import isabs, normpath
from typing import Annotated, Any, Final
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, model_validator

from spe.connectors.declaration import CORRECTIONS, CURRENT, STABLE, Guarantees, SinkDeclaration, shorthand
from spe.connectors.directory import endpoint_url
from spe.values import S3, Model, PositiveDuration, split_open

_FILE: Final = "file://"


def _path(value: Any) -> str:
    expected = f"expected an absolute path, file:///… or s3://BUCKET/PREFIX, got {value!r}"
    if not isinstance(value, str):
        raise ValueError(expected)
    if "://" not in value:
        if not isabs(value):  # each process may run in another folder
            raise ValueError(expected)
        return normpath(value)
    parts = split_open(value)
    if parts.scheme == "file" and not parts.netloc and isabs(parts.path):
        return normpath(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc and parts.path.strip("/"):
        return value.rstrip("/")
    raise ValueError(expected)


class DeltaKeys(Model):
    """A table."""

    path: Annotated[str, BeforeValidator(_path)] = Field(
        description="of the table: an absolute path, `file:///…` or `s3://BUCKET/PREFIX`"
    )
    every: PositiveDuration = Field(
        default=10_000_000,
        description="time between two commits while something comes; earlier after a million rows, or 128 MiB of them",
    )
    append: bool = Field(
        default=False, description="`true`: a table that has rows of others, and no position of ours, is appended to"
    )
    region: str | None = Field(default=None, description="of S3; none: as the environment and files of AWS say")
    endpoint: Annotated[str, BeforeValidator(endpoint_url)] | None = Field(
        default=None,
        description="of a server that speaks S3, `https://HOST:PORT`; none: `AWS_ENDPOINT_URL`, or that of AWS",
    )

    @model_validator(mode="after")
    def _fits(self) -> DeltaKeys:
        of_s3 = [key for key in ("region", "endpoint") if getattr(self, key)]
        if of_s3 and not self.path.startswith(S3):
            raise ValueError(f"{', '.join(of_s3)} goes with s3://")
        return self


class DeltaSinkDeclaration(SinkDeclaration):
    """Writes rows to a table, in one commit with their position."""

    def place(self, sink: Mapping[str, Any]) -> str:
        return str(sink["path"])


DELTA_SINK: Final = DeltaSinkDeclaration(
    "delta",
    Annotated[DeltaKeys, shorthand("path")],
    "PATH or URL, or {path: …}",
    "[a Delta table](../how-to/delta.md), in a folder or in S3",
    {
        STABLE: "final rows only, each exactly once, with `_partition`, `_id` and `_time`",
        CURRENT: "the newest answer: rows that may still change have `_tentative`, and one commit replaces them by "
        "their correction; no version of the table has a result twice",
        CORRECTIONS: "every insert, undo and done, with its `_kind`: applied in the order of `_change` they give the "
        "newest answer",
    },
    Guarantees(
        durable="the table, once a commit is in its log, in which transaction identifiers say how far it goes; in a "
        "folder, once files and commit are synced. Only then are rows acknowledged",
        own_crash="what was committed is there; what was not is written again: each row stands once. Files without a "
        "commit stay until `VACUUM`. Rows that were tentative are withdrawn at the start",
        other_crash="what S3 or the disk has said to have is there; after an unknown commit the sink reads the log to "
        "find out which it was. A commit that a power failure tore is removed: nobody was told of it",
        failures={
            "S3 is away, or the disk is full": "the client says so, waits longer and longer, up to 5 s, and goes on "
            "where the table ends; its buffer fills, then it takes nothing more",
            "others commit to the table, as `OPTIMIZE` does": "both commits stand: the sink reads the log, and commits "
            "behind them",
            "another process of the same client writes to the table": "the one that came last goes on; the other one "
            "ends and says so",
            "the table does not exist": "it is made; one that is there must have the columns, with their types, and in "
            "mode `current` be partitioned by `_tentative` alone",
            "its schema changes during a run": "columns that are added may be null, and are left null; after another "
            "change the client ends and says what it expected",
            "the table has rows of others": "the client refuses it and ends; with `append: true` it appends",
            "the table has rows of another query, mode or client, or was restored to an older version": "the client "
            "refuses it and ends",
            "the log has forgotten our last commit (`delta.logRetentionDuration`, 30 days)": "the client refuses the "
            "table, and says how far it goes",
            "the table has features that this writer does not know, such as column mapping": "the client refuses it "
            "and names them",
            "a float is NaN or infinite": "it is written; but a reader that looks for such values alone, as in "
            "`x = double('inf')`, may leave the file out",
            "the credentials are wrong, there is no such bucket, or the folder may not be written": "the client ends "
            "and says what to do",
        },
    ),
    opens="replicas.connectors.delta.sink:DeltaSink",
    example='sinks: [{delta: {path: "s3://lake/totals", every: 30s}, mode: current}]',
)
