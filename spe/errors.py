"""Errors that users and peers can cause.  Each tells the place and what was expected."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path


class SpeError(Exception):
    """Base of every error that this software raises on purpose."""


class ConfigError(SpeError):
    """A configuration has one or more mistakes; all of them are in ``problems``.

    Args:
      problems: the mistakes, each ``file:line: path: mistake; what was expected``; a mistake inside an expression is
        followed by its line and a caret.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class RunFailed(SpeError):
    """A run of a cluster ended with incomplete or wrong results at its clients."""


class ExpressionError(SpeError):
    """An SQL expression is outside the supported subset, or does not type-check.

    Args:
      text: the whole expression.
      position: 0-based offset of the offending part in ``text``.
      message: the mistake.
      hint: an alternative ("" if none).
    """

    def __init__(self, text: str, position: int, message: str, hint: str = "") -> None:
        self.text = text
        self.position = position
        self.message = message
        self.hint = hint
        pointer = f"\n  {text}\n  {' ' * position}^" if text else ""
        super().__init__(f"{message}{'; ' + hint if hint else ''} (at column {position + 1}){pointer}")


class QueryError(SpeError):
    """An operator's specification does not fit its inputs.

    Args:
      field: path inside the specification, e.g. ``aggregates.total.argument``.
      message: the mistake and what was expected.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


class ProtocolError(SpeError):
    """A stream or a connection broke the rules of the protocol."""


class LocalProtocolError(ProtocolError):
    """We would break the rules: a bug in this program."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the rules; its connection is closed, nothing else is affected."""


class PeerRefused(SpeError):
    """The peer (or we) refused the connection at hello: version, cluster name, plan or role do not match."""


class NotReachable(SpeError):
    """No process of a cluster answers; the error lists the addresses."""


class OtherConfiguration(SpeError):
    """A version of the directory does not fit the configuration of a process; the error has the reason."""


class OtherOrigin(SpeError):
    """A producer's rows differ from those that a consumer has read: a source's log is another one, or ends earlier."""


class LinkClosed(SpeError):
    """We closed the connection."""


class LinkBroken(SpeError):
    """The peer vanished, or the network between us did."""


class TurnedAway(LinkBroken):
    """A machine answers, and takes no connection for an address: nothing listens there, or a firewall refuses."""


class NoTls(LinkBroken):
    """The other end has no certificate that we accept, or does not accept ours."""


class PeerBusy(LinkBroken):
    """The peer accepts no further connection of ours now."""


class PortInUse(SpeError):
    """We cannot listen on an address, usually because another process does; the error has address and reason."""


class LogError(SpeError):
    """A durable log cannot be used; the error has segment, offset, and reason."""


class LogCorrupt(LogError):
    """A log has a damaged record, or lacks acknowledged ones.  Such a log is never cut silently."""


class LogFull(LogError):
    """The disk refused a write, which was undone.  The log can be read and synced; try again later."""


def other_version(what: object, version: object, ours: int) -> str | None:
    """The refusal of what is written in another version of its format; None for ours."""
    return None if version == ours else f"{what} is of format version {version}; this release reads version {ours}"


class ServerAway(SpeError):
    """A server outside of the cluster does not answer, or lost a connection.  Try again later."""


class OperatorFailed(SpeError):
    """A user-defined operator or aggregate raised; the error names the operator and the slice."""

    def __init__(self, operator: str, slice_text: str, cause: BaseException) -> None:
        super().__init__(f"operator {operator!r} raised on {slice_text}: {type(cause).__name__}: {cause}")
        self.operator = operator
        self.slice_text = slice_text

    def where(self) -> str:
        """Lists the user's frames, outermost first, a line each: ``FILE:LINE in step: code``; "" if there is none."""
        ours = Path(__file__).resolve().parents[1]
        folders = tuple(str(ours / name) for name in ("spe", "operators", "replicas", "consistency"))
        cause, shown = self.__cause__, list[traceback.FrameSummary]()
        while cause is not None:  # our error may wrap the user's
            frames = traceback.extract_tb(cause.__traceback__)
            shown = [f for f in frames if not str(Path(f.filename).resolve()).startswith(folders)]
            if shown:
                break
            shown, cause = frames[-1:], cause.__cause__
        return "\n".join(f"  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in shown)


class blaming:
    """Turns exceptions into :class:`OperatorFailed`.  A class, since a generator costs more per slice."""

    __slots__ = ("_operator", "_slice_text")

    def __init__(self, operator: str, slice_text: str) -> None:
        self._operator = operator
        self._slice_text = slice_text

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not isinstance(
            error, OperatorFailed
        ):  # OperatorFailed already names the operator
            raise OperatorFailed(self._operator, self._slice_text, error) from error


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors in a group, and in nested groups; or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
