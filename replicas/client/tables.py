"""Received results as tables of pandas and Arrow, which are imported on first use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from replicas.client.view import CurrentView
from spe.errors import ConfigError
from spe.plan.plan import Plan
from spe.stream.batch import BoolArray, Rows
from spe.stream.change import Change
from spe.stream.names import StreamId
from spe.stream.schema import Schema

#: Column of a current table that marks tentative rows.
TENTATIVE: Final = "_tentative"
#: Number of stable rows kept per partition, the newest ones.
KEPT_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Rows of one stream.

    Attributes:
      rows: columns.
      tentative: shape (n,), True where a row is tentative; None: all are stable.
    """

    schema: Schema
    rows: Rows
    tentative: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def records(self) -> list[dict[str, Any]]:
        """Returns dicts: timestamps are int microseconds since the epoch, null is None.  For few rows."""
        return [dict(zip(self.schema.names, row, strict=True)) for row in self.rows.to_tuples()]

    def to_arrow(self) -> Any:
        """Returns a pyarrow.Table: int64, double, bool, string, timestamp[us, UTC]; null is null.  Raises
        ConfigError.
        """
        from replicas.connectors.files.parquet_sink import ARROW_TYPES, arrow_array  # says which extra is missing

        import pyarrow as pa  # isort: skip

        fields = [pa.field(a.name, ARROW_TYPES[a.type], nullable=a.nullable) for a in self.schema]
        arrays = [arrow_array(c, a.type) for c, a in zip(self.rows.columns, self.schema, strict=True)]
        if self.tentative is not None:
            fields.append(pa.field(TENTATIVE, pa.bool_(), nullable=False))
            arrays.append(pa.array(self.tentative))
        return pa.table(arrays, schema=pa.schema(fields))

    def to_pandas(self) -> Any:
        """Returns a pandas.DataFrame: Int64, Float64, boolean, string, datetime64[us, UTC]; null is NA, and NaN is no
        null.

        Raises ConfigError: Arrow or pandas is missing.
        """
        table = self.to_arrow()
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(["to_pandas needs pandas: pip install pandas"]) from error
        dtypes = {"int64": "Int64", "double": "Float64", "bool": "boolean", "string": "string"}
        dtype_of = {str(field.type): dtypes.get(str(field.type)) for field in table.schema}
        return table.to_pandas(
            types_mapper=lambda type_: pandas.api.types.pandas_dtype(name) if (name := dtype_of[str(type_)]) else None
        )


class ResultTables:
    """Received results as tables; takes changes as :meth:`replicas.client.client.Client.changes` yields them.

    Args:
      keep: stable rows to keep per partition, the newest ones.
    """

    def __init__(self, plan: Plan, keep: int = KEPT_ROWS) -> None:
        self._plan = plan
        self._view = CurrentView(keep)

    def apply(self, change: Change) -> None:
        self._view.apply(change)

    def stable(self, stream: str) -> ResultTable:
        """Returns the final rows, by time."""
        table = self.current(stream)
        assert table.tentative is not None
        return ResultTable(table.schema, table.rows.select(~table.tentative))

    def current(self, stream: str) -> ResultTable:
        """Returns the newest answer, by time: final rows, and the tentative ones that are not withdrawn, marked."""
        schema = self._plan.query.schema_of(StreamId(stream))
        rows, tentative = self._view.rows(StreamId(stream))
        return ResultTable(schema, Rows.empty(schema) if rows is None else rows, tentative)
