"""What a configuration can say and no replica can do yet: ``spe check`` looks at it, nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator

from spe.errors import ConfigError
from spe.plan.directory import Directory
from spe.plan.plan import Plan
from spe.problems import Path, show_path


def unsupported(plan: Plan, directory: Directory) -> Iterator[tuple[Path, str]]:
    """Where it is said, and what to do instead."""
    for fragment in dict.fromkeys(plan.unit[id.unit].fragment for id in directory.logs):
        yield (
            ("fragments", fragment, "checkpoint", "continuous"),
            "no replica writes a checkpoint log yet, so it can be checked and not run; expected whole checkpoints, "
            "such as defaults: {checkpoint: {every: 5s, disk: true}}",
        )


def check_supported(plan: Plan, directory: Directory) -> None:
    """Raises ConfigError with everything that is not supported yet."""
    if found := list(unsupported(plan, directory)):
        raise ConfigError([f"{show_path(path)}: {message}" for path, message in found])
