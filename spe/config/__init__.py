"""Configuration: makes a plan and a directory from YAML or Python data (docs/reference/configuration.md)."""

from spe.config.load import (
    load,
    load_data,
    load_document,
    load_plan,
    load_plan_data,
    load_plan_text,
    load_text,
    missing_files,
    read_document,
)

__all__ = [
    "load",
    "load_data",
    "load_document",
    "load_plan",
    "load_plan_data",
    "load_plan_text",
    "load_text",
    "missing_files",
    "read_document",
]
