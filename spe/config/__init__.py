"""Configuration: one YAML file (or the same data from Python) to a plan.  See docs/reference/configuration.md."""

from spe.config.load import load_plan, load_plan_data, load_plan_text, missing_files

__all__ = ["load_plan", "load_plan_data", "load_plan_text", "missing_files"]
