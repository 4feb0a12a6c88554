"""``spe set``: changes X, α and policies of a node of a running cluster (rules X1-X5)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio

from replicas.cli.order import give_order
from replicas.local.polling import Poller, last_of
from replicas.local.run_dir import Target
from replicas.local.run_over import refuse_over
from spe.errors import SpeError
from spe.figures.cluster_figures import in_force
from spe.plan.directory import Version
from spe.plan.settings import NodeSettings, describe_waits
from spe.status import NodeStatus, SettingsStatus
from spe.stream.names import NodeId
from spe.wire.messages.commands import SetAnswer, SetOrder, Setting

#: Time limit for a node to apply a version, which it gets with heartbeats; a node that is down gets it later.
FOLLOW_S: Final = 10.0
_LOOK_S: Final = 0.2


def set_node(path: Path, node: str, changes: Sequence[str], *, wait: bool) -> int:
    """Changes a node; returns 1 if the node has not applied the change in time.

    Raises:
      SpeError: the order is refused, or the coordinator does not answer.
    """
    order = SetOrder(node, [_setting(change) for change in changes])
    return give_order(path, order, SetAnswer, partial(_report, order, wait), purpose="changes nodes")


def _setting(text: str) -> Setting:
    """Parses a setting.  Raises SpeError."""
    name, equals, value = text.partition("=")
    try:
        if not equals:
            raise ValueError(f"expected NAME=VALUE such as x=4s, got {text!r}")
        NodeSettings().changed([(name, value)])
    except ValueError as error:
        raise SpeError(str(error)) from None
    return Setting(name, value)


async def _report(order: SetOrder, wait: bool, target: Target, poller: Poller, answer: SetAnswer) -> int:
    version = Version(answer.epoch, answer.number)
    if not wait or order.node not in target.directory.nodes:  # the status of a node that no file names is unknown here
        print(f"{order.node} is changed from version {version.number} of the directory on")
        return 0
    with trio.move_on_after(FOLLOW_S):
        while True:
            await poller.ask_status(order.node)
            if (settings := _taken(last_of(poller.seen, order.node, NodeStatus), version)) is not None:
                now = in_force(target.directory.nodes[NodeId(order.node)], settings)
                print(f"{order.node} has {describe_waits(now)}, by version {version.number} of the directory")
                return 0
            await trio.sleep(_LOOK_S)
    refuse_over(target)
    print(f"{order.node} does not answer; it has it from version {version.number} of the directory on")
    return 1


def _taken(status: NodeStatus | None, version: Version) -> SettingsStatus | None:
    """Returns the settings of a node that has a version of the directory; None where it has an older one."""
    if status is None or (has := status.directory) is None or Version(has.epoch, has.number) < version:
        return None
    return status.settings
