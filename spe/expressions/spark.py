"""The same expression for Spark: token for token what the user wrote, but for what Spark would read as another thing.

Our parser does not make the text, so a mistake in it shows as a difference.  The session has to run with
``spark.sql.ansi.enabled=false``, ``spark.sql.caseSensitive=true`` and ``spark.sql.session.timeZone=UTC``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from spe.expressions.check import casts_of
from spe.expressions.lexer import Token, TokenKind, tokens_of
from spe.expressions.parse import parse
from spe.stream.schema import AttributeType, Schema

_NAMES: Final = {"starts_with": "startswith", "ends_with": "endswith"}
#: Timestamps as texts that both read: four digits of a year, no names of zones, no times alone.
_TIMESTAMP: Final = (
    r"^[\\x00-\\x20\\x7f]*\\d{4}(-\\d{1,2}(-\\d{1,2}([ T](\\d{1,2}:\\d{1,2}(:\\d{1,2}(\\.\\d*)?)?"
    r"\\s*(Z|UTC|GMT|[+-]\\d{1,2}(:?\\d{2})?)?)?)?)?)?[\\x00-\\x20\\x7f]*$"
)
#: Casts that Spark would do otherwise: it writes −0.0, and reads other timestamps and hexadecimal floats, too.
_CASTS: Final = {
    (AttributeType.FLOAT64, AttributeType.STRING): ("(0.0D +", ")"),
    (AttributeType.STRING, AttributeType.TIMESTAMP): ("(nullif(regexp_extract", f", '{_TIMESTAMP}', 0), '')"),
    (AttributeType.STRING, AttributeType.FLOAT64): ("(nullif(regexp_extract", ", '^[^xX]*$', 0), '')"),
}
_QUOTES = re.compile(r"\\.|''|\"\"", re.DOTALL)


def spark_expression(text: str, schema: Schema) -> str:
    """An expression over the tuples of ``schema``, for Spark.  Raises ExpressionError where the engine refuses it."""
    casts = casts_of(parse(text), text, schema)
    return spark_text(text, {at: _CASTS[types] for at, types in casts.items() if types in _CASTS})


def spark_text(text: str, casts: Mapping[int, tuple[str, str]] | None = None) -> str:
    """``text`` for Spark: 0.1 is a double (0.1D; Spark alone reads a DECIMAL), and 'it''s' has one quote in it.

    Args:
      casts: what to put behind the word CAST and before its AS, by the word's offset.

    Raises:
      ExpressionError: the text has no tokens; it is not checked further.
    """
    casts = casts or {}
    parts, at, depth = [], 0, 0
    #: Of these CASTs that are open: the depth of their parentheses, and what comes before AS.
    inside: list[tuple[int, str]] = []
    tokens = tokens_of(text)
    for token, following in pairwise(tokens):
        written = _for_spark(text, token, following)
        if token.kind is TokenKind.SYMBOL and token.text == "(":
            depth += 1
        elif token.kind is TokenKind.SYMBOL and token.text == ")":
            depth -= 1
        elif token.start in casts:
            opening, closing = casts[token.start]
            inside.append((depth + 1, closing))
            written += opening  # the last parenthesis that it opens is closed by the text
        elif inside and inside[-1][0] == depth and token.word == "AS":
            written = f"{inside.pop()[1]} {written}"
        parts += [text[at : token.start], written]
        at = token.end
    return "".join(parts)


def _for_spark(text: str, token: Token, following: Token) -> str:
    written = text[token.start : token.end]
    if token.kind is TokenKind.NUMBER and isinstance(token.value, float) and not token.suffix:
        return written + "D"
    if token.kind is TokenKind.STRING:
        quote = written[0]
        body = _QUOTES.sub(lambda m: "\\" + quote if m[0] == quote * 2 else m[0], written[1:-1])
        return quote + body + quote
    if token.kind is TokenKind.NAME and following.text == "(" and following.kind is TokenKind.SYMBOL:
        return _NAMES.get(written.lower(), written)
    return written
