"""The text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isinf
from typing import Any, Final

from spe.figures.figure import Figure
from spe.status import HistogramStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_ESCAPED_HELP: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


@dataclass(slots=True)
class Exposition:
    """Samples of one process at one moment.

    Args:
      metrics: all metrics that may have samples, in the order of the text.
      labels: labels of every sample.
      counted: additional labels of counters and histograms.
    """

    metrics: Iterable[Figure[Any]]
    labels: Mapping[str, str]
    counted: Mapping[str, str] = field(default_factory=dict)
    _lines: dict[str, list[str]] = field(default_factory=dict, init=False)
    _known: dict[str, Figure[Any]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._known = {metric.name: metric for metric in self.metrics}

    def add(self, name: str, value: float | bool | None, **labels: object) -> None:
        """Adds a sample; nothing without a value."""
        if value is None:
            return
        metric = self._known[name]
        all_labels = {**self.labels, **(self.counted if metric.kind == "counter" else {}), **labels}
        self._line(name, name, all_labels, float(value))

    def add_figure(self, figure: Figure[Any], subject: object, labels: Mapping[str, str]) -> None:
        """Adds the samples of a figure; nothing where its value is unknown."""
        value = figure.value(subject)
        if isinstance(value, HistogramStatus):
            self.add_histogram(figure.name, value, **labels)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                own = dict(zip(figure.labels, (key,) if isinstance(key, str) else key, strict=True))
                self.add(figure.name, each, **labels, **own)
        else:
            self.add(figure.name, value, **labels)

    def add_histogram(self, name: str, histogram: HistogramStatus, **labels: object) -> None:
        """Adds the samples of a histogram."""
        all_labels, count = {**self.labels, **self.counted, **labels}, 0
        for bound, more in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            count += more
            self._line(name, f"{name}_bucket", {**all_labels, "le": _number(bound)}, count)
        self._line(name, f"{name}_sum", all_labels, histogram.sum)
        self._line(name, f"{name}_count", all_labels, count)

    def _line(self, metric: str, name: str, labels: Mapping[str, object], value: float) -> None:
        shown = ",".join(f'{key}="{str(text).translate(_ESCAPED)}"' for key, text in labels.items())
        self._lines.setdefault(metric, []).append(f"{name}{{{shown}}} {_number(value)}")

    def text(self) -> str:
        """Returns the text: each metric with samples, its help and its type."""
        parts = []
        for name, metric in self._known.items():
            if lines := self._lines.get(name):
                parts += [f"# HELP {name} {metric.help.translate(_ESCAPED_HELP)}", f"# TYPE {name} {metric.kind}"]
                parts += lines
        return "\n".join(parts) + "\n"


def _number(value: float) -> str:
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))
