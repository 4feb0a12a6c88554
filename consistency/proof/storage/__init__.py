"""Where runs and the tables of the proof are stored: local disks, S3, file systems of Hadoop."""
