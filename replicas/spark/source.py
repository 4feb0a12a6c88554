"""``format("spe")``: with the option ``cluster``, outputs and sources of a running cluster; else files of a run.

    spark.readStream.format("spe").option("cluster", "shop.yaml").option("output", "best").option("client", "spark")
    frame.writeStream.format("spe").option("cluster", "shop.yaml").option("source", "orders").option("writer", "etl")
    spark.read.format("spe").option("source", "orders").load(RUN_DIR)

Options of a cluster: :mod:`replicas.spark.options`; of files: :mod:`consistency.proof.recorded.table_source`.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter
from pyspark.sql.types import StructType

from consistency.proof.recorded.records import CHANGES
from consistency.proof.recorded.table_source import SpeDataSource
from consistency.proof.storage.arrow import spark_schema
from replicas.spark.live import LiveOutput
from replicas.spark.options import read_options, write_options
from replicas.spark.readers import ChangesReader, LiveReader, StableReader
from replicas.spark.writer import LiveSource, LiveWriter
from spe.errors import SpeError


class DefaultSource(SpeDataSource):
    """The data source; see the module."""

    @property
    def _live(self) -> bool:
        return "cluster" in self.options

    def _output(self) -> LiveOutput:
        return LiveOutput.of(read_options(self.options))

    def schema(self) -> StructType:
        return spark_schema(self._output().table.arrow_schema) if self._live else super().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        if not self._live:
            return super().reader(schema)
        output = self._output()
        if output.what.mode == CHANGES:
            raise SpeError("mode changes is for readStream: a table of a running cluster has stable tuples only")
        return LiveReader(output)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if not self._live:
            return super().streamReader(schema)
        output = self._output()
        return ChangesReader(output) if output.what.mode == CHANGES else StableReader(output)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        if not self._live:
            raise SpeError("give the option cluster: rows are pushed to a source of a running cluster")
        return LiveWriter(LiveSource.of(write_options(self.options)), schema)


def register(spark: SparkSession) -> None:
    """Registers the data source in a session whose Spark does not find this package by itself."""
    spark.dataSource.register(DefaultSource)
