"""Mistakes in what operators write to a checkpoint log, and in how they are made again (rules G2 to G4)."""

from __future__ import annotations

from operators.aggregate.accumulators import Accumulator
from operators.aggregate.count_windows import CountAggregate
from operators.aggregate.group_cells import Cells
from operators.aggregate.time_windows import WindowAggregate
from operators.fragment_log import FragmentLog
from operators.keyed import KeyedHost, KeyedState
from tests.mutants.patching import Edit, edited

edited(
    "row-at-the-footprint-is-left-out",
    "a row that has the time of a footprint does not count, though the footprint lacks it (G4)",
    Edit(CountAggregate, "_replay", "rows.time[counted] >= ", "rows.time[counted] > "),
    Edit(WindowAggregate, "_replay", "rows.time[index] >= ", "rows.time[index] > "),
)
edited(
    "row-before-the-footprint-counts",
    "a row that is in a footprint counts again (G4)",
    Edit(CountAggregate, "_replay", "counted = counted[rows.time[counted] >= ", "counted = counted[-1 != "),
)
edited(
    "replay-makes-cells",
    "a pane or a window that is over gets rows again (G4)",
    Edit(WindowAggregate, "_replay", "self._panes.by_number.get(pane)", "self._panes.take(pane, 0)"),
    Edit(CountAggregate, "_replay", "(cells >= 0).nonzero()[0]", "np.arange(len(cells))"),
)
edited(
    "replay-is-like-the-first-time",
    "rows below the commit are taken in as ever (G4)",
    Edit(WindowAggregate, "work", "if self._replays:", "if False:"),
)
edited(
    "closings-are-ignored",
    "a window that was closed is open again (G2)",
    Edit(Cells, "adopt", "closes[places]", "closes[places] & False"),
)
edited(
    "closings-are-not-written",
    "nothing says that a group has no open window (G2)",
    Edit(CountAggregate, "_write_closings", "if len(slots):", "if False:"),
)
edited(
    "oldest-footprint-counts",
    "an older footprint of a cell takes the place of a newer one (G4)",
    Edit(
        Cells,
        "adopt",
        "newest[all_slots[start:stop]] = np.arange(start, stop)",
        "newest[all_slots[start:stop][::-1]] = np.arange(start, stop)[::-1]",
    ),
)
edited(
    "live-array-as-footprint",
    "what is written is read from the arrays that the next rows change (G2)",
    Edit(
        Accumulator,
        "footprint",
        "yield from picked([self._columns.arrays[number]], [cells])",
        "self._columns.arrays[number][cells[0] : cells[-1] + 1]\n        yield",
    ),
)
edited(
    "groups-begin-anew",
    "a group that is made again has forgotten when it began, and none of its results shows it (G4)",
    Edit(Cells, "adopt", "self.add(all_slots[places], np.sort(born))", "self.add(all_slots[places], 0 * born)"),
)
edited(
    "final-too-early",
    "a footprint from before the end of its pane counts as final (G2)",
    Edit(WindowAggregate, "_live", "times < self._panes.end(number)", "times < self._panes.end(number - 1)"),
    Edit(WindowAggregate, "footprints", "if not is_final:", "if False:"),
)
edited(
    "passed-pane-is-not-written-again",
    "cells of a pane that has passed hold replay back until its windows are over (G2)",
    Edit(WindowAggregate, "_made_final", "if not is_final or number not in self._not_final:", "if True:"),
)
edited(
    "sequence-restarts",
    "replayed rows are numbered from 0 (G4)",
    Edit(CountAggregate, "reconstruct", 'start["sequence"], True', "0, True"),
    Edit(WindowAggregate, "reconstruct", 'start["sequence"], True', "0, True"),
)
edited(
    "forgotten-footprints-count",
    "after a slice that is not in the log, what the log has from before counts on (G2)",
    Edit(FragmentLog, "slice_log", "is_whole or bool(complete)", "is_whole"),
)
edited(
    "rows-from-before-the-log-are-not-kept",
    "a join loses the rows that came before the log began (G2)",
    Edit(FragmentLog, "_is_in_reach", "oldest is None or oldest >= begin", "True"),
)
edited(
    "only-new-keys-are-written",
    "a key whose state changed keeps its old footprint (G2)",
    Edit(KeyedState, "__setitem__", "if self._changed is not None:", "if old is None and self._changed is not None:"),
)
edited(
    "deleted-keys-are-not-told",
    "a key that was deleted is there again (G2)",
    Edit(KeyedState, "__delitem__", "if key in self._written:", "if False:"),
)
edited(
    "changes-are-forgotten-in-a-mark",
    "what changed between the newest slice and a state that is brought back is not written (G2)",
    Edit(KeyedState, "_restore", "dict(written), dict(changed)", "dict(written), {}"),
)
edited(
    "keys-in-the-order-of-the-log",
    "keys that are made again are in the order in which they were written (G4)",
    Edit(KeyedHost, "reconstruct", "order.tolist()", "range(len(cells))"),
)
edited(
    "keys-take-rows-again",
    "rows that states have already are given again (G4)",
    Edit(KeyedHost, "step", "if self._previous >= self._begin:", "if True:"),
)
edited(
    "keys-in-a-replay-begin-too-early",
    "a state that is brought back in a replay has forgotten which rows are in it (G4)",
    Edit(KeyedHost, "snapshot", "if self._previous < self._begin:", "if False:"),
)
