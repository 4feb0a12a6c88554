"""SQL expressions over columns: parsed, typed and compiled to one NumPy function when the configuration is read.

``parse`` (text to syntax) -> ``check`` (syntax to typed tree, by the table in ``functions``) -> ``generate`` (typed
tree to NumPy).  docs/reference/expressions.md describes the language and its differences from Spark's.
"""

from spe.errors import ExpressionError
from spe.expressions.expression import Expression, compile_expression, compile_predicate

__all__ = ["Expression", "ExpressionError", "compile_expression", "compile_predicate"]
