"""Formats of what processes and later runs read: each has a version, and another one is refused by name."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any, Final

import msgpack
import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from consistency.proof.follow.state import FILE, VERSION, load_state
from consistency.proof.recorded.run import Run
from consistency.proof.report.model import VERSION as REPORT_VERSION
from consistency.proof.verification import read_report
from replicas.connectors.http.outbox import OUTBOX_VERSION, Outbox
from replicas.connectors.server_sink import SINK_VERSION, _State
from replicas.link.stored_number import NUMBER_VERSION, _sealed, decode_number
from replicas.local.run_dir import load_target
from replicas.placement.store import CoordinatorStore
from replicas.simulation.scenarios.scenario import VERSION as SCENARIO_VERSION
from replicas.simulation.scenarios.scenario import Scenario
from replicas.simulation.world.disk import SimDisk
from replicas.spark.offsets import OFFSET_VERSION, Offset, offset_of
from spe import RUN_VERSION
from spe.checksum import crc32
from spe.errors import SpeError
from spe.log.format import HEADER_BYTES, LOG_VERSION, Segment, check_version, encode_header
from spe.log.issued_directories import DATABASE_VERSION, PATH, read_issued
from spe.log.log_start import START_VERSION, read_kept
from spe.log.marks import _SLOT, MARK_VERSION, read_mark
from spe.log.proof_progress import PROVED, PROVED_VERSION, proved_of_source
from spe.log.provenance import PROVENANCE, PROVENANCE_VERSION, read_provenance
from spe.log.pushed_batches import PUSH_VERSION, PushLedger, digest_of, read_ledger
from spe.log.recording import scan_segment
from spe.log.recovery import read_log
from spe.log.source_log import RECORD_VERSION, SourceState, decode_source_state, encode_source_record
from spe.plan.revision import REVISION_VERSION, Revision
from spe.runtime.env import Env
from spe.runtime.production import NullTrace
from spe.status import STATUS_VERSION, ClusterStatus
from spe.stream.schema import Schema
from spe.wire.greeting import check_hello
from spe.wire.messages.connection import PROTOCOL, Hello, Refused
from spe.wire.state import STATE_VERSION, decode_state, encode_state
from tests.unit.spe.plan.test_revision import revision

ROOT: Final = Path(__file__).parents[2]
#: In the order of the table.
VERSIONS: Final = {
    "wire": PROTOCOL.highest,
    "segments": LOG_VERSION,
    "source records": RECORD_VERSION,
    "synced marks": MARK_VERSION,
    "where a log begins": START_VERSION,
    "pushed batches": PUSH_VERSION,
    "states": STATE_VERSION,
    "directory": REVISION_VERSION,
    "numbers": NUMBER_VERSION,
    "the coordinator's database": DATABASE_VERSION,
    "directory of a run": RUN_VERSION,
    "what results are of": PROVENANCE_VERSION,
    "states of sinks": SINK_VERSION,
    "requests under way": OUTBOX_VERSION,
    "checkpoints of Spark": OFFSET_VERSION,
    "report": REPORT_VERSION,
    "proof that goes on": VERSION,
    "what it proved": PROVED_VERSION,
    "scenarios": SCENARIO_VERSION,
    "status": STATUS_VERSION,
}
FOLDER: Final = PurePosixPath("here")
SEGMENT: Final = Segment(1, 1)


def test_the_table_of_formats_has_their_versions() -> None:
    page = (ROOT / "docs/internals/protocol.md").read_text(encoding="utf-8").split("## At rest")[1]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    assert [int(version) for _, _, version in rows[1:]] == list(VERSIONS.values())
    for (name, *_), known in zip(rows[1:], VERSIONS, strict=True):
        assert name.startswith(known)
    assert ClusterStatus(processes={}, errors={}).version == STATUS_VERSION


def disk(**files: bytes) -> SimDisk:
    """Files in FOLDER, by name with ``_`` for ``.``; and others by their path."""
    made = SimDisk()
    for name, data in files.items():
        made.open(FOLDER / name if "/" not in name else PurePosixPath(name)).append(data)
    return made


def segment() -> bytes:
    head = encode_header(SEGMENT)[: HEADER_BYTES - 4].replace(b"SPELOG1", b"SPELOG2")
    return head + crc32(head).to_bytes(4, "little")


def log() -> None:
    body = _SLOT.pack(MARK_VERSION, 1, 1, 0)[:-4]
    mark = body + crc32(body).to_bytes(4, "little")
    list(read_log(disk(**{"mark.0": mark, SEGMENT.name: segment()}), FOLDER))


def mark() -> None:
    body = _SLOT.pack(2, 1, 1, 0)[:-4]
    read_mark(disk(**{"mark.0": body + crc32(body).to_bytes(4, "little")}), FOLDER)


def kept() -> None:
    body = b'{"version": 2, "otherwise": true}'
    read_kept(disk(**{"kept.0": body + b"\n%08x\n" % crc32(body)}), FOLDER)


def ledger() -> None:
    text = json.loads(PushLedger().encode())["ledger"].replace('"version": 1', '"version": 2')
    read_ledger(json.dumps({"digest": digest_of(text.encode()), "ledger": text}).encode())


def state() -> None:
    data = bytearray(encode_state({}))
    data[4] = 2
    decode_state(bytes(data))


def database() -> SimDisk:
    with closing(sqlite3.connect(":memory:")) as made:
        made.execute("PRAGMA user_version = 2")
        made.execute("CREATE TABLE other (whole TEXT)")
        return disk(**{str(PATH): made.serialize()})


def coordinator() -> None:
    nothing: Any = None
    CoordinatorStore(Env(nothing, nothing, database(), nothing, Random(0), NullTrace()))


def outbox() -> None:
    Outbox.open(disk(outbox=msgpack.packb({"version": 2})), FOLDER, "x", Random(0))


def source_record() -> None:
    body = encode_source_record(SourceState(), None, Schema.of(n="int64"))
    decode_source_state(b"\2" + body[1:])


def offset() -> None:
    mine = Offset("out", "stable", "q", {0: 1})
    offset_of({**mine.to_json(), "version": 2}, mine)


REFUSALS: Final[dict[str, Callable[[], object]]] = {
    "segments of a log": log,
    "segments of a recording": lambda: scan_segment(disk(**{SEGMENT.name: segment()}), FOLDER, SEGMENT),
    "segments": lambda: check_version(segment(), "a.seg"),
    "source records": source_record,
    "synced marks": mark,
    "where a log begins": kept,
    "pushed batches": ledger,
    "states": state,
    "directory": lambda: Revision.decode(b"\2" + revision().encode()[1:]),
    "numbers": lambda: decode_number(_sealed(2, 7)),
    "the coordinator's database": coordinator,
    "the coordinator's database, for a report": lambda: read_issued(database(), "plan"),
    "what results are of": lambda: read_provenance(disk(**{PROVENANCE: b'{"version": 2}'}), FOLDER / PROVENANCE),
    "states of sinks": lambda: _State.decode(b'{"version": 2}', "the sink"),
    "requests under way": outbox,
    "checkpoints of Spark": offset,
    "report": lambda: read_report('{"version": 2}', "report.json"),
    "scenarios": lambda: Scenario.from_data({"version": 2}),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_another_version_of_a_format_is_refused(name: str) -> None:
    with pytest.raises((SpeError, ValueError), match="is of format version 2; this release reads version 1") as found:
        REFUSALS[name]()
    assert "damaged" not in str(found.value)


@pytest.mark.parametrize("read", [load_target, Run.open, lambda path: load_state(path, "f", {})])
def test_another_version_of_a_folder_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    for name in ("cluster.json", FILE):
        (tmp_path / name).write_text('{"version": 2, "data": ".", "fingerprint": "f", "origins": {}}')
    with pytest.raises(SpeError, match=r"json is of format version 2; this release reads version 1"):
        read(tmp_path)


def test_a_peer_of_another_version_is_refused() -> None:
    hello = Hello(2, 2, "demo", "node", "n1", 1, "", "")
    answer = check_hello(hello, cluster="demo", fingerprint="", token="", name="n2", incarnation=1)
    assert answer == Refused(
        "no common protocol: the peer speaks version 2, n2 speaks version 1; upgrade the older one"
    )


def test_nothing_counts_as_proved_of_another_version() -> None:
    other = SimDisk()
    other.open(PROVED).append(b'{"version": 2, "sources": {"a": {"identity": "i", "record": 7}}}')
    assert proved_of_source(other, "a", "i") == 1


def test_a_flipped_bit_is_no_other_version() -> None:
    """Each bit of a segment's header, and of a mark: what is damaged is not taken for another version."""
    header = encode_header(SEGMENT)
    for bit in range(8 * len(header)):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        check_version(bytes(flipped), "a.seg")
    body = _SLOT.pack(MARK_VERSION, 1, 1, 0)[:-4]
    slot = bytearray(body + crc32(body).to_bytes(4, "little"))
    slot[0] ^= 2
    assert read_mark(disk(**{"mark.0": bytes(slot)}), FOLDER) is None


def test_each_format_is_tried() -> None:
    apart = {"wire", "directory of a run", "proof that goes on", "what it proved", "status"}
    assert set(VERSIONS) - apart <= set(REFUSALS)
