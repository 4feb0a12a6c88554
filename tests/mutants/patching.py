"""Mistakes as patches of the engine.  A mutant is active while its context lasts; the engine does not know of it."""

from __future__ import annotations
import __future__

import inspect
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

Patch = Callable[[], AbstractContextManager[None]]

#: No mutant is active while the reference is computed.
_ASIDE = False


@contextmanager
def aside() -> Iterator[None]:
    """Runs the unmodified engine, also while a mutant is active."""
    global _ASIDE
    before, _ASIDE = _ASIDE, True
    try:
        yield
    finally:
        _ASIDE = before


class Unfit(BaseException):
    """A mutant raises in its own lines: it no longer fits the engine."""


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
      name: also what tests call it.
      mistake: what it does wrong, and the rule that it breaks.
      on: makes it so while the context lasts.
      folder: of the module that it changes.
    """

    name: str
    mistake: str
    on: Patch
    folder: str


def _folder_of(target: Any) -> str:
    """The folder of a module, or of that which has a class."""
    module = target.__module__ if isinstance(target, type) else target.__name__
    return "/".join(module.split(".")[:-1])


MUTANTS: dict[str, Mutant] = {}


def mutant(target: Any, attribute: str, mistake: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers ``function(original, self, *args)`` as the replacement of a method or property of ``target``."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.replace("_", "-")
        files = {__file__, function.__code__.co_filename}  # it raises in its own lines, or its signature does not fit

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
        MUTANTS[name] = Mutant(name, mistake, on, _folder_of(target))
        return function

    return register


@dataclass(frozen=True)
class Edit:
    """A change of text in the source of one function or method.

    Attributes:
      target: the class or module that has it.
      attribute: its name.
      old: text that occurs once in its source.
      new: its replacement.
    """

    target: Any
    attribute: str
    old: str
    new: str

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        original = self.target.__dict__[self.attribute]
        right = original.fget if isinstance(original, property) else original
        changed = self._changed(name, right)

        @wraps(right)
        def call(*args: Any, **named: Any) -> Any:
            return (right if _ASIDE else changed)(*args, **named)

        setattr(self.target, self.attribute, property(call) if isinstance(original, property) else call)
        try:
            yield
        finally:
            setattr(self.target, self.attribute, original)

    def _changed(self, name: str, right: Any) -> Any:
        source = textwrap.dedent(inspect.getsource(right))
        if source.count(self.old) != 1:
            raise Unfit(f"{name}: {self.attribute} has {self.old!r} {source.count(self.old)} times, expected once")
        text = source.replace(self.old, self.new)
        code = compile(text, f"<{name}>", "exec", __future__.annotations.compiler_flag, dont_inherit=True)
        made: dict[str, Any] = {}
        exec(code, right.__globals__, made)
        found = made[right.__name__]
        return found.fget if isinstance(found, property) else found


def edited(name: str, mistake: str, *edits: Edit) -> Mutant:
    """Registers a mutant made by a change of source text, such as the reverse of a fix."""

    @contextmanager
    def on() -> Iterator[None]:
        with ExitStack() as stack:
            for edit in edits:
                stack.enter_context(edit.on(name))
            yield

    assert name not in MUTANTS
    MUTANTS[name] = Mutant(name, mistake, on, _folder_of(edits[0].target))
    return MUTANTS[name]
