# ruff: noqa: ANN001, ANN201
"""``{cumulate: 1h, step: 5m}``: from each hour on, windows of 5, 10, … 60 minutes."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from consistency.proof.recorded.query_file import WINDOWS, TimeEntry, floor_div, timed
from spe.errors import QueryError
from spe.query.windows import KINDS, SlidingWindow
from spe.values import PositiveDuration


@dataclass(frozen=True)
class CumulateWindow(SlidingWindow):  # spe/query/windows.py
    KEYWORD = "cumulate"

    size_us: Annotated[PositiveDuration, Field(alias="cumulate")]
    slide_us: Annotated[PositiveDuration, Field(alias="step")]

    def first(self, times):
        return self.pane(times)

    def last(self, times):
        return ((times - self.offset_us) // self.size_us + 1) * self.panes - 1

    def start(self, windows):
        return self.offset_us + windows // self.panes * self.size_us

    def end(self, windows):
        return self.offset_us + (windows + 1) * self.slide_us

    def check(self, schemas):
        super().check(schemas)
        if self.size_us % self.slide_us:
            raise QueryError("window.step", "expected a divisor of the length")


class CumulateEntry(TimeEntry):  # consistency/proof/recorded/query_file.py
    def first(self, time):
        return self.pane(time)

    def last(self, time):
        period = floor_div(f"{time} - ({self.offset_us})", self.size_us)
        return f"(({period} + 1) * {self.size_us // self.slide_us}L - 1)"

    def start(self, window):
        return f"({floor_div(window, self.size_us // self.slide_us)} * {self.size_us}L + ({self.offset_us}))"

    def end(self, window):
        return f"(({window} + 1) * {self.slide_us}L + ({self.offset_us}))"


KINDS["cumulate"] = CumulateWindow
WINDOWS["cumulate"] = timed("cumulate", "step", CumulateEntry)
