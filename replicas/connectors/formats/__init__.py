"""Formats of rows: text, Avro, Arrow and Parquet, from bytes to columns and back."""
