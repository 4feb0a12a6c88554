"""Tests of queries, operators and connectors: the names of ``replicas.testing``, loaded on use."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("replicas.testing"), name)
