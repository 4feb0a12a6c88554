"""The element codec, for connections and for standalone elements in logs and recordings."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from spe.errors import RemoteProtocolError
from spe.stream.batch import Batch, Element, concat_rows
from spe.stream.schema import Schema
from spe.stream.strings import StringPool
from spe.wire.decoder import ElementDecoder
from spe.wire.encoder import ElementEncoder
from spe.wire.framing import HEADER_BYTES, FrameReader

__all__ = ["ElementDecoder", "ElementEncoder", "decode_standalone", "encode_standalone", "standalone_parts"]

#: Frame limit of data that is not sent to peers: the largest length that the field can hold.
_STANDALONE_BYTES: Final = 2**32 - 8


def encode_standalone(element: Element, schema: Schema, head: bytes = b"") -> bytes:
    """Encodes an element with all the strings that it uses, for logs and recordings.

    Args:
      head: bytes to put before it.

    Raises:
      LocalProtocolError: the element does not fit the schema.
    """
    return ElementEncoder(schema, _STANDALONE_BYTES).encode_many((element,), head)


def standalone_parts(batch: Batch, schema: Schema) -> list[bytes | memoryview]:
    """Encodes a batch in the same way, in parts that are views of its columns, without copying.

    Raises:
      LocalProtocolError: the batch does not fit the schema.
    """
    parts = ElementEncoder(schema, _STANDALONE_BYTES).encode(batch)
    return [part.view(np.uint8).data if isinstance(part, np.ndarray) else part for part in parts]


def decode_standalone(data: bytes, schema: Schema, pool: StringPool) -> Element:
    """Decodes the bytes of :func:`encode_standalone`.

    Raises:
      RemoteProtocolError: the bytes are damaged, or do not hold exactly one element.
    """
    reader = FrameReader(max(len(data), HEADER_BYTES))
    decoder = ElementDecoder(schema, pool)
    elements = [e for f in reader.feed(data) if (e := decoder.decode(f)) is not None]
    reader.finish()
    batches = [e for e in elements if type(e) is Batch]
    if len(batches) == len(elements) > 1:
        return _joined(batches)
    if len(elements) != 1:
        raise RemoteProtocolError(f"expected one element, found {len(elements)}")
    return elements[0]


def _joined(batches: list[Batch]) -> Batch:
    """Joins a batch that was cut because its strings fill more than one table."""
    first, last = batches[0], batches[-1]
    if any(b.kind is not first.kind or b.from_id != a.upto_id for a, b in pairwise(batches)):
        raise RemoteProtocolError(f"expected one element, found {len(batches)} batches")
    ids = None if all(b.ids is None for b in batches) else np.concatenate([b.row_ids() for b in batches])
    return Batch(first.kind, first.from_id, last.upto_id, ids, concat_rows([b.rows for b in batches]))
