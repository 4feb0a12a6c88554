"""Commands that show a running cluster."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from replicas.cli.app.application import app
from replicas.cli.options import Json, Target


@app.command(sort_key=6)
def status(target: Target, /, *, json: Json = False) -> int:
    """Show the state of each process of a running cluster."""
    from replicas.cli.control import status

    return status(target, json)


@app.command(sort_key=6)
def top(target: Target, /) -> int:
    """Show a running cluster as it changes, as spe run does, until Ctrl-C or the end of the run."""
    from replicas.cli.top import top

    return top(target)


@app.command(sort_key=6)
def dashboard(
    target: Target,
    /,
    *,
    bind: Annotated[
        str, Parameter(help="HOST:PORT to serve at; only this machine reaches the default, on any free port.")
    ] = "127.0.0.1:0",
    faults: Annotated[bool, Parameter(help="Faults can be injected into a run.", negative="--no-faults")] = True,
) -> int:
    """Serve a page that shows a running cluster, until Ctrl-C or the end of the run.  Needs the extra dashboard."""
    from replicas.cli.dashboard.command import dashboard

    return dashboard(target, bind, faults=faults)


@app.command(name="explain-stall", sort_key=6)
def explain_stall(
    target: Target,
    output: Annotated[str, Parameter(help="Only this output; all by default.")] = "",
    /,
    *,
    json: Json = False,
) -> int:
    """Say why an output of a running cluster is tentative, late or silent now, and what will happen next.

    Exit status 0: every output is stable or has ended, 1: one is not.
    """
    from replicas.cli.explain_stall import explain_stall

    return explain_stall(target, output, json)
