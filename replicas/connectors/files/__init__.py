"""Sources and sinks that are files, one or a directory of them, on a disk or in object storage."""
