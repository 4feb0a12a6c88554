"""The same expression for Spark: token for token what the user wrote, but for what Spark would read as another thing.

Our parser does not make the text, so a mistake in it shows as a difference.  The session has to run with
``spark.sql.ansi.enabled=false``, ``spark.sql.caseSensitive=true`` and ``spark.sql.session.timeZone=UTC``.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from spe.expressions.check import texts_of_floats
from spe.expressions.lexer import Token, TokenKind, tokens_of
from spe.expressions.parse import parse
from spe.schema import Schema

_NAMES: Final = {"starts_with": "startswith", "ends_with": "endswith"}
_QUOTES = re.compile(r"\\.|''|\"\"", re.DOTALL)


def spark_expression(text: str, schema: Schema) -> str:
    """An expression over the tuples of ``schema``, for Spark.  Raises ExpressionError where the engine refuses it."""
    return spark_text(text, texts_of_floats(parse(text), text, schema))


def spark_text(text: str, casts: frozenset[int] = frozenset()) -> str:
    """``text`` for Spark: 0.1 is a double (0.1D; Spark alone reads a DECIMAL), and 'it''s' has one quote in it.

    Args:
      casts: offsets of CASTs of doubles to strings, which 0.0 is added to: Spark writes −0.0 where we have none.

    Raises:
      ExpressionError: the text has no tokens; it is not checked further.
    """
    parts, at, depth = [], 0, 0
    #: Depths of the parentheses of such CASTs that are open.
    inside: list[int] = []
    tokens = tokens_of(text)
    for token, following in pairwise(tokens):
        written = _for_spark(text, token, following)
        if token.kind is TokenKind.SYMBOL and token.text == "(":
            depth += 1
        elif token.kind is TokenKind.SYMBOL and token.text == ")":
            depth -= 1
        elif token.start in casts:
            inside.append(depth + 1)
            written += "(0.0D +"  # the other parenthesis follows in the text
        elif inside and inside[-1] == depth and token.word == "AS":
            inside.pop()
            written = ") " + written
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
