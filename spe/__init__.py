"""What everything else is built on: streams, expressions, plans, the wire, logs, and the command line.

The lowest of four packages (spe <- operators <- consistency <- replicas); imports go downwards only.
"""

__version__ = "0.1.0"
