"""Orders that a seed determines, sent to Kafka as time goes by."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from threading import Event, Thread
from typing import Any, Final, NamedTuple

SHOPS: Final = ("web", "street")
PARTITIONS: Final = 4
PRODUCTS: Final = ("apple", "bread", "cheese", "date", "egg", "fig", "grape", "honey")
PER_SECOND: Final = 200
#: So far orders are out of order; a source takes 0.5 s.
DISORDER_S: Final = 0.4


class Order(NamedTuple):
    """Attributes:
    sent_s: when it is sent, after the first one; ``ordered_s``: its event time.
    """

    sent_s: float
    ordered_s: float
    shop: str
    partition: int
    product: str
    price: float
    qty: int


def orders(seed: int, seconds: float) -> Iterator[Order]:
    """The last partition of each shop is idle for a fifth of the time."""
    random = Random(seed)
    for n in range(round(seconds * PER_SECOND)):
        sent_s = n / PER_SECOND
        idle = 0.2 < sent_s / seconds < 0.4
        yield Order(
            sent_s,
            sent_s - random.random() * DISORDER_S,
            random.choice(SHOPS),
            random.randrange(PARTITIONS - idle),
            random.choice(PRODUCTS),
            round(random.uniform(1, 50), 2),
            random.randint(1, 5),
        )


def ends(given: Sequence[Order], shop: str) -> list[int]:
    """How many messages each partition of a shop's topic gets."""
    counts = Counter(order.partition for order in given if order.shop == shop)
    return [counts[partition] for partition in range(PARTITIONS)]


class Sender(Thread):
    """Attributes:
    over: set, it sends no more.
    sent: messages that Kafka has acknowledged.
    """

    def __init__(self, servers: str, topics: Mapping[str, str], given: Sequence[Order]) -> None:
        super().__init__(daemon=True)
        self.over = Event()
        self.sent = 0
        self._servers, self._topics, self._orders = servers, topics, given

    def run(self) -> None:
        from confluent_kafka import Producer

        # Idempotent: what is sent again while Kafka hangs is there once.
        producer = Producer(
            {"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        begun_s = time.time()
        for order in self._orders:
            if self.over.wait(max(0.0, begun_s + order.sent_s - time.time())):
                return
            value = {"ts": round((begun_s + order.ordered_s) * 1e6), "price": order.price, "qty": order.qty}
            producer.produce(
                self._topics[order.shop],
                json.dumps(value),
                key=order.product,
                partition=order.partition,
                on_delivery=self._delivered,
            )
            producer.poll(0)
        producer.flush(60)

    def _delivered(self, error: Any, _: Any) -> None:
        self.sent += error is None
