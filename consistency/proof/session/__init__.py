"""The Spark session of the proof: Java, the master, executors, errors."""
