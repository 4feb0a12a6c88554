"""Makes models of plain data, and reports every mistake in the words of the configuration rather than pydantic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from spe.problems import Path, Problems, instead_of, one_of
from spe.values import Model

M = TypeVar("M", bound=Model)


def validated(model: type[M], data: Any, path: Path, problems: Problems) -> M | None:
    """Returns the model, or None if it has mistakes.

    Unknown keys are reported and removed, so that they do not hide other mistakes.  If no key is left, missing keys are
    not reported in addition.
    """
    known = without_unknown(model, data, path, problems)
    try:
        return model.model_validate(known)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            where = (*path, *_location(detail))
            if detail["type"] == "value_error" and detail["input"] == {} and _inside(where, problems):
                continue
            problems.add(where, _words(detail))
        return None


def without_unknown(model: type[Model], data: Any, path: Path, problems: Problems) -> Any:
    """Returns ``data`` without keys that ``model`` does not have, at any depth, and reports each."""
    if not isinstance(data, Mapping):
        return data
    fields = model.known()
    out: dict[str, Any] = {}
    for key, value in data.items():
        if key not in fields:
            hint = instead_of(str(key), fields)
            problems.add((*path, str(key)), f"unknown key{hint}; expected {one_of(list(fields))}")
            continue
        out[key] = _known_inside(fields[key].annotation, value, (*path, key), problems)
    return out


def _known_inside(annotation: Any, value: Any, path: Path, problems: Problems) -> Any:
    """Removes unknown keys in Optional[Model], dict[str, Model] and list[Model]."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return without_unknown(annotation, value, path, problems)
    inner = [a for a in get_args(annotation) if a is not type(None)]
    models = [a for a in inner if isinstance(a, type) and issubclass(a, Model)]
    if len(models) != 1:
        return value
    origin = getattr(annotation, "__origin__", None)
    if origin is dict and isinstance(value, Mapping):
        return {k: without_unknown(models[0], v, (*path, k), problems) for k, v in value.items()}
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return [without_unknown(models[0], v, (*path, i), problems) for i, v in enumerate(value)]
    return without_unknown(models[0], value, path, problems)


def _inside(path: Path, problems: Problems) -> bool:
    """Has a mistake been reported in the mapping at ``path``?"""
    return any(p.path[:-1] == path for p in problems.found)


def _location(detail: ErrorDetails) -> Path:
    return tuple(part for part in detail["loc"] if part != "[key]")


_EXPECTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "mapping_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}


def _words(detail: ErrorDetails) -> str:
    """Formats a pydantic error: ``expected a whole number, got 'x'``."""
    kind, got = detail["type"], detail["input"]
    context = detail.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", detail["msg"]))
    shown = _show(got)
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {shown}"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {shown}"
    bounds = {"greater_than": ("gt", "above"), "greater_than_equal": ("ge", "of at least")}
    bounds |= {"less_than": ("lt", "below"), "less_than_equal": ("le", "of at most")}
    if kind in bounds:
        key, word = bounds[kind]
        return f"expected a number {word} {context[key]:g}, got {shown}"
    return f"{detail['msg']}, got {shown}"


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
