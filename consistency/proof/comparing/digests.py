"""Digests of stable tuples by place: NumPy computes them for recordings and files, Spark for any other table.

Both are XXH64, chained over columns as in Spark's ``xxhash64``.  A null leaves the chain unchanged, so a mask of the
null attributes is hashed too; a text counts by its own hash, so that each dictionary is hashed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from consistency.proof.storage.arrow import from_arrow
from spe.stream.batch import Int64Array, Rows
from spe.stream.schema import AttributeType, Schema
from spe.stream.strings import StringDictionary, UInt64Array

#: Number of places (ordinals of stable tuples) that share a digest.
BLOCK: Final = 1 << 14
#: Tuple count and digest of a block of places, or of a part of it.
BLOCKS: Final = pa.schema(
    [("partition", pa.int32()), ("block", pa.int64()), ("count", pa.int64()), ("digest", pa.int64())]
)
#: Kinds of input whose content is compared with the log of its source (``.source_contents``).
COMPARED: Final = ("csv", "jsonl", "parquet", "avro")
#: Number of attributes whose nulls fit into one mask.
_MASKED: Final = 62

#: Numbers hashed at once: they fit into the processor's cache, which is four times as fast.
_CACHED: Final = 1 << 15
_SEED: Final = np.uint64(42)
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(n)
    for n in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def block_digests(frame: DataFrame, tuple_: str, time: str, schema: Schema, name: str) -> DataFrame:
    """Returns ``partition, block``, and as ``NAME_count`` and ``NAME_digest`` the tuple count and digest of each block.

    Args:
      frame: has ``partition`` and ``place``.
      tuple_, time: names of the columns with the tuple and its time.
    """
    values, nulls = [], []
    for attribute in schema:
        value = F.col(f"{tuple_}.`{attribute.name}`")
        nulls.append(value.isNull())
        if attribute.type is AttributeType.STRING:
            value = F.xxhash64(value)
        values.append(value.cast("long") if attribute.type is AttributeType.BOOL else value)
    digest = F.bit_xor(F.xxhash64("place", time, *null_masks(nulls), *values))
    block = F.floor(F.col("place") / BLOCK).alias("block")
    return frame.groupBy("partition", block).agg(
        F.count(F.lit(1)).alias(f"{name}_count"), digest.alias(f"{name}_digest")
    )


def summed(parts: DataFrame, name: str) -> DataFrame:
    """Sums up BLOCKS, where one block may have several rows."""
    return parts.groupBy("partition", "block").agg(
        F.sum("count").alias(f"{name}_count"), F.bit_xor("digest").alias(f"{name}_digest")
    )


def null_masks(nulls: Sequence[Column]) -> list[Column]:
    """Packs conditions into bit masks."""
    bits = [F.when(null, F.lit(1 << i % _MASKED)).otherwise(F.lit(0)).cast("long") for i, null in enumerate(nulls)]
    return [reduce(lambda a, b: a.bitwiseOR(b), bits[i : i + _MASKED]) for i in range(0, len(bits), _MASKED)]


class Digester:
    """Computes digests of rows; a text dictionary is hashed once while it stays the same."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._texts: tuple[StringDictionary | None, UInt64Array] = (None, np.empty(0, np.uint64))

    def blocks(self, place: Int64Array, rows: Rows) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns (block, count, digest) of each run of places in one block, in order; blocks may have several."""
        block = place >> np.int64(BLOCK.bit_length() - 1)
        begins = np.flatnonzero(np.diff(block, prepend=block[0] - 1))
        each = np.bitwise_xor.reduceat(self.rows(place, rows), begins)
        return block[begins], np.diff(begins, append=len(block)), each.view(np.int64)

    def rows(self, place: Int64Array, rows: Rows) -> UInt64Array:
        """Returns the digest of each row, with its place and time."""
        chained = seeds(len(rows))
        for value in (place, rows.time):
            chain(chained, value)
        for first in range(0, len(rows.columns), _MASKED):
            mask = np.zeros(len(rows), np.int64)
            for bit, column in enumerate(rows.columns[first : first + _MASKED]):
                if column.valid is not None:
                    mask |= np.where(column.valid, np.int64(0), np.int64(1 << bit))
            chain(chained, mask)
        for column, attribute in zip(rows.columns, self._schema, strict=True):
            if column.dictionary is not None:
                hashes = self._hashes(column.dictionary)[column.values]
                chain(chained, hashes if column.valid is None else np.where(column.valid, hashes, _SEED))
                continue
            values = column.values
            if attribute.type is AttributeType.FLOAT64:
                values = (values + 0.0).view(np.int64)  # −0.0 equals 0.0; a NaN has the bits of Java's
                values = np.where(np.isnan(column.values), np.float64(np.nan).view(np.int64), values)
            if column.valid is None:
                chain(chained, values)
            else:
                before = chained.copy()
                chain(chained, values)
                np.copyto(chained, before, where=~column.valid)
        return chained

    def _hashes(self, dictionary: StringDictionary) -> UInt64Array:
        known, hashes = self._texts
        if known is not dictionary:
            hashes = np.empty(0, np.uint64)
        if len(hashes) < len(dictionary.strings):
            hashes = np.concatenate([hashes, text_hashes(dictionary.strings[len(hashes) :])])
        self._texts = (dictionary, hashes)
        return hashes


def digests_of(digester: Digester, rows: Rows) -> UInt64Array:
    """Returns digests of rows by their attributes alone."""
    nothing = np.zeros(len(rows), np.int64)
    return digester.rows(nothing, Rows(nothing, nothing, rows.columns))


def halves(digests: UInt64Array) -> tuple[int, int]:
    """Returns two sums of a set of digests, by which sets are compared."""
    return int((digests & np.uint64(0xFFFFFFFF)).sum()), int((digests >> np.uint64(32)).sum())


@dataclass(frozen=True)
class BlockDigests:
    """Turns ``partition, time_us, place, tuple`` into BLOCKS within a Spark task."""

    schema: Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digester = Digester(self.schema)
        for batch in batches:
            partition, time, place = (np.asarray(column) for column in batch.columns[:3])
            rows = from_arrow(batch.column(3).flatten(), self.schema, time)
            begins = np.flatnonzero(np.diff(partition, prepend=-1))  # of runs of one partition
            for begin, end in pairwise([*begins.tolist(), len(partition)]):
                blocks = digester.blocks(place[begin:end], rows.slice(begin, end))
                columns = [np.full(len(blocks[0]), partition[begin], np.int32), *blocks]
                yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=BLOCKS)


def text_hashes(texts: Sequence[str]) -> UInt64Array:
    """Returns XXH64 of each text in UTF-8, with the seed 42; texts of equal length are hashed together."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    hashes = np.empty(len(encoded), np.uint64)
    order = lengths.argsort(kind="stable")
    edges = [*np.flatnonzero(np.diff(lengths[order], prepend=-1)).tolist(), len(order)]
    for low, high in pairwise(edges):
        which = order[low:high]
        size = int(lengths[which[0]])
        data = np.frombuffer(b"".join([encoded[i] for i in which.tolist()]), np.uint8).reshape(len(which), size)
        hashes[which] = _of_bytes(data, size)
    return hashes


def _of_bytes(data: np.ndarray[tuple[int, int], np.dtype[np.uint8]], size: int) -> UInt64Array:
    """Returns XXH64 of each row of bytes."""
    at = size - size % 8
    words: UInt64Array = np.ascontiguousarray(data[:, :at]).view("<u8")
    used = len(words[0]) - len(words[0]) % 4 if size >= 32 else 0
    if used:
        lanes = [np.full(len(data), _SEED, np.uint64) for _ in range(4)]
        lanes[0] += _P1
        lanes[0] += _P2
        lanes[1] += _P2
        lanes[3] -= _P1
        for word in range(used):
            lane = lanes[word % 4]
            lane[:] = _rotated(lane + words[:, word] * _P2, 31) * _P1
        hash_: UInt64Array = np.zeros(len(data), np.uint64)
        for lane, by in zip(lanes, (1, 7, 12, 18)):
            hash_ += _rotated(lane, by)
        for lane in lanes:
            hash_ = (hash_ ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    else:
        hash_ = np.full(len(data), _SEED + _P5, np.uint64)
    hash_ += np.uint64(size)
    for word in range(used, at // 8):
        hash_ = _rotated(hash_ ^ (_rotated(words[:, word] * _P2, 31) * _P1), 27) * _P1 + _P4
    if size - at >= 4:
        half = np.ascontiguousarray(data[:, at : at + 4]).view("<u4")[:, 0].astype(np.uint64)
        hash_ = _rotated(hash_ ^ (half * _P1), 23) * _P2 + _P3
        at += 4
    for column in range(at, size):
        hash_ = _rotated(hash_ ^ (data[:, column] * _P5), 11) * _P1
    return _mixed(hash_)


def seeds(count: int) -> UInt64Array:
    """Returns the initial values of a hash chain."""
    return np.full(count, _SEED, np.uint64)


def chain(chained: UInt64Array, values: np.ndarray[tuple[int], np.dtype[np.generic]]) -> None:
    """Chains XXH64 of eight bytes each, in place; the present values are the seeds."""
    words = values.astype(np.int64).view(np.uint64) if values.dtype == bool else values.view(np.uint64)
    for begin in range(0, len(words), _CACHED):
        word, some = words[begin : begin + _CACHED], chained[begin : begin + _CACHED]
        some += _P5 + np.uint64(8)
        some ^= _rotated(word * _P2, 31) * _P1
        some[:] = _mixed(_rotated(some, 27) * _P1 + _P4)


def _rotated(values: UInt64Array, by: int) -> UInt64Array:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))


def _mixed(hash_: UInt64Array) -> UInt64Array:
    hash_ ^= hash_ >> np.uint64(33)
    hash_ *= _P2
    hash_ ^= hash_ >> np.uint64(29)
    hash_ *= _P3
    hash_ ^= hash_ >> np.uint64(32)
    return hash_
