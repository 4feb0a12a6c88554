"""Digests of what a report rests on, and what differs from them later.  Needs no Spark for a run on this machine.

The SHA-256 of a file proves it; checksums of up to BLOCKS parts of it say where it differs.
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

#: Parts of a file that have a checksum each, at most.
BLOCKS: Final = 64
_LEAST_BLOCK_BYTES: Final = 4_096
NONE: Final[Mapping[Path, FileDigest]] = MappingProxyType({})

#: Size and time of change of each file, as they were before it was read.
Stamps = Mapping[Path, tuple[int, int]]


def evidence(run: Run, spark: SparkSession | None = None) -> Evidence:
    """The digests of a run: its files, the inputs of its sources, and the modules of its query.

    Args:
      spark: needed where the run is on another file system.
    """
    away = [p for p in files_of(run.path) if run.origin and Segment.parse(p.name) is not None]
    known = {} if not away else _of_executors(spark, run, away)
    return Evidence(files=digests_below(run.path, known), outside=digests_outside(run))


def digests_below(folder: Path, known: Mapping[Path, FileDigest] = NONE) -> list[FileDigest]:
    """Those of the directory of a run.

    Args:
      known: of files that are not read here.
    """
    return [known.get(p) or file_digest(p, str(p.relative_to(folder))) for p in files_of(folder)]


def digests_outside(run: Run) -> list[FileDigest]:
    """Those of the sources' inputs and the query's modules, as far as they are here."""
    return [file_digest(p, str(p)) for p in sorted({*_inputs(run), *_modules(run)}) if p.is_file()]


def stamps(run: Run) -> Stamps:
    """What :func:`unchanged` compares."""
    if run.origin:
        return {}
    return {p: _stamp(p) for p in files_of(run.path)}


def unchanged(before: Stamps, run: Run) -> None:
    """Raises SpeError where a file was written since."""
    for path, stamp in stamps(run).items():
        if before.get(path) != stamp:
            raise SpeError(f"{path} was written while the run was judged; judge it again when nothing writes there")


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def file_digest(path: Path, name: str) -> FileDigest:
    """Raises SpeError where it cannot be read."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            parts = iter(lambda: file.read(_block_bytes(size)), b"")
            return digest_of(parts, name, size)
    except OSError as error:
        raise SpeError(f"{path}: cannot be read: {error.strerror}") from error


def digest_of(parts: Iterable[bytes | memoryview], name: str, size: int) -> FileDigest:
    """The digest of a file of ``size`` bytes whose blocks are ``parts``."""
    whole, blocks = hashlib.sha256(), []
    for part in parts:
        whole.update(part)
        blocks.append(f"{zlib.crc32(part):08x}")  # it only says where a file differs
    return FileDigest(path=name, bytes=size, sha256=whole.hexdigest(), blocks=blocks)


def _block_bytes(size: int) -> int:
    """Length of a block: a power of two that gives at most BLOCKS of them."""
    block = _LEAST_BLOCK_BYTES
    while block * BLOCKS < size:
        block *= 2
    return block


def _of_executors(spark: SparkSession | None, run: Run, files: list[Path]) -> dict[Path, FileDigest]:
    """Digests of files on another file system, which executors read."""
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
    return {run.path / one.path: one for one in made}


def _inputs(run: Run) -> Iterator[Path]:
    """The files that sources replay."""
    data = Path(str(run.facts.get("data", run.path)))
    for source in run.reading.sources.values():
        if source.kind in FILES:
            yield (data / Path(source.reader[source.kind]).expanduser()).absolute()


def _modules(run: Run) -> Iterator[Path]:
    """The modules that the query names; not what these import."""
    for operator in run.reading.operators.values():
        named = [operator.path] if isinstance(operator, CustomEntry) else []
        if isinstance(operator, AggregateEntry):
            named = [call.function for call in operator.calls.values()]
        for name in named:
            module, colon, _ = name.partition(":")
            found = importlib.util.find_spec(module) if colon else None
            if found is not None and found.origin is not None:
                yield Path(found.origin)


def differences(kept: Sequence[FileDigest], now: Sequence[FileDigest]) -> list[str]:
    """Which files differ from those of a report, and where; a sentence each."""
    there = {one.path: one for one in now}
    known = {one.path for one in kept}
    found = [_file_differs(one, there.get(one.path)) for one in kept]
    found += [f"{name} was not there when the report was made" for name in there if name not in known]
    return [text for text in found if text]


def _file_differs(kept: FileDigest, now: FileDigest | None) -> str:
    """ "" where it does not."""
    if now is None:
        return f"{kept.path} is missing; the report rests on its {plural(kept.bytes, 'byte')}"
    if now.sha256 == kept.sha256 and now.bytes == kept.bytes:
        return ""
    changed = _ranges(kept, now)
    where = f"{kept.path} differs"
    if now.bytes < kept.bytes:
        where = f"{kept.path} has lost its end: it has {plural(now.bytes, 'byte')}, and had {count(kept.bytes)}"
    elif now.bytes > kept.bytes:
        where = f"{kept.path} has grown: it has {plural(now.bytes, 'byte')}, and had {count(kept.bytes)}"
    if changed:
        where += f"; {changed}"
    return where


def _ranges(kept: FileDigest, now: FileDigest) -> str:
    """Which bytes differ, as far as both have the same blocks; "" where none do, or that is not known."""
    step = _block_bytes(kept.bytes)
    if step != _block_bytes(now.bytes):
        return ""
    pairs = list(zip(kept.blocks, now.blocks))  # a report that somebody wrote may have any number of them
    shared = min(len(pairs), min(kept.bytes, now.bytes) // step) if kept.bytes != now.bytes else len(pairs)
    differing = [at for at in range(shared) if pairs[at][0] != pairs[at][1]]
    if not differing:
        return f"equal in the first {plural(shared * step, 'byte')}" if kept.bytes != now.bytes and shared else ""
    spans: list[list[int]] = []
    for at in differing:
        if spans and spans[-1][1] == at:
            spans[-1][1] = at + 1
        else:
            spans.append([at, at + 1])
    texts = [f"{count(a * step)} to {count(min(b * step, kept.bytes) - 1)}" for a, b in spans]
    return f"other bytes in the range{'s' if len(texts) > 1 else ''} {', '.join(texts)}"
