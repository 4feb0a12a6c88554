"""Control messages by subject; importing any of them registers all."""

from spe.wire.messages import commands, connection, feeds, pushes, replicas

__all__ = ["commands", "connection", "feeds", "pushes", "replicas"]
