"""Parser, with the precedence of Spark's grammar (SqlBaseParser.g4).

sqlglot's parser is not used: its tree lacks positions of operators and rewrites calls, and it binds ``a = b IS NULL``
and ``a = b < c`` differently from Spark, while equal texts must mean the same.  From loose to tight:

    OR, AND, NOT, one predicate (IS, IN, BETWEEN, LIKE), comparison, + - ||, * / % DIV, sign
"""

from __future__ import annotations

from typing import Final, NoReturn

from spe.errors import ExpressionError
from spe.expressions.intervals import NotAnInterval, interval_us
from spe.expressions.lexer import Token, TokenKind, tokens_of
from spe.expressions.syntax import Call, Cast, Interval, Name, Syntax, Value
from spe.expressions.texts import timestamp_of_text
from spe.stream.schema import AttributeType
from spe.values import is_select

#: Most levels of nesting (a chain of n operators nests n deep): safe for the checker's recursion.
MAX_DEPTH: Final = 150

_COMPARISON: Final = {
    "=": "=",
    "==": "=",
    "<>": "<>",
    "!=": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
    "<=>": "<=>",
}
_BINARY: Final = ({"+": "+", "-": "-", "||": "concat"}, {"*": "*", "/": "/", "%": "%", "DIV": "div"})
_KEYWORDS: Final = frozenset(
    [
        "AND",
        "OR",
        "NOT",
        "IS",
        "IN",
        "BETWEEN",
        "LIKE",
        "ESCAPE",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
        "NULL",
        "TRUE",
        "FALSE",
        "DIV",
        "DISTINCT",
        "FROM",
        "AS",
    ]
)
_INFIX: Final = frozenset(["AND", "OR", "NOT", "IS", "IN", "BETWEEN", "LIKE", "DIV"])
_TYPES: Final = {
    "BIGINT": AttributeType.INT64,
    "LONG": AttributeType.INT64,
    "DOUBLE": AttributeType.FLOAT64,
    "BOOLEAN": AttributeType.BOOL,
    "STRING": AttributeType.STRING,
    "TIMESTAMP": AttributeType.TIMESTAMP,
}
_TYPE_NAMES: Final = "BIGINT, DOUBLE, BOOLEAN, STRING, TIMESTAMP"
_INSTEAD: Final = {
    "&&": "write AND",
    "&": "bit operators are not supported",
    "|": "bit operators are not supported (OR and || are)",
    "^": "bit operators are not supported",
    "~": "bit operators are not supported",
    "::": "write CAST(… AS type)",
    ".": "attributes have no prefix, and 0.5 needs its zero",
    ";": "one expression only",
    "RLIKE": "regular expressions are not supported; LIKE is",
    "REGEXP": "regular expressions are not supported; LIKE is",
    "ILIKE": "write lower(…) LIKE '…'",
    "AS": "the name of a result is given outside the expression",
    "SELECT": "an expression over one tuple, not a query",
}
#: EXTRACT(field FROM …) -> function.
_FIELDS: Final = {
    "YEAR": "year", "YEARS": "year", "QUARTER": "quarter", "MONTH": "month", "MONTHS": "month", "WEEK": "weekofyear",
    "DAY": "day", "DAYS": "day", "DAYOFWEEK": "dayofweek", "DOW": "dayofweek", "DOY": "dayofyear", "HOUR": "hour",
    "HOURS": "hour", "MINUTE": "minute", "MINUTES": "minute",
}  # fmt: skip


def parse(text: str) -> Syntax:
    """Parses an expression.

    Raises:
      ExpressionError: the text is no expression, or uses an unsupported construct.
    """
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._at = 0
        self._open = 0

    def whole(self) -> Syntax:
        if self._token.kind is TokenKind.END:
            self._fail(self._token, "the expression is empty")
        if is_select(self._text) and self._tokens[1].kind is TokenKind.NAME and self._tokens[1].word not in _INFIX:
            self._fail(self._token, f"SELECT is not expected here; expected {_INSTEAD['SELECT']}")
        result = self._expression()
        if self._at < len(self._tokens) - 1:
            self._unexpected("an operator or the end")
        return result

    # The current token.

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._token
        self._at += token.kind is not TokenKind.END
        return token

    def _take(self, *words: str) -> bool:
        """Skips these keywords or symbols if they come next."""
        ahead = self._tokens[self._at : self._at + len(words)]
        if [t.word for t in ahead] != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._unexpected(word)

    def _fail(self, token: Token, message: str, hint: str = "") -> NoReturn:
        raise ExpressionError(self._text, token.start, message, hint)

    def _unexpected(self, expected: str) -> NoReturn:
        token = self._token
        if token.kind is TokenKind.END:
            self._fail(token, f"the expression ends here; expected {expected}")
        shown = self._text[token.start : token.end]
        self._fail(token, f"{shown} is not expected here; expected {expected}", _INSTEAD.get(token.word, ""))

    def _call(self, token: Token, name: str, *arguments: Syntax) -> Call:
        depth = 1 + max((a.depth for a in arguments), default=0)
        if depth > MAX_DEPTH:
            self._fail(token, f"nested more than {MAX_DEPTH} deep", "use IN (…), or compute a part in a map first")
        return Call(token.start, name, arguments, depth)

    # Booleans.

    def _expression(self) -> Syntax:
        self._open += 1
        if self._open > MAX_DEPTH // 3:
            self._fail(self._token, f"more than {MAX_DEPTH // 3} parentheses are open")
        left = self._conjunction()
        while (token := self._token).word == "OR":
            self._next()
            left = self._call(token, "or", left, self._conjunction())
        self._open -= 1
        return left

    def _conjunction(self) -> Syntax:
        left = self._negation()
        while (token := self._token).word == "AND":
            self._next()
            left = self._call(token, "and", left, self._negation())
        return left

    def _negation(self) -> Syntax:
        nots: list[Token] = []
        while self._token.word in ("NOT", "!"):
            nots.append(self._next())
        result = self._predicate()
        for token in reversed(nots):
            result = self._call(token, "not", result)
        return result

    def _predicate(self) -> Syntax:
        subject = self._comparison()
        token = self._token
        if self._take("IS"):
            return self._is(token, subject)
        negated = self._take("NOT")
        word = self._token.word
        if word == "BETWEEN":
            self._next()
            low = self._comparison()
            self._expect("AND")
            result = self._call(token, "between", subject, low, self._comparison())
        elif word == "IN":
            self._next()
            result = self._call(token, "in", subject, *self._arguments())
        elif word == "LIKE":
            self._next()
            result = self._like(token, subject)
        elif negated:
            self._unexpected("BETWEEN, IN or LIKE")
        else:
            return subject
        return self._call(token, "not", result) if negated else result

    def _is(self, token: Token, subject: Syntax) -> Syntax:
        negated = self._take("NOT")
        result: Syntax
        if self._take("NULL"):
            result = self._call(token, "is null", subject)
        elif self._take("DISTINCT", "FROM"):
            result, negated = self._call(token, "<=>", subject, self._comparison()), not negated
        elif self._token.word in ("TRUE", "FALSE"):
            wanted = self._next()
            value = Value(wanted.start, wanted.word == "TRUE", AttributeType.BOOL)
            result = self._call(token, "<=>", subject, value)
        else:
            self._unexpected("NULL, TRUE, FALSE or DISTINCT FROM")
        return self._call(token, "not", result) if negated else result

    def _like(self, token: Token, subject: Syntax) -> Call:
        pattern = self._comparison()
        escape: Syntax = Value(token.start, "\\", AttributeType.STRING)
        if self._take("ESCAPE"):
            written = self._next()
            if written.kind is not TokenKind.STRING or len(written.text) != 1:
                self._fail(written, "expected one character in quotes after ESCAPE")
            escape = Value(written.start, written.text, AttributeType.STRING)
        return self._call(token, "like", subject, pattern, escape)

    # Values.

    def _comparison(self) -> Syntax:
        left = self._binary(0)
        while (token := self._token).word in _COMPARISON:
            self._next()
            left = self._call(token, _COMPARISON[token.word], left, self._binary(0))
        return left

    def _binary(self, level: int) -> Syntax:
        if level == len(_BINARY):
            return self._signed()
        left = self._binary(level + 1)
        while (token := self._token).word in _BINARY[level]:
            self._next()
            left = self._call(token, _BINARY[level][token.word], left, self._binary(level + 1))
        return left

    def _signed(self) -> Syntax:
        signs: list[Token] = []
        while self._token.word in ("+", "-"):
            signs.append(self._next())
        if signs and signs[-1].word == "-" and self._token.kind is TokenKind.NUMBER:
            result: Syntax = self._number(signs.pop().start, self._next(), -1)
        else:
            result = self._primary()
        for token in reversed(signs):
            result = self._call(token, "negative" if token.word == "-" else "positive", result)
        return result

    def _number(self, start: int, token: Token, sign: int) -> Value:
        value = token.value
        if isinstance(value, float):
            return Value(start, sign * value, AttributeType.FLOAT64)
        assert isinstance(value, int)
        value *= sign
        if not -(2**63) <= value < 2**63:
            self._fail(token, "beyond the range of int64", f"a float64 is written {token.text}D")
        wide = token.suffix == "L" or not -(2**31) <= value < 2**31
        return Value(start, value, AttributeType.INT64, wide)

    def _primary(self) -> Syntax:
        token = self._token
        if token.kind is TokenKind.NUMBER:
            return self._number(token.start, self._next(), 1)
        if token.kind is TokenKind.STRING:
            self._next()
            return Value(token.start, token.text, AttributeType.STRING)
        if token.kind is TokenKind.QUOTED_NAME:
            self._next()
            return Name(token.start, token.text)
        if self._take("("):
            inner = self._expression()
            self._expect(")")
            return inner
        if token.kind is TokenKind.NAME:
            return self._word()
        self._unexpected("a value")

    def _word(self) -> Syntax:
        token = self._next()
        ahead = self._token
        if token.word in ("TRUE", "FALSE"):
            return Value(token.start, token.word == "TRUE", AttributeType.BOOL)
        if token.word == "NULL":
            return Value(token.start, None, None)
        if token.word == "CASE":
            return self._case(token)
        if token.word in ("TIMESTAMP", "TIMESTAMP_LTZ") and ahead.kind is TokenKind.STRING:
            return self._timestamp(token)
        if token.word in ("DATE", "TIMESTAMP_NTZ") and ahead.kind is TokenKind.STRING:
            self._fail(token, f"{token.text} literals are not supported", "write TIMESTAMP '2026-01-31 00:00:00'")
        if token.word == "INTERVAL" and (
            ahead.kind in (TokenKind.STRING, TokenKind.NUMBER) or ahead.word in ("-", "+")
        ):
            return self._interval(token)
        if ahead.word == "(":
            return self._function(token)
        if token.word in _KEYWORDS:
            self._at -= 1
            self._unexpected("a value")
        return Name(token.start, token.text)

    def _timestamp(self, token: Token) -> Value:
        written = self._next()
        us = timestamp_of_text(written.text)
        if us is None:
            self._fail(written, f"{written.text!r} is no timestamp", "write TIMESTAMP '2026-01-31 12:00:00' (UTC)")
        return Value(token.start, us, AttributeType.TIMESTAMP)

    def _interval(self, token: Token) -> Interval:
        sign = -1 if self._take("-") else 1
        self._take("+")
        written = self._next()
        if written.kind not in (TokenKind.STRING, TokenKind.NUMBER):
            self._fail(written, "expected a number or a quoted length after INTERVAL")
        amount = written.text
        if self._token.kind is TokenKind.NAME and self._token.word not in _KEYWORDS:
            amount += " " + self._next().text
        try:
            return Interval(token.start, sign * interval_us(amount))
        except NotAnInterval as problem:
            self._fail(written, str(problem), "write INTERVAL '5 seconds' or INTERVAL '1 hour 30 minutes'")

    def _case(self, token: Token) -> Syntax:
        subject = None if self._token.word == "WHEN" else self._expression()
        parts: list[Syntax] = []
        while self._take("WHEN"):
            when = self._expression()
            parts.append(when if subject is None else self._call(token, "=", subject, when))
            self._expect("THEN")
            parts.append(self._expression())
        if not parts:
            self._unexpected("WHEN")
        parts.append(self._expression() if self._take("ELSE") else Value(token.start, None, None))
        self._expect("END")
        return self._call(token, "case", *parts)

    def _arguments(self) -> list[Syntax]:
        self._expect("(")
        if self._take(")"):
            return []
        arguments = [self._expression()]
        while self._take(","):
            arguments.append(self._expression())
        self._expect(")")
        return arguments

    def _function(self, token: Token) -> Syntax:
        if token.word in ("CAST", "TRY_CAST"):
            return self._cast(token)
        if token.word == "EXTRACT":
            return self._extract(token)
        return self._call(token, token.text.lower(), *self._arguments())

    def _cast(self, token: Token) -> Cast:
        if token.word == "TRY_CAST":
            self._fail(token, "TRY_CAST follows other rules than CAST", "write CAST: what cannot be cast is NULL")
        self._expect("(")
        argument = self._expression()
        self._expect("AS")
        target = self._next()
        type_ = _TYPES.get(target.word)
        if type_ is None:
            self._fail(target, f"{target.text or 'nothing'} is no type here", f"the types are {_TYPE_NAMES}")
        self._expect(")")
        if argument.depth >= MAX_DEPTH:
            self._fail(token, f"nested more than {MAX_DEPTH} deep")
        return Cast(token.start, argument, type_, argument.depth + 1)

    def _extract(self, token: Token) -> Call:
        self._expect("(")
        field = self._next()
        if field.word in ("SECOND", "SECONDS"):
            self._fail(field, "EXTRACT(SECOND …) is a DECIMAL", "second(…) is the whole second, unix_micros(…) exact")
        if field.word not in _FIELDS:
            self._fail(field, f"cannot extract {field.text}", "the fields are " + ", ".join(sorted(_FIELDS)))
        self._expect("FROM")
        argument = self._expression()
        self._expect(")")
        return self._call(token, _FIELDS[field.word], argument)
