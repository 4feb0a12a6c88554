"""Proves a run while it goes on: one step for each range, with the state that a step leaves to the next."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from consistency.proof.follow import step as steps
from consistency.proof.follow.final_verdict import judge_the_end
from consistency.proof.follow.margins import lookbacks
from consistency.proof.follow.prefix import Altered
from consistency.proof.follow.proof_start import KeptLogs, NotYet, beginning
from consistency.proof.follow.ranges import Range, Reading, next_range
from consistency.proof.follow.readers import ChannelProgress, ChannelTaken, LogProgress, LogTaken
from consistency.proof.follow.result import followed
from consistency.proof.follow.state import FILE, FOLDER, LATEST, State, Tally, load_state, save_text, sync_below
from consistency.proof.follow.times import with_times
from consistency.proof.follow.track import Wrong
from consistency.proof.judge import suit
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.story import begun_us
from consistency.proof.report.follow_model import Followed, FollowedStep
from consistency.proof.report.words import moment
from consistency.proof.storage.tables import freed_at_the_end
from consistency.proof.truth import TimeRange, TruthNetwork
from spe.errors import SpeError
from spe.log.log_start import LogCut
from spe.log.origin import read_identity
from spe.log.proof_progress import PROVED, encode_proved
from spe.log.source_log import source_folder
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME, END_OF_TIME

RESULT: Final = f"{FOLDER}/follow.json"
#: The file that Spark writes last.
_WHOLE: Final = "_SUCCESS"


class Following:
    """The proof of one run; continues where an earlier process stopped.

    Args:
      path: the directory of the run.
      every_us: the least tuple time of a step while the run goes on; at least what each step reads again.

    Raises:
      SpeError: the run cannot be judged, or not in ranges; the state of its proof is damaged.
    """

    def __init__(self, path: Path, every_us: int) -> None:
        self._path = path
        self.run = Run.open(path)
        plan = self.run.plan
        names = [*plan.sources, *(o.name for o in plan.query.operators)]
        self.lookback_us = lookbacks(self.run.reading, {s: tuple(plan.query.schema_of(s).names) for s in names})
        self.every_us = max(every_us, *self.lookback_us.values())
        self.state = load_state(path / FOLDER, plan.fingerprint, self._origins())
        self._version = ""
        self.waits_for = ""
        #: The logs as they were when the proof began, if a part had been deleted.
        self._logs_at_start: KeptLogs | None = None
        self._release()

    def _origins(self) -> dict[str, str]:
        return {str(s): read_identity(self.run.storage, source_folder(s)) for s in self.run.plan.sources}

    def check(self, *, quick: bool = False) -> None:
        """Checks that everything that earlier steps read is unchanged.

        Args:
          quick: read only segments that were written since.

        Raises:
          Altered: it was changed; a sentence for each log.
        """
        state, run = self.state, self.run
        prefixes = [(run.source_path(StreamId(s)), log.prefix) for s, log in state.logs.items()]
        for name, channel in run.recordings():
            known = state.channels.get(name, {}).get(str(channel), ChannelProgress())
            prefixes.append((run.recording_path(name, channel), known.prefix))
        changes = [text for folder, prefix in prefixes if (text := prefix.differs(folder, quick=quick))]
        if changes:
            raise Altered("\n".join(changes))

    def step(self, spark: SparkSession, tell: Callable[[str], None]) -> FollowedStep | None:
        """Proves the next range; returns None if there is none yet.

        Args:
          spark: its settings are changed.
          tell: receives the name of the range before the work begins.

        Raises:
          Altered: something that earlier steps read was changed.
          LogCut: something that is needed was deleted.
          SpeError: a log or a recording cannot be used.
        """
        began, self._version = time.monotonic(), spark.version
        self.run = Run.open(self._path)
        going_on = self.run.going_on
        if not going_on:
            self.run = Run.open(self._path)  # with everything noted until it ended
        if not self._begin(over=not going_on):
            return None
        next_ = self._next_range(over=not going_on)
        self.waits_for = next_.waits_for if going_on else ""
        begun = self.state.proved_us > BEFORE_TIME
        since_us = self.state.proved_us if begun else min(next_.first_us, next_.until_us)
        if going_on and not self.every_us <= next_.until_us - since_us < END_OF_TIME - since_us:
            return None
        self.check(quick=True)
        tell("the end of the run" if next_.until_us >= END_OF_TIME else f"until {moment(next_.until_us)}")
        with freed_at_the_end():
            return self._prove(spark, next_, began)

    def _begin(self, *, over: bool) -> bool:
        """Before the first step: if the beginning of a log was deleted, finds what can still be proved.

        Returns False while logs or recordings do not go that far.
        """
        if self.state.steps:
            return True
        logs = KeptLogs.of(self.run)
        if logs.whole or logs == self._logs_at_start:
            return True
        anew = State(fingerprint=self.state.fingerprint, origins=self.state.origins)
        start = beginning(self.run, anew, logs, self.lookback_us)
        if isinstance(start, NotYet):
            if over:
                raise LogCut(f"{logs.deleted_part(self.run)}. Of what is left nothing can be proved: {start.waits_for}")
            self.waits_for = start.waits_for
            return False
        self.state, self._logs_at_start = start, logs
        self._release()
        return True

    def _next_range(self, *, over: bool) -> Range:
        try:
            return next_range(self.run, self.state, over=over)
        except LogCut as error:
            if not self.state.steps:
                raise
            raise LogCut(
                f"{error}, and this proof had come to {moment(self.state.proved_us)}; to begin anew with what is left, "
                f"and without what was found so far, remove {self._path / FOLDER}"
            ) from None

    def _prove(self, spark: SparkSession, next_: Range, began: float) -> FollowedStep:
        until_us, state = next_.until_us, self.state.model_copy(deep=True)
        last = until_us >= END_OF_TIME
        logs = {s: log.taken(until_us, self.lookback_us[s]) for s, log in next_.logs.items()}
        channels = {key: [c.taken(until_us, all_=last) for c in each] for key, each in next_.channels.items()}
        read_bytes = sum(log.bytes for log in logs.values())
        suit(spark, read_bytes)
        self._check_stamps(state, logs)
        network = self._network(spark, next_, logs)
        truth, received, flaws = self._judge(spark, state, network, next_, channels)
        for (client, output), each in channels.items():
            own = state.channels.setdefault(client, {})
            own |= {str(c): log.known for c, log in zip(self.run.channels(output), each)}
        if state.first_us is None and next_.first_us < END_OF_TIME:
            state.first_us = next_.first_us
        if last:
            judge_the_end(self.run, state, network.frontier)
        else:
            state.kept = self._keep(network, state.steps + 1)
        step = FollowedStep(
            number=state.steps + 1,
            since_us=None if state.proved_us <= BEFORE_TIME else state.proved_us,
            until_us=None if last else until_us,
            source_bytes=read_bytes,
            truth=truth,
            received=received,
            flaws=flaws,
            seconds=round(time.monotonic() - began, 3),
        )
        if not state.steps:
            state.origins = self._origins()
        state.steps, state.proved_us, state.seconds = step.number, until_us, state.seconds + step.seconds
        state.latest = [*state.latest, step][-LATEST:]
        self._save(state)
        return step

    def _check_stamps(self, state: State, logs: Mapping[StreamId, LogTaken]) -> None:
        """Notes the position in each log, and whether the times of its new records are right (rule S1)."""
        for stream, log in logs.items():
            known = state.logs.get(str(stream), LogProgress())
            state.logs[str(stream)], flaws = with_times(self.run, stream, known, log)
            if flaws:
                state.flaws.setdefault(str(stream), (flaws[0], known.bound_us))

    def _network(self, spark: SparkSession, next_: Range, logs: Mapping[StreamId, LogTaken]) -> TruthNetwork:
        last = next_.until_us >= END_OF_TIME
        part = TimeRange(
            since_us=self.state.proved_us,
            until_us=next_.until_us,
            frontier={s: log.known.bound_us if last else next_.until_us for s, log in logs.items()},
            lookback_us=self.lookback_us,
            read={s: log.read for s, log in logs.items()},
            open_rows=self._open_rows(spark),
        )
        return TruthNetwork(spark, self.run, part=part)

    def _judge(
        self,
        spark: SparkSession,
        state: State,
        network: TruthNetwork,
        next_: Range,
        channels: Mapping[Reading, Sequence[ChannelTaken]],
    ) -> tuple[int, int, int]:
        """Judges every output at every client; returns counts of true, received and wrong tuples in total."""
        begun, totals = begun_us(self.run.events), [0, 0, 0]
        truths: dict[StreamId, tuple[DataFrame, list[int]]] = {}
        places = {o: state.places.get(str(o), [0] * len(self.run.channels(o))) for _, o in channels}
        for (client, output), taken in channels.items():
            if output not in truths:
                truths[output] = steps.truth_of(network, output, places[output])
            frame, counts = truths[output]
            asked = steps.ClientPortion(
                client=client,
                output=output,
                known=[reader.known for reader in next_.channels[client, output]],
                taken=taken,
                places=places[output],
                known_us=network.frontier[output] if next_.until_us >= END_OF_TIME else END_OF_TIME,
                is_source=output in self.run.plan.sources,
                begun_us=begun,
            )
            findings = steps.judge(spark, self.run, network, frame, asked)
            by_elements = [(p, w) for p, portion in enumerate(taken) for w in portion.wrong]
            if next_.until_us >= END_OF_TIME:
                by_elements += [(p, w) for p, portion in enumerate(taken) for w in portion.known.track.ended()]
            tally = state.tallies.setdefault(client, {}).setdefault(str(output), Tally())
            tally.truth += sum(counts)
            self._note(tally, findings, by_elements, begun)
            wrongs = sum(n for n, _, _ in findings.flaws.values()) + sum(w.tuples for _, w in by_elements)
            totals = [a + b for a, b in zip(totals, (sum(counts), findings.received, wrongs))]
        for output, (_, counts) in truths.items():
            state.places[str(output)] = [a + b for a, b in zip(places[output], counts)]
        return totals[0], totals[1], totals[2]

    def _note(
        self, tally: Tally, findings: steps.StepFound, by_elements: Sequence[tuple[int, Wrong]], begun: int
    ) -> None:
        """Adds the flaws of a step: those that its comparison found, and by partition those of elements alone."""
        tally.to_come = findings.to_come
        if findings.mistyped and not tally.mistyped:
            tally.mistyped = list(findings.mistyped)
            tally.is_wrong(self.state.proved_us)
        for flaw, (count, offenders, first_us) in findings.flaws.items():
            tally.add(flaw, count, offenders, first_us)
        for partition, wrong in by_elements:
            tally.add(wrong.flaw, wrong.tuples, [wrong.offender(partition, begun)], wrong.time_us)

    def _open_rows(self, spark: SparkSession) -> dict[StreamId, DataFrame]:
        """Returns the rows of open windows that the last step left.  Raises SpeError if some are missing."""
        if not self.state.kept:
            return {}
        folder = self._path / FOLDER / self.state.kept
        folders = sorted(folder.glob("*.parquet"))
        if not folders or not all((p / _WHOLE).is_file() for p in folders):  # without them a right run would look wrong
            raise SpeError(
                f"{folder} is not whole, and the proof goes on from it; remove {self._path / FOLDER} to prove the run "
                "from its beginning"
            )
        return {StreamId(p.stem): spark.read.parquet(str(p)) for p in folders}

    def _keep(self, network: TruthNetwork, number: int) -> str:
        """Writes the rows that the next step needs; returns the name of their folder."""
        if not network.open:
            return ""
        name = f"open-{number}"
        for stream, frame in network.open.items():
            rows = self._path / FOLDER / name / f"{stream}.parquet"
            frame.coalesce(1).write.mode("overwrite").parquet(str(rows))
            sync_below(rows)
        return name

    def _save(self, state: State) -> None:
        """Saves the state: a restart continues behind this step."""
        save_text(self._path / FOLDER / FILE, state.model_dump_json(indent=1) + "\n")
        self.state = state
        for folder in (self._path / FOLDER).glob("open-*"):
            if folder.name != state.kept:
                shutil.rmtree(folder, ignore_errors=True)
        self._release()
        self.write()

    def _release(self) -> None:
        """Releases the part of the logs that the proof no longer needs; nothing after a flaw: it is the evidence."""
        state = self.state
        if state.wrong_us is not None:
            return
        sources = {str(s): state.logs.get(str(s), LogProgress()) for s in self.run.plan.sources}
        clients: dict[str, dict[str, int]] = {}
        for name, channel in self.run.recordings():
            known = state.channels.get(name, {}).get(str(channel), ChannelProgress())
            clients.setdefault(name, {})[str(channel)] = known.start.sequence
        text = encode_proved({s: (state.origins[s], log.start.sequence) for s, log in sources.items()}, clients)
        save_text(self._path / PROVED, text)

    def write(self, altered: str = "") -> Followed:
        """Writes ``follow/follow.json`` and returns its content.

        Args:
          altered: what earlier steps read and has been changed.
        """
        result = followed(self.run, self.state, self.lookback_us, self.waits_for, altered, self._version)
        save_text(self._path / RESULT, result.model_dump_json(indent=1) + "\n")
        return result
