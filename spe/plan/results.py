"""Fingerprint of the part of a plan that the tuples of one stream depend on, for files that outlive a run (rule U14).

``Plan.fingerprint`` covers the whole cluster; peers compare it.  A recording or a sink depends only on the part of the
query before its stream.  Another output, another X, another node or another bucket width do not change its tuples or
their ids.
"""

from __future__ import annotations

import hashlib
import json

from spe.plan.plan import Plan
from spe.query.query import streams_before
from spe.stream.hashing import HASH_VERSION
from spe.stream.names import StreamId


def results_fingerprint(plan: Plan, stream: StreamId) -> str:
    """Digest of everything that determines the stable tuples of a stream, and their ids, for given source logs.

    These are the schemas of its sources, the operators before it, and how these are cut into units and partitions.
    Names of fragments, placement, timing and limits are not in it, nor is the bucket width (U2).
    """
    before = streams_before(plan.query.operators, stream)
    what = {
        "sources": {s: schema.to_wire() for s, schema in plan.query.sources.items() if s in before},
        "operators": [o.described() for o in plan.query.operators if o.name in before],
        "units": [
            [
                unit.partitions,
                [[i.stream, i.producers, i.key, i.aligned] for i in unit.inputs if i.stream in before],
                [o.name for o in unit.operators if o.name in before],
            ]
            for unit in plan.units
            if any(o.name in before for o in unit.operators)
        ],
        "hash": HASH_VERSION,
    }
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
