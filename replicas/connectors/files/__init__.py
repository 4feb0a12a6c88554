"""Sources and sinks of files, single or in a directory, on a disk or in object storage."""
