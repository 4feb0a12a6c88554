"""``spe ingest``: writes raw files, or a generated workload, as logs of sources."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from replicas.cli.report import parse_conf
from replicas.connectors import Replay, open_reader
from replicas.local.run_dir import CONFIG, RunDirectory
from spe.config import load_document, missing_files, read_document
from spe.config.document import Document
from spe.connectors.files import FILES
from spe.errors import ConfigError, SpeError
from spe.plan.plan import Plan, Source
from spe.problems import check_known, one_of
from spe.stream.names import StreamId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ingest(
    config: Path, out: Path, data: Path | None, names: Sequence[str], made: str | None, rows: int, seed: int,
    master: str | None, conf: Sequence[str],
) -> int:  # fmt: skip
    """Writes the logs; returns 1 if rows were left out."""
    document = read_document(config)
    plan = load_document(document, data).plan
    for name in names:
        check_known("source", name, plan.sources)
    wanted = [StreamId(n) for n in names] or list(plan.sources)
    if made is None and (missing := missing_files(plan)):
        raise ConfigError([f"{m}: there is no such file" for m in missing])
    if made is not None and len(wanted) != 1:
        raise SpeError("--make fills one source; say which with --source")
    settings = parse_conf(conf)
    print("starting Spark …", file=sys.stderr, flush=True)
    from consistency.proof.session.errors import explained

    with explained():
        from consistency.proof.session.session import session

        spark = session("spe ingest", master=master, conf=settings)
        try:
            _prepare(document, data, plan, out)
            lost = [_one(spark, plan, name, out, made, rows, seed) for name in wanted]
        finally:
            spark.stop()
    return 1 if any(lost) else 0


def _one(spark: SparkSession, plan: Plan, name: StreamId, out: Path, made: str | None, rows: int, seed: int) -> int:
    """Writes the log of one source; returns the number of rows that were left out."""
    from consistency.proof.ingest import ingest
    from consistency.proof.log_writer import write_log
    from consistency.proof.workloads import WORKLOADS, workload

    source = plan.sources[name]
    if made is None:
        log = ingest(spark, source, open_files(source), out)
        left = f", {log.malformed:,} malformed rows left out" if log.malformed else ""
        print(f"{name}: {log.tuples:,} tuples{left}")
        return log.malformed
    frame = workload(spark, made, rows, seed)
    if source.schema != WORKLOADS[made]:
        raise SpeError(f"source {name!r} is ({source.schema}); the workload {made} is ({WORKLOADS[made]})")
    print(f"{name}: {write_log(frame, source, out):,} tuples")
    return 0


def open_files(source: Source) -> Replay:
    """Opens the files of a source.  Raises SpeError: it reads no files."""
    kind = source.reader.get("kind")
    if kind not in FILES:
        raise SpeError(f"source {source.stream!r} reads {kind}; expected {one_of(FILES)}")
    reader = open_reader(source)
    assert isinstance(reader, Replay)
    return reader


def _prepare(document: Document, data: Path | None, plan: Plan, out: Path) -> None:
    """Writes the files of a run directory, so that ``spe reference`` and the proof can read it."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / CONFIG).exists():
        (out / CONFIG).write_text(document.to_yaml(), encoding="utf-8")
        folder = (data if data is not None else document.home).absolute()
        RunDirectory(out).write_cluster(plan, data=str(folder), addresses={}, origins={})
