"""``spe status`` and ``spe inject``: talk to a running cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import trio
from pydantic import TypeAdapter

from consistency.faults.kinds import KINDS
from replicas.cli.view.view import make_console, metrics_table, render
from replicas.faults.model import one_fault, real_kinds
from replicas.local.polling import Poller
from replicas.local.run_dir import SUPERVISOR, Target, load_target, require_addresses
from replicas.local.run_over import compares, while_it_runs, why_over
from spe.errors import SpeError
from spe.figures.sight import Sight
from spe.status import ClusterStatus

#: A kill is answered when the process is gone, a restart when the new one is started.
INJECT_S: Final = 20.0


def status(path: Path, as_json: bool) -> int:
    """Prints the state of all processes once; returns 1 if one does not answer."""
    target = load_target(path)
    require_addresses(path, target)
    poller = Poller.of(target)
    trio.run(poller.ask_all)
    silent = sorted(poller.errors)
    if as_json:
        print(json_text(poller, target.metrics))
    else:
        if (not poller.seen or compares(target)) and (over := why_over(target)):
            print(over)
            return 1
        title = f"{target.plan.cluster}   {path}"
        sight = Sight(title, poller.now_us(), seen=poller.seen, errors=poller.errors, loads=True)
        console = make_console()
        console.print(render(target.plan, target.directory, sight))
        if target.metrics and poller.seen:
            console.print(metrics_table(target.metrics))
        for name in silent:
            console.print(f"{name}: {poller.errors[name].why}", style="red", highlight=False, soft_wrap=True)
    return 1 if silent else 0


def json_text(poller: Poller, metrics: Mapping[str, str] | None = None) -> str:
    """Returns the status of each process that answered, and the error of each that did not."""
    processes = {name: answer.status for name, answer in poller.seen.items()}
    errors = {name: error.why for name, error in poller.errors.items()}
    status = ClusterStatus(processes=processes, errors=errors, metrics=metrics or {})
    return json.dumps(TypeAdapter(ClusterStatus).dump_python(status, mode="json", warnings="error"), indent=1)


def inject(path: Path, kind: str, names: Sequence[str], for_: str | None, by: str | None, one_way: bool) -> int:
    """Asks the supervisor of a run to make a fault happen now."""
    target = load_target(path)
    if target.folder is None:
        raise SpeError(
            f"{path} is a configuration; expected the directory of a run, for faults go into a local cluster"
        )
    inside, proxy = real_kinds("inside").keys(), real_kinds("proxy").keys()
    if kind not in proxy:
        with_proxies = ", ".join(sorted(proxy - inside))
        raise SpeError(
            f"{kind!r} cannot be injected into a run; expected one of {', '.join(sorted(inside))}; with spe run "
            f"--links proxy also {with_proxies}"
        )
    data = fault_data(kind, names, for_, by, one_way)
    fault = one_fault(data, target.directory)
    with while_it_runs(target):
        error = trio.run(_inject, target, {k: v for k, v in fault.to_data().items() if k != "at"})
        if error:
            raise SpeError(error)
    print(fault)
    return 0


def fault_data(kind: str, names: Sequence[str], for_: str | None, by: str | None, one_way: bool) -> dict[str, Any]:
    """Returns the fault of a command line as a fault file has it; for faults of links, two names are the ends."""
    data: dict[str, Any] = {"kind": kind}
    lists = [name.split(",") for name in names]
    if not KINDS[kind].of_links:
        data["target"] = [name for each in lists for name in each]
    elif len(lists) > 2:
        raise SpeError(f"expected one name, or the two ends of a link, got {len(names)}; separate several by commas")
    elif len(lists) == 1:
        data["target"] = lists[0]
    elif lists:
        data |= {"from": lists[0], "to": lists[1]}
    if for_ is not None:
        data["for"] = for_
    if by is not None:
        data["by"] = by
    if one_way:
        data["one_way"] = True
    return data


async def _inject(target: Target, data: dict[str, Any]) -> str:
    return await Poller.of(target).inject(SUPERVISOR, data, wait_s=INJECT_S)
