"""Storage of runs and the tables of the proof: local disks, S3, file systems of Hadoop."""
