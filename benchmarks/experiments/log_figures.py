"""The checkpoint log beside the CEC paper (figures 5 to 9): one experiment for each.

All have count windows of random groups, on one thread; times are its CPU time.  The state that is made again from a log
is compared with the one before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from statistics import fmean
from typing import Final

import trio

from benchmarks.experiments.logged_fragment import Input, LoggedFragment, Totals, files
from benchmarks.experiments.record import Plot, Row, experiment, once, sweep
from replicas.checkpoint.log import COPIES
from replicas.checkpoint.pauses import Pauses
from spe.plan.log_targets import Continuous
from spe.runtime.storage import DiskStorage
from spe.stream.batch import Batch
from spe.stream.names import Kind
from spe.stream.times import MILLISECOND, SECOND
from spe.wire.codec import encode_standalone
from spe.wire.state import encode_large_state

#: A limit without effect.
ANY: Final = 1 << 60
#: In the paper, rows per second and group, and the share of groups with an open window of ten rows.
RATE: Final = 0.6
_OPEN: Final = 0.9
_GROUPS: Final = 100_000
_QUICK_GROUPS: Final = 2_000
#: Rows of a slice where nothing paces them.
_SLICE: Final = 5_000
_STEP_US: Final = 100 * MILLISECOND

# --- figure 5: what openings cost ---


def _throughput_points(quick: bool) -> Iterator[Row]:
    groups = _QUICK_GROUPS if quick else _GROUPS
    for keys, window in ((2, 1), (2, 1_000), (groups, 10), (groups, 1_000)):
        yield {"groups": keys, "window": window}


@experiment("log-throughput", "CEC, figure 5", _throughput_points, Plot("log", "groups window", "ns_per_row"))
def throughput(quick: bool, groups: int, window: int) -> list[Row]:
    """The cost of a checkpoint log."""
    rows, every_us = (100_000, MILLISECOND) if quick else (3_000_000, _STEP_US)
    return trio.run(_costs_of, Input(groups, SECOND, window), rows, every_us)


async def _costs_of(given: Input, rows: int, every_us: int) -> list[Row]:
    """Without a log, with openings, with as much rewriting as 5 % allows: the same rows in turns."""
    logs = {"none": None, "openings": Continuous(None, records=ANY), "rewrites": Continuous(None, records=1)}
    with files() as folder:
        fragments = {n: LoggedFragment(given, log, folder / n, pauses=Pauses(every_us)) for n, log in logs.items()}
        for fragment in fragments.values():
            await fragment.open()
        before: dict[str, Totals] = {}
        for at in range(0, 2 * rows, _SLICE):
            if at == rows // _SLICE * _SLICE:  # until now windows filled
                before = {n: fragment.totals for n, fragment in fragments.items()}
            for fragment in fragments.values():
                fragment.take(_SLICE)
                await fragment.write(fragment.totals.cpu_ns // 1000)
        spent = {n: fragment.totals.since(before[n]) for n, fragment in fragments.items()}
        for fragment in fragments.values():
            fragment.close()
    plain = spent["none"]
    return [
        {
            "log": name,
            "ns_per_row": total.cpu_ns / rows,
            "cost": total.cpu_ns / plain.cpu_ns - 1,
            "openings": total.written - total.rewritten,
            "rewritten": total.rewritten,
        }
        for name, total in spent.items()
    ]


# --- figures 6 and 7: limits of what is loaded and replayed ---


_FACTORS: Final[Mapping[str, Sequence[float]]] = {"Q": (1, 2, 4, 8), "U": (1.25, 2.5, 5, 10), "none": (0,)}


def _limit_points(quick: bool) -> Iterator[Row]:
    for limit, factors in _FACTORS.items():
        for factor in dict.fromkeys((factors[0], factors[-1]) if quick else factors):
            yield {"limit": limit, "factor": factor}


@experiment(
    "log-limits",
    "CEC, figures 6 and 7",
    _limit_points,
    *(Plot("factor", "limit", "rewritten records rows", ("limit", limit)) for limit in "QU"),
)
def limits(quick: bool, limit: str, factor: float) -> Row:
    """Extent and replay against Q and U."""
    groups = _QUICK_GROUPS if quick else _GROUPS
    most = round(factor * groups * (_OPEN if limit == "Q" else 1))
    return trio.run(_limited, groups, limit, most if factor else ANY)


async def _limited(groups: int, limit: str, most: int) -> Row:
    """CI 5 ms and CP 100 ms, 50 s of the stream."""
    given = Input(groups, round(RATE * groups))
    settings = Continuous(None, 0.05, _STEP_US, **{"rows" if limit == "U" else "records": most})
    with files() as folder:
        fragment = LoggedFragment(given, settings, folder)
        await fragment.open()
        extents = []
        for at in range(50 * SECOND // _STEP_US):
            fragment.take(given.rate * _STEP_US // SECOND)
            await fragment.write(given.time(fragment.row))
            if at * _STEP_US > 30 * SECOND:
                extents.append(fragment.extent)
        share = fragment.totals.rewritten / fragment.totals.written
        came = await fragment.recovered(given.time(fragment.row))
        fragment.close()
    return {
        "most": None if most == ANY else most,
        "rewritten": fragment.totals.rewritten,
        "rewritten_share": share,
        "records": came.records,
        "most_records": max(q for q, _ in extents),
        "rows": came.rows,
        "most_rows": max(u for _, u in extents),
        "load_s": came.open_s + came.load_s,
        "load_us_per_record": 1e6 * (came.open_s + came.load_s) / came.records,
        "replay_s": came.replay_s,
    }


# --- figures 8 and 9: response and extent against the period ---

_INTERVAL_US: Final = 10 * MILLISECOND
_PERIODS_MS: Final = (25, 50, 100, 250)


@experiment("log-period", "CEC, figures 8 and 9", once, Plot("period_ms", "", "against_none/model records"))
def period(quick: bool) -> list[Row]:
    """Response time and extent against CP, CI = 10 ms."""
    return trio.run(_periods, *((_QUICK_GROUPS, (25, 250)) if quick else (_GROUPS, _PERIODS_MS)))


async def _periods(groups: int, periods_ms: Sequence[int]) -> list[Row]:
    """Q is the number of open windows, a limit that cannot hold; rows come as fast as they are worked on."""
    given = Input(groups, SECOND)
    with files() as folder:
        fragments = {0: LoggedFragment(given, None, None)}
        for ms in periods_ms:
            every = ms * MILLISECOND
            settings = Continuous(None, _INTERVAL_US / every, every, records=round(_OPEN * groups))
            fragments[ms] = LoggedFragment(given, settings, folder / str(ms), pauses=Pauses(every, rests=0))
        responses: dict[int, list[float]] = {ms: [] for ms in fragments}
        extents: dict[int, list[int]] = {ms: [] for ms in fragments}
        for fragment in fragments.values():
            await fragment.open()
            await fragment.write(0, sure=True)
        step = groups // 40
        for at in range(0, 40 * groups, step):
            for ms, fragment in fragments.items():
                fragment.take(step, at_us=fragment.totals.cpu_ns // 1000)
                await fragment.write(fragment.totals.cpu_ns // 1000)
                if at >= 30 * groups and fragment.result is not None:
                    opened = fragment.result.columns[2].values
                    responses[ms].append(float((fragment.totals.cpu_ns / 1000 - opened).mean()))
                    if ms:
                        extents[ms].append(fragment.extent[0])
        rows: list[Row] = []
        for ms, fragment in fragments.items():
            came = await fragment.recovered(fragment.totals.cpu_ns // 1000) if ms else None
            records = fmean(extents[ms]) if ms else None
            rows.append(
                {
                    "period_ms": ms or None,
                    "response_ms": fmean(responses[ms]) / 1e3,
                    "against_none": fmean(responses[ms]) / fmean(responses[0]),
                    "model": 1 / (1 - _INTERVAL_US / (ms * MILLISECOND)) if ms else 1.0,
                    "rewritten": fragment.totals.rewritten,
                    "records": records,
                    "of_open": None if records is None else records / (_OPEN * groups),
                    "load_s": came.open_s + came.load_s if came else None,
                }
            )
            fragment.close()
        return rows


# --- is a time to recover kept? ---


@experiment(
    "log-recovery",
    "CEC, beyond its figures",
    lambda quick: sweep(groups=(1_000, 10_000) if quick else (10_000, 100_000, 1_000_000)),
    Plot("groups", "", "took_s/expected_s took_s/target_s", ("number", 3)),
)
def recovery(quick: bool, groups: int) -> list[Row]:
    """Time to recover: target, prediction, measurement."""
    return trio.run(_killed, groups)


async def _killed(groups: int) -> list[Row]:
    """As ``configs/million_groups.yaml``: windows of three rows, 8 µs of ``recovery`` for each group.

    The state is made again three times; the first time the prediction knows the rows only.
    """
    given = Input(groups, round(0.06 * groups), 3)
    target_s = 8e-6 * groups
    rows: list[Row] = []
    with files() as folder:
        fragment = LoggedFragment(given, Continuous(round(target_s * SECOND), 0.1), folder)
        await fragment.open()
        for number in range(1, 4):
            for _ in range(2 * groups * SECOND // (given.rate * _STEP_US)):
                fragment.take(given.rate * _STEP_US // SECOND)
                await fragment.write(given.time(fragment.row))
            came = await fragment.recovered(given.time(fragment.row))
            took_s = came.load_s + came.replay_s
            rows.append(
                {
                    "number": number,
                    **came._asdict(),
                    "rewritten": fragment.totals.rewritten,
                    "took_s": took_s,
                    "against_expected": took_s / came.expected_s,
                    "target_s": target_s,
                    "against_target": (took_s + came.open_s) / target_s,
                }
            )
        fragment.close()
    return rows


# --- the log against whole checkpoints ---
#
# Rows come to 1 % of the groups per second, at random, into windows of ten; or as in the paper.  Whole checkpoints are
# encoded and written as a node does, at intervals; a standby fetches each of them, or what follows in the log.

#: Rows per group until as many windows close as open, of random groups.
_FILLED: Final = 25
#: Seconds between whole checkpoints.
INTERVALS: Final = (1, 5, 15, 30)
#: Microseconds of ``recovery`` for each group.
TARGETS_US: Final = (8, 16)


class Whole(LoggedFragment):
    """A fragment that writes whole checkpoints instead of a log."""

    def __init__(self, given: Input, every_us: int, folder: Path) -> None:
        super().__init__(given, None, None)
        self._every_us = every_us
        self._checkpoints = DiskStorage(folder)
        self._taken_at = -every_us
        self._acknowledged = self._written_bytes = 0

    async def write(self, now_us: int, *, sure: bool = False, syncs: bool = True) -> None:
        """Takes a checkpoint if its time has come, and only where the next one may come at once."""
        if not (sure or (syncs and now_us - self._taken_at >= self._every_us)):
            return
        begun = time.thread_time_ns()
        outputs = [o.snapshot() for o in self.instance.outputs]
        data = encode_large_state({"fragment": self.instance.fragment.snapshot(), "outputs": outputs})
        took_ns, begun = time.thread_time_ns() - begun, time.process_time_ns()  # written in a thread; all others wait
        await self._checkpoints.write_atomic(PurePosixPath("checkpoint"), data)
        took_ns += time.process_time_ns() - begun
        self.totals = self.totals.plus(cpu_ns=took_ns, log_ns=took_ns)
        self._taken_at, self._acknowledged = now_us, self.row
        self._written_bytes += len(data)

    @property
    def written_bytes(self) -> int:
        return self._written_bytes

    @property
    def kept_rows(self) -> int:
        return self.row - self._acknowledged


@experiment(
    "log-costs",
    "CEC, beyond its figures",
    lambda quick: sweep(changed=(0.01, RATE)),
    Plot("case", "changed", "cpu_ms_per_s disk_kb_per_s kept_upstream_kb"),
)
def costs(quick: bool, changed: float) -> list[Row]:
    """A checkpoint log against whole checkpoints."""
    settings = (2_000, 4, INTERVALS[:1]) if quick else (100_000, 30, INTERVALS)
    return trio.run(_measured, changed, *settings)


async def _measured(changed: float, groups: int, seconds: int, intervals: Sequence[int]) -> list[Row]:
    """All in turns, a tenth of a second of the stream each."""
    given = Input(groups, round(changed * groups))
    row_kb = _row_bytes(given) / 1e3
    with files() as folder:
        plain = LoggedFragment(given, None, None)
        ways: dict[str, LoggedFragment] = {}
        for every in intervals:
            name = f"whole, each {every} s"
            ways[name] = Whole(given, every * SECOND, folder / name)
        for us in TARGETS_US:
            name = f"log, recovery {us * groups / 1e6:g} s"
            ways[name] = LoggedFragment(given, Continuous(us * groups), folder / name)
        await _fill([plain, *ways.values()])
        plain_before = plain.totals
        before = {name: (way.written_bytes, way.totals) for name, way in ways.items()}
        held: dict[str, list[int]] = {name: [] for name in ways}
        for _ in range(seconds * SECOND // _STEP_US):
            for fragment in (plain, *ways.values()):
                fragment.take(given.rate * _STEP_US // SECOND)
            for name, way in ways.items():
                await way.write(given.time(way.row))
                held[name].append(way.kept_rows)
        plain_ns = plain.totals.since(plain_before).cpu_ns
        rows: list[Row] = []
        for name, way in ways.items():
            size, spent = way.written_bytes - before[name][0], way.totals.since(before[name][1])
            # The first write after a snapshot copies.
            added_ns = spent.log_ns + max(0, spent.cpu_ns - spent.log_ns - plain_ns)
            rows.append(
                {
                    "case": name,
                    "groups": groups,
                    "cpu_ms_per_s": added_ns / 1e6 / seconds,
                    "disk_kb_per_s": (1 if isinstance(way, Whole) else len(COPIES)) * size / 1e3 / seconds,
                    "net_kb_per_s": size / 1e3 / seconds,
                    "rewritten_per_s": spent.rewritten / seconds,
                    "kept_upstream_kb": fmean(held[name]) * row_kb,
                    "most_kept_kb": max(held[name]) * row_kb,
                }
            )
            if not isinstance(way, Whole):
                await way.recovered(given.time(way.row))
                way.close()
        return rows


async def _fill(fragments: Sequence[LoggedFragment]) -> None:
    for fragment in fragments:
        await fragment.open()
        given = fragment.given
        for _ in range(_FILLED * given.groups // given.rate):
            fragment.take(given.rate)
            await fragment.write(given.time(fragment.row), syncs=False)
        await fragment.write(given.time(fragment.row), sure=True)


def _row_bytes(given: Input) -> float:
    """Bytes of a row in the output of upstream."""
    count, unit = 1_000, given.unit()
    (rows,) = given.slice(0, count).parts[0]
    batch = Batch(Kind.STABLE, 0, count, None, rows)
    return len(encode_standalone(batch, unit.inputs[0].schema)) / count
