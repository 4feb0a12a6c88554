"""Features of random runs, each with the share of the runs that have it.

A seed draws every feature by its share, so most runs lack most of them (swarm testing).  Features without a share must
be requested: they take over the whole run.  Features are drawn from random numbers of their own: the rest of a scenario
is the same with and without features that do not concern it.
"""

from __future__ import annotations

import enum
from random import Random
from typing import Final

from spe.errors import SpeError


class Feature(enum.StrEnum):
    """A feature that a random run may have, besides the faults that any run draws from.

    Attributes:
      share: share of the runs with it; 0: only on request.
      about: description of such a run.
    """

    share: float
    about: str

    LASTING_LINKS = "lasting links", 0.10, "two to six links are cut for 10 X or longer, and nothing else happens"
    MIXED_NODES = "mixed nodes", 0.20, "nodes with different X, policies, ways to reconcile; buckets of 20 to 160 ms"
    LONG_CHECKPOINTS = "long checkpoints", 0.10, "checkpoints in memory at an interval of 1.5 or 3 X"
    LEFT_DEAD = "left dead", 0.15, "a node is killed and not started again when everything heals"
    COSTLY_STATE = "costly state", 0.10, "a step takes virtual time for each row or group that the node holds"
    DISKS = "disks", 0.20, "checkpoints on disks that are slow, lie about syncs, or are lost"
    EXTREMES = "extremes", 0.20, "rows with nulls, NaN, infinities and values at the ends of their types"
    CLIENTS = "clients", 0.20, "recordings and sinks of clients that are killed, and whose disks fail"
    OTHER_PLANS = "other plans", 0.15, "processes are restarted with another query, bucket, limits or timing"
    LIVE = "live", 0.15, "rows of sources happen once; producers are behind the clock, or pause"
    MOVES = "moves", 0.20, "partitions move, nodes (two of them spare) are drained, some orders are cancelled"
    SETTINGS = "settings", 0.20, "X, α and policies of nodes change while they run; some of it is refused"
    SHORTAGE = "shortage", 0.25, "too little room for what nodes stand by for; several die at once, return one by one"
    LOST_LOGS = "lost logs", 0.04, "a source restarts with an empty folder"
    LOGS = (
        "checkpoint logs",
        0.25,
        "fragments whose replicas write a checkpoint log, if they can; all die at once; nodes turn it off and on",
    )
    LONG_CORRECTIONS = (
        "long corrections",
        0.06,
        "an input fails for long, its correction takes seconds, and as it goes on, something else fails, or nothing",
    )
    RETENTION = "retention", 0.10, "logs of sources and recordings of clients whose oldest part is deleted"
    LONG_WINDOWS = (
        "long windows",
        0.15,
        "windows of 1 to 20 s: the last ones reach far beyond the end of an input",
    )
    OLD_CHECKPOINTS = (
        "old checkpoints",
        0.0,
        "a standby runs beside its primary, both die, and of its checkpoints the newest may be damaged",
    )
    JOINING = "joining", 0.08, "nodes that no file names join, get partitions, are killed, come again, leave"
    REJECTED = "rejected rows", 0.08, "aggregates by a time that lags: late rows, and some that fail, are in a sink"
    CHANGING_FEEDS = (
        "changing feeds",
        0.0,
        "an input fails or stands still, again and again, each time about as it has been corrected; X differs",
    )
    BALANCING = "balancing", 0.08, "the coordinator moves partitions as loads shift; 44 s, faults at times later"
    OPTIONS = (
        "query options",
        0.0,
        "joins by several keys, attributes and conditions; rankings with ties, by partition; windows by an attribute; "
        "code of one's own by key and in aggregates",
    )
    PROVED = "proved logs", 0.0, "logs of sources and recordings whose oldest part is deleted once it is proved"
    PUSHES = "pushes", 0.0, "batches of rows that a writer pushes, some tasks and commits twice"
    SOURCE_DISKS = (
        "source disks",
        0.0,
        "disks of sources change or lose what they hold: a process names it, or the judge",
    )
    ALL_SINKS = "all sinks", 0.0, "sinks of Parquet files, and of a table that holds what is current, on a server"

    def __new__(cls, name: str, share: float, about: str) -> Feature:
        feature = str.__new__(cls, name)
        feature._value_, feature.share, feature.about = name, share, about
        return feature


Features = frozenset[Feature]
NONE: Final[Features] = frozenset()


def read_features(text: str, *besides: str) -> Features:
    """Parses feature names separated by commas.  Raises SpeError, which also names the values of ``besides``."""
    names = [name.strip() for name in text.split(",")]
    known = [feature.value for feature in Feature]
    for name in names:
        if name not in known:
            raise SpeError(f"--with: there is no feature {name!r}; expected some of {', '.join([*known, *besides])}")
    return frozenset(feature for feature in Feature if feature.value in names)


def draw_features(random: Random) -> Features:
    """Draws the features of one run."""
    return frozenset(feature for feature in Feature if random.random() < feature.share)
