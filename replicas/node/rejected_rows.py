"""The file of the rows that operators with ``on_error: skip`` or ``on_late: reject`` went on without (rule U15).

``nodes/NODE/rejected/UNIT-PARTITION.jsonl`` has a line for each stable rejection that this node saw.  A redo and a
restart make some of them once more; they are recognised by their number.  What was rejected while the
node was away is in the files of its partners.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

import trio

from operators.rejections import Rejection, shortened
from replicas.link.signal import Signal
from replicas.node.replica import Replica
from spe.log.format import write_whole
from spe.plan.plan import Plan
from spe.runtime.env import AppendFile, Env
from spe.stream.ids import ReplicaId
from spe.stream.times import iso_timestamp

#: Size of a file up to which rows are written; further ones are counted only.
FILE_BYTES: Final = 64 << 20
#: Rejections that wait for a slow or full disk; further ones are counted only.
WAITING: Final = 10_000
#: Rejections that one write takes.
_WRITTEN: Final = 1_000
#: What a disk has refused is tried again after this, and more of an operator's rejections are told.
_AGAIN_S: Final = 1.0
_TELL_AGAIN_US: Final = 60_000_000
_BLOCK: Final = 1 << 20

#: (operator, whether a result was rejected): rejections are numbered for each of these.
_Sequence = tuple[str, bool]


class RejectedRows:
    """Takes the rejections of one replica, tells of them, and writes them.

    It outlives the replica, which may be made anew in the same process.
    """

    def __init__(self, env: Env, plan: Plan, id: ReplicaId) -> None:
        self._env = env
        self._plan = plan
        self._id = id
        self.path = PurePosixPath("nodes", id.node, "rejected", f"{id.unit}-{id.partition}.jsonl")
        self.work = Signal()
        self._lock = trio.Lock()
        self._file: AppendFile | None = None
        self._size = 0
        #: Of the rows (S6), and of those that the file was opened for.
        self._origin = self._origin_of_file = ""
        #: What must not be taken in once more: the largest numbers that were, since this process began.
        self._taken: dict[_Sequence, int] = {}
        #: The largest numbers in the file, of this plan and origin.
        self._written: dict[_Sequence, int] = {}
        self._unsynced = False
        self._waiting: list[tuple[_Sequence, int, bytes]] = []
        #: Per sequence: when it was told last, and how many have come since.
        self._told: dict[_Sequence, tuple[int, int]] = {}
        self._trouble = ""
        self._closed = False

    def take(self, replica: Replica, rejections: Sequence[Rejection]) -> None:
        """Notes what is new, to be written, and tells of the first, and then once a minute how many there were."""
        if replica.serving.origin != self._origin:  # rows of other logs are others (S6)
            self._origin = replica.serving.origin
            self._taken, self._waiting = {}, []
        for one in rejections:
            key = (str(one.operator), one.result)
            if one.number <= self._taken.get(key, 0):
                continue
            self._taken[key] = one.number
            self._tell(replica, key, one)
            if self._closed:
                continue
            if len(self._waiting) >= WAITING:
                self._say_once("rows that are rejected come faster than they are written: some are counted only")
                continue
            self._waiting.append((key, one.number, _line(_plain(replica, one))))
        if self._waiting:
            self.work.wake()

    def _tell(self, replica: Replica, key: _Sequence, one: Rejection) -> None:
        now = self._env.clock.monotonic_us()
        at, count = self._told.get(key, (None, 0))
        if at is not None and now - at < _TELL_AGAIN_US:
            self._told[key] = at, count + 1
            return
        self._told[key] = now, 0
        self._env.trace.event(
            "rejected",
            replica=str(self._id),
            operator=key[0],
            what="a result" if one.result else f"a row of {_came_from(replica, one)}",
            time=iso_timestamp(one.time),
            more=f" and {count:,} more since the last one told" if count else "",
            why=shortened(one.reason.splitlines()[0]),
            file=str(self.path),
        )

    async def run(self) -> None:
        """Writes what comes, until cancelled."""
        while True:
            token = self.work.token()
            if not await self.flush():
                await self._env.clock.sleep(_AGAIN_S)
            elif not self._waiting:
                await self.work.wait(token)

    async def flush(self) -> bool:
        """Writes what there is, and syncs it; False: the disk had no room, and it is to be tried again."""
        if not self._waiting:
            return True
        async with self._lock:
            try:
                while self._waiting and not self._closed:
                    await self._write()
            except OSError as error:
                self._say_once(f"rejected rows cannot be written to {self.path}: {error}; going on")
                return self._closed
        return True

    async def _write(self) -> None:
        """Raises OSError with nothing changed, or closed for good."""
        compute, origin = self._env.compute, self._origin
        if self._file is not None and self._origin_of_file != origin:
            self._file.close()
            self._file = None
        if self._file is None:
            self._file, self._size, self._written = await compute.run(partial(self._open, origin))
            self._origin_of_file = origin
        file = self._file
        assert file is not None
        some = self._waiting[:_WRITTEN]
        new = [(key, number, line) for key, number, line in some if number > self._written.get(key, 0)]
        data = b"".join(line for _, _, line in new)
        if self._size + len(data) > FILE_BYTES:
            self._give_up(f"{self.path} is full: further rows that are rejected are counted only")
            return
        if data:
            await compute.run(partial(self._append, file, data, {key: number for key, number, _ in new}))
        if self._unsynced:
            try:
                await file.sync()
            except OSError as error:  # what is on the disk is unknown
                self._give_up(f"{self.path}: {error}; rows that are rejected are counted only")
                return
            self._unsynced = False
        if origin == self._origin:
            del self._waiting[: len(some)]
            self._trouble = ""

    def _append(self, file: AppendFile, data: bytes, numbers: Mapping[_Sequence, int]) -> None:
        """Appends lines and notes them in one go, for whoever waits for it may be cancelled; in a thread."""
        write_whole(file, data)
        self._size += len(data)
        self._written |= numbers
        self._unsynced = True

    def _open(self, origin: str) -> tuple[AppendFile, int, dict[_Sequence, int]]:
        """The file, its size and what it holds of our plan and origin; in a thread."""
        file = self._env.storage.open(self.path)
        try:
            return file, *self._continue(file, origin)
        except BaseException:
            file.close()
            raise

    def _continue(self, file: AppendFile, origin: str) -> tuple[int, dict[_Sequence, int]]:
        """The file's size and what it holds of our plan and origin, behind a header for them."""
        header = {"plan": self._plan.fingerprint, "origin": origin}
        written: dict[_Sequence, int] | None = None
        size, rest = 0, b""
        while data := file.read(size + len(rest), _BLOCK):
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            size += sum(len(line) + 1 for line in lines)
            for line in lines:
                written = _read(line, header, written)
        if rest:  # a line that was cut short
            file.truncate(size)
        if written is None:
            line = _line(header)
            file.append(line)
            return size + len(line), {}
        return size, written

    def _give_up(self, why: str) -> None:
        self._closed = True
        self._waiting = []
        self._say_once(why)

    def _say_once(self, why: str) -> None:
        if why != self._trouble:
            self._trouble = why
            self._env.trace.event("rejected_unwritten", replica=str(self._id), why=why)


def _read(line: bytes, header: dict[str, str], written: dict[_Sequence, int] | None) -> dict[_Sequence, int] | None:
    """What is written behind one more line of the file; None: what is not ours."""
    try:
        found = json.loads(line)
        if "plan" in found:
            return {} if found == header else None
        if written is not None:
            key = (str(found["operator"]), found["kind"] == "result")
            written[key] = max(written.get(key, 0), int(found["n"]))
    except (ValueError, KeyError, TypeError):
        pass  # damaged: what follows counts
    return written


def _came_from(replica: Replica, one: Rejection) -> str:
    """The channel, where it is an input of the unit; else the stream."""
    return str(one.stream) if one.input is None else str(replica.inputs[one.input].channel)


def _plain(replica: Replica, one: Rejection) -> dict[str, Any]:
    return {
        "operator": str(one.operator),
        "kind": "result" if one.result else "row",
        "n": one.number,
        "from": None if one.result else _came_from(replica, one),
        "id": one.id,
        "time": iso_timestamp(one.time),
        "values": one.values,
        "reason": one.reason,
    }


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
