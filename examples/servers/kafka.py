"""Brokers of Apache Kafka on loopback, in a temporary folder; each can be killed, paused and started again.

They need Java, and Maven once: it fetches the jars (50 MB) that `kafka.xml` names into a folder in the user's cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

from examples.servers.topics import Topics
from replicas.local.ports import free_addresses

VERSION: Final = "4.4.0"
CLUSTER: Final = "MkU3OEVBNTcwNTJENDM2Qg"
#: Partitions of a topic that is made when it is first written to.
PARTITIONS: Final = 4
_POM: Final = Path(__file__).with_name("kafka.xml")
#: Seconds for the jars, until they are asked for again where that failed, and for a broker to be ready.
_FETCH_S, _RETRY_S, _START_S = 300.0, 600.0, 90.0
_SETTINGS = """
process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{address},CONTROLLER://{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions={partitions}
default.replication.factor={copies}
min.insync.replicas={synced}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={synced}
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=5000
log.retention.check.interval.ms=1000
log.initial.task.delay.ms=1000
log.segment.delete.delay.ms=1000
"""


def missing() -> str | None:
    """The reason why no broker can be started here; None where one can.  Fetches the jars if they are not here yet."""
    if find_spec("confluent_kafka") is None:
        return "confluent-kafka is not installed"
    if shutil.which("java") is None:
        return "java is not on PATH"
    return _install()


def _installed() -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "tentative-spe" / f"kafka-{VERSION}-{sha256(_POM.read_bytes()).hexdigest()[:8]}"


@cache
def _install() -> str | None:
    home = _installed()
    home.parent.mkdir(parents=True, exist_ok=True)
    with open(home.parent / f"{home.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes the first one fetches
        if home.exists():
            return None
        if shutil.which("mvn") is None:
            return "the jars of Kafka are not here, and mvn is not on PATH"
        refusal = home.with_name(f"{home.name}.refusal")
        if refusal.exists() and time.time() - refusal.stat().st_mtime < _RETRY_S:
            return refusal.read_text()
        reason = _fetch(home)
        if reason is not None:
            refusal.write_text(reason)
        return reason


def _fetch(home: Path) -> str | None:
    """Fetches the jars, formats a disk as a template, and archives the loaded classes: a broker then starts faster."""
    with TemporaryDirectory(dir=home.parent) as name:
        made = Path(name) / "made"
        made.mkdir()
        shutil.copy(_POM, made / "pom.xml")
        fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(fetch, cwd=made, capture_output=True, text=True, timeout=_FETCH_S)
        except subprocess.TimeoutExpired:
            return f"Maven did not fetch the jars of Kafka within {_FETCH_S:g} s"
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
            return f"Maven did not fetch the jars of Kafka: {lines[0][:200]}"
        _prepare(made, Path(name))
        made.rename(home)
    return None


def _prepare(home: Path, scratch: Path) -> None:
    (settings := scratch / "settings").write_text(_settings(1, _addresses(1), home / "disk"))
    command = _java(home, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", settings)
    subprocess.run(command, check=True, capture_output=True)
    shutil.copytree(home / "disk", scratch / "disk")
    archive = _java(home, "kafka.Kafka", settings, options=[f"-XX:ArchiveClassesAtExit={home / 'classes'}"])
    broker = subprocess.Popen(archive, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + _START_S
    while not (home / "disk/.kafka_cleanshutdown").exists() and time.monotonic() < until:
        time.sleep(1.0)  # what is loaded from now on is not in the archive
        broker.terminate()
    broker.wait()
    shutil.rmtree(home / "disk")
    (scratch / "disk").rename(home / "disk")


def _java(home: Path, program: str, *arguments: Any, options: Sequence[str] = ()) -> list[str]:
    """The command for a program of Kafka: quick to start, with little memory, warnings on standard error."""
    quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx400m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return ["java", *quick, *options, "-cp", f"{home}/jars/*", program, *map(str, arguments)]


def _addresses(count: int) -> dict[int, tuple[str, str]]:
    """Returns the addresses of each broker, by its id from 1: for clients, and of its controller."""
    free = free_addresses(2 * count)
    return {at // 2 + 1: (free[at], free[at + 1]) for at in range(0, 2 * count, 2)}


def _settings(broker: int, addresses: dict[int, tuple[str, str]], data: Path) -> str:
    voters = ",".join(f"{number}@{controller}" for number, (_, controller) in addresses.items())
    copies = min(3, len(addresses))
    address, controller = addresses[broker]
    return _SETTINGS.format(
        partitions=PARTITIONS,
        id=broker,
        voters=voters,
        address=address,
        controller=controller,
        data=data,
        copies=copies,
        synced=max(1, copies - 1),
    )


class Broker:
    """A broker that is a controller, too.

    Attributes:
      number: its id, from 1.
      address: ``host:port``.
    """

    def __init__(self, number: int, addresses: dict[int, tuple[str, str]], folder: Path) -> None:
        home = _installed()
        self.number = number
        self.address = addresses[number][0]
        self.folder = folder
        self._data = folder / "data"
        shutil.copytree(home / "disk", self._data)
        identity = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        text = f"version=1\ncluster.id={CLUSTER}\nnode.id={number}\ndirectory.id={identity}\n"
        (self._data / "meta.properties").write_text(text)
        (folder / "settings").write_text(_settings(number, addresses, self._data))
        self._command = _java(
            home,
            "kafka.Kafka",
            folder / "settings",
            options=[f"-XX:SharedArchiveFile={home / 'classes'}", "-Xshare:auto"],
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Does nothing where it runs; does not wait until it is ready."""
        if not self.runs:
            with open(self.folder / "log", "ab") as log:
                self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It does not answer, and keeps its connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    @property
    def leader(self) -> int:
        """The id of the active controller that this broker saw last; -1: none."""
        try:
            return int(json.loads((self._data / "__cluster_metadata-0/quorum-state").read_text())["leaderId"])
        except (OSError, ValueError):
            return -1


class KafkaCluster(Topics):
    """Brokers with three copies of each partition, or with as many as there are brokers.

    Attributes:
      brokers: each by its id.
    """

    def __init__(self, folder: Path, count: int = 1) -> None:
        addresses = _addresses(count)
        self.brokers: dict[int, Broker] = {}
        for number in addresses:
            (own := folder / str(number)).mkdir()
            self.brokers[number] = Broker(number, addresses, own)
        self.servers = [broker.address for broker in self.brokers.values()]
        for broker in self.brokers.values():
            broker.start()
        self.wait()

    @cached_property
    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.address)

    def wait(self, seconds: float = _START_S) -> None:
        """Until every broker is a member of the cluster."""
        from confluent_kafka import KafkaException

        until = time.monotonic() + seconds
        while True:
            try:
                if len(self.admin.list_topics(timeout=1.0).brokers) == len(self.brokers):
                    return
            except KafkaException:
                pass
            for broker in self.brokers.values():
                assert broker.runs, f"broker {broker.number} ended:\n{(broker.folder / 'log').read_text()[-2000:]}"
            assert time.monotonic() < until, f"{len(self.brokers)} brokers are not ready after {seconds:g} s"
            time.sleep(0.1)

    def make(self, topic: str, partitions: int = PARTITIONS, **settings: str) -> None:
        """``settings``: those of the topic, with ``_`` for a dot."""
        from confluent_kafka.cimpl import NewTopic

        config = {name.replace("_", "."): value for name, value in settings.items()}
        self.admin.create_topics([NewTopic(topic, partitions, min(3, len(self.brokers)), config=config)])[topic].result(
            30
        )

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)

    def grow(self, topic: str, partitions: int) -> None:
        from confluent_kafka.cimpl import NewPartitions

        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def remove(self, topic: str, partition: int, before: int) -> None:
        """Removes the messages before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        at = TopicPartition(topic, partition, before)
        self.admin.delete_records([at])[at].result(30)

    def consume(self, topic: str, seconds: float = 10.0) -> str:
        """Returns the values of all committed messages, by the consumer of the Java library, a line for each.

        Args:
          seconds: it ends when no message has come for so long.
        """
        consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        options = ["--bootstrap-server", self.servers[0], "--topic", topic, "--from-beginning"]
        options += ["--isolation-level", "read_committed", "--timeout-ms", str(round(seconds * 1000))]
        done = subprocess.run(_java(_installed(), consumer, *options), capture_output=True, text=True, timeout=300)
        assert not done.returncode, done.stderr[-2000:]
        return done.stdout

    def leader(self, topic: str, partition: int = 0) -> Broker | None:
        """The leader of a partition; None while there is none."""
        return self.brokers.get(self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def controller(self) -> Broker | None:
        """The active controller, as most brokers know it; None while there is none."""
        leaders = [broker.leader for broker in self.brokers.values()]
        return self.brokers.get(max(set(leaders), key=leaders.count))

    @contextmanager
    def stopped(self) -> Iterator[None]:
        for broker in self.brokers.values():
            broker.pause()
        try:
            yield
        finally:
            for broker in self.brokers.values():
                broker.resume()

    @contextmanager
    def down(self, *numbers: int) -> Iterator[None]:
        """These brokers, or all, are killed, and started again at the end of the block."""
        brokers = [self.brokers[number] for number in numbers or self.brokers]
        for broker in brokers:
            broker.kill()
        try:
            yield
        finally:
            for broker in brokers:
                broker.start()
            self.wait()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()


@contextmanager
def running_cluster(count: int = 1) -> Iterator[KafkaCluster]:
    """A cluster in a folder of its own, until the end of the block.

    Raises:
      RuntimeError: none can be started here.
    """
    if (reason := missing()) is not None:
        raise RuntimeError(f"no Kafka brokers: {reason}")
    with TemporaryDirectory(prefix="spe-kafka-") as folder:
        cluster = KafkaCluster(Path(folder), count)
        try:
            yield cluster
        finally:
            cluster.close()
