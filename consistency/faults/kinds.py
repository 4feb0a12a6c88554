"""The kinds of faults, a record each.  The order is that of random draws."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from consistency.faults.kind import (
    DiskHarm,
    Do,
    Effect,
    FaultDraw,
    FaultKind,
    HostFaults,
    LinkFaults,
    Maker,
    Once,
    Runs,
)

_UNKNOWN: Final = FaultKind("", "")
_kinds: Final[dict[str, FaultKind]] = {}
#: All kinds, by name; random draws of a seed depend on their order.
KINDS: Final[Mapping[str, FaultKind]] = MappingProxyType(_kinds)
#: The kind that ends others.
HEAL: Final = "heal"
_LINK: Final = ("target", "from", "to", "one_way")
#: A coordinator's epoch is what keeps two of them apart: its disk keeps synced data.
_NOT_THIS_DISK: Final = "the disk of {} is outside the fault model"
_DELAYS: Final = tuple(
    {"by": by, "jitter": jitter} for by, jitter in [("5ms", "1ms"), ("50ms", "50ms"), ("200ms", "20ms")]
)
_SYNCS: Final = ({"by": "5ms"}, {"by": "50ms"}, {"by": "300ms"})


def register(*kinds: FaultKind) -> None:
    """Adds kinds.  Raises ValueError: there is one of that name."""
    for kind in kinds:
        if kind.name in _kinds:
            raise ValueError(f"there is a fault {kind.name!r}")
        _kinds[kind.name] = kind


def unregister(name: str) -> None:
    del _kinds[name]


def kind_of(name: str) -> FaultKind:
    """Returns the kind of a fault in a history, such as ``replan query``; for any other name, one of unknown effect."""
    return KINDS.get(name.partition(" ")[0], _UNKNOWN)


register(
    FaultKind(
        "cut",
        "the link holds all bytes until it is healed; new connections time out",
        fields=(*_LINK, "for"),
        maker=Maker.PROCESSES,
        link=lambda part: LinkFaults(cut=True),
        effect=Effect.CUT,
        silences=True,
        draws=(FaultDraw("cut", ("links",)), FaultDraw("isolated", ("hosts",)), FaultDraw("source", ("sources",))),
    ),
    FaultKind(
        "delay",
        "everything sent over the link arrives later by `by`, and up to `jitter` more",
        fields=(*_LINK, "by", "jitter", "for"),
        needs=("by",),
        maker=Maker.PROCESSES,
        link=lambda part: LinkFaults(delay_us=part.by_us, jitter_us=part.jitter_us),
        effect=Effect.LATE,
        draws=(FaultDraw("late", ("links",), _DELAYS),),
    ),
    FaultKind(
        "slow",
        "the link has a bandwidth",
        fields=(*_LINK, "bytes_per_second", "for"),
        needs=("bytes_per_second",),
        maker=Maker.PROXY,
        link=lambda part: LinkFaults(bytes_per_s=part.amount),
        draws=(FaultDraw("slow", ("links",), ({"bytes_per_second": 2_000.0}, {"bytes_per_second": 20_000.0})),),
    ),
    FaultKind(
        "loss",
        "the link loses sends, which come again later",
        fields=(*_LINK, "share", "for"),
        needs=("share",),
        link=lambda part: LinkFaults(loss=part.amount),
        draws=(FaultDraw("lossy", ("links",), ({"share": 0.02}, {"share": 0.3})),),
    ),
    FaultKind(
        "refuse",
        "new connections are refused; open ones stay",
        fields=(*_LINK, "for"),
        maker=Maker.PROXY,
        link=lambda part: LinkFaults(refused=True),
        effect=Effect.CUT,
        unnoticed=True,
    ),
    FaultKind(
        "reset",
        "all connections over the link break; new ones work",
        fields=("target", "from", "to"),
        maker=Maker.PROXY,
        once=Once.RESET,
        effect=Effect.NONE,
        draws=(FaultDraw("reset", ("links",)),),
    ),
    FaultKind(
        "half-open",
        "one connection is forgotten on its way: what either end sends vanishes",
        fields=("target", "from", "to"),
        maker=Maker.PROXY,
        once=Once.HALF_OPEN,
        effect=Effect.NONE,
        unnoticed=True,
        draws=(FaultDraw("half open", ("links",)),),
    ),
    FaultKind(
        "kill",
        "SIGKILL: connections break. With `for`, the process is started again, same address and storage",
        maker=Maker.PROCESSES,
        begins=Do.KILL,
        effect=Effect.NONE,
        draws=(FaultDraw("kill", ("nodes", "servers", "sources")),),
    ),
    FaultKind(
        "power",
        "no power: connections are not closed, and what was not synced may be lost",
        begins=Do.POWER,
        effect=Effect.NONE,
        draws=(FaultDraw("power", ("servers", "sources")),),
    ),
    FaultKind(
        "restart",
        "the process is started again; if it runs, it is killed first",
        fields=("target",),
        maker=Maker.PROCESSES,
        begins=Do.RESTART,
        effect=Effect.NONE,
        draws=(FaultDraw("restart", ("servers",)),),
    ),
    FaultKind(
        "freeze",
        "SIGSTOP: connections stay open and silent; after SIGCONT everything arrives at once",
        maker=Maker.PROCESSES,
        begins=Do.FREEZE,
        effect=Effect.DOWN,
        silences=True,
        draws=(FaultDraw("freeze", ("hosts",)),),
    ),
    FaultKind(
        "stall",
        "a source's disk hangs: it is alive, but sends nothing new",
        targets=("source",),
        refusal="only a source can stall, and {} is none; freeze it?",
        maker=Maker.PROCESSES,
        host=lambda part: HostFaults(stalled=True),
        effect=Effect.DOWN,
        silences=True,
        draws=(FaultDraw("stall", ("sources",)),),
    ),
    FaultKind(
        "busy",
        "the process runs many times slower",
        fields=("target", "times", "for"),
        needs=("times",),
        host=lambda part: HostFaults(times=part.amount),
        effect=Effect.BUSY,
        draws=(FaultDraw("busy", ("servers",), ({"times": 2.0}, {"times": 8.0})),),
    ),
    FaultKind(
        "lag",
        "a client takes `by` over every change",
        fields=("target", "by", "for"),
        needs=("by",),
        targets=("client",),
        refusal="only a client can lag, and {} is none; busy?",
        host=lambda part: HostFaults(lag_us=part.by_us),
        draws=(FaultDraw("lag", ("clients",), ({"by": "5ms"}, {"by": "100ms"})),),
    ),
    FaultKind(
        "full",
        "the disk is full",
        host=lambda part: HostFaults(full=True),
        of_sources=Effect.DOWN,  # a source sends nothing that it could not log
        draws=(FaultDraw("full", ("servers",)),),
    ),
    FaultKind(
        "flip",
        "a bit of a file turns",
        fields=("target",),
        once=Once.FLIP,
        effect=Effect.NONE,
        harm=DiskHarm.DAMAGES,
        draws=(FaultDraw("flip", ("nodes",)),),  # the log of a source is the only copy of its input
    ),
    FaultKind(
        "skew",
        "a wall clock is off by `by`",
        fields=("target", "by", "for"),
        needs=("by",),
        host=lambda part: HostFaults(skew_us=part.by_us),
        effect=Effect.NONE,  # only sources use the time of day
        of_sources=Effect.LATE,
        draws=(FaultDraw("skew", ("nodes",), ({"by": "1h"}, {"by": "10ms"}, {"by": "10ms", "among": ("sources",)})),),
    ),
    FaultKind(
        HEAL,
        "ends everything that lasts except kills, or what concerns `target`",
        fields=("target", "from", "to"),
        maker=Maker.PROCESSES,
        effect=Effect.NONE,
        draws=(FaultDraw("heal", ()),),
    ),
    FaultKind(
        "slow-disk",
        "each sync takes `by`",
        fields=("target", "by", "for"),
        needs=("by",),
        host=lambda part: HostFaults(sync_us=part.by_us),
        effect=Effect.NONE,  # only sources wait for their disks
        of_sources=Effect.LATE,
        draws=(
            FaultDraw("slow disk", ("servers", "sources"), _SYNCS, Runs.DISKS),
            FaultDraw("client with a slow disk", ("clients",), _SYNCS, Runs.CLIENTS),
        ),
    ),
    FaultKind(
        "lie",
        "syncs make nothing durable, so a power failure may lose it",
        targets=("node", "client"),  # a source's log is the one copy of its input
        refusal=_NOT_THIS_DISK,
        host=lambda part: HostFaults(lies=True),
        effect=Effect.NONE,
        harm=DiskHarm.FORGETS,
    ),
    FaultKind(
        "wipe",
        "the process is killed, and started again with an empty disk",
        targets=("node", "client", "source"),
        refusal=_NOT_THIS_DISK,
        begins=Do.WIPE,
        effect=Effect.NONE,
        harm=DiskHarm.FORGETS,
        draws=(FaultDraw("wipe", ("nodes",), runs=Runs.DISKS),),
    ),
    FaultKind(
        "replan",
        "the process is started again with another query, bucket, limits, timing or checkpoints",
        fields=("target", "change", "for"),
        needs=("change",),
        targets=("node", "client", "source"),
        refusal="only nodes, sources and clients are started with another plan",
        begins=Do.REPLAN,
        host=lambda part: HostFaults(change=part.change),
        effect=Effect.NONE,
        by_change={"query": Effect.DOWN, "bucket": Effect.DOWN},
    ),
)
