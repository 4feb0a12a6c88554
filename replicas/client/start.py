"""A *reader* is a client that the configuration does not have: of any other name, or of none.  It comes and goes.
Nothing is kept for it, and nobody waits for it.  One that is too slow gets an error that says which ids are gone.  A
process of the cluster serves 16 readers at a time.  With TLS a reader needs the certificate of ``client:NAME``, where
NAME is ``reader`` if it has no other (``spe certs shop.yaml --reader reader``).

Each of them says where it starts:

* ``now``: with the next results.
* ``stored``: with the oldest that are stored, which are those that a client of the configuration has not acknowledged,
  and up to ``limits.tail`` of others.
* ``beginning``: at id 1; where that is not stored any more, an error says from which id on there is something.

A client of the configuration goes on where it left; what it was at work on comes again.

A program uses ``with connect(…)`` and ``for``; under asyncio, and under trio, ``async with`` and ``async for``.  A
notebook may use any of them but trio's, or:
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spe.wire.fields import Start

#: Name of a reader without a name.
READER: Final = "reader"
#: Starts by the user's word, as they are asked of producers ("": at id 1).
STARTS: Final[Mapping[str, Start]] = {"now": "now", "stored": "stored", "beginning": ""}
