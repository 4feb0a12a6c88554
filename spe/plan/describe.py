"""One line of text per operator, window, source and sink: what ``spe check`` and messages say of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from spe.plan.plan import Source, Watermark
from spe.query.query import (
    AggregateCall,
    AggregateSpec,
    CustomSpec,
    FilterSpec,
    JoinKind,
    JoinSpec,
    MapSpec,
    OperatorSpec,
    TopKSpec,
    UnionSpec,
    Window,
    WindowKind,
    skips,
)
from spe.stream.times import SECOND, format_duration, format_timestamp


def show_duration(us: int) -> str:
    """As a person would write it: ``1.8s`` rather than ``1800ms``."""
    if SECOND <= us < 60 * SECOND:
        return f"{us / SECOND:g}s"
    return format_duration(us)


def show_lateness(count: int, by_us: int, disorder_us: int) -> str:
    """How many tuples of a source were late, and what disorder would have made none of them late."""
    by = f" by up to {show_duration(-(-by_us // 1000) * 1000)}" if by_us else ""
    return f"{count:,} late{by} (disorder {show_duration(disorder_us)})"


def operator_kind(spec: OperatorSpec) -> str:
    """The word that the configuration uses for it."""
    return type(spec).__name__.removesuffix("Spec").lower()


def describe_operator(spec: OperatorSpec) -> str:
    """What the operator does, without its name."""
    return _described(spec) + ("; goes on without rows that fail" if skips(spec) else "")


def _described(spec: OperatorSpec) -> str:
    if isinstance(spec, FilterSpec):
        return f"{spec.input} where {spec.where}"
    if isinstance(spec, MapSpec):
        made = ", ".join(_named(name, text) for name, text in spec.columns.items())
        return f"{spec.input}: {'*, ' if spec.keep else ''}{made}"
    if isinstance(spec, UnionSpec):
        return " + ".join(spec.inputs)
    if isinstance(spec, AggregateSpec):
        calls = ", ".join(_named(name, describe_call(call)) for name, call in spec.aggregates.items())
        return f"{spec.input} in {describe_window(spec.window)}{_by(spec.group_by)}: {calls}"
    if isinstance(spec, JoinSpec):
        return _join(spec)
    if isinstance(spec, TopKSpec):
        return _topk(spec)
    return _custom(spec)


def _named(name: str, text: str) -> str:
    return name if name == text else f"{name} = {text}"


def _by(groups: Mapping[str, str]) -> str:
    return f" by {', '.join(_named(name, text) for name, text in groups.items())}" if groups else ""


def describe_call(call: AggregateCall) -> str:
    return f"{call.function}({'*' if call.argument is None else call.argument})"


def describe_window(window: Window) -> str:
    """``tumbling 1s``, ``sliding 10s every 2s over ts``, ``windows of 100 tuples``."""
    if window.kind is WindowKind.COUNT:
        return f"windows of {window.count} tuples"
    text = f"{window.kind} {format_duration(window.size_us)}"
    if window.kind is WindowKind.SLIDING:
        text += f" every {format_duration(window.slide_us)}"
    if window.offset_us:
        text += f" offset {describe_signed(window.offset_us)}"
    return text if window.on is None else f"{text} over {window.on}"


def describe_signed(us: int) -> str:
    return f"-{format_duration(-us)}" if us < 0 else format_duration(us)


def _join(spec: JoinSpec) -> str:
    on = ", ".join(left if left == right else f"{left} = {right}" for left, right in spec.on)
    kind = "" if spec.kind is JoinKind.INNER else f"{spec.kind} "
    text = f"{kind}{spec.left} with {spec.right} on {on}"
    if spec.window is not None:
        text += f" in {describe_window(spec.window)}"
    else:
        bounds = f"[{describe_signed(spec.lower_us or 0)}, {describe_signed(spec.upper_us or 0)}]"
        text += f" within {bounds} of {spec.right}.{spec.right_time or 'time'} - {spec.left}.{spec.left_time or 'time'}"
    return text if spec.where is None else f"{text} where {spec.where}"


def _topk(spec: TopKSpec) -> str:
    order = ", ".join(f"{text} desc" if descending else text for text, descending in spec.order_by)
    text = f"first {spec.k} of {spec.input} by {order}"
    if spec.partition_by:
        text += f" per {', '.join(spec.partition_by)}"
    if spec.window is not None:
        text += f" in {describe_window(spec.window)}"
    return f"{text}, ties kept" if spec.with_ties else text


def _custom(spec: CustomSpec) -> str:
    arguments = ", ".join(f"{k}={v!r}" for k, v in spec.arguments.items())
    return f"{spec.path}({arguments}) of {', '.join(spec.inputs)}"


def describe_reader(reader: Mapping[str, Any]) -> str:
    """Where rows come from, in short: ``csv orders.csv``, ``generator orders, 500 rows/s for 40s``."""
    kind = str(reader["kind"])
    if kind == "generator":
        text = f"generator {reader['generator']}, {reader['rate']:g} rows/s"
        if reader.get("duration") is not None:
            text += f" for {format_duration(int(reader['duration']))}"
        return f"{text}, {reader['count']} rows" if reader.get("count") is not None else text
    if "path" in reader:
        return f"{kind} {PurePath(str(reader['path'])).name}"
    return f"{kind} {reader['address']}" if "address" in reader else kind


def describe_pace(source: Source) -> str:
    """``60x``, ``1000 rows/s``, ``as fast as it goes``, ``live, watermark by data, idle after 500ms``."""
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
