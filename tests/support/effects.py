"""Effects of a replica that do nothing."""

from __future__ import annotations

from spe.stream.names import NodeState


class NoEffects:
    """Implements replicas.node.output_side.Effects."""

    def wake(self, output: int) -> None:
        pass

    def told(self, state: NodeState, fresh: bool) -> None:
        pass

    def log_waits(self) -> None:
        pass
