"""The engine's substrate: what flows, and over what.

Floor 1 of four (spe <- operators <- consistency <- replicas); imports go downwards only.
"""

__version__ = "0.1.0"
