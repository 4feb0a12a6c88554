"""Writes a client's results to a Delta table, each commit together with its positions.

The information of each commit has the state of :class:`ServerSink`, and sets transaction identifiers: ``tentative-spe``
to the version that the commit was made for, by which two of our commits exclude each other, and
``tentative-spe/CLIENT/STREAM/PARTITION`` to the last stable id, which checkpoints of the log retain.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from replicas.connectors.delta.rows import (
    CHANGE,
    TENTATIVE,
    columns_of,
    differences,
    statistics_of,
    table_of,
)
from replicas.connectors.delta.table import DeltaPlace
from replicas.connectors.server_sink import FORGET, NOTHING_KEPT, ChannelEntry, ServerSink, without_withdrawn
from spe.connectors.declaration import CORRECTIONS, CURRENT
from spe.errors import ConfigError, ServerAway, SpeError
from spe.runtime.env import Env
from spe.stream.ids import Channel
from spe.stream.schema import Schema

try:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError as error:  # pragma: no cover - the extra is installed wherever tests run
    raise ConfigError(["Delta tables need deltalake and pyarrow: pip install '.[delta]'"]) from error

#: Rows that are buffered before a commit: small files make a table slow.
ROWS_MAX: Final = 1_000_000
BYTES_MAX: Final = 128 << 20
#: Longest time of a commit with its files, before the store counts as away.
ANSWER_S: Final = 120.0
#: Identifier that each commit of this sink sets, and key of the state in a commit's information.
APP: Final = "tentative-spe"
#: Attempts to commit while other writers do, and the time before the second one.
_ATTEMPTS: Final = 10
_AGAIN_S: Final = 0.05
#: Table features that demand nothing of a writer; and the protocol version in which features have no names.
_FEATURES: Final = frozenset({"appendOnly", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_WRITER_VERSION: Final = 2


class _Written(NamedTuple):
    """Files that a commit will name, and the channels whose tentative rows are removed."""

    files: list[AddAction]
    withdrawn: frozenset[int]
    #: Number of the next change, in mode corrections.
    change: int


class DeltaSink(ServerSink):
    """A Delta table as a sink; see the module.

    Args:
      options: options of ``spe.connectors.delta.DeltaKeys``.

    Raises:
      ConfigError: several streams would be written to one table, or an attribute has the name of a column of the sink.
    """

    rows_max: ClassVar[int] = ROWS_MAX
    bytes_max: ClassVar[int] = BYTES_MAX
    answer_s = ANSWER_S

    def __init__(self, schemas: Mapping[Channel, Schema], mode: str, options: Mapping[str, Any]) -> None:
        super().__init__(schemas, mode)
        self._place = DeltaPlace(
            str(options["path"]), endpoint=options.get("endpoint") or "", region=options.get("region") or ""
        )
        self.period_us = int(options["every"])
        self._append = bool(options.get("append"))
        self._schema = next(iter(schemas.values()))
        self._columns = columns_of(self._schema, mode)
        self._partition_by = [TENTATIVE] if mode == CURRENT else []
        self._client = ""
        self._table: DeltaTable | None = None
        #: Last version of the table whose state is known and whose columns fit.
        self._seen = -1
        #: Number of the next change, in mode corrections.
        self._change = 0
        streams = sorted({channel.stream for channel in schemas})
        problems = []
        if len(streams) > 1:
            problems.append(
                f"sink delta: {', '.join(streams)} go to one table; expected a client that reads one stream"
            )
        if mode == CORRECTIONS and CHANGE in self._schema.names:
            problems.append(f"stream {streams[0]!r}: attribute {CHANGE!r} has a name that the sink uses itself")
        if problems:
            raise ConfigError(problems)

    async def open(self, env: Env, queries: Mapping[Channel, str], client: str = "") -> None:
        self._client = client
        await super().open(env, queries, client)

    async def load(self, env: Env) -> bytes:
        return await env.compute.run(self._load)

    async def store(self, before: bytes, after: bytes, entries: Sequence[ChannelEntry]) -> bool:
        compute = self._env.compute
        written = await compute.run(lambda: self._write(entries))
        for attempt in range(_ATTEMPTS):
            if attempt:
                await self._env.clock.sleep(_AGAIN_S * attempt)
            done = await compute.run(lambda: self._commit(before, after, written))
            if done is not None:
                break
        else:
            raise ServerAway("others commit to the table all the time")
        if done:
            await compute.run(self._settled)
        return done

    async def forget(self, env: Env) -> str:
        return await env.compute.run(self._forget)

    async def disconnect(self) -> None:
        """Commits buffered changes at the end: commits are far apart, and the end of a run cancels the client."""
        try:
            if self._connected and self._table is not None:
                with suppress(SpeError):
                    await self.commit(self._env.compute)
        finally:
            self._table = None

    # --- in a thread ---

    def _load(self) -> bytes:
        """Finds or makes the table, and returns the state."""
        table = self._place.open()
        if table is None:
            table = self._place.make(self._columns, self._partition_by)
        with self._place.errors_told_apart():
            self._check(table)
            state, self._change, version = self._state(table)
            self._place.sync(range(version, version + 1))  # the last process may have ended before the sync
            if not state and not self._append and table.get_add_actions().num_rows:
                raise SpeError(
                    f"{self.name}: the table has rows, and its log does not say how far we are; expected an empty "
                    "table, a path that is free, or append: true"
                )
        self._table, self._seen = table, table.version()
        return state

    def _forget(self) -> str:
        """Removes the state first: with rows and without state, a sink refuses the table."""
        table = self._place.open()
        if table is None or table.transaction_version(APP) is None:
            return NOTHING_KEPT
        parts, last = table.metadata().partition_columns, table.version()
        state, ours = {APP: json.dumps({"state": "", "change": 0})}, [Transaction(APP, last + 1)]
        properties = CommitProperties(custom_metadata=state, max_commit_retries=0, app_transactions=ours)
        with self._place.errors_told_apart():
            table.create_write_transaction([], "append", table.schema(), parts, commit_properties=properties)
            if not self._append:
                table.update_incremental()
                rows = sum(pa.table(table.get_add_actions()).column("num_records").to_pylist())
                table.delete()
        self._place.sync(range(last, table.version() + 1))
        if self._append:
            return "its position is removed; its rows stay among those of others"
        return f"its position and {rows:,} rows are removed"

    def _check(self, table: DeltaTable) -> None:
        """Raises SpeError: our rows do not fit the table."""
        there = pa.schema(table.schema().to_arrow())
        problems = differences(there, self._columns)
        if (parts := table.metadata().partition_columns) != self._partition_by:
            problems.append(f"it is partitioned by {_list(parts)}, expected {_list(self._partition_by)}")
        protocol, settings = table.protocol(), table.metadata().configuration
        features = set(protocol.writer_features or ()) | set(protocol.reader_features or ())
        if unknown := sorted(features - _FEATURES):
            problems.append(f"it has the features {_list(unknown)}, which we do not write")
        elif not features and protocol.min_writer_version > _WRITER_VERSION:
            problems.append(f"its writer version is {protocol.min_writer_version}, expected {_WRITER_VERSION} or less")
        if self.mode == CURRENT and settings.get("delta.appendOnly") == "true":
            problems.append("delta.appendOnly is set, expected that rows may be removed")
        if problems:
            raise SpeError(f"{self.name}: the table does not fit mode {self.mode}: {'; '.join(problems)}")

    def _state(self, table: DeltaTable) -> tuple[bytes, int, int]:
        """Returns the state of our last commit, the number of the next change, and the version.

        Raises:
          SpeError: the commit is gone.
        """
        last = table.transaction_version(APP)
        if last is None:
            return b"", 0, table.version()
        for version in range(table.version(), -1, -1):
            commit = self._place.commit_info(version)
            if commit is None:
                break
            if (ours := commit.get(APP)) is not None:
                information = json.loads(ours)
                return str(information["state"]).encode(), int(information["change"]), version
            if commit.get("operation") == "RESTORE":
                raise SpeError(
                    f"{self.name}: the table was restored to an older version, and rows that it had will not come "
                    f"again; give the client another place, or begin anew: {FORGET}"
                )
        raise SpeError(
            f"{self.name}: its log has forgotten our last commit, for version {last} of the table: it is older than "
            f"delta.logRetentionDuration. Give the client another place, or begin anew: {FORGET}; "
            f"{self._reached(table)}"
        )

    def _reached(self, table: DeltaTable) -> str:
        client = self._client
        reached = {str(c): table.transaction_version(_app(client, str(c))) for c in self.schemas}
        return "this one has " + ", ".join(f"{name} up to id {id_ or 0}" for name, id_ in reached.items())

    def _write(self, entries: Sequence[ChannelEntry]) -> _Written:
        """Writes the rows, and syncs them, before a commit names them."""
        remaining, withdrawn = list(entries), frozenset[int]()
        if self.mode == CURRENT:
            remaining = without_withdrawn(entries)
            withdrawn = frozenset(e.channel.partition for e in remaining if e.batch is None)
            remaining = [e for e in remaining if e.batch is not None]
        groups: list[list[ChannelEntry]] = [remaining]
        if self.mode == CURRENT:  # a file of tentative rows has one channel, so that it can be removed as a whole
            groups = [[e for e in remaining if not e.tentative]]
            groups += [[e for e in remaining if e.tentative and e.channel == channel] for channel in self.schemas]
        files = []
        change = self._change
        for group in groups:
            if group:
                rows = table_of(group, self._schema, self.mode, change)
                files.append(self._file(rows, group[0].tentative))
                change += len(rows)
        return _Written(files, withdrawn, change)

    def _file(self, rows: pa.Table, tentative: bool) -> AddAction:
        name, values = f"part-{uuid.uuid4()}.snappy.parquet", {}
        if self._partition_by:
            values = {TENTATIVE: "true" if tentative else "false"}
            name = f"{TENTATIVE}={values[TENTATIVE]}/{name}"
            rows = rows.drop_columns([TENTATIVE])
        size = self._place.write(name, rows)
        return AddAction(name, size, values, _now_ms(), True, statistics_of(rows))

    def _commit(self, before: bytes, after: bytes, written: _Written) -> bool | None:
        """Commits after other writers' commits; returns False: the state is another one; None: another commit was
        faster.
        """
        table = self._table
        if table is None:
            raise ServerAway("the connection is lost")
        with self._place.errors_told_apart():
            table.update_incremental()
            if table.version() != self._seen:
                if self._state(table)[0] != before:
                    return False
                self._check(table)
                self._seen = table.version()
            removed, left = self._withdraw(table, written.withdrawn)
            properties = CommitProperties(
                custom_metadata={APP: json.dumps({"state": after.decode(), "change": written.change})},
                # A commit of another writer may remove the same files: then it has to be read first.
                max_commit_retries=0 if removed else None,
                app_transactions=self._transactions(table, after),
            )
            try:
                table.create_write_transaction(
                    [*removed, *left, *written.files],
                    "append",
                    table.schema(),
                    self._partition_by,
                    commit_properties=properties,
                )
            except CommitFailedError:
                return None
        self._change = written.change
        return True

    def _transactions(self, table: DeltaTable, after: bytes) -> list[Transaction]:
        state = json.loads(after)
        transactions = [Transaction(APP, table.version() + 1)]
        return transactions + [
            Transaction(_app(state["client"], c), state_of_channel["id"])
            for c, state_of_channel in state["channels"].items()
        ]

    def _withdraw(self, table: DeltaTable, channels: frozenset[int]) -> tuple[list[RemoveAction], list[AddAction]]:
        """Returns files with tentative rows of channels, and new ones with the rows of other channels in them."""
        removed: list[RemoveAction] = []
        left: list[AddAction] = []
        if not channels:
            return removed, left
        files = pa.table(table.get_add_actions(flatten=True))
        files = files.filter(files[f"partition.{TENTATIVE}"])
        names = set(files.column_names)
        for file in files.to_pylist():
            least, largest = (file.get(f"{end}._partition") for end in ("min", "max"))
            if least is None or largest is None or "min._partition" not in names:
                least, largest = 0, max(channel.partition for channel in self.schemas)
            if channels.isdisjoint(range(least, largest + 1)):
                continue
            if not channels.issuperset(range(least, largest + 1)):
                rows = self._place.read(file["path"], _without(self._columns, TENTATIVE))
                ours = np.isin(rows["_partition"].to_numpy(), list(channels))
                if not ours.any():
                    continue
                if not ours.all():
                    tentative = rows.filter(pa.array(~ours)).add_column(
                        0, TENTATIVE, pa.repeat(True, int((~ours).sum()))
                    )
                    left.append(self._file(tentative, True))
            values: dict[str, str | None] = {TENTATIVE: "true"}
            removed.append(RemoveAction(file["path"], True, _now_ms(), file["size_bytes"], values))
        return removed, left

    def _settled(self) -> None:
        """Syncs our commit."""
        table, settled = self._table, self._seen
        assert table is not None
        with self._place.errors_told_apart():
            table.update_incremental()
        self._place.sync(range(settled + 1, table.version() + 1))
        if table.version() == settled + 1:
            self._seen = settled + 1


def _app(client: str, channel: str) -> str:
    return f"{APP}/{client}/{channel}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _without(columns: pa.Schema, name: str) -> pa.Schema:
    return pa.schema([field for field in columns if field.name != name])


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "no column"
