"""Mistakes as patches of the engine.  One is on while its context lasts, and nothing in the engine knows of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

Patch = Callable[[], AbstractContextManager[None]]

#: While the truth is computed no mutant is on.
_ASIDE = False


@contextmanager
def aside() -> Iterator[None]:
    """The engine as it is, also where a mutant is on."""
    global _ASIDE
    before, _ASIDE = _ASIDE, True
    try:
        yield
    finally:
        _ASIDE = before


class Unfit(BaseException):
    """A mutant fails in its own lines: it does not fit the engine any more."""


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
      name: also what tests call it.
      mistake: what it does wrong, and the rule that it breaks.
      on: makes it so while the context lasts.
    """

    name: str
    mistake: str
    on: Patch


MUTANTS: dict[str, Mutant] = {}


def mutant(target: Any, attribute: str, mistake: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers ``function(original, self, *args)`` as what stands for a method (or a property) of ``target``."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.replace("_", "-")
        files = {__file__, function.__code__.co_filename}  # it fails in its own lines, or is called in another way

        @contextmanager
        def on() -> Iterator[None]:
            original = target.__dict__[attribute]
            right = original.fget if isinstance(original, property) else original

            def call(*args: Any, **named: Any) -> Any:
                if _ASIDE:
                    return right(*args, **named)
                try:
                    return function(right, *args, **named)
                except Exception as error:
                    if traceback.extract_tb(error.__traceback__)[-1].filename in files:
                        raise Unfit(f"{name}: {type(error).__name__}: {error}") from error
                    raise

            setattr(target, attribute, property(call) if isinstance(original, property) else call)
            try:
                yield
            finally:
                setattr(target, attribute, original)

        assert name not in MUTANTS
        MUTANTS[name] = Mutant(name, mistake, on)
        return function

    return register
