"""What the judge wants to see in an archive (E3)."""

from __future__ import annotations

from pathlib import PurePosixPath
from unittest.mock import Mock, patch

from replicas.simulation.features import retention
from replicas.simulation.world.disk import SimDisk
from spe.log.format import Segment

LOG, PLACE = PurePosixPath("c"), PurePosixPath("place")


async def test_segment_restarted_by_a_later_writer_needs_no_copy() -> None:
    """The first writer was killed before it had written a record to its second segment (seed 8201846)."""
    disk, archive = SimDisk(), SimDisk()
    disk.removed = {}
    for first, epoch in ((1, 1), (9, 1), (9, 2), (20, 2)):
        await disk.write_atomic(LOG / Segment(first, epoch).name, bytes([first, epoch]))
    await archive.write_atomic(PLACE / Segment(1, 1).name, bytes([1, 1]))
    for first, epoch in ((9, 1), (1, 1), (9, 2)):
        disk.remove(LOG / Segment(first, epoch).name)
    with patch.object(retention, "read_kept", return_value=Mock(first=20)):
        assert retention.missing_copies(disk, LOG, archive, PLACE) == [Segment(9, 2).name]
        await archive.write_atomic(PLACE / Segment(9, 2).name, bytes([9, 2]))
        assert retention.missing_copies(disk, LOG, archive, PLACE) == []
