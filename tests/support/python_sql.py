"""The Python-syntax expressions of the conformance cases, as SQL."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from spe.stream.times import format_timestamp

#: Names that mean something in SQL and so are quoted.
_RESERVED_WORDS: Final = (
    "all and any as avg between both by case cast count cross date day distinct double else end exists false float "
    "from full group having hour in inner int integer interval into is join key language left like limit max min "
    "minute month name natural not null on or order out outer right row rows second select set some start string sum "
    "table text then time timestamp to true union unique user using value values when where window with year"
)
_RESERVED: Final = frozenset(_RESERVED_WORDS.split())
_COMPARE: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Eq: "=",
    ast.NotEq: "<>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_ARITHMETIC: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
}


def quoted(name: str) -> str:
    """An attribute's name in an expression."""
    return f"`{name}`" if name.lower() in _RESERVED else name


def to_sql(text: str, timestamps: frozenset[str], names: Mapping[str, str]) -> str:
    """SQL for a Python expression.

    Args:
      timestamps: attributes that are timestamps; a number beside one of them counts seconds since the epoch.
      names: what an attribute is called here, where it is called something else.

    Raises:
      ValueError: a part of the expression has no counterpart here.
    """
    return _Translator(timestamps, names).text(ast.parse(text.strip(), mode="eval").body)


class _Translator:
    def __init__(self, timestamps: frozenset[str], names: Mapping[str, str]) -> None:
        self._timestamps = timestamps
        self._names = names

    def text(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return quoted(self._names.get(name, name))
            case ast.Constant(value=value):
                return _constant(value)
            case ast.BoolOp(op=op, values=values):
                word = " AND " if isinstance(op, ast.And) else " OR "
                return word.join(f"({self.text(v)})" for v in values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"NOT ({self.text(operand)})"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"-{self.text(operand)}"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return f"({self.text(left)} {_ARITHMETIC[type(op)]} {self.text(right)})"
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return f"CASE WHEN {self.text(test)} THEN {self.text(body)} ELSE {self.text(orelse)} END"
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compare(left, op, right)
        raise ValueError(f"no SQL for {ast.unparse(node)!r}")

    def _compare(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
        if isinstance(op, ast.Is | ast.IsNot):
            return f"{self.text(left)} IS {'NOT ' if isinstance(op, ast.IsNot) else ''}NULL"
        if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List):
            items = ", ".join(self.text(item) for item in right.elts)
            return f"{self.text(left)} {'NOT ' if isinstance(op, ast.NotIn) else ''}IN ({items})"
        return f"{self.text(left)} {_COMPARE[type(op)]} {self._beside(left, right)}"

    def _beside(self, left: ast.expr, right: ast.expr) -> str:
        if isinstance(left, ast.Name) and left.id in self._timestamps and isinstance(right, ast.Constant):
            moment = format_timestamp(round(float(str(right.value)) * 1_000_000))
            return f"TIMESTAMP '{moment.replace('T', ' ')}'"
        return self.text(right)


def _constant(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"no SQL for {value!r}")
