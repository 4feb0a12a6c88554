"""Random SQL expressions of every operator and function, from a seed; and rows that are unpleasant for them."""

from __future__ import annotations

from random import Random
from typing import Any

from spe.stream.schema import Schema

SCHEMA = Schema.of(
    i="int64", j="int64", x="float64", y="float64", p="bool", q="bool", s="string", t="string", a="timestamp",
    b="timestamp",
)  # fmt: skip
_NAMES = {"int": "ij", "float": "xy", "bool": "pq", "text": "st", "time": "ab"}
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
_FIELDS = (
    "year", "quarter", "month", "weekofyear", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday", "hour",
    "minute", "second",
)  # fmt: skip
_INTS = [0, 1, -1, 2, 3, -7, 10, 60, 1000, 86_400, 2**31, -(2**31) - 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)]
_FLOATS = [
    0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, 1 / 3, 1.005, 1e-3, 9.999999e-4, 1e7, 12345678.9, 1e16, 1e22,
    1e300, -1e300, 5e-324, float("inf"), float("-inf"), float("nan"), 9.3e18,
]  # fmt: skip
_TEXTS = [
    "", " ", "a", "A", "ab", "aB%", "a_b", "  x y ", "12", " 12 ", "-3.7", "1e3", "1.", ".5", "NaN", "Infinity", "true",
    "T", "no", "0", "86400", "10000-01-01", "0x1p3", "12:30", "2024-01-01 00:00:00 PST",
    "2024-02-29", "2024-02-29 12:34:56.789", "2024-2-3", "9223372036854775808", "straße",
    "Ωmega", "e\u0301",
    "\U0001f600x", "a\nb", "a\\b", "it's",
]  # fmt: skip
_TIMES = [
    0, -1, 1, 999_999, 1_706_745_600_000_000, 1_709_209_696_789_012, -62_135_596_800_000_000, 253_402_300_799_999_999,
    951_782_400_000_000, 1_735_689_599_999_999, -2_208_988_800_000_001,
]  # fmt: skip


def rows(random: Random, count: int) -> list[tuple[Any, ...]]:
    """Values of the schema, with nulls."""
    pools = [_INTS, _INTS, _FLOATS, _FLOATS, [True, False], [True, False], _TEXTS, _TEXTS, _TIMES, _TIMES]
    return [tuple(None if random.random() < 0.1 else random.choice(pool) for pool in pools) for _ in range(count)]


class Expressions:
    """``Expressions(random).of("int", 3)``: a text of a type and a depth."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def any(self, depth: int) -> str:
        return self.of(self._random.choice(["int", "float", "bool", "text", "time"]), depth)

    def of(self, kind: str, depth: int) -> str:
        if depth == 0 or self._random.random() < 0.15:
            return self._leaf(kind)
        choices: list[str] = [*getattr(self, f"_{kind}")(), *self._of_any(kind)]
        return self._filled(self._random.choice(choices), depth - 1)

    def _filled(self, template: str, depth: int) -> str:
        """``{int}`` … are expressions, ``[text]`` … are literals, ``<field>`` and ``<unit>`` names."""
        for kind in _NAMES:
            while f"{{{kind}}}" in template:
                template = template.replace(f"{{{kind}}}", f"({self.of(kind, depth)})", 1)
            while f"[{kind}]" in template:
                template = template.replace(f"[{kind}]", self._literal(kind), 1)
        template = template.replace("<field>", self._random.choice(_FIELDS))
        template = template.replace("<small>", str(self._random.randint(-3, 6)))
        template = template.replace("<digits>", str(self._random.randint(0, 4)))
        return template.replace("<unit>", self._random.choice(_UNITS))

    def _leaf(self, kind: str) -> str:
        if self._random.random() < 0.75:
            return self._random.choice(_NAMES[kind])
        return self._literal(kind)

    def _literal(self, kind: str) -> str:
        random = self._random
        match kind:
            case "int":
                return random.choice(["0L", "1L", "2L", "-3L", "7L", "1000000L", "9223372036854775807L"])
            case "float":
                return random.choice(["0.0", "1.5", "-0.1D", "1e3", "2.5D", "1e300"])
            case "bool":
                return random.choice(["TRUE", "FALSE"])
            case "text":
                return random.choice(["'a'", "''", "'ab%'", '"x"', "'it''s'", "' '", "'Ω'", "'12'"])
        return random.choice(["TIMESTAMP '2024-02-29 12:00:00'", "TIMESTAMP '1969-12-31 23:59:59.5'"])

    def _of_any(self, kind: str) -> list[str]:
        one = "{" + kind + "}"
        return [
            f"CASE WHEN {{bool}} THEN {one} ELSE {one} END",
            f"CASE WHEN {{bool}} THEN {one} WHEN {{bool}} THEN {one} END",
            f"IF({{bool}}, {one}, {one})",
            f"coalesce({one}, {one})",
            f"nvl({one}, {one})",
            f"nullif({one}, {one})",
            f"greatest({one}, {one}, {one})",
            f"least({one}, {one})",
        ]

    def _int(self) -> list[str]:
        return [
            "{int} + {int}", "{int} - {int}", "{int} * {int}", "{int} div {int}", "{int} % {int}", "mod({int}, {int})",
            "pmod({int}, {int})", "-{int}", "abs({int})", "ceil({float})", "floor({float})", "round({int}, <digits>)",
            "CAST(length({text}) AS BIGINT)", "CAST({float} AS BIGINT)", "CAST({bool} AS BIGINT)",
            "CAST({text} AS BIGINT)",
            "CAST({time} AS BIGINT)", "unix_micros({time})", "unix_millis({time})", "unix_seconds({time})",
            "CAST(<field>({time}) AS BIGINT)", "CAST(extract(<field> FROM {time}) AS BIGINT)",
        ]  # fmt: skip

    def _float(self) -> list[str]:
        return [
            "{float} + {float}", "{float} - {float}", "{float} * {float}", "{float} / {float}", "{int} / {int}",
            "{float} % {float}", "pmod({float}, {float})", "-{float}", "abs({float})", "round({float})",
            "round({float}, <digits>)", "sign({float})", "signum({float})", "sqrt({float})", "CAST({int} AS DOUBLE)",
            "CAST({bool} AS DOUBLE)", "CAST({text} AS DOUBLE)", "CAST({time} AS DOUBLE)", "{int} + {float}",
            "{float} * {int}",
        ]  # fmt: skip

    def _bool(self) -> list[str]:
        compared = [
            f"{{{kind}}} {sign} {{{kind}}}"
            for kind in ("int", "float", "bool", "text", "time")
            for sign in ("=", "<>", "<", "<=", ">", ">=", "<=>")
        ]
        return [
            *self._random.sample(compared, 8), "{bool} AND {bool}", "{bool} OR {bool}", "NOT {bool}", "{int} IS NULL",
            "{float} IS NOT NULL", "{bool} IS TRUE", "{bool} IS NOT FALSE", "{text} IS DISTINCT FROM {text}",
            "{int} BETWEEN {int} AND {int}", "{text} IN ([text], [text])", "{int} NOT IN ([int], [int])",
            "{float} IN ([float], [float])", "{text} LIKE 'a%'", "{text} NOT LIKE '%_b'", "{text} LIKE 'a\\\\_%'",
            "{text} LIKE 'a|%%' ESCAPE '|'", "isnan({float})", "startswith({text}, {text})",
            "ends_with({text}, {text})",
            "contains({text}, {text})", "CAST({int} AS BOOLEAN)", "CAST({float} AS BOOLEAN)", "CAST({text} AS BOOLEAN)",
            "{int} < {float}", "isnull({text})",
        ]  # fmt: skip

    def _text(self) -> list[str]:
        return [
            "{text} || {text}", "concat({text}, {text}, {text})", "upper({text})", "lower({text})", "trim({text})",
            "ltrim({text})", "rtrim({text})", "substr({text}, <small>)", "substring({text}, <small>, <small>)",
            "replace({text}, {text}, {text})", "replace({text}, 'a')", "split_part({text}, {text}, 1)",
            "split_part({text}, 'b', -1)", "lpad({text}, <digits>)", "rpad({text}, 5, {text})", "lpad({text}, 6, 'ab')",
            "CAST({int} AS STRING)", "CAST({float} AS STRING)", "CAST({bool} AS STRING)", "CAST({time} AS STRING)",
        ]  # fmt: skip

    def _time(self) -> list[str]:
        return [
            "date_trunc('<unit>', {time})", "{time} + INTERVAL 5 SECONDS", "{time} - INTERVAL '1 hour 30 minutes'",
            "timestamp_seconds(CAST(year({time}) AS BIGINT))", "timestamp_micros({int} % 1000000000000L)",
            "timestamp_millis({int} % 1000000000000L)", "CAST({int} % 100000000L AS TIMESTAMP)",
            "CAST({text} AS TIMESTAMP)",
        ]  # fmt: skip
