"""The checkpoint log beside the CEC paper (figures 5 to 9): one experiment for each.

All are of count windows of groups at random, on one thread; times are its CPU time, but for those called wall.  What is
made again from a log is compared with what was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

import trio

from benchmarks.experiments.logged_fragment import Input, LoggedFragment, files
from benchmarks.experiments.results import Experiment, Row, lines, places
from replicas.checkpoint.pauses import Pauses
from spe.plan.log_targets import Continuous
from spe.plots import Panel
from spe.stream.times import MILLISECOND, SECOND

#: More than there are.
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


def _throughput(quick: bool) -> Iterator[Row]:
    groups, rows = (_QUICK_GROUPS, 100_000) if quick else (_GROUPS, 3_000_000)
    for keys, window in ((2, 1), (2, 1_000), (groups, 10), (groups, 1_000)):
        yield from trio.run(_costs_of, Input(keys, SECOND, window), rows, MILLISECOND if quick else _STEP_US)


async def _costs_of(given: Input, rows: int, every_us: int) -> list[Row]:
    """Without a log, with openings, with as much rewriting as 5 % allows: the same rows in turns."""
    logs = {"none": None, "openings": Continuous(None, records=ANY), "rewrites": Continuous(None, records=1)}
    with files() as memory, files(disk=True) as disk:
        places_of = {n: (log, memory / n) for n, log in logs.items()}
        places_of |= {f"{n}, disk": (log, disk / n) for n, log in logs.items() if log is not None}
        ones = {n: LoggedFragment(given, *where, pauses=Pauses(every_us)) for n, where in places_of.items()}
        for one in ones.values():
            await one.open()
        begun: dict[str, tuple[int, int, int, int]] = {}
        for at in range(0, 2 * rows, _SLICE):
            if at == rows // _SLICE * _SLICE:  # until now windows filled
                begun = {n: (one.cpu_ns, one.wall_ns, one.written, one.rewritten) for n, one in ones.items()}
            for one in ones.values():
                one.take(_SLICE)
                await one.write(one.cpu_ns // 1000)
        found: list[Row] = []
        plain_ns, plain_wall_ns = (n - b for n, b in zip((ones["none"].cpu_ns, ones["none"].wall_ns), begun["none"]))
        for name, one in ones.items():
            cpu_ns, wall_ns, written, rewritten = begun[name]
            again = one.rewritten - rewritten
            found.append(
                {
                    "groups": given.groups,
                    "window": given.window,
                    "log": name,
                    "ns_per_row": (one.cpu_ns - cpu_ns) / rows,
                    "cost": (one.cpu_ns - cpu_ns) / plain_ns - 1,
                    "wall_cost": (one.wall_ns - wall_ns) / plain_wall_ns - 1,
                    "openings": one.written - written - again,
                    "rewritten": again,
                    "findings": "",
                }
            )
            one.close()
        return found


def _throughput_panels(rows: Sequence[Row]) -> list[Panel]:
    cases = [{**row, "case": f"{row['groups']:,} groups, {row['window']:,} rows"} for row in rows]
    order = {name: float(at) for at, name in enumerate(dict.fromkeys(row["log"] for row in rows))}
    at = [{**row, "at": order[row["log"]]} for row in cases]
    drawn = lines(at, "case", "at", "ns_per_row")
    return [Panel("CPU ns per row", places(at, "at"), drawn, ", ".join(order))]


# --- figures 6 and 7: limits of what is loaded and replayed ---


def _limits(quick: bool) -> Iterator[Row]:
    groups = _QUICK_GROUPS if quick else _GROUPS
    factors: dict[str, Sequence[float]] = {"Q": (1, 2, 4, 8), "U": (1.25, 2.5, 5, 10)}
    for limit, of in factors.items():
        for factor in (of[0], of[-1]) if quick else of:
            most = round(factor * groups * (_OPEN if limit == "Q" else 1))
            yield trio.run(_limited, groups, limit, factor, most)
    yield trio.run(_limited, groups, "none", 0, ANY)


async def _limited(groups: int, limit: str, factor: float, most: int) -> Row:
    """CI 5 ms and CP 100 ms, 50 s of the stream."""
    given = Input(groups, round(RATE * groups))
    settings = Continuous(None, 0.05, _STEP_US, **{"rows" if limit == "U" else "records": most})
    with files() as folder:
        one = LoggedFragment(given, settings, folder)
        await one.open()
        extents = []
        seconds = 50
        for at in range(seconds * SECOND // _STEP_US):
            one.take(given.rate * _STEP_US // SECOND)
            await one.write(given.time(one.row))
            if at * _STEP_US > 30 * SECOND:
                extents.append(one.extent)
        share = one.rewritten / one.written
        came = await one.recovered(given.time(one.row))
        one.close()
    return {
        "limit": limit,
        "factor": factor,
        "most": None if most == ANY else most,
        "rewritten": one.rewritten,
        "rewritten_share": share,
        "records": came.records,
        "most_records": max(q for q, _ in extents),
        "rows": came.rows,
        "most_rows": max(u for _, u in extents),
        "load_s": came.open_s + came.load_s,
        "load_us_per_record": 1e6 * (came.open_s + came.load_s) / came.records,
        "replay_s": came.replay_s,
        "findings": "",
    }


def _limits_panels(rows: Sequence[Row]) -> list[Panel]:
    found = []
    for limit, across in (("Q", "Q, times the open windows"), ("U", "U, times the groups")):
        some = [row for row in rows if row["limit"] == limit]
        for title, value in (("rewritten", "rewritten"), ("records to load", "records"), ("rows to replay", "rows")):
            found.append(Panel(title, places(some, "factor"), lines(some, "limit", "factor", value), across))
    return found


# --- figures 8 and 9: response and extent against the period ---

_INTERVAL_US: Final = 10 * MILLISECOND
_PERIODS_MS: Final = (25, 50, 100, 250)


def _period(quick: bool) -> Iterator[Row]:
    yield from trio.run(_periods, *((_QUICK_GROUPS, (25, 250)) if quick else (_GROUPS, _PERIODS_MS)))


async def _periods(groups: int, periods_ms: Sequence[int]) -> list[Row]:
    """Q is the number of open windows, which cannot be kept; rows come as fast as they are worked on."""
    given = Input(groups, SECOND)
    with files() as folder:
        ones = {0: LoggedFragment(given, None, None)}
        for ms in periods_ms:
            every = ms * MILLISECOND
            settings = Continuous(None, _INTERVAL_US / every, every, records=round(_OPEN * groups))
            ones[ms] = LoggedFragment(given, settings, folder / str(ms), pauses=Pauses(every, rests=0))
        responses: dict[int, list[float]] = {ms: [] for ms in ones}
        extents: dict[int, list[int]] = {ms: [] for ms in ones}
        for one in ones.values():
            await one.open()
            await one.write(0, sure=True)
        step = groups // 40
        for at in range(0, 40 * groups, step):
            for ms, one in ones.items():
                one.take(step, at_us=one.cpu_ns // 1000)
                await one.write(one.cpu_ns // 1000)
                if at >= 30 * groups and one.result is not None:
                    opened = one.result.columns[2].values
                    responses[ms].append(float((one.cpu_ns / 1000 - opened).mean()))
                    if ms:
                        extents[ms].append(one.extent[0])
        found: list[Row] = []
        for ms, one in ones.items():
            came = await one.recovered(one.cpu_ns // 1000) if ms else None
            response, plain = fmean(responses[ms]), fmean(responses[0])
            found.append(
                {
                    "period_ms": ms or None,
                    "response_ms": response / 1e3,
                    "against_none": response / plain,
                    "model": 1 / (1 - _INTERVAL_US / (ms * MILLISECOND)) if ms else 1.0,
                    "rewritten": one.rewritten,
                    "records": fmean(extents[ms]) if ms else None,
                    "of_open": fmean(extents[ms]) / (_OPEN * groups) if ms else None,
                    "load_s": came.open_s + came.load_s if came else None,
                    "findings": "",
                }
            )
            one.close()
        return found


def _period_panels(rows: Sequence[Row]) -> list[Panel]:
    some = [{**row, "of": "measured"} for row in rows if row["period_ms"]]
    xs = places(some, "period_ms")
    return [
        Panel("response against none", xs, lines(some, "of", "period_ms", "against_none", "model"), "CP, ms"),
        Panel("records to load", xs, lines(some, "of", "period_ms", "records"), "CP, ms"),
    ]


# --- is a time to recover kept? ---


def _recovery(quick: bool) -> Iterator[Row]:
    for groups in (1_000, 10_000) if quick else (10_000, 100_000, 1_000_000):
        for disk in (False, True):
            yield from trio.run(_killed, groups, disk)


async def _killed(groups: int, disk: bool) -> list[Row]:
    """As ``configs/million_groups.yaml``: windows of three rows, 8 µs of ``recovery`` for each group.

    The state is made again three times; the first time nothing but the rows is known to the prediction.
    """
    given = Input(groups, round(0.06 * groups), 3)
    target_s = 8e-6 * groups
    found: list[Row] = []
    with files(disk=disk) as folder:
        one = LoggedFragment(given, Continuous(round(target_s * SECOND), 0.1), folder)
        await one.open()
        for number in range(1, 4):
            for _ in range(2 * groups * SECOND // (given.rate * _STEP_US)):
                one.take(given.rate * _STEP_US // SECOND)
                await one.write(given.time(one.row))
            came = await one.recovered(given.time(one.row))
            took_s = came.load_s + came.replay_s
            found.append(
                {
                    "groups": groups,
                    "files": "disk" if disk else "memory",
                    "number": number,
                    "records": came.records,
                    "rows": came.rows,
                    "rewritten": one.rewritten,
                    "open_s": came.open_s,
                    "load_s": came.load_s,
                    "replay_s": came.replay_s,
                    "took_s": took_s,
                    "wall_s": came.wall_s,
                    "expected_s": came.expected_s,
                    "against_expected": took_s / came.expected_s,
                    "target_s": target_s,
                    "against_target": (took_s + came.open_s) / target_s,
                    "findings": "",
                }
            )
        one.close()
    return found


def _recovery_panels(rows: Sequence[Row]) -> list[Panel]:
    last = [{**row, "of": row["files"]} for row in rows if row["number"] == 3]
    xs = places(last, "groups")
    return [
        Panel(f"load and replay, s; dashed: {what}", xs, lines(last, "of", "groups", "took_s", value), "groups")
        for what, value in (("expected", "expected_s"), ("target", "target_s"))
    ]


EXPERIMENTS: Final = {
    "log-throughput": Experiment("What a checkpoint log costs", _throughput, _throughput_panels),
    "log-limits": Experiment("Extent and replay against Q and U", _limits, _limits_panels),
    "log-period": Experiment("Response time and extent against CP, CI = 10 ms", _period, _period_panels),
    "log-recovery": Experiment("Time to recover: target, prediction, measurement", _recovery, _recovery_panels),
}
