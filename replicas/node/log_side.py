"""The side of a replica that its checkpoint log is written from (rules G1 and G5).  Pure.

The shell writes one slice of the log at a time, and asks for the next one when it is through.  Until then slices of the
stream are only worked on: a slice of the log holds as many as there were meanwhile, so nothing ever waits for a disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    """A slice that waits to be written.

    Attributes:
      last_ids: of each output, what the slice and those before it have made.
      origins: of what each input has read (S6).
    """

    slice: SliceToLog
    last_ids: Sequence[int]
    origins: Sequence[str]


class LogSide:
    """What the manager made for the checkpoint log, and what of it is in the log.

    Args:
      outputs: of the replica.
      origins: where its inputs come from.
      wake: something waits for the shell.

    Attributes:
      unwritten: the slice that is to be written; None: there is none, or it is written.
      remade: the log's footprints that count, once the state of the log was made again.
    """

    def __init__(
        self, outputs: Sequence[OutputLog], origins: Callable[[], Sequence[str]], wake: Callable[[], None]
    ) -> None:
        self._outputs = outputs
        self._origins = origins
        self._wake = wake
        self.unwritten: UnwrittenSlice | None = None
        self.remade: Sequence[LiveFootprints] | None = None
        #: Of each output, the last id that is in the log.
        self._logged = [0 for _ in outputs]
        #: Ends of slices of the log with output, and the last ids in them.
        self._asked: deque[tuple[int, Sequence[int]]] = deque()

    def perform(self, action: SliceToLog | Remade) -> None:
        """What the manager made is at hand for the shell."""
        if isinstance(action, SliceToLog):
            assert self.unwritten is None, "G1: the log gets one slice at a time"
            self.unwritten = UnwrittenSlice(action, [log.last_id for log in self._outputs], self._origins())
        else:
            self.remade = action.live
        self._wake()

    # --- what the shell does ---

    def outputs_to_log(self, waiting: UnwrittenSlice, *, all_anew: bool = False) -> list[int]:
        """Of each output the id from which on it goes to the log with a slice: all that may be asked for, or the
        rest.
        """
        firsts = [log.acknowledged for log in self._outputs]
        return firsts if waiting.slice.made.complete or all_anew else list(map(max, firsts, self._logged))

    def released_from(self, end: int) -> int:
        """End of the oldest slice of the log whose output somebody may still ask for; of the slice to ``end`` not."""
        asked = self._asked
        while asked and all(last <= log.acknowledged for last, log in zip(asked[0][1], self._outputs)):
            asked.popleft()
        return asked[0][0] if asked else END_OF_TIME

    def written(self, waiting: UnwrittenSlice, *, has_output: bool, all_anew: bool = False) -> None:
        """A slice is in the log."""
        if waiting.slice.made.complete or all_anew:
            self._asked.clear()
        self._logged = list(waiting.last_ids)
        if has_output:
            self._asked.append((waiting.slice.end, waiting.last_ids))

    def goes_on(self, released: Sequence[tuple[int, Any]], last_ids: Sequence[int]) -> None:
        """The log holds this output, up to these ids."""
        self._logged = list(last_ids)
        upto = [0 for _ in last_ids]
        for end, outputs in released:
            upto = [max([last, *(e["upto_id"] for e in entries)]) for last, entries in zip(upto, outputs)]
            self._asked.append((end, upto))


def logged_output(entries: Sequence[Sequence[Entry]], after: Sequence[int], last_ids: Sequence[int]) -> Any:
    """What of the entries of each output goes to the log with a slice, as a tree; None: nothing.

    Small ones are put together: each takes as long to write, and to read, as many rows.
    """
    outputs = [
        [_tree(run) for run in _runs([e for e in some if first < e.batch.upto_id <= last])]
        for some, first, last in zip(entries, after, last_ids, strict=True)
    ]
    return outputs if any(outputs) else None


def _runs(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries that follow each other, up to RELEASED rows, with texts of the same dictionaries: to translate them would
    change these.
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
    """An output as the log holds it, as :meth:`OutputLog.install` takes it.

    Args:
      released: as the log has it, slice by slice.
      last_id, frontier: of the output at the newest commit.
    """
    batches: list[dict[str, Any]] = []
    begin = reached = None
    for _, outputs in released:
        for part in outputs[output]:
            from_id, upto_id = int(part["from_id"]), int(part["upto_id"])
            if begin is not None and from_id < begin:
                batches, reached = [], None  # all was written anew, also what lies before the slices that are read
            if reached is not None and upto_id <= reached:
                continue  # it was written once more
            if reached is None or from_id > reached:
                batches, begin = [], from_id  # what lies between was acknowledged, and what lies before it with it
            batch = Batch(Kind.STABLE, from_id, upto_id, None, part["rows"])
            if batches and from_id < batches[-1]["upto_id"]:
                batch = batch.after(batches[-1]["upto_id"])
            batches.append({"upto_id": upto_id, "boundary": int(part["boundary"]), "rows": batch.rows})
            reached = upto_id
    if reached is None or reached < last_id:
        batches = []  # the newest ones were acknowledged
    base_id = last_id if not batches else batches[0]["upto_id"] - len(batches[0]["rows"])
    return {"base_id": base_id, "frontier": frontier, "batches": batches}
