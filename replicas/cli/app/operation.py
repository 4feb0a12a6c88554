"""Commands that change a running cluster."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from consistency.faults.kind import Maker
from consistency.faults.kinds import KINDS
from replicas.cli.app.application import app
from replicas.cli.options import NodeName, RunDir, Target, Wait, Within, duration_us
from spe.errors import SpeError


def _fault_kinds(maker: Maker) -> str:
    return ", ".join(sorted(name for name, kind in KINDS.items() if kind.maker is maker))


@app.command(sort_key=7)
def restart(
    run_dir: RunDir,
    /,
    *nodes: Annotated[str, Parameter(help="Only these.")],
    rolling: Annotated[bool, Parameter(negative=(), help="Restart all nodes, one after the other.")] = False,
    within: Within = "60s",
) -> int:
    """Restart nodes of a run one after the other, each while another replica of what it runs is STABLE."""
    from replicas.cli.restart import restart

    if not rolling and not nodes:
        raise SpeError("expected nodes, or --rolling for all; spe inject RUN restart NODE restarts a node at once")
    return restart(run_dir, nodes, duration_us("--within", within))


@app.command(sort_key=7)
def wait(
    target: Target,
    node: NodeName,
    /,
    *,
    partners: Annotated[
        bool,
        Parameter(
            negative=(), help="Wait until other nodes are STABLE for all of its partitions, so that it may stop."
        ),
    ] = False,
    within: Within = "60s",
) -> int:
    """Wait until a node is STABLE.  The exit status is 1 if it took too long."""
    from replicas.cli.restart import wait

    return wait(target, node, partners=partners, within_us=duration_us("--within", within))


@app.command(sort_key=7)
def inject(
    run_dir: RunDir,
    kind: Annotated[
        str,
        Parameter(help=f"{_fault_kinds(Maker.PROCESSES)}; with --links proxy {_fault_kinds(Maker.PROXY)}"),
    ],
    /,
    *names: Annotated[str, Parameter(help="The process, or the two ends of a link; 'all' is everybody else.")],
    for_: Annotated[str | None, Parameter(name="--for", help="How long, such as 5s; by default until healed.")] = None,
    by: Annotated[str | None, Parameter(help="Delay to add, such as 200ms.")] = None,
    one_way: Annotated[bool, Parameter(help="Only in the direction from the first end to the second.")] = False,
) -> int:
    """Inject a fault into a run, such as: spe inject runs/x cut source:a n1 --for 5s"""
    from replicas.cli.control import inject

    for option, text in (("--for", for_), ("--by", by)):
        if text is not None:
            duration_us(option, text)
    return inject(run_dir, kind, names, for_, by, one_way)


@app.command(sort_key=7)
def move(
    target: Target,
    partition: Annotated[str, Parameter(help="The partition, as spe status shows it, such as u1/0.")],
    source: Annotated[str, Parameter(help="Node that runs it now.")],
    to: Annotated[str, Parameter(help="Node that is to run it.")],
    /,
    *,
    wait: Wait = True,
) -> int:
    """Move a partition of a running cluster from one node to another, without a gap."""
    from replicas.cli.move import move

    return move(target, partition, source, to, wait=wait)


@app.command(sort_key=7)
def drain(target: Target, node: Annotated[str, Parameter(help="The node to empty.")], /, *, wait: Wait = True) -> int:
    """Move all partitions and standbys of a node to other nodes."""
    from replicas.cli.move import drain

    return drain(target, node, wait=wait)


@app.command(sort_key=7)
def leave(target: Target, node: Annotated[str, Parameter(help="A node that is drained and stopped.")], /) -> int:
    """Remove a node that has joined a running cluster."""
    from replicas.cli.move import leave

    return leave(target, node)


@app.command(sort_key=7)
def balance(
    target: Target,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative=(), help="Only say what would move.")] = False,
    wait: Wait = True,
) -> int:
    """Move partitions away from nodes that use more than coordinator.cap of their cores or memory."""
    from replicas.cli.move import balance

    return balance(target, dry_run=dry_run, wait=wait)


@app.command(sort_key=7)
def cancel(target: Target, number: Annotated[int, Parameter(help="Number of the move.")], /) -> int:
    """Take back a move that is under way."""
    from replicas.cli.move import cancel

    return cancel(target, number)


@app.command(name="set", sort_key=7)
def set_(
    target: Target,
    node: NodeName,
    /,
    *changes: Annotated[
        str, Parameter(help="Such as x=4s, alpha=0.7 or policy=delay; x=file restores the value of the file.")
    ],
    wait: Annotated[bool, Parameter(help="Wait until the node has applied them.", negative="--no-wait")] = True,
) -> int:
    """Change X, α or the policy of a node of a running cluster."""
    from replicas.cli.set import set_node

    return set_node(target, node, changes, wait=wait)


@app.command(sort_key=7)
def end(
    target: Target,
    source: Annotated[str, Parameter(help="A source that programs push to.")],
    /,
    *,
    writer: Annotated[str, Parameter(help="End what this one pushes; all by default.")] = "",
) -> int:
    """End the stream of a source that is pushed to, behind the batches that it has.

    Call it when the Spark query is through: later batches are refused.  When all sources have ended, a run ends.
    """
    from replicas.cli.end import end

    return end(target, source, writer)
