"""Digests of the files that a report rests on, and their differences later.  Needs no Spark for a run on this machine.

The SHA-256 of a file proves it; checksums of up to BLOCKS parts of it show where it differs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from consistency.proof.recorded.query_file import AggregateEntry, CustomEntry
from consistency.proof.recorded.run import Run
from consistency.proof.recorded.run_files import files_of
from consistency.proof.report.model import Evidence, FileDigest
from consistency.proof.report.words import count, plural
from spe.connectors.files import FILES
from spe.errors import SpeError
from spe.log.format import Segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Maximum number of parts of a file that have a checksum.
BLOCKS: Final = 64
_LEAST_BLOCK_BYTES: Final = 4_096
NONE: Final[Mapping[Path, FileDigest]] = MappingProxyType({})

#: Size and time of change of each file before it was read.
Stamps = Mapping[Path, tuple[int, int]]


def evidence(run: Run, spark: SparkSession | None = None) -> Evidence:
    """Returns the digests of a run: its files, the inputs of its sources, and the modules of its query.

    Args:
      spark: needed where the run is on another file system.
    """
    away = [p for p in files_of(run.path) if run.origin and Segment.parse(p.name) is not None]
    known = {} if not away else _of_executors(spark, run, away)
    return Evidence(files=digests_below(run.path, known), outside=digests_outside(run))


def digests_below(folder: Path, known: Mapping[Path, FileDigest] = NONE) -> list[FileDigest]:
    """Returns digests of the files in the directory of a run.

    Args:
      known: digests of files that are not read here.
    """
    return [known.get(p) or file_digest(p, str(p.relative_to(folder))) for p in files_of(folder)]


def digests_outside(run: Run) -> list[FileDigest]:
    """Returns digests of the sources' inputs and the query's modules, if they are on this machine."""
    return [file_digest(p, str(p)) for p in sorted({*_inputs(run), *_modules(run)}) if p.is_file()]


def stamps(run: Run) -> Stamps:
    """Returns the stamps that :func:`unchanged` compares."""
    if run.origin:
        return {}
    return {p: _stamp(p) for p in files_of(run.path)}


def unchanged(before: Stamps, run: Run) -> None:
    """Raises SpeError where a file was written since."""
    for path, stamp in stamps(run).items():
        if before.get(path) != stamp:
            raise SpeError(f"{path} was written while the run was judged; judge it again when nothing writes there")


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def file_digest(path: Path, name: str) -> FileDigest:
    """Returns the digest of a file.  Raises SpeError where it cannot be read."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            parts = iter(lambda: file.read(_block_bytes(size)), b"")
            return digest_of(parts, name, size)
    except OSError as error:
        raise SpeError(f"{path}: cannot be read: {error.strerror}") from error


def digest_of(parts: Iterable[bytes | memoryview], name: str, size: int) -> FileDigest:
    """Returns the digest of a file of ``size`` bytes whose blocks are ``parts``."""
    whole, blocks = hashlib.sha256(), []
    for part in parts:
        whole.update(part)
        blocks.append(f"{zlib.crc32(part):08x}")  # it only shows where a file differs
    return FileDigest(path=name, bytes=size, sha256=whole.hexdigest(), blocks=blocks)


def _block_bytes(size: int) -> int:
    """Returns the length of a block: a power of two that gives at most BLOCKS of them."""
    block = _LEAST_BLOCK_BYTES
    while block * BLOCKS < size:
        block *= 2
    return block


def _of_executors(spark: SparkSession | None, run: Run, files: list[Path]) -> dict[Path, FileDigest]:
    """Returns digests of files on another file system; executors compute them."""
    import pyarrow as pa

    from consistency.proof.storage.remote import folder_of

    assert spark is not None
    names = [str(run.relative(p)) for p in files]

    def each(number: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        step = _block_bytes(len(data))
        made = digest_of((data[at : at + step] for at in range(0, len(data), step)), names[number], len(data))
        yield pa.RecordBatch.from_pydict({"digest": [made.model_dump_json()]})

    rows = folder_of(spark, run.origin).over(names, each, "digest string").collect()
    made = [FileDigest.model_validate_json(row["digest"]) for row in rows]
    return {run.path / digest.path: digest for digest in made}


def _inputs(run: Run) -> Iterator[Path]:
    """Yields the files that sources replay."""
    data = Path(str(run.facts.get("data", run.path)))
    for source in run.reading.sources.values():
        if source.kind in FILES:
            yield (data / Path(source.reader[source.kind]).expanduser()).absolute()


def _modules(run: Run) -> Iterator[Path]:
    """Yields the modules that the query names, without the modules that they import."""
    for operator in run.reading.operators.values():
        named = [operator.path] if isinstance(operator, CustomEntry) else []
        if isinstance(operator, AggregateEntry):
            named = [call.function for call in operator.calls.values()]
        for name in named:
            module, colon, _ = name.partition(":")
            spec = importlib.util.find_spec(module) if colon else None
            if spec is not None and spec.origin is not None:
                yield Path(spec.origin)


def differences(stored: Sequence[FileDigest], now: Sequence[FileDigest]) -> list[str]:
    """Returns a sentence for each file that differs from the report's digest, and where."""
    there = {digest.path: digest for digest in now}
    known = {digest.path for digest in stored}
    sentences = [_file_differs(digest, there.get(digest.path)) for digest in stored]
    sentences += [f"{name} was not there when the report was made" for name in there if name not in known]
    return [text for text in sentences if text]


def _file_differs(stored: FileDigest, now: FileDigest | None) -> str:
    """Returns a sentence on the difference; "" if there is none."""
    if now is None:
        return f"{stored.path} is missing; the report rests on its {plural(stored.bytes, 'byte')}"
    if now.sha256 == stored.sha256 and now.bytes == stored.bytes:
        return ""
    changed = _ranges(stored, now)
    where = f"{stored.path} differs"
    if now.bytes < stored.bytes:
        where = f"{stored.path} has lost its end: it has {plural(now.bytes, 'byte')}, and had {count(stored.bytes)}"
    elif now.bytes > stored.bytes:
        where = f"{stored.path} has grown: it has {plural(now.bytes, 'byte')}, and had {count(stored.bytes)}"
    if changed:
        where += f"; {changed}"
    return where


def _ranges(stored: FileDigest, now: FileDigest) -> str:
    """Returns which bytes differ, as far as both have the same blocks; "" if none do, or it is unknown."""
    step = _block_bytes(stored.bytes)
    if step != _block_bytes(now.bytes):
        return ""
    pairs = list(zip(stored.blocks, now.blocks))  # an edited report may have any number of them
    shared = min(len(pairs), min(stored.bytes, now.bytes) // step) if stored.bytes != now.bytes else len(pairs)
    differing = [at for at in range(shared) if pairs[at][0] != pairs[at][1]]
    if not differing:
        return f"equal in the first {plural(shared * step, 'byte')}" if stored.bytes != now.bytes and shared else ""
    spans: list[list[int]] = []
    for at in differing:
        if spans and spans[-1][1] == at:
            spans[-1][1] = at + 1
        else:
            spans.append([at, at + 1])
    texts = [f"{count(a * step)} to {count(min(b * step, stored.bytes) - 1)}" for a, b in spans]
    return f"other bytes in the range{'s' if len(texts) > 1 else ''} {', '.join(texts)}"
