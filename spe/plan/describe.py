"""Texts for durations, sources and their pace, for ``spe check`` and messages."""

from __future__ import annotations

from collections.abc import Sequence

from spe.plan.plan import Source, Watermark
from spe.stream.times import SECOND, format_duration, format_timestamp


def show_duration(us: int) -> str:
    """Formats a duration as a person would write it: ``1.8s`` rather than ``1800ms``."""
    if SECOND <= us < 60 * SECOND:
        return f"{us / SECOND:g}s"
    return format_duration(us)


def show_bound(shares_us: Sequence[int]) -> str:
    """Formats how long a result may take: ``X = 2s``; through several units the sum, ``4s + 2s = 6s``."""
    added = " + ".join(map(show_duration, shares_us)) if len(shares_us) > 1 else "X"
    return f"{added} = {show_duration(sum(shares_us))}"


def show_lateness(count: int, by_us: int, disorder_us: int) -> str:
    """Formats how many tuples of a source were late, and by how much its disorder is too short."""
    by = f" by up to {show_duration(-(-by_us // 1000) * 1000)}" if by_us else ""
    return f"{count:,} late{by} (disorder {show_duration(disorder_us)})"


def describe_pace(source: Source) -> str:
    """Describes a source's pace: ``60x``, ``1000 rows/s``, ``as fast as it goes``, ``live, watermark by clock``."""
    if source.live:
        return f"live, {_watermark(source)}"
    if source.replay.get("max"):
        return "as fast as it goes"
    if source.replay.get("rate") is not None:
        return f"{float(source.replay['rate']):g} rows/s"
    text = f"{float(source.replay.get('speed') or 1.0):g}x"
    origin = source.replay.get("origin_us")
    return text if origin is None else f"{text} from {format_timestamp(int(origin))}"


def _watermark(source: Source) -> str:
    if source.watermark is Watermark.CLOCK:
        return "watermark by clock"
    if source.idle_us is None:
        return "watermark by data, never idle"
    then = ", then by clock" if source.idle_to_now else ""
    return f"watermark by data, idle after {show_duration(source.idle_us)}{then}"
