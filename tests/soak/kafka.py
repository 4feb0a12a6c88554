"""A query between topics of three brokers, which are killed and paused under load, as are all of its processes.

    python -m tests.soak.kafka --faults 500

Messages come in by an idempotent producer.  At the end a consumer of the Java library reads the results with
``read_committed``: each result of the reference must be there exactly once, those of a key in order, and together they
must count each message once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final

import yaml

from examples.servers.kafka import PARTITIONS, Broker, KafkaCluster, running_cluster

PRODUCTS: Final = 40
WINDOW_S: Final = 0.5
RATE: Final = 400
#: Time without faults at both ends, and between two faults at least.
QUIET_S: Final = 6.0
PAUSE_S: Final = (0.3, 1.8)
PROCESSES: Final = ("n1", "n2", "source:orders", "client:shop")

Message = dict[str, Any]


def config(servers: Sequence[str], until: Sequence[int]) -> dict[str, Any]:
    reader = {"servers": list(servers), "topics": "orders", "until": list(until), "attributes": {"product": "key"}}
    source = {
        "schema": {"ts": "timestamp!", "product": "string!"},
        "time": "ts",
        "boundary": "50ms",
        "disorder": "500ms",
        "idle": "4s",
        "from": {"kafka": reader, "format": "jsonl", "timestamps": "us"},
    }
    window = {"tumbling": f"{round(WINDOW_S * 1000)}ms"}
    aggregate = {"from": "orders", "window": window, "group_by": "product", "compute": {"n": "count(*)"}}
    sink = {"servers": list(servers), "topic": "results", "key": "product"}
    return {
        "cluster": "kafka",
        "bucket": "50ms",
        "defaults": {"x": "1s", "alpha": 0.9, "policy": "process"},
        "sources": {"orders": source},
        "query": {"totals": {"aggregate": aggregate}},
        "outputs": ["totals"],
        "fragments": {"all": {"operators": ["totals"], "replicas": ["n1", "n2"]}},
        "nodes": ["n1", "n2"],
        "clients": {"shop": {"reads": ["totals"], "sinks": [{"kafka": sink, "mode": "stable"}]}},
    }


@dataclass
class Outcome:
    """The faults, messages and results of one play, and the mistakes."""

    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    results: int = 0
    wrong: list[str] = field(default_factory=list)


class Feed(Thread):
    """Sends every message once: the producer is idempotent, and tries until brokers answer."""

    def __init__(self, cluster: KafkaCluster, messages: Sequence[Message], first_s: float) -> None:
        super().__init__(daemon=True)
        self._cluster, self._messages, self._first_s = cluster, messages, first_s
        self.failed: list[str] = []

    def run(self) -> None:
        never = {"enable.idempotence": True, "acks": "all", "delivery.timeout.ms": 2_000_000, "linger.ms": 5}
        producer = self._cluster.producer(**never)

        def sent(error: Any, _: Any) -> None:
            if error is not None:
                self.failed.append(str(error))

        for at, message in enumerate(self._messages):
            while (wait := self._first_s + at / RATE - time.time()) > 0:
                producer.poll(min(wait, 0.1))
            value = {"ts": message["ts"]}
            while True:
                try:
                    producer.produce(
                        "orders", json.dumps(value).encode(), message["product"].encode(),
                        partition=message["partition"], on_delivery=sent,
                    )  # fmt: skip
                    break
                except BufferError:
                    producer.poll(0.1)
        if left := producer.flush(300):
            self.failed.append(f"{left} messages were not sent")


def messages(random: Random, seconds: float, first_us: int) -> list[Message]:
    """In order of time; a product is in one partition."""
    rows = []
    for at in range(round(seconds * RATE)):
        number = min(int(random.expovariate(0.12)), PRODUCTS - 1)
        ts = first_us + at * 1_000_000 // RATE
        rows.append({"ts": ts, "product": f"p{number}", "partition": number % PARTITIONS})
    return rows


class Breaker(Thread):
    """Breaks brokers in turn, up to all of them at a time."""

    def __init__(self, cluster: KafkaCluster, random: Random, seconds: float) -> None:
        super().__init__(daemon=True)
        self._cluster, self._random = cluster, random
        self._until_s = time.monotonic() + seconds
        self.faults = Counter[str]()

    def run(self) -> None:
        time.sleep(QUIET_S)
        kinds = self._kinds()
        while time.monotonic() < self._until_s - QUIET_S:
            kind = self._random.choice(list(kinds))
            self.faults[kind] += 1
            kinds[kind]()
            time.sleep(self._random.uniform(*PAUSE_S))

    def _kinds(self) -> dict[str, Callable[[], None]]:
        brokers = list(self._cluster.brokers.values())
        choose = self._random.choice
        return {
            "kill a broker": lambda: self._kill(choose(brokers)),
            "kill a leader": lambda: self._kill(self._leader()),
            "kill the controller": lambda: self._kill(self._cluster.controller() or choose(brokers)),
            "kill two brokers": lambda: self._kill(*self._random.sample(brokers, 2)),
            "kill all brokers": lambda: self._kill(*brokers),
            "pause a broker": lambda: self._pause(choose(brokers), self._random.uniform(0.2, 4.0)),
            "pause a leader until it is none": lambda: self._pause(self._leader(), 6.0),
        }

    def _leader(self) -> Broker:
        topic = self._random.choice(("orders", "results", "spe-positions", "__transaction_state"))
        broker = None
        with suppress(Exception):  # no broker answers
            broker = self._cluster.leader(topic, 0)
        return broker or self._random.choice(list(self._cluster.brokers.values()))

    def _kill(self, *brokers: Broker) -> None:
        for broker in brokers:
            broker.kill()
        time.sleep(self._random.uniform(0.1, 3.0))
        for broker in brokers:
            broker.start()

    def _pause(self, broker: Broker, seconds: float) -> None:
        broker.pause()
        time.sleep(seconds)
        broker.resume()


def process_faults(random: Random, seconds: float) -> list[dict[str, Any]]:
    """Kills and pauses processes of the query, each of them more than X apart."""
    faults, at_s = [], QUIET_S
    while at_s < seconds - QUIET_S:
        for_s = random.uniform(0.1, 2.0)
        target = random.choice(PROCESSES)
        faults.append(
            {"at": f"{at_s:.2f}s", "kind": random.choice(("kill", "freeze")), "target": target, "for": f"{for_s:.2f}s"}
        )
        at_s += for_s + random.uniform(0.5, 4.0)
    return faults


def read_by_java(cluster: KafkaCluster, topic: str) -> list[dict[str, Any]]:
    """All committed messages of a topic, by the consumer of the Java library."""
    printed = cluster.consume(topic)
    return [json.loads(line) for line in printed.splitlines()]


def judge(rows: Sequence[dict[str, Any]], reference: Sequence[dict[str, Any]], sent: Sequence[Message]) -> list[str]:
    """Each result of the reference once, those of a product in order; they count each message once."""
    wrong = []
    times = Counter(row["_id"] for row in rows)
    wrong += [f"result {number} is there {count} times" for number, count in times.items() if count > 1]
    last: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["_id"] < last[row["product"]]:
            wrong.append(f"result {row['_id']} of {row['product']} comes after {last[row['product']]}")
        last[row["product"]] = row["_id"]
    expected = {row["_id"]: (row["product"], row["n"]) for row in reference}
    if {row["_id"]: (row["product"], row["n"]) for row in rows} != expected:
        wrong.append(f"{len(rows)} results, which are not the {len(expected)} of the reference")
    counted = Counter[str]()
    for row in rows:
        counted[row["product"]] += row["n"]
    if counted != Counter(message["product"] for message in sent):
        wrong.append(f"{counted.total()} messages are counted; expected {len(sent)}")
    return wrong


def play(folder: Path, seconds: float, seed: int) -> Outcome:
    random = Random(seed)
    outcome = Outcome()
    with running_cluster(3) as cluster:
        for topic in ("orders", "results"):
            cluster.make(topic)
        first_s = time.time() + 4.0
        sent = messages(random, seconds, round(first_s * 1e6))
        until = [sum(m["partition"] == p for m in sent) for p in range(PARTITIONS)]
        faults = process_faults(random, seconds)
        (folder / "config.yaml").write_text(
            yaml.safe_dump(config(cluster.servers, until) | {"faults": faults}, sort_keys=False)
        )
        command = [sys.executable, "-m", "replicas.cli", "run", "config.yaml", "--run-dir", "run", "--no-view"]
        feed, breaker = Feed(cluster, sent, first_s), Breaker(cluster, random, seconds + 4.0)
        with (
            (folder / "out.txt").open("wb") as out,
            subprocess.Popen(command, cwd=folder, stdout=out, stderr=out) as run,
        ):
            feed.start()
            breaker.start()
            try:
                status = run.wait(seconds + 240)
            except subprocess.TimeoutExpired:
                run.kill()
                status = -1
        breaker.join()
        feed.join(60)
        outcome.faults = breaker.faults + Counter(f"{fault['kind']} {fault['target']}" for fault in faults)
        outcome.messages = len(sent)
        rows = read_by_java(cluster, "results")
        outcome.results = len(rows)
        if status:
            outcome.wrong.append(f"spe run ended with {status}: {(folder / 'out.txt').read_text()[-1500:]}")
        command = [sys.executable, "-m", "replicas.cli", "reference", "run"]
        reference = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True).stdout
        outcome.wrong += feed.failed[:3] + judge(rows, [json.loads(line) for line in reference.splitlines()], sent)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kafka", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="plays until so many have happened")
    parser.add_argument("--seconds", type=float, default=120.0, help="of one play")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/kafka"))
    given = parser.parse_args()
    total, seed, wrong = Counter[str](), given.seed, 0
    while total.total() < given.faults:
        (folder := given.folder / str(seed)).mkdir(parents=True)
        outcome = play(folder, given.seconds, seed)
        total += outcome.faults
        wrong += bool(outcome.wrong)
        print(f"seed {seed}: {outcome.faults.total()} faults, {outcome.messages} messages, {outcome.results} results")
        print("\n".join(f"  WRONG: {text}" for text in outcome.wrong) or "  each result exactly once", flush=True)
        seed += 1
    print(f"{total.total()} faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(total.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
