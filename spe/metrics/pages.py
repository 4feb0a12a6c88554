"""The pages of a process: ``/metrics``, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from spe import __version__
from spe.metrics.exposition import CONTENT_TYPE, Exposition
from spe.metrics.health import not_ready
from spe.metrics.status_metrics import METRICS, exposition
from spe.runtime.http_port import Page
from spe.status import ProcessStatus


def pages(
    name: str, status: Callable[[], ProcessStatus | None], figures: Callable[[], Iterable[tuple[str, float]]]
) -> Mapping[str, Callable[[], Page]]:
    """Returns the functions that make the pages, by path.

    Args:
      name: name of the process.
      status: returns the status; None while the process starts.
      figures: returns further metrics, such as those of the system.
    """

    def metrics() -> Page:
        now = status()
        out = Exposition(METRICS, {"process": name}) if now is None else exposition(now, version=__version__)
        for figure, value in figures():
            out.add(figure, value)
        return Page(out.text(), content_type=CONTENT_TYPE)

    def health() -> Page:
        """A process that answers is alive; a restart would not help against other failures."""
        return Page("ok\n")

    def ready() -> Page:
        now = status()
        reasons = ["it begins"] if now is None else not_ready(now)
        return Page("".join(f"{line}\n" for line in reasons or ["ok"]), 503 if reasons else 200)

    return {"/metrics": metrics, "/healthz": health, "/readyz": ready}
