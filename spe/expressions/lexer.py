"""Lexer: sqlglot's Spark tokenizer finds the tokens; this module interprets literals.

Spark 4 is the reference: backslash escapes, ``'it''s'`` is ``it's``, ``"…"`` is a string and `…` a name.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from typing import Any, Final

from spe.errors import ExpressionError

#: Most characters of an expression: far beyond practical ones, and parsing takes at most some milliseconds.
MAX_LENGTH: Final = 20_000

_NUMBER = re.compile(r"(?P<digits>\d+(?P<point>\.\d*)?(?P<exponent>[eE][+-]?\d+)?)(?P<suffix>[A-Za-z]*)")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class TokenKind(enum.Enum):
    NAME = enum.auto()  # plain name or keyword
    QUOTED_NAME = enum.auto()
    STRING = enum.auto()
    NUMBER = enum.auto()
    SYMBOL = enum.auto()
    END = enum.auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
      text: as written; the contents of a string or a quoted name.
      value: int or float of a number.
      start, end: half-open range in the text.
      suffix: upper-case letters after a number (L, D).
    """

    kind: TokenKind
    text: str
    start: int
    end: int
    value: int | float | None = None
    suffix: str = ""

    @property
    def word(self) -> str:
        """Upper case, for comparison with keywords; "" for strings, numbers and quoted names."""
        return self.text.upper() if self.kind in (TokenKind.NAME, TokenKind.SYMBOL) else ""


def tokens_of(text: str) -> list[Token]:
    """Returns the tokens; the last one has kind END.

    Raises:
      ExpressionError: a quote is not closed, a number is out of range, or the text is too long.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(text[:80], 80, f"longer than {MAX_LENGTH:,} characters", "compute a part in a map first")
    tokens: list[Token] = []
    for raw in _raw_tokens(text):
        if not tokens or raw.start >= tokens[-1].end:  # a number's suffix comes as extra tokens inside the number
            tokens.append(_token(text, raw))
    tokens.append(Token(TokenKind.END, "", len(text), len(text)))
    return _joined_strings(text, tokens)


def _raw_tokens(text: str) -> list[Any]:
    import sqlglot  # imported here: it takes a tenth of a second, which programs without expressions save
    from sqlglot.errors import SqlglotError

    try:
        return list(sqlglot.tokenize(text, read="spark"))
    except SqlglotError:
        pass
    for at in reversed([i for i, c in enumerate(text) if c in "'\"`/"]):
        try:
            sqlglot.tokenize(text[:at], read="spark")
        except SqlglotError:
            continue
        raise ExpressionError(text, at, "this quote or comment is not closed")
    raise ExpressionError(text, 0, "cannot be read")


def _token(text: str, raw: Any) -> Token:
    start, end, kind = raw.start, raw.end + 1, raw.token_type.name
    written = text[start:end]
    if kind == "STRING":
        return Token(TokenKind.STRING, _unescaped(text, start, written), start, end)
    if kind == "IDENTIFIER":
        return Token(TokenKind.QUOTED_NAME, written[1:-1].replace("``", "`"), start, end)
    if kind == "NUMBER":
        return _number(text, start, end)
    if written[0].isalnum() or written[0] == "_":
        if not re.fullmatch(r"\w+", written):
            raise ExpressionError(text, start, f"{written!r} is not understood")
        return Token(TokenKind.NAME, written, start, end)
    return Token(TokenKind.SYMBOL, written, start, end)


def _number(text: str, start: int, end: int) -> Token:
    written = text[start:end]
    parts = _NUMBER.fullmatch(written)
    suffix = parts["suffix"].upper() if parts else ""
    if parts is None or suffix not in ("", "L", "D") or (suffix == "L" and (parts["point"] or parts["exponent"])):
        raise ExpressionError(
            text, start, f"{written} is no number here", "integers as 5 or 5L, doubles as 0.5 or 0.5D"
        )
    if parts["point"] or parts["exponent"] or suffix == "D":
        number = float(parts["digits"])
        if math.isinf(number):
            raise ExpressionError(text, start, f"{written} is too large for a float64")
        return Token(TokenKind.NUMBER, written, start, end, number, suffix)
    return Token(TokenKind.NUMBER, written, start, end, int(parts["digits"]), suffix)


def _unescaped(text: str, start: int, written: str) -> str:
    """Returns the value of a string literal.  ``\\%`` and ``\\_`` keep their backslash, for LIKE."""
    if written[0] not in "'\"":
        raise ExpressionError(text, start, "raw and other prefixed strings are not supported", "use '…'")

    def meant(escape: re.Match[str]) -> str:
        code = escape[1]
        if len(code) > 1:
            return chr(int(code[1:], 16)) if code[0] in "uU" else chr(int(code, 8))
        return _ESCAPED.get(code, code)

    return _ESCAPE.sub(meant, written[1:-1])


def _joined_strings(text: str, tokens: list[Token]) -> list[Token]:
    """Joins ``'it''s'``, which comes as two adjacent strings, into one with a quote."""
    joined: list[Token] = []
    for token in tokens:
        last = joined[-1] if joined else None
        if last is not None and token.kind is last.kind is TokenKind.STRING and token.start == last.end:
            quote = text[token.start]
            if text[last.start] == quote:
                joined[-1] = Token(TokenKind.STRING, last.text + quote + token.text, last.start, token.end)
                continue
        joined.append(token)
    return joined
