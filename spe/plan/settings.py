"""Settings of a node that can be changed while it runs: X, α and policies (rules X1-X5).  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final

from pydantic import Field

from spe.plan.describe import show_duration
from spe.plan.nodes import Node, Policy
from spe.stream.times import parse_duration

#: Value that resets a setting to the configuration, or to the node's own value when it joined.
FROM_FILE: Final = "file"
_POLICIES: Final = ", ".join(Policy)
_NAMES: Final = "x, alpha, policy, failure, stabilization"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Overrides of a node's configuration; None: not overridden.

    Attributes:
      x_us: availability threshold X of the node, microseconds of wall time.
      alpha: the share of X that an SUnion may spend waiting.
      during_failure, during_stabilization: policies for new tuples.
    """

    x_us: Annotated[int, Field(strict=True, gt=0, lt=2**53)] | None = None
    alpha: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    during_failure: Policy | None = None
    during_stabilization: Policy | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    def over(self, node: Node) -> Node:
        """Returns the node with these settings applied."""
        overrides = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(node, **overrides) if overrides else node

    def changed(self, changes: Iterable[tuple[str, str]]) -> NodeSettings:
        """Returns the settings with other values, as users write them: ``x=4s``, ``policy=delay``, ``x=file``.

        Raises:
          ValueError: an unknown name or a bad value; says which, and what was expected.
        """
        settings = self
        for name, text in changes:
            settings = replace(settings, **_parsed(name, text))
        return settings


def same_waits(node: Node, other: Node) -> bool:
    """Do two nodes have the same X, α and policies?"""
    return _waits(node) == _waits(other)


def describe_waits(node: Node) -> str:
    """Describes X, α and policies: ``X 4s, α 0.9, policy process``; both policies if they differ."""
    both = (node.during_failure.value, node.during_stabilization.value)
    policies = both[0] if both[0] == both[1] else f"{both[0]} in failure, {both[1]} in stabilization"
    return f"X {show_duration(node.x_us)}, α {node.alpha:g}, policy {policies}"


def _waits(node: Node) -> tuple[int, float, Policy, Policy]:
    return node.x_us, node.alpha, node.during_failure, node.during_stabilization


def _parsed(name: str, text: str) -> dict[str, Any]:
    back = text == FROM_FILE
    match name:
        case "x":
            return {"x_us": None if back else _duration(text)}
        case "alpha":
            return {"alpha": None if back else _share(text)}
        case "policy" | "failure" | "stabilization":
            policy = None if back else _policy(name, text)
            names = {"failure": ("during_failure",), "stabilization": ("during_stabilization",)}
            return dict.fromkeys(names.get(name, ("during_failure", "during_stabilization")), policy)
        case _:
            raise ValueError(f"{name!r} cannot be changed while a node runs; expected one of {_NAMES}")


def _duration(text: str) -> int:
    try:
        us = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"x: {error}") from None
    if not 0 < us < 2**53:
        raise ValueError(f"x: expected a duration above 0, got {text!r}")
    return us


def _share(text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        alpha = 0.0
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha: expected a number above 0 and at most 1, got {text!r}")
    return alpha


def _policy(name: str, text: str) -> Policy:
    if text not in list(Policy):
        raise ValueError(f"{name}: expected one of {_POLICIES}, got {text!r}")
    return Policy(text)
