"""Configuration: one YAML file (or the same data from Python) to a plan.  See docs/reference/configuration.md."""

from spe.config.load import (
    load_document,
    load_plan,
    load_plan_data,
    load_plan_text,
    missing_files,
    read_document,
)

__all__ = ["load_document", "load_plan", "load_plan_data", "load_plan_text", "missing_files", "read_document"]
