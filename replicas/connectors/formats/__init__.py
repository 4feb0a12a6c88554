"""Formats of rows: converts text, Avro, Arrow and Parquet to columns and back."""
