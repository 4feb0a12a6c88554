"""Rewrites an expression of the user's file for Spark: only the parts that Spark reads differently change.

The engine's parser, checker and types are not used: Spark tells the type of an operand.  The session has to run
with ``spark.sql.ansi.enabled=false``, ``spark.sql.caseSensitive=true`` and ``spark.sql.session.timeZone=UTC``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<string>(?:'(?:\\.|''|[^'\\])*') | (?:"(?:\\.|""|[^"\\])*"))
      | (?P<quoted>`(?:``|[^`])*`)
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[A-Za-z]*)
      | (?P<name>\w+)
      | (?P<symbol>.)""",
    re.DOTALL | re.VERBOSE,
)
_DOUBLE: Final = re.compile(r"\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
_QUOTES: Final = re.compile(r"\\.|''|\"\"", re.DOTALL)
_NAMES: Final = {"starts_with": "startswith", "ends_with": "endswith"}
#: Timestamps as texts that both read: four digits of a year, no names of zones, no times alone.
_TIMESTAMP: Final = (
    r"^[\\x00-\\x20\\x7f]*\\d{4}(-\\d{1,2}(-\\d{1,2}([ T](\\d{1,2}:\\d{1,2}(:\\d{1,2}(\\.\\d*)?)?"
    r"\\s*(Z|UTC|GMT|[+-]\\d{1,2}(:?\\d{2})?)?)?)?)?)?[\\x00-\\x20\\x7f]*$"
)
#: Casts that Spark computes differently: it writes −0.0, and reads other timestamps and hexadecimal floats, too.
#: By Spark's name of the type and by the word after AS: the text before the operand, and after it.
_CASTS: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("double", "STRING"): ("(0.0D + (", "))"),
    ("string", "TIMESTAMP"): ("nullif(regexp_extract((", f"), '{_TIMESTAMP}', 0), '')"),
    ("string", "DOUBLE"): ("nullif(regexp_extract((", "), '^[^xX]*$', 0), '')"),
}
_CAST_TO: Final = frozenset(to for _, to in _CASTS)


class _Token(NamedTuple):
    kind: str
    text: str

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind in ("name", "symbol") else ""


def spark_text(text: str, type_of: Callable[[str], str]) -> str:
    """Returns ``text`` for Spark: 0.1 is a double (0.1D; Spark alone reads a DECIMAL), 'it''s' has one quote in it.

    Args:
      type_of: returns Spark's name of the type of an expression, as ``double``.
    """
    tokens = [_Token(str(match_.lastgroup), match_[0]) for match_ in _TOKEN.finditer(text)]
    return _written([_Token("space", " ") if token.kind == "comment" else token for token in tokens], type_of)


def _written(tokens: Sequence[_Token], type_of: Callable[[str], str]) -> str:
    parts, at = [], 0
    while at < len(tokens):
        token = tokens[at]
        if token.word == "CAST" and (cast := _cast(tokens, at)) is not None:
            opening, as_, closing = cast
            operand = _written(tokens[opening + 1 : as_], type_of).strip()
            to = "".join(t.text for t in tokens[as_ + 1 : closing] if t.kind != "space").upper()
            before, behind = _CASTS.get((type_of(operand), to), ("", "")) if to in _CAST_TO else ("", "")
            parts.append(f"CAST({before}{operand}{behind} AS {to})")
            at = closing + 1
            continue
        following = _next(tokens, at)
        parts.append(_token_text(token, called=following is not None and tokens[following].text == "("))
        at += 1
    return "".join(parts)


def _next(tokens: Sequence[_Token], at: int) -> int | None:
    """Returns the place of the next token that is not space."""
    return next((i for i in range(at + 1, len(tokens)) if tokens[i].kind != "space"), None)


def _cast(tokens: Sequence[_Token], at: int) -> tuple[int, int, int] | None:
    """Returns places of a CAST's opening parenthesis, its AS and its closing parenthesis; None for other calls."""
    opening = _next(tokens, at)
    if opening is None or tokens[opening].text != "(":
        return None
    depth, as_ = 0, None
    for i in range(opening, len(tokens)):
        word = tokens[i].word
        depth += (word == "(") - (word == ")")
        if word == "AS" and depth == 1:
            as_ = i
        if depth == 0:
            return None if as_ is None else (opening, as_, i)
    return None


def _token_text(token: _Token, *, called: bool) -> str:
    if token.kind == "number" and _DOUBLE.fullmatch(token.text):
        return token.text + "D"
    if token.kind == "string":
        quote = token.text[0]
        return quote + _QUOTES.sub(lambda m: "\\" + quote if m[0] == quote * 2 else m[0], token.text[1:-1]) + quote
    return _NAMES.get(token.text.lower(), token.text) if called and token.kind == "name" else token.text
