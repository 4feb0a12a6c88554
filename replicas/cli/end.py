"""``spe end``: ends the stream of a source with pushed rows, after the committed rows (rule W6)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from replicas.client.push import Pusher
from replicas.local.run_dir import Target, load_target, require_addresses
from replicas.local.run_over import while_it_runs
from spe.errors import SpeError
from spe.problems import check_known
from spe.stream.names import StreamId
from spe.wire.messages.pushes import PushEnded

#: Longest time without an answer.
PATIENCE_S: Final = 60.0


def end(path: Path, source: str, writer: str) -> int:
    """Ends all writers of a source, or one.  Raises SpeError: the source takes no pushed rows, refuses, or does not
    answer.
    """
    target = load_target(path)
    check_known("source", source, target.plan.sources)
    stream = StreamId(source)
    writers = [name.removeprefix("writer:") for name in target.plan.sources[stream].writers]
    if not writers:
        raise SpeError(f"source {source!r} takes no pushed rows: it ends with its input")
    if writer:
        check_known("writer", writer, writers)
    require_addresses(path, target, [f"source:{source}"])
    with while_it_runs(target):
        for writer_id in [writer] if writer else writers:
            answer = trio.run(_end, target, stream, writer_id)
    left = ", ".join(name.removeprefix("writer:") for name in answer.open)
    print(f"{source} ends behind {answer.rows:,} rows" + (f", and those that {left} may still push" if left else ""))
    return 0


async def _end(target: Target, stream: StreamId, writer: str) -> PushEnded:
    env = target.env(f"writer:{writer}")
    pusher = Pusher(env, target.plan, target.directory, stream, writer, patience_s=PATIENCE_S, token=target.token)
    return await pusher.end()
