"""The log under every truncation, every flipped bit and random power losses: a lost tail or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from random import Random

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.simulation.world.disk import SimDisk
from spe.errors import LogCorrupt
from spe.log import Record, SegmentedLog
from tests.support.distribution import Situations

LOG = PurePosixPath("log")
ACKNOWLEDGED = [b"alpha", b"", b"gamma" * 3, b"delta"]
TAIL = [b"epsilon", b"zeta"]


async def make() -> SimDisk:
    """Two segments with four acknowledged records, and a tail of two that are not."""
    storage = SimDisk()
    log = await SegmentedLog.open(storage, LOG, segment_bytes=80)
    for body in ACKNOWLEDGED:
        log.append(body)
        await log.sync()
    for body in TAIL:
        log.append(body)
    assert len([p for p in storage.files if p.suffix == ".seg"]) == 2
    return storage


async def recovered(storage: SimDisk) -> list[bytes] | None:
    """The bodies, or None when the log is refused as corrupt."""
    bodies: list[bytes] = []
    try:
        log = await SegmentedLog.open(storage, LOG, into(bodies))
    except LogCorrupt:
        return None
    assert log.synced_sequence == len(bodies)
    return bodies


def assert_nothing_acknowledged_is_lost(bodies: list[bytes]) -> None:
    everything = ACKNOWLEDGED + TAIL
    assert bodies == everything[: len(bodies)]
    assert len(bodies) >= len(ACKNOWLEDGED)


async def test_truncated_log_file_loses_tail_or_is_corrupt() -> None:
    storage = await make()
    corrupt = cut = 0
    for path, file in list(storage.files.items()):
        for size in range(len(file.written)):
            bodies = await recovered(storage.with_file(path, bytes(file.written[:size])))
            if bodies is None:
                corrupt += 1
            else:
                cut += 1
                assert_nothing_acknowledged_is_lost(bodies)
    assert corrupt > 150
    assert cut > 50


async def test_flipping_any_bit_loses_a_tail_or_is_corruption() -> None:
    storage = await make()
    corrupt = cut = 0
    for path, file in list(storage.files.items()):
        for bit in range(8 * len(file.written)):
            data = bytearray(file.written)
            data[bit // 8] ^= 1 << bit % 8
            bodies = await recovered(storage.with_file(path, bytes(data)))
            if bodies is None:
                corrupt += 1
            else:
                cut += 1
                assert_nothing_acknowledged_is_lost(bodies)
    assert corrupt > 1000
    assert cut > 500


def into(bodies: list[bytes]) -> Callable[[Record], None]:
    return lambda record: bodies.append(record.body)


@st.composite
def lives(draw: st.DrawFn) -> list[list[tuple[str, int]]]:
    """Several writers in turn: each appends and syncs, then the power fails."""
    step = st.tuples(st.sampled_from(["append", "append", "sync"]), st.integers(0, 40))
    return draw(st.lists(st.lists(step, min_size=draw(st.sampled_from([0, 6])), max_size=12), min_size=1, max_size=4))


MEETS = Situations(
    {
        "synced records and others are there as the power fails": 0.25,
        "something unsynced is left, and something is lost": 0.01,
        "several segments": 0.2,
        "a life after one that wrote": 0.27,
    }
)


@MEETS.required
@settings(max_examples=60, deadline=None)
@given(lives(), st.integers(0, 1 << 32), st.integers(40, 200))
def test_no_power_loss_takes_an_acknowledged_record(plan: list[list[tuple[str, int]]], seed: int, size: int) -> None:
    """After each power loss unsynced bytes may be present, gone, zeroed or garbage, in any mixture."""

    rng = Random(seed)
    met = dict.fromkeys(
        [
            "synced records and others are there as the power fails",
            "something unsynced is left, and something is lost",
            "several segments",
            "a life after one that wrote",
        ],
        False,
    )

    def remains(_path: PurePosixPath, synced: bytes, written: bytes) -> bytes:
        if not written.startswith(synced):  # emptied since the last sync: before or after it took effect
            return rng.choice([synced, written])
        kept = bytearray(written[: rng.randint(len(synced), len(written))])
        if rng.random() < 0.5:
            return bytes(kept)
        for at in range(len(synced), len(kept)):
            if rng.random() < 0.05:
                kept[at] = rng.choice([0, rng.randrange(256)])
        return bytes(kept)

    async def main() -> None:
        storage = SimDisk()
        history: list[bytes] = []
        acknowledged: list[bytes] = []
        count = 0
        for steps in plan:
            bodies: list[bytes] = []
            log = await SegmentedLog.open(storage, LOG, into(bodies), segment_bytes=size)
            assert bodies[: len(acknowledged)] == acknowledged
            assert bodies == history[: len(bodies)]
            met["something unsynced is left, and something is lost"] |= len(acknowledged) < len(bodies) < len(history)
            met["a life after one that wrote"] |= bool(history)
            history, acknowledged = list(bodies), list(bodies)
            for verb, length in steps:
                if verb == "sync":
                    await log.sync()
                    acknowledged = list(history)
                else:
                    count += 1
                    history.append(b"%d" % count + bytes(length))
                    log.append(history[-1])
            met["synced records and others are there as the power fails"] |= 0 < len(acknowledged) < len(history)
            met["several segments"] |= sum(p.suffix == ".seg" for p in storage.files) > 1
            storage = storage.power_loss(remains)
        assert (await recovered(storage) or [])[: len(acknowledged)] == acknowledged

    trio.run(main)
    MEETS.example(met)


async def test_the_log_of_these_tests_opens_undamaged() -> None:
    assert await recovered((await make()).restarted()) == ACKNOWLEDGED + TAIL
