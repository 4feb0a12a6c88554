"""SQL expressions over columns: parsed, typed and turned into one NumPy function when the configuration is read.

``parse`` (text to syntax) -> ``check`` (syntax to typed tree, by the table in ``functions``) -> ``generate`` (typed
tree to NumPy).  What the language is, and where it parts from Spark's, is in docs/reference/expressions.md.
"""

from spe.errors import ExpressionError
from spe.expressions.expression import Expression, compile_expression, compile_predicate

__all__ = ["Expression", "ExpressionError", "compile_expression", "compile_predicate"]
