"""What only some random runs have, each with the share of the runs that have it.

A seed draws every feature by its share, so most runs leave out most of them (swarm testing).  Features come from random
numbers of their own: the rest of a scenario is the same with and without those that do not concern it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from random import Random
from typing import Final


class Feature(enum.StrEnum):
    """What a random run may have beside the faults that any run draws from."""

    LASTING_LINKS = "lasting links"  # two to six links are cut for 10 X or longer, and nothing else happens
    MIXED_NODES = "mixed nodes"  # nodes differ in policy, X, reconcile and checkpoint; the cluster in bucket, heartbeat
    LONG_CHECKPOINTS = "long checkpoints"  # checkpoints in memory at an interval above X
    LEFT_DEAD = "left dead"  # a node is killed and not started again when everything heals
    COSTLY_STATE = "costly state"  # a step takes virtual time for each row or group that the node holds
    DISKS = "disks"  # checkpoints lie on disks that are slow, lie about syncs, or are lost
    EXTREMES = "extremes"  # generated rows have nulls, NaN, infinities and values at the ends of their types
    CLIENTS = "clients"  # clients record and have sinks; they are killed, and their disks fail
    OTHER_PLANS = "other plans"  # processes are restarted with another query, bucket, limits or timing
    LIVE = "live"  # rows of sources happen once; producers are behind the clock, or pause
    MOVES = "moves"  # partitions move, nodes are drained, and some of that is cancelled
    SETTINGS = "settings"  # X, α and policies of nodes change while they run
    SHORTAGE = "shortage"  # nodes have too little room for all that they stand by for


SHARES: Final[Mapping[Feature, float]] = {
    Feature.LASTING_LINKS: 0.10,
    Feature.MIXED_NODES: 0.20,
    Feature.LONG_CHECKPOINTS: 0.10,
    Feature.LEFT_DEAD: 0.15,
    Feature.COSTLY_STATE: 0.10,
    Feature.DISKS: 0.20,
    Feature.EXTREMES: 0.20,
    Feature.CLIENTS: 0.20,
    Feature.OTHER_PLANS: 0.15,
    Feature.LIVE: 0.15,
    Feature.MOVES: 0.20,
    Feature.SETTINGS: 0.20,
    Feature.SHORTAGE: 0.25,
}

Features = frozenset[Feature]
NONE: Final[Features] = frozenset()


def draw_features(random: Random) -> Features:
    """The features of one run."""
    return frozenset(feature for feature, share in SHARES.items() if random.random() < share)
