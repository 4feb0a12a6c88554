"""Options of ``spe plan``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from replicas.cli.options import Data


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of a plan of replicas (``budget``), or of a recovery (``lost``)."""

    budget: Annotated[
        float | None, Parameter(help="What active replicas may cost together; each costs 1 by default.")
    ] = None
    lost: Annotated[str | None, Parameter(help="Plan the recovery from the loss of these nodes, such as n1,n2.")] = None
    arrive: Annotated[
        list[str] | None,
        Parameter(help="With --lost: nodes that come (back), such as n7@10s.", consume_multiple=True),
    ] = None
    algorithm: Annotated[
        Literal["structure-aware", "exact", "dynamic", "greedy", "dp", "best-density", "operator-centric"] | None,
        Parameter(help="How partitions are chosen; the last three for --lost with --value complete."),
    ] = None
    domains: Annotated[
        Path | None, Parameter(help="YAML file with nodes, their capacities and domains, and likely failures.")
    ] = None
    rates: Annotated[Path | None, Parameter(help="YAML file with measured tuples per second, by source or unit.")] = (
        None
    )
    loads: Annotated[
        Path | None, Parameter(help="With --lost: YAML file with loads and install times, by source or unit.")
    ] = None
    value: Annotated[
        Literal["fidelity", "complete"] | None,
        Parameter(help="With --lost: what is to be large; by default as the configuration says."),
    ] = None
    until: Annotated[str | None, Parameter(help="With --lost: end of the area under the value, such as 60s.")] = None
    seconds: Annotated[float, Parameter(help="Time limit of the exact planner; it then reports the gap.")] = 10.0
    plot: Annotated[Path | None, Parameter(help="Also draw the curve into this SVG file.")] = None
    data: Data = None
