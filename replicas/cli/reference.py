"""``spe reference``: the answer of a run without failures, in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from replicas.cli.view.json_lines import write_out
from replicas.connectors.sink import SinkCursor, named_lines
from replicas.connectors.sink_registry import open_sink
from replicas.local.run_dir import load_target
from replicas.reference import run_reference
from replicas.source.reference_stream import Intake, reference_elements
from spe.config import load_plan, missing_files
from spe.connectors.declaration import STABLE
from spe.errors import ConfigError, SpeError
from spe.log.source_log import read_source_log, source_folder
from spe.plan.describe import show_lateness
from spe.plan.plan import Plan, Source
from spe.runtime.storage import DiskStorage, in_folder
from spe.stream.batch import Element
from spe.stream.change import Change
from spe.stream.ids import Channel
from spe.stream.names import StreamId


def reference(config: Path, data: Path | None, run_dir: Path | None, output: Path | None, format_: str) -> int:
    """Prints or writes the stable rows of every output."""
    intakes: Mapping[StreamId, Intake] = {}
    folder = run_dir if run_dir is not None else config if config.is_dir() else None
    if folder is not None:
        plan = load_target(folder).plan
        if run_dir is not None and not config.is_dir() and (expected := load_plan(config, data)) is not None:
            _check_same(plan, expected, folder, config)
        inputs: Mapping[StreamId, Iterable[Element]] = logged_inputs(plan, folder)
    else:
        plan = load_plan(config, data)
        intakes = {s: Intake() for s in plan.sources}
        inputs = file_inputs(plan, intakes)
    results = run_reference(plan, inputs)
    if output is None or output.suffix == ".jsonl":
        write_lines(plan, results, output)
    else:
        _write_folder(plan, results, output, format_)
    for stream, intake in intakes.items():
        if text := intake_text(plan.sources[stream], intake):
            print(text, file=sys.stderr)
    return 1 if any(i.lost for i in intakes.values()) else 0


def intake_text(source: Source, intake: Intake) -> str:
    """Returns a line about rows that a source refused or changed; "" if there were none."""
    notes = []
    if intake.malformed:
        notes.append(f"{intake.malformed:,} malformed (first: {intake.first_malformed})")
    if intake.refused:
        notes.append(f"{intake.refused:,} refused (event times near the ends of time)")
    if intake.late:
        notes.append(show_lateness(intake.late, intake.late_by_us, source.disorder_us))
    if not notes and intake.rows:
        return ""
    return ", ".join([f"{source.stream}: {intake.rows:,} rows", *notes])


def logged_inputs(plan: Plan, folder: Path) -> dict[StreamId, Iterable[Element]]:
    """Returns the logged elements of each source of a run.  Raises LogError while being read."""
    storage = DiskStorage(folder)
    return {s: read_source_log(storage, source_folder(s), source.schema) for s, source in plan.sources.items()}


def file_inputs(plan: Plan, intakes: Mapping[StreamId, Intake]) -> dict[StreamId, Iterable[Element]]:
    """Returns the elements of each source, read at full speed and counted in ``intakes``.

    Raises:
      ConfigError: a file does not exist, or a generator never ends.
      SpeError: a source is live; only its log has its input.
    """
    missing = missing_files(plan)
    if missing:
        raise ConfigError([f"{m}: there is no such file" for m in missing])
    endless = [
        f"sources.{name}.from.generator: never ends, and its answer neither; add duration: 60s or count: 1000, "
        "or take the logs of a run: spe reference RUN_DIR"
        for name, source in plan.sources.items()
        if source.reader["kind"] == "generator" and not {"duration", "count"} & set(source.reader)
    ]
    if endless:
        raise ConfigError(endless)
    return {s: reference_elements(source, intakes[s]) for s, source in plan.sources.items()}


def _check_same(logged: Plan, expected: Plan, folder: Path, config: Path) -> None:
    if logged.fingerprint != expected.fingerprint:
        raise SpeError(
            f"{folder} ran another plan ({logged.fingerprint}) than {config} has now ({expected.fingerprint})"
        )


def write_lines(plan: Plan, results: Iterable[tuple[Channel, Element]], output: Path | None) -> None:
    """Writes results as JSON lines; to standard output where no file is given."""
    if output is None:
        write_out(_texts(plan, results))
        return
    with output.open("wb") as file:
        file.writelines(_texts(plan, results))


def _texts(plan: Plan, results: Iterable[tuple[Channel, Element]]) -> Iterator[bytes]:
    """Yields the JSON lines of each batch."""
    cursors: dict[Channel, SinkCursor] = {}
    for channel, element in results:
        entry = cursors.setdefault(channel, SinkCursor(channel, STABLE)).take(Change(channel, element, 0))
        if entry is not None:
            yield from named_lines(entry, plan.query.schema_of(channel.stream), corrections=False)


def _write_folder(plan: Plan, results: Iterable[tuple[Channel, Element]], folder: Path, format_: str) -> None:
    """Writes the files that a client's stable sink would write, so that the two can be compared byte by byte."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpeError(f"{folder} is there already and not empty")
    schemas = {Channel(s, p): plan.query.schema_of(s) for s in plan.query.outputs for p in range(plan.partitions_of(s))}
    sink = open_sink({"kind": format_, "path": str(folder), "mode": STABLE}, schemas, in_folder)
    try:
        for channel, element in results:
            sink.write(Change(channel, element, 0))
    finally:
        sink.close()
