"""``spe check``: checks a configuration without running it."""

from __future__ import annotations

from pathlib import Path

from operators.build import build_operator
from replicas.cli.checkpoint_log import recovery_text, refuse_logs
from replicas.connectors import Replay, open_reader
from replicas.faults.model import configured_faults
from spe.config import load_document, missing_files, read_document
from spe.errors import ConfigError, LocalProtocolError, QueryError, SpeError
from spe.extras import missing_extras
from spe.plan.describe import show_duration
from spe.plan.draw import NO_WARNINGS, check_text
from spe.plan.plan import Plan
from spe.wire.state import encode_state


def check(config: Path, data: Path | None) -> int:
    document = read_document(config)
    plan, directory = load_document(document, data)
    refuse_logs(document, plan, directory)
    faults = configured_faults(document, directory)
    if wrong := unfit_operators(plan):
        raise ConfigError([f"{config}: {text}" for text in wrong])
    extras, missing = missing_extras(plan, directory), missing_files(plan)
    unfit = [] if extras else unfit_files(plan)
    text = check_text(plan, directory)
    print(text.removesuffix(f"\n{NO_WARNINGS}\n") if extras or missing or unfit else text, end="")
    if recovery := recovery_text(plan, directory):
        print(f"\n{recovery}", end="")
    if faults:
        print("\nFAULTS")
    for fault in faults:
        print(f"  at {show_duration(fault.at_us):<8} {fault}")
    if extras:
        print("\nEXTRAS")
    for line in extras:
        print(f"  missing: {line}")
    if missing or unfit:
        print("\nFILES")
    for line in missing:
        print(f"  missing: {line}")
    for line in unfit:
        print(f"  {line}")
    return 1 if unfit else 0


def unfit_operators(plan: Plan) -> list[str]:
    """Lists user-defined operators that cannot be constructed or called, or whose snapshot no partner could read.

    Otherwise such a mistake would show only when a failure begins or a partner has died.
    """
    problems = []
    for operator in plan.query.operators:
        own = operator.spec.own_class
        if own is None:
            continue
        where = f"query.{operator.name}.custom"
        try:
            made = build_operator(operator, [plan.query.schema_of(s) for s in operator.spec.inputs])
        except QueryError as error:
            problems.append(f"{where}.{error}")
            continue
        asked = "snapshot"
        try:
            state = made.snapshot()["operator"]
            asked = "oldest_needed"
            made.oldest_needed()
            asked = "counters"
            made.counters()
        except Exception as error:  # a user's code
            problems.append(f"{where}.class: {asked} of {own}: {type(error).__name__}: {error}")
            continue
        try:
            encode_state(state)
        except LocalProtocolError as error:
            problems.append(
                f"{where}.class: snapshot of {own}: {error}; expected dict, list, tuple, int, float, "
                "str, bool, None, bytes, NumPy arrays, Column or Rows"
            )
    return problems


def unfit_files(plan: Plan) -> list[str]:
    """Lists files that cannot be read as configured, or whose first rows are all malformed.

    Reads only the first chunk of rows.  Skips Parquet files that have to be sorted, because sorting reads all rows.
    """
    problems = []
    for name, source in plan.sources.items():
        path = source.reader.get("path")
        if path is None or source.live or not Path(str(path)).is_file() or source.reader.get("sort") is not None:
            continue
        try:
            reader = open_reader(source)
            assert isinstance(reader, Replay)  # its kind has a path
            chunk = next(reader.chunks(0), None)
        except SpeError as error:
            problems.append(f"sources.{name}: {error}")
            continue
        if chunk is not None and chunk.malformed and not len(chunk):
            first = chunk.malformed[0]
            problems.append(
                f"sources.{name}: {path}: none of the first {len(chunk.malformed):,} rows fits the schema "
                f"(line {first.line}: {first.reason})"
            )
    return problems
