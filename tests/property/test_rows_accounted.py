"""Each row of a live reader is in the log, kept aside, or refused to its sender: never nowhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("h11", reason="HTTP is not tested: h11 is not installed")

from replicas.connectors import Live, Malformed, Resumable, RowChunk, open_reader
from replicas.connectors.http.source import HttpReceiver
from replicas.connectors.tcp import TcpListener
from replicas.simulation.world.disk import SimDisk
from replicas.source.proxy import SourceProxy
from spe.config import load_data
from spe.log import read_log
from spe.log.source_log import decode_rejected, decode_source_batch, source_folder
from spe.plan.plan import Source
from spe.runtime.env import Env
from spe.stream.batch import Column
from spe.stream.names import StreamId
from spe.stream.strings import StringPool
from spe.stream.times import SECOND, format_timestamp, parse_timestamp
from tests.support.distribution import Situations
from tests.support.http_peers import Peer, Reply
from tests.support.source_env import source_env

NOON = parse_timestamp("2026-01-01T12:00:00")
STREAM = StreamId("s")
#: Kinds of rows: good, from the future, far beyond all times, and not to be understood.
KINDS = "gfxm"
ROWS = st.text(KINDS, min_size=1, max_size=6)
#: Rows of a request, whether it has a key, whether its answer is lost, and seconds until the next one.
POSTS = st.tuples(ROWS, st.booleans(), st.booleans(), st.sampled_from([0, 4]))
Accept = Callable[[RowChunk], Awaitable[None]]


def configured(reader: dict[str, Any], **options: Any) -> Source:
    of = {"schema": {"ts": "timestamp!", "n": "int64!"}, "time": "ts", "ahead": "1s", "from": reader}
    config = {
        "sources": {"s": {**of, **options}},
        "query": {"q": {"filter": {"from": "s", "where": "true"}}},
        "outputs": ["q"],
    }
    return load_data(config, "the source", ".").plan.sources[STREAM]


def text_of(kind: str, n: int) -> str:
    time = {"g": NOON + n, "f": NOON + 3 * SECOND, "x": parse_timestamp("9000-01-01"), "m": NOON}[kind]
    ts = "soon" if kind == "m" else format_timestamp(time)
    return json.dumps({"ts": ts, "n": n})


class Served:
    """Connections in memory to whatever a reader serves."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._handler: Callable[[trio.abc.Stream], Awaitable[None]]

    async def connect(self, address: str, seconds: float) -> trio.abc.Stream:
        raise NotImplementedError

    async def serve(
        self, address: str, handler: Callable[[trio.abc.Stream], Awaitable[None]], *, task_status: trio.TaskStatus[str]
    ) -> None:
        self._handler = handler
        task_status.started(address)
        await trio.sleep_forever()

    def stream(self) -> trio.StapledStream[Any, Any]:
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._handler, theirs)
        return ours


class Accounts:
    """The rows that a disk accounts for, by their number, and how often."""

    def __init__(self, disk: SimDisk, source: Source) -> None:
        self.logged, self.rejected = Counter[int](), Counter[int]()
        pool = StringPool()
        for record in read_log(disk, source_folder(STREAM)):
            if (batch := decode_source_batch(record.body, source.schema, pool)) is not None:
                self.logged.update(batch.rows.columns[1].to_list())
            if (rejected := decode_rejected(record.body, pool)) is not None:
                self.rejected.update(json.loads(text)["n"] for text in rejected.rows.columns[-1].to_list())
        self.aside = Counter[int]()
        for folder in ("malformed", "refused"):
            path = PurePosixPath(folder, "s.jsonl")
            for line in disk.read(path).splitlines() if disk.exists(path) else ():
                self.aside[json.loads(json.loads(line)["text"])["n"]] += 1


def played(source: Source, reader: Live, sends: Callable[[Served], Awaitable[None]]) -> Accounts:
    """Sends rows to a reader, and reads what is on the disk of its source when that process is gone."""
    disk = SimDisk()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            served = Served(nursery)
            env = replace(source_env(disk, epoch_us=NOON), network=served)
            proxy = await SourceProxy.open(env, source)
            nursery.start_soon(lambda: proxy.run(reader=reader))
            await trio.testing.wait_all_tasks_blocked()
            await sends(served)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            proxy.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return Accounts(disk.restarted(), source)


class Post:
    """A request, and the answers to each time that it was sent."""

    def __init__(self, kinds: str, first: int) -> None:
        self.rows = dict(enumerate(kinds, first))
        self.replies = list[Reply]()


async def post_all(served: Served, posts: Sequence[tuple[str, bool, bool, int]]) -> list[Post]:
    """A sender that repeats a request whose answer is lost, maybe when its rows are due, and drops a refused one."""
    done, number, count = list[Post](), 1, 0
    for kinds, keyed, lost, pause_s in posts:
        post = Post(kinds, count)
        count += len(kinds)
        body = "\n".join(text_of(kind, n) for n, kind in post.rows.items()).encode()
        headers = {"Idempotency-Key": f"a:{number}"} if keyed else {}
        for _ in range(1 + lost):
            post.replies.append(await Peer(served.stream()).ask("POST", headers, body))
            await trio.sleep(pause_s)
        number += keyed and post.replies[-1].status == 200
        done.append(post)
    return done


MEETS = Situations({"refused": 0.3, "a repeat of a refused request": 0.2, "left out": 0.2})


@MEETS.required
@settings(max_examples=60, deadline=None)
@given(st.lists(POSTS, max_size=5), st.booleans(), st.booleans())
def test_each_posted_row_is_logged_aside_or_refused(
    posts: list[tuple[str, bool, bool, int]], passes: bool, with_sink: bool
) -> None:
    http = {"listen": "127.0.0.1:9000", "bad_rows": "pass" if passes else "refuse"}
    source = configured({"http": http}, **({"rejected": {"jsonl": "aside"}} if with_sink else {}))
    reader, done = open_reader(source), list[Post]()
    assert isinstance(reader, HttpReceiver)

    async def sends(served: Served) -> None:
        done.extend(await post_all(served, posts))

    found = played(source, reader, sends)
    for (kinds, keyed, lost, _), post in zip(posts, done, strict=True):
        statuses = [reply.status for reply in post.replies]
        assert set(statuses) <= {200, 400}, statuses
        # A row from the future may be refused at first, and be due when its sender repeats the request.
        accepted = statuses.count(200)
        for n in post.rows:
            assert found.logged[n] + found.aside[n] == (min(accepted, 1) if keyed else accepted), f"row {n}"
            assert found.rejected[n] == (found.aside[n] if with_sink else 0)
        left_out = [row["row"] - 1 + min(post.rows) for row in post.replies[-1].body.get("left_out", ())]
        if keyed or not lost:
            assert left_out == [n for n in post.rows if found.aside[n]], "the sender is told"
        assert passes or not any(found.aside[n] for n in post.rows)
        MEETS_NOW["refused"] |= statuses[-1] == 400 and "f" in kinds
        MEETS_NOW["a repeat of a refused request"] |= keyed and lost and "f" in kinds
        MEETS_NOW["left out"] |= bool(left_out)
    MEETS.example(MEETS_NOW)
    MEETS_NOW.update(dict.fromkeys(MEETS_NOW, False))


MEETS_NOW = dict.fromkeys(("refused", "a repeat of a refused request", "left out"), False)


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, max_size=5), st.booleans())
def test_each_line_over_tcp_is_logged_or_aside(sent: list[str], with_sink: bool) -> None:
    source = configured({"tcp": "127.0.0.1:9000"}, **({"rejected": {"jsonl": "aside"}} if with_sink else {}))
    reader = open_reader(source)
    assert isinstance(reader, TcpListener)
    kinds = "".join(sent)

    async def sends(served: Served) -> None:
        first = 0
        for some in sent:
            stream = served.stream()
            lines = "".join(text_of(kind, n) + "\n" for n, kind in enumerate(some, first))
            await stream.send_all(lines.encode())
            await trio.testing.wait_all_tasks_blocked()
            await stream.aclose()
            first += len(some)

    expect_all(played(source, reader, sends), kinds, with_sink=with_sink)


def expect_all(found: Accounts, kinds: str, *, with_sink: bool) -> None:
    """Good rows are in the log, each once; the others are aside."""
    aside = Counter(n for n, kind in enumerate(kinds) if kind != "g")
    assert found.logged == Counter(n for n, kind in enumerate(kinds) if kind == "g")
    assert found.aside == aside
    assert found.rejected == (aside if with_sink else Counter())


class Chunks(Live):
    """Any reader: chunks of rows; where it can be resumed, with cursors."""

    def __init__(self, chunks: list[str]) -> None:
        self._chunks = chunks

    async def read(self, env: Env, accept: Accept) -> None:
        first = 0
        for kinds in self._chunks:
            await accept(self._chunk(first, kinds))
            first += len(kinds)
        await trio.sleep_forever()

    def _chunk(self, first: int, kinds: str) -> RowChunk:
        good = [at for at, kind in enumerate(kinds) if kind != "m"]
        texts = [text_of(kind, n) for n, kind in enumerate(kinds, first)]
        bad = [Malformed(first + at + 1, "bad", texts[at]) for at, kind in enumerate(kinds) if kind == "m"]
        times = [parse_timestamp(json.loads(texts[at])["ts"]) for at in good]
        columns = (
            Column(np.array(times, np.int64), None, None),
            Column(np.array([first + at for at in good], np.int64), None, None),
        )
        places = np.array(good, np.int64) if bad else None
        return RowChunk(first, len(kinds), columns[0].values, columns, bad, places)


class Resumed(Chunks, Resumable):
    def _chunk(self, first: int, kinds: str) -> RowChunk:
        chunk = super()._chunk(first, kinds)
        chunk.cursor = str(first + len(kinds)).encode()
        return chunk


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, max_size=5), st.booleans(), st.booleans())
def test_each_row_of_any_reader_is_logged_or_aside(chunks: list[str], resumes: bool, with_sink: bool) -> None:
    """Such as those of Kafka, PostgreSQL, a directory, or a pushed batch."""
    source = configured({"tcp": "127.0.0.1:9000"}, **({"rejected": {"jsonl": "aside"}} if with_sink else {}))

    async def sends(served: Served) -> None:
        return None

    found = played(source, Resumed(chunks) if resumes else Chunks(chunks), sends)
    expect_all(found, "".join(chunks), with_sink=with_sink)
