"""SQL expressions over columns: a closed, typed subset with three-valued logic (docs/expressions.md)."""

from spe.expressions.compiler import Expression, compile_expression, compile_predicate

__all__ = ["Expression", "compile_expression", "compile_predicate"]
