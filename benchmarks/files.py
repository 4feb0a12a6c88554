"""Files of a directory as a source, and the bare libraries, which read the same files in the same run.

Bare: pyarrow gives NumPy columns; fastavro gives its records; ``json.loads`` takes each line.  Columns: what the
source's reader makes, without a log.  Source: read, stamped, written to its log, synced, and published.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import trio

from benchmarks.tables import CHECKED, chosen, demand, show, spread, verdict
from replicas.connectors.files.file_rows import FileRows
from replicas.source.proxy import SourceProxy
from spe.plan.plan import Source, Watermark
from spe.runtime.production import production_env
from spe.stream.batch import Batch, Element
from spe.stream.names import StreamId
from spe.stream.schema import Schema

#: Rows, and how they are written.
SHAPES = [(4_000_000, "parquet"), (4_000_000, "arrow"), (200_000, "avro"), (200_000, "jsonl")]
FILES = 4
ROUNDS = 5
LIMIT = 1.3
SCHEMA = Schema.of(ts="timestamp!", n="int64!", price="float64!", shop="string!")


def run(arguments: argparse.Namespace) -> None:
    table = []
    for rows, form in chosen(SHAPES, arguments):
        with tempfile.TemporaryDirectory() as folder:
            for n in range(FILES):
                (Path(folder) / f"{n}").write_bytes(_WRITERS[form](_columns(rows // FILES, n)))
            wanted = rows * (rows - 1) // 2
            found: Mapping[str, list[float]] = {"bare": [], "columns": [], "source": []}
            for _ in range(ROUNDS):
                with tempfile.TemporaryDirectory() as log:  # what it takes to delete it is not measured
                    for name, work in (
                        ("bare", lambda: sum(map(_BARE[form], _paths(folder)))),  # noqa: B023
                        ("columns", lambda: sum(_chunks(path, form) for path in _paths(folder))),  # noqa: B023
                        ("source", lambda: trio.run(_source, folder, form, rows, Path(log))),  # noqa: B023
                    ):
                        cpu = time.process_time()
                        demand(work() == wanted, f"{name} read something else")
                        found[name].append((time.process_time() - cpu) / rows)
            ratios = {
                name: [a / b for a, b in zip(found[name], found["bare"], strict=True)] for name in ("columns", "source")
            }
            table.append(
                [
                    f"{rows:,}",
                    form,
                    *(spread([1e9 * v for v in found[name]], ".0f") for name in found),
                    spread(ratios["columns"]),
                    verdict(median(ratios["columns"]), LIMIT),
                    spread(ratios["source"]),
                    verdict(median(ratios["source"]), LIMIT),
                    CHECKED,
                ]
            )
    show(
        "files of a directory",
        ["rows", "format", "bare, ns/row", "columns, ns/row", "source, ns/row", "columns / bare", "target",
         "source / bare", "target", "check"],
        table,
        [
            f"CPU of all threads of the process. {FILES} files; a timestamp, an integer, a number and a text of 1,000",
            "different ones. Bare: pyarrow to NumPy (texts as its dictionary), fastavro's records, json.loads.",
            "Columns: our columns of the same files. Source: also stamps, log, sync and publishing.",
            f"{ROUNDS} rounds: median (min-max).",
        ],
    )  # fmt: skip


def _paths(folder: str) -> list[Path]:
    return sorted(Path(folder).iterdir())


def _columns(rows: int, part: int) -> dict[str, Any]:
    n = np.arange(part * rows, (part + 1) * rows)
    at = 1_700_000_000_000_000 + 1_000 * n
    return {"ts": at, "n": n, "price": n / 7, "shop": [f"shop {i % 1_000}" for i in range(rows)]}


def _arrow(columns: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    table = pa.table(dict(columns))
    return table.set_column(0, "ts", table.column("ts").cast(pa.timestamp("us")))


def _write_parquet(columns: Mapping[str, Any]) -> bytes:
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(_arrow(columns), out)
    return out.getvalue()


def _write_arrow(columns: Mapping[str, Any]) -> bytes:
    import pyarrow.ipc

    out, table = io.BytesIO(), _arrow(columns)
    with pyarrow.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=65_536)
    return out.getvalue()


def _records(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    lists = [values if isinstance(values, list) else values.tolist() for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _write_avro(columns: Mapping[str, Any]) -> bytes:
    import fastavro

    types = {"ts": {"type": "long", "logicalType": "timestamp-micros"}, "n": "long", "price": "double"}
    fields = [{"name": name, "type": types.get(name, "string")} for name in columns]
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, _records(columns))
    return out.getvalue()


def _write_jsonl(columns: Mapping[str, Any]) -> bytes:
    return "".join(f"{json.dumps(record)}\n" for record in _records(columns)).encode()


def _bare_parquet(path: Path) -> int:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        return sum(map(_taken, file.iter_batches(8_192)))


def _bare_arrow(path: Path) -> int:
    import pyarrow.ipc

    with path.open("rb") as file:
        reader = pyarrow.ipc.open_file(file)
        return sum(
            _taken(reader.get_batch(i).slice(at, 8_192))
            for i in range(reader.num_record_batches)
            for at in range(0, reader.get_batch(i).num_rows, 8_192)
        )


def _taken(batch: Any) -> int:
    columns = [batch.column(i).to_numpy(zero_copy_only=False) for i in range(3)]
    batch.column(3).dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return int(columns[1].sum())


def _bare_avro(path: Path) -> int:
    import fastavro

    with path.open("rb") as file:
        return sum(record["n"] for record in fastavro.reader(file))  # type: ignore[misc,call-overload]


def _bare_jsonl(path: Path) -> int:
    with path.open() as file:
        return sum(json.loads(line)["n"] for line in file)


_WRITERS: Mapping[str, Callable[[Mapping[str, Any]], bytes]] = {
    "parquet": _write_parquet, "arrow": _write_arrow, "avro": _write_avro, "jsonl": _write_jsonl,
}  # fmt: skip
_BARE: Mapping[str, Callable[[Path], int]] = {
    "parquet": _bare_parquet, "arrow": _bare_arrow, "avro": _bare_avro, "jsonl": _bare_jsonl,
}  # fmt: skip


def _options(form: str) -> dict[str, Any]:
    return {"format": form, **({"timestamps": "us"} if form == "jsonl" else {})}


def _chunks(path: Path, form: str) -> int:
    with path.open("rb") as file:
        chunks = FileRows(SCHEMA, "ts", _options(form)).read(file, path.name, 0)
        return sum(int(chunk.columns[1].values.sum()) for chunk in chunks)


async def _source(folder: str, form: str, rows: int, log: Path) -> int:
    reader = {"kind": "directory", "folder": folder, "follow": False, **_options(form)}
    of = Source(
        stream=StreamId("bench"), schema=SCHEMA, boundary_us=100_000, disorder_us=0, ahead_us=None, time="ts",
        reader=reader, replay={}, on_malformed="skip", watermark=Watermark.DATA,
    )  # fmt: skip
    count = total = 0

    def publish(elements: list[Element]) -> None:
        nonlocal count, total
        for element in elements:
            if isinstance(element, Batch):
                count += len(element)
                total += int(element.rows.columns[1].values.sum())

    proxy = await SourceProxy.open(production_env(log, 0), of)
    await proxy.run(publish)
    proxy.close()
    demand((count, proxy.fault) == (rows, None), f"the source read {count} rows: {proxy.fault}")
    return total
