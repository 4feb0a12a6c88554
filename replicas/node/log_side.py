"""Connects a replica with the writer of its checkpoint log (rules G1 and G5).  Pure.

The shell writes one slice of the log at a time, and asks for the next one when it is through.  Until then slices of the
stream are only worked on: a slice of the log holds as many as there were meanwhile, so nothing ever waits for a disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import le
from typing import Any

from consistency.dpc.events import Remade, SliceToLog
from operators import steps
from operators.footprints import LiveFootprints
from replicas.producer.log_entry import Entry
from replicas.producer.output_log import OutputLog
from spe.stream.batch import Batch, concat_rows
from spe.stream.names import Kind
from spe.stream.times import END_OF_TIME


@dataclass(frozen=True, slots=True)
class UnwrittenSlice:
    """A slice that is to be written to the log.

    Attributes:
      last_ids: last id of each output after the slice.
      origins: origin of each input's log (S6).
    """

    slice: SliceToLog
    last_ids: Sequence[int]
    origins: Sequence[str]


class LogSide:
    """Holds the slice that is to be written to the checkpoint log, and how much output the log has.

    Args:
      outputs: of the replica.
      origins: returns the origins of the inputs.
      wake: wakes the writer.

    Attributes:
      unwritten: the slice that is to be written; None: there is none.
      remade: valid footprints of the log, once its state was made again.
    """

    def __init__(
        self, outputs: Sequence[OutputLog], origins: Callable[[], Sequence[str]], wake: Callable[[], None]
    ) -> None:
        self._outputs = outputs
        self._origins = origins
        self._wake = wake
        self.unwritten: UnwrittenSlice | None = None
        self.remade: Sequence[LiveFootprints] | None = None
        #: Last id of each output that is in the log.
        self._logged = [0 for _ in outputs]
        #: Ends of slices of the log with output, and the last ids in them.
        self._asked: deque[tuple[int, Sequence[int]]] = deque()

    def perform(self, action: SliceToLog | Remade) -> None:
        """Takes an action of the manager, and wakes the writer."""
        if isinstance(action, SliceToLog):
            assert self.unwritten is None, "G1: the log gets one slice at a time"
            self.unwritten = UnwrittenSlice(action, [log.last_id for log in self._outputs], self._origins())
        else:
            self.remade = action.live
        self._wake()

    # --- what the shell does ---

    def outputs_to_log(self, waiting: UnwrittenSlice, *, all_anew: bool = False) -> list[int]:
        """Returns the id of each output after which its entries go to the log with a slice.

        A complete state gets all output that a consumer may still ask for, others what is new.
        """
        firsts = [log.acknowledged for log in self._outputs]
        return firsts if waiting.slice.made.complete or all_anew else list(map(max, firsts, self._logged))

    def released_from(self, end: int) -> int:
        """Returns the end of the oldest slice in the log, before ``end``, whose output is not acknowledged."""
        asked = self._asked
        while asked and all(last <= log.acknowledged for last, log in zip(asked[0][1], self._outputs)):
            asked.popleft()
        return asked[0][0] if asked else END_OF_TIME

    def written(self, waiting: UnwrittenSlice, *, has_output: bool, all_anew: bool = False) -> None:
        """Notes that a slice is in the log."""
        if waiting.slice.made.complete or all_anew:
            self._asked.clear()
        assert all(map(le, self._logged, waiting.last_ids)), "G1: the log never has output that is not in the outputs"
        self._logged = list(waiting.last_ids)
        if has_output:
            self._asked.append((waiting.slice.end, waiting.last_ids))

    def goes_on(self, released: Sequence[tuple[int, Any]], last_ids: Sequence[int]) -> None:
        """Notes that the log holds this output, up to these ids."""
        self._logged = list(last_ids)
        upto = [0 for _ in last_ids]
        for end, outputs in released:
            upto = [max([last, *(e["upto_id"] for e in entries)]) for last, entries in zip(upto, outputs)]
            self._asked.append((end, upto))


def logged_output(entries: Sequence[Sequence[Entry]], after: Sequence[int], last_ids: Sequence[int]) -> Any:
    """Returns the output that goes to the log with a slice, as a tree; None: there is none.

    Small entries are joined: writing or reading an entry costs as much as many rows.
    """
    outputs = [
        [_tree(run) for run in _runs([e for e in some if first < e.batch.upto_id <= last])]
        for some, first, last in zip(entries, after, last_ids, strict=True)
    ]
    return outputs if any(outputs) else None


def _runs(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yields runs of entries of up to RELEASED rows, with texts of the same dictionaries.

    Translating texts of other dictionaries would change the entries.
    """
    run: list[Entry] = []
    for entry in entries:
        if run and (entry.batch.upto_id - run[0].batch.from_id > steps.RELEASED or not _are_alike(run[-1], entry)):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _are_alike(entry: Entry, other: Entry) -> bool:
    pairs = zip(entry.batch.rows.columns, other.batch.rows.columns, strict=True)
    return all([a.dictionary is b.dictionary for a, b in pairs])


def _tree(run: Sequence[Entry]) -> dict[str, Any]:
    rows = concat_rows([e.batch.rows for e in run])
    ids = {"from_id": run[0].batch.from_id, "upto_id": run[-1].batch.upto_id}
    return {**ids, "boundary": max(e.boundary for e in run), "rows": rows}


def exported(released: Sequence[tuple[int, Any]], output: int, last_id: int, frontier: int) -> dict[str, Any]:
    """Returns an output of the log in the form that :meth:`OutputLog.install` takes.

    Args:
      released: output of each slice, as the log has it.
      last_id, frontier: last id and frontier of the output at the newest commit.
    """
    batches: list[dict[str, Any]] = []
    begin = reached = None
    for _, outputs in released:
        for part in outputs[output]:
            from_id, upto_id = int(part["from_id"]), int(part["upto_id"])
            if begin is not None and from_id < begin:
                batches, reached = [], None  # all output was rewritten, also that from before the slices that are read
            if reached is not None and upto_id <= reached:
                continue  # a rewrite repeats it
            if reached is None or from_id > reached:
                batches, begin = [], from_id  # the gap was acknowledged, and all output before it
            batch = Batch(Kind.STABLE, from_id, upto_id, None, part["rows"])
            if batches and from_id < batches[-1]["upto_id"]:
                batch = batch.after(batches[-1]["upto_id"])
            batches.append({"upto_id": upto_id, "boundary": int(part["boundary"]), "rows": batch.rows})
            reached = upto_id
    if reached is None or reached < last_id:
        batches = []  # the newest ones were acknowledged
    base_id = last_id if not batches else batches[0]["upto_id"] - len(batches[0]["rows"])
    return {"base_id": base_id, "frontier": frontier, "batches": batches}
