"""A durable, checksummed, segmented log with one writer.

``SegmentedLog`` is the writer's side; ``read_log`` reads what was acknowledged, without a lock.
"""

from spe.log.format import Position, Record
from spe.log.recovery import read_log
from spe.log.segmented import SEGMENT_BYTES, SegmentedLog

__all__ = ["SEGMENT_BYTES", "Position", "Record", "SegmentedLog", "read_log"]
