"""The same expression for Spark: token for token what the user wrote, but for what Spark would read as another thing.

Nothing of our parser is between the two texts, so a mistake in it shows as a difference.  The session has to run with
``spark.sql.ansi.enabled=false``, ``spark.sql.caseSensitive=true`` and ``spark.sql.session.timeZone=UTC``.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from spe.expressions.lexer import Token, TokenKind, tokens_of

_NAMES: Final = {"starts_with": "startswith", "ends_with": "endswith"}
_QUOTES = re.compile(r"\\.|''|\"\"", re.DOTALL)


def spark_text(text: str) -> str:
    """``text`` for Spark: 0.1 is a double (0.1D; Spark alone reads a DECIMAL), and 'it''s' has one quote in it.

    Raises:
      ExpressionError: the text has no tokens; it is not checked further.
    """
    parts, at = [], 0
    tokens = tokens_of(text)
    for token, following in pairwise(tokens):
        parts += [text[at : token.start], _for_spark(text, token, following)]
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
