"""Brokers of librdkafka's mock cluster in a process of their own, which can be paused and killed.

They keep everything in memory, and of each partition about 5 MB.  The mock makes a topic, of four partitions, when
somebody writes to it; it has no time index, no rights, and no aborted transactions: their messages are delivered.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from examples.servers.topics import Topics

_PROGRAM = """
import sys
from confluent_kafka import Producer
brokers = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": int(sys.argv[1]), "log_level": 0})
listed = brokers.list_topics(timeout=30).brokers.values()
print(",".join(f"{b.host}:{b.port}" for b in listed), flush=True)
while sys.stdin.read(1):
    pass
"""
#: Partitions that the mock gives to a topic.
PARTITIONS = 4


class Brokers(Topics):
    """A mock cluster of ``count`` brokers."""

    def __init__(self, count: int = 1) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip().split(",")
        assert self.servers[0], "the mock did not start"

    def make(self, topic: str) -> None:
        """As soon as a producer asks for it, it is there."""
        self.producer().list_topics(topic, timeout=30)

    def pause(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def brokers(count: int = 1) -> Iterator[Brokers]:
    running = Brokers(count)
    try:
        yield running
    finally:
        running.end()
