"""Memory of a buffered tuple, against the bytes of its columns: received and kept for redo, and kept for consumers."""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Callable

import numpy as np

from benchmarks.data import ROW_BYTES, SCHEMA, Shape, elements
from benchmarks.tables import CHECKED, chosen, demand, show, verdict
from operators.sunion.sunion import SUnion
from replicas.producer.output_log import OutputLog
from spe.plan.plan import Limits
from spe.stream.batch import Batch, Boundary
from spe.stream.ids import Channel
from spe.stream.names import NodeState, StreamId
from spe.stream.strings import StringPool
from spe.stream.times import SECOND
from spe.wire.codec import ElementDecoder, ElementEncoder
from spe.wire.framing import FrameReader

#: Tuples per batch, batches; and what the ratio should not exceed.
SHAPES = ((1, 100_000), (10, 40_000), (100, 10_000), (1_000, 1_000), (10_000, 100))
LIMIT = 1.5
#: A read of a node: of a live source a batch or two, of one that catches up much.
READS = {"a batch a read": 0, "64 KiB a read": 64 << 10}


def received(shape: Shape, read_bytes: int) -> list[bytes]:
    """What a source sends, in the pieces that are read."""
    encoder, made = ElementEncoder(SCHEMA), elements(shape, 0, 0)
    frames = [encoder.encode_many(made[at : at + 2]) for at in range(0, len(made), 2)]
    if not read_bytes:
        return frames
    whole = b"".join(frames)
    return [whole[at : at + read_bytes] for at in range(0, len(whole), read_bytes)]


def redo(shape: Shape, read_bytes: int) -> tuple[Callable[[], int], object]:
    """Fills an input of an SUnion whose other input is cut off; how many tuples it holds then, and what holds them."""
    pieces = received(shape, read_bytes)
    sunion = SUnion(inputs=[(0, True), (1, True)], streams=2, bucket_us=SECOND)
    decoder, reader = ElementDecoder(SCHEMA, StringPool()), FrameReader(64 << 20)

    def fill() -> int:
        count = 0
        for piece in pieces:
            for element in decoder.decode_all(reader.feed(bytes(bytearray(piece)))):  # memory of its own, as recv gives
                if isinstance(element, Batch):
                    sunion.inputs[0].add_stable(element, 0)
                    count += len(element)
                elif isinstance(element, Boundary):
                    sunion.inputs[0].add_boundary(element, 0)
        return count

    return fill, sunion


def output(shape: Shape, read_bytes: int) -> tuple[Callable[[], int], object]:
    """Fills an output log that nobody acknowledges."""
    log = OutputLog(Channel(StreamId("out"), 0), SCHEMA, ["client:c"], Limits())
    log.set_state(NodeState.STABLE)
    made = elements(shape, 0, 0)

    def fill() -> int:
        count = 0
        for at in range(0, len(made), 2):
            batch, boundary = made[at], made[at + 1]
            assert isinstance(batch, Batch)
            rows = batch.rows.take(np.arange(len(batch)))  # as a slice's results: arrays of their own
            log.append_stable([Batch(batch.kind, batch.from_id, batch.upto_id, None, rows), boundary])
            count += len(batch)
        return count

    return fill, log


#: Name -> what makes it, bytes of a read, and from how large batches on the ratio counts.
BUFFERS = {f"redo, {name}": (redo, size, 1) for name, size in READS.items()} | {"output log": (output, 0, 100)}


def measure(make: Callable[[Shape, int], tuple[Callable[[], int], object]], shape: Shape, read_bytes: int) -> float:
    """Bytes per tuple that are held when the buffer is full, and no more when it is gone."""
    fill, holder = make(shape, read_bytes)
    gc.collect()
    tracemalloc.start()
    try:
        count = fill()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    demand(count == shape.tuples, f"{count} tuples instead of {shape.tuples}")
    demand(held >= count * ROW_BYTES, "less is held than the tuples' columns take: they are not all there")
    del holder
    return held / count


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for name, (make, read_bytes, counts_from) in BUFFERS.items():
        for batch, batches in chosen(SHAPES, arguments):
            each = measure(make, Shape(batch, batches), read_bytes)
            limit = LIMIT if batch >= counts_from else None
            ratio = each / ROW_BYTES
            rows.append([name, f"{batch:,}", f"{each:.0f}", f"{ratio:.2f}", verdict(ratio, limit), CHECKED])
    show(
        "Memory of buffered tuples",
        ["buffer", "tuples/batch", "bytes/tuple", "/ column bytes", "target", "check"],
        rows,
        [
            f"{ROW_BYTES} bytes of columns a tuple, each batch with a boundary.  Redo: one input of an SUnion while",
            "the other is cut off, as decoded from reads of the wire.  Output log: results that nobody has",
            "acknowledged; what an entry takes beside its columns is counted against its limit.",
            "What Python and NumPy have allocated, by tracemalloc: not a matter of the machine.",
        ],
    )
