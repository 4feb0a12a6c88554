"""Commands that try a query in virtual time, and that plan its replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from replicas.cli.app.application import app
from replicas.cli.options import Config, Data, duration_us
from replicas.cli.planning.plan_options import PlanOptions
from spe.errors import SpeError


@app.command(sort_key=8)
def simulate(
    config: Annotated[Path | None, Parameter(help="The configuration; random ones if not given.")] = None,
    /,
    *,
    seeds: Annotated[
        str | None, Parameter(help="Number of runs, or a range of seeds: 100, 200:300.  20 if not given.")
    ] = None,
    faults: Annotated[Path | None, Parameter(help="These faults instead of random ones.")] = None,
    duration: Annotated[str | None, Parameter(help="Faults happen within this time, such as 30s.")] = None,
    replay: Annotated[Path | None, Parameter(help="Replay the scenario in this file.")] = None,
    shrink: Annotated[
        bool | None,
        Parameter(help="Reduce failing scenarios; by default for runs, not for replays.", negative="--no-shrink"),
    ] = None,
    data: Data = None,
    processes: Annotated[int | None, Parameter(help="Runs at the same time; one per core by default.")] = None,
    with_: Annotated[
        str | None,
        Parameter(name="--with", help="Features of every random run, as moves,shortage; seldom: of what is met least."),
    ] = None,
) -> int:
    """Run a cluster in virtual time under random faults; check that every promise is kept."""
    from replicas.cli.campaigns.simulate import replay as play_again
    from replicas.cli.campaigns.simulate import run_simulate

    if replay is not None:
        if config is not None or seeds is not None or faults is not None or with_ is not None:
            raise SpeError("expected --replay without CONFIG, --seeds, --faults and --with: the scenario has them")
        return play_again(replay, shrink=bool(shrink))
    length_us = None if duration is None else duration_us("--duration", duration)
    return run_simulate(
        config, data=data, seeds=seeds, faults=faults, length_us=length_us, shrink=shrink is not False,
        processes=processes, features=with_ or "",
    )  # fmt: skip


@app.command(sort_key=9)
def sweep(
    config: Config,
    /,
    *,
    x: Annotated[str, Parameter(help="Values of X, such as 500ms,1s,2s; bare numbers are seconds.")],
    faults: Annotated[
        Path | None, Parameter(help="Faults to play instead of a cut; see docs/how-to/faults.md.")
    ] = None,
    cut: Annotated[str | None, Parameter(help="Process that is cut off; by default the first source.")] = None,
    for_: Annotated[str, Parameter(name="--for", help="How long it is cut off.")] = "10s",
    plot: Annotated[Path | None, Parameter(help="Also draw a plot into this SVG file.")] = None,
    data: Data = None,
    seed: Annotated[int, Parameter(help="Seed of all random choices.")] = 0,
) -> int:
    """Compare delay and tentative results of a failure for several values of X, in virtual time."""
    from replicas.cli.sweep import lengths_of_x, run_sweep

    if faults is not None and cut is not None:
        raise SpeError("expected --faults or --cut, not both")
    for_us = duration_us("--for", for_)
    return run_sweep(config, lengths_of_x(x), data=data, faults=faults, cut=cut, for_us=for_us, seed=seed, plot=plot)


@app.command(sort_key=9)
def plan(
    target: Annotated[Path, Parameter(help="A configuration, or a topology file; see docs/how-to/planning.md.")],
    /,
    *,
    options: PlanOptions = PlanOptions(),  # noqa: B008
) -> int:
    """Choose the partitions to replicate within a budget, or the order in which lost ones come back."""
    if (options.budget is None) == (options.lost is None):
        raise SpeError("expected either --budget or --lost")
    if options.budget is None:
        from replicas.cli.planning.plan_recovery import plan_recovery

        return plan_recovery(target, options)
    from replicas.cli.planning.plan import plan

    for name in ("arrive", "loads", "value", "until"):
        if getattr(options, name) is not None:
            raise SpeError(f"--{name} goes with --lost, not with --budget")
    return plan(target, options)
