"""Expressions of docs/reference/expressions.md over one row, in plain Python, as far as random queries have them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.support.row_operators import Values, wrapped

OfValues = Callable[[Values], Any]

_TOKEN: Final = re.compile(r"\s*(?:(\d+\.\d+|\d+)|'((?:[^']|'')*)'|([A-Za-z_][\w]*)|(<=|>=|<>|!=|[-+*/%()<>=,]))")
#: How tightly an operator binds.
_BINDS: Final = {"or": 1, "and": 2, **dict.fromkeys(("=", "<>", "!=", "<", "<=", ">", ">=", "is"), 4)}
_BINDS_MORE: Final = {"+": 5, "-": 5, "*": 6, "/": 6, "%": 6}


def expression(text: str, names: Sequence[str]) -> OfValues:
    """What an expression means for the values of attributes of these names."""
    parser = _Parser(text, names)
    found = parser.expression(0)
    if parser.tokens:
        raise ValueError(f"{text!r}: {parser.tokens[0]!r} is left over")
    return lambda values: canonical(found(values))


def canonical(value: Any) -> Any:
    """Without a negative zero."""
    return value + 0.0 if isinstance(value, float) else value


class _Parser:
    def __init__(self, text: str, names: Sequence[str]) -> None:
        self._names = names
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{text!r}: nothing known at {text[at:]!r}")
            number, string, name, sign = found.groups()
            if string is not None:
                self.tokens.append(("text", string.replace("''", "'")))
            else:
                self.tokens.append(("number" if number else "name" if name else "sign", number or name or sign))
            at = found.end()

    def _next_is(self, word: str) -> bool:
        return bool(self.tokens) and self.tokens[0][0] != "text" and self.tokens[0][1].lower() == word

    def _take(self, word: str) -> bool:
        if there := self._next_is(word):
            self.tokens.pop(0)
        return there

    def expression(self, least: int) -> OfValues:
        left = self._operand()
        while self.tokens and self.tokens[0][0] != "text":
            sign = self.tokens[0][1].lower()
            binds = (_BINDS | _BINDS_MORE).get(sign, 0)
            if binds <= least:
                break
            self.tokens.pop(0)
            if sign == "is":
                is_null = not self._take("not")
                assert self._take("null")
                left = _null_test(left, is_null)
            else:
                left = _binary(sign, left, self.expression(binds))
        return left

    def _operand(self) -> OfValues:
        kind, word = self.tokens.pop(0)
        if kind == "text":
            return lambda _: word
        if kind == "number":
            constant = float(word) if "." in word else int(word)
            return lambda _: constant
        if word == "(":
            inner = self.expression(0)
            assert self._take(")")
            return inner
        if word == "-":
            return _binary("-", lambda _: 0, self.expression(6))
        if word.lower() == "not":
            inner = self.expression(3)
            return lambda values: None if (v := inner(values)) is None else not v
        if self._take("("):
            arguments = [self.expression(0)]
            while self._take(","):
                arguments.append(self.expression(0))
            assert self._take(")")
            return _function(word.lower(), arguments)
        at = self._names.index(word)
        return lambda values: values[at]


def _null_test(of: OfValues, is_null: bool) -> OfValues:
    return lambda values: (of(values) is None) is is_null


def _function(name: str, arguments: Sequence[OfValues]) -> OfValues:
    if name == "coalesce":
        return lambda values: next((v for of in arguments if (v := of(values)) is not None), None)
    (of,) = arguments
    return lambda values: None if (v := of(values)) is None else _OF_ONE[name](v)


_OF_ONE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "length": len,
    "abs": lambda v: wrapped(abs(v)) if isinstance(v, int) else abs(v),
    "timestamp_micros": lambda v: v,
}


def _binary(sign: str, left: OfValues, right: OfValues) -> OfValues:
    if sign in ("and", "or"):
        decides = sign == "or"

        def logic(values: Values) -> Any:
            both = (left(values), right(values))
            return decides if decides in both else None if None in both else not decides

        return logic
    work = _COMPARES[sign] if sign in _COMPARES else _ARITHMETIC[sign]

    def of_both(values: Values) -> Any:
        a, b = left(values), right(values)
        if a is None or b is None:
            return None
        if isinstance(a, float) != isinstance(b, float) and not isinstance(a, str):
            a, b = float(a), float(b)
        return work(a, b)

    return of_both


def _order(a: Any, b: Any) -> int:
    """NaN equals itself, and is above all numbers."""
    if a != a or b != b:
        return int(a != a) - int(b != b)
    return int(a > b) - int(a < b)


_COMPARES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": lambda a, b: _order(a, b) == 0,
    "<>": lambda a, b: _order(a, b) != 0,
    "!=": lambda a, b: _order(a, b) != 0,
    "<": lambda a, b: _order(a, b) < 0,
    "<=": lambda a, b: _order(a, b) <= 0,
    ">": lambda a, b: _order(a, b) > 0,
    ">=": lambda a, b: _order(a, b) >= 0,
}


def _number(of: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: wrapped(of(a, b)) if isinstance(a, int) else of(a, b)


def _divided(a: Any, b: Any) -> Any:
    return None if b == 0 else float(a) / float(b)


def _rest(a: Any, b: Any) -> Any:
    """With the sign of the dividend."""
    if b == 0:
        return None
    return math.fmod(a, b) if isinstance(a, float) else (abs(a) % abs(b)) * (-1 if a < 0 else 1)


_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": _number(lambda a, b: a + b),
    "-": _number(lambda a, b: a - b),
    "*": _number(lambda a, b: a * b),
    "/": _divided,
    "%": _rest,
}
