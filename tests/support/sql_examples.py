"""Expressions that show what SQL means here, each with its value: docs/reference/expressions.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, str]] = {
    "7 / 2": "3.5",
    "7 / 0": "NULL",
    "-7 div 2": "-3",
    "-1 % 3": "-1",
    "pmod(-1, 3)": "2",
    "5 % 0": "NULL",
    "9223372036854775807 + 1": "-9223372036854775808",
    "0.1 + 0.2 = 0.3": "false",
    "CAST('NaN' AS DOUBLE) > 1": "true",
    "CAST('NaN' AS DOUBLE) = CAST('NaN' AS DOUBLE)": "true",
    "-0.0": "0.0",
    "round(-2.5)": "-3.0",
    "round(1.005, 2)": "1.01",
    "floor(-1.5)": "-2",
    "CAST(1e30 AS BIGINT)": "9223372036854775807",
    "CAST('NaN' AS DOUBLE) IS NULL": "false",
    "isnan(CAST(NULL AS DOUBLE))": "false",
    "CAST(' 12 ' AS BIGINT)": "12",
    "CAST('1.9' AS BIGINT)": "1",
    "CAST('x' AS BIGINT)": "NULL",
    "CAST(1e7 AS STRING)": "'1.0E7'",
    "NULL AND FALSE": "false",
    "1 IN (2, NULL)": "NULL",
    "NULL <=> NULL": "true",
    "'Z' < 'a'": "true",
    "'a' || NULL": "NULL",
    "substr('abc', -2)": "'bc'",
    "greatest(1, NULL, 3)": "3",
    "sqrt(-1.0) > 1e300": "true",
}
