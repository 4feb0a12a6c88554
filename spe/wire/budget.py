"""Checks the cost of a msgpack value before building it.

Some 1,500 bytes can declare arrays inside arrays for which an unpacker takes 32 MiB, and a byte can be an empty map of
64 bytes.  So the declared lengths are added up first: a value counts when its container declares it.
"""

from __future__ import annotations

from typing import Final

from spe.wire.framing import Buffer

#: Deepest nesting of containers.
DEPTH_MAX: Final = 16

#: Bytes of a value after its type byte; for texts and bytes of a stated length see _SIZED.
_FIXED: Final = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8} | {
    first + power: 1 << power for first in (0xCC, 0xD0) for power in range(4)
}
#: Bytes of the length of a text or of bytes.
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
#: Containers: (bytes of the count, values per entry).
_COUNTED: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def check_cost(body: Buffer, values_max: int) -> None:
    """Scans one msgpack value without building it.

    Raises:
      ValueError: it has more than ``values_max`` values, is nested deeper than ``DEPTH_MAX``, of a type that no
        message has, or longer than ``body``.  Unpacking finds other mistakes.
    """
    data, at, left = bytes(body), 0, values_max - 1
    #: Values still expected, per open container; the first entry is for the whole value.
    pending = [1]
    while pending:
        if not pending[-1]:
            pending.pop()
            continue
        pending[-1] -= 1
        if at >= len(data):
            raise ValueError("it ends too early")
        tag = data[at]
        at += 1
        if tag < 0x80 or tag >= 0xE0:
            continue
        if tag in _FIXED:
            at += _FIXED[tag]
        elif 0xA0 <= tag < 0xC0:
            at += tag & 0x1F
        elif tag in _SIZED:
            size = _SIZED[tag]
            at += size + int.from_bytes(data[at : at + size], "big")
        else:
            size, per_entry = _COUNTED.get(tag, (0, 1 + (tag < 0x90)))
            if tag >= 0xA0 and not size:
                raise ValueError(f"no message has a value of type {tag:#04x}")
            count = per_entry * (int.from_bytes(data[at : at + size], "big") if size else tag & 0x0F)
            at += size
            left -= count
            if left < 0:
                raise ValueError(f"more than {values_max} values")
            if len(pending) > DEPTH_MAX:
                raise ValueError(f"more than {DEPTH_MAX} levels deep")
            pending.append(count)
