"""The ``query`` section: makes a typed query, and reports every mistake of every operator that can be checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from spe.config.validate import validated
from spe.errors import ExpressionError, QueryError
from spe.plan.graphs import stable_order
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.query.declaration import OperatorSpec
from spe.query.operators import OPERATORS
from spe.query.query import QueryOperator
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.values import is_select

_EXAMPLE: Final = "NAME: {filter: {from: …, where: …}}"
_NOT_SQL: Final = "a query has operators, whose expressions alone are SQL; "
#: Reasons why an operator does not have a key that others have.
WITHOUT: Final = {"on_error": "no row makes it fail", "on_late": "no row is late for it"}


def read_operators(section: Any, problems: Problems) -> dict[StreamId, OperatorSpec | None]:
    """Reads the specification of each operator; None if its entry is wrong."""
    if not isinstance(section, Mapping) or not section:
        expected = f"{_NOT_SQL if is_select(section) else ''}expected a mapping of operators, indented: {_EXAMPLE}"
        problems.add(("query",), f"is missing or empty; {expected}" if section is None else expected)
        return {}
    specs: dict[StreamId, OperatorSpec | None] = {}
    for name, entry in section.items():
        specs[StreamId(name)] = None
        if mistake := _misplaced(name, entry):
            problems.add(("query", name), mistake)
        else:
            specs[StreamId(name)] = _read_one(entry, ("query", name), problems)
    return specs


def _misplaced(name: str, entry: Any) -> str:
    """The mistake in an operator as a whole: missing, in SQL, or indented wrongly; "" if there is none."""
    if entry is None:
        return f"is empty; expected an operator, indented below it, {one_of(list(OPERATORS))}"
    if is_select(entry):
        return f"{_NOT_SQL}expected {_EXAMPLE}"
    if not isinstance(entry, Mapping) or not entry:
        return ""
    kinds = [k for k in entry if k in OPERATORS]
    keys = _keys_of(name) if not kinds and name in OPERATORS else _keys_of(kinds[0]) if len(kinds) == 1 else set()
    strays = [str(k) for k in entry if k not in kinds and k in keys]
    if not strays or len(strays) + len(kinds) < len(entry):
        return ""
    if not kinds:
        return f"is a kind of operator; expected it below a name, indented: NAME: {{{name}: {{…}}}}"
    return f"{', '.join(strays)}: keys of {kinds[0]}; expected below it, indented deeper"


def _keys_of(kind: str) -> set[str]:
    return set(OPERATORS[kind].KEYS.known())


def _read_one(entry: Any, path: Path, problems: Problems) -> OperatorSpec | None:
    if not isinstance(entry, Mapping) or not entry:
        problems.add(path, f"expected an operator, {one_of(list(OPERATORS))}")
        return None
    for kind in entry:
        if kind not in OPERATORS:
            hint = did_you_mean(str(kind), OPERATORS)
            problems.add((*path, str(kind)), f"no operator {kind!r}{hint}; expected {one_of(list(OPERATORS))}")
    kinds = [k for k in entry if k in OPERATORS]
    if len(kinds) > 1:
        problems.add(path, f"expected one operator, got {', '.join(kinds)}; give each its own name")
    if len(kinds) != 1 or len(entry) != 1:
        return None
    kind = kinds[0]
    body = entry[kind]
    declared = OPERATORS[kind]
    if declared.SHORTHAND is not None and not isinstance(body, Mapping):
        body = {declared.SHORTHAND: body}
    for key, why in WITHOUT.items():
        if isinstance(body, Mapping) and key in body and key not in declared.KEYS.model_fields:
            problems.add((*path, kind, key), f"{kind} has no {key}: {why}")
            body = {k: value for k, value in body.items() if k != key}
    keys = validated(declared.KEYS, body, (*path, kind), problems)
    return None if keys is None else declared.of(keys)


def type_query(
    sources: Mapping[StreamId, Schema | None],
    specs: Mapping[StreamId, OperatorSpec | None],
    section: Mapping[str, Any],
    problems: Problems,
) -> dict[StreamId, QueryOperator]:
    """Types operators, in topological order, without those with mistakes and their readers.

    Args:
      sources: schema per source, None if it is unknown because of a mistake.
      section: the ``query`` section as written, to place a mistake in it.
    """
    known = [*sources, *specs]
    graph: dict[StreamId, list[StreamId]] = {}
    for name, spec in specs.items():
        path = ("query", str(name))
        if name in sources:
            problems.add(path, f"{name!r} is the name of a source as well; expected another name")
        graph[name] = []
        if spec is None:
            continue
        kind = _kind(section, name)
        for port, stream in enumerate(spec.inputs):
            if stream not in known:
                hint = did_you_mean(stream, known)
                where = spec.input_path(section[name][kind], port)
                problems.add(
                    (*path, kind, *where), f"no stream {stream!r}{hint}; expected a source or operator, {one_of(known)}"
                )
            elif stream in specs:
                graph[name].append(stream)
            if stream in known and (wrong := _misread(spec, specs.get(stream))):
                where = spec.input_path(section[name][kind], port)
                problems.add((*path, kind, *where), f"{stream!r} {wrong}")
    order, circles = stable_order(graph)
    for circle in circles:
        problems.add(("query", str(circle[0])), f"reads itself: {' → '.join(circle)}; a query has no circles")
    return _type_in_order(order, sources, specs, section, problems)


def _misread(reader: OperatorSpec, maker: OperatorSpec | None) -> str:
    """The reason why an operator cannot read a stream of rejected or of ordinary rows (U15); "" if it can."""
    if not reader.TAKES_REJECTED:
        rejections = maker is not None and maker.TAKES_REJECTED
        return "has what an operator rejects, which only clients read; expected another stream" if rejections else ""
    if maker is not None and maker.rejects:
        return ""
    return "rejects nothing; expected an operator with on_error: skip or on_late: reject"


def _type_in_order(
    order: Sequence[StreamId],
    sources: Mapping[StreamId, Schema | None],
    specs: Mapping[StreamId, OperatorSpec | None],
    section: Mapping[str, Any],
    problems: Problems,
) -> dict[StreamId, QueryOperator]:
    schemas: dict[StreamId, Schema] = {s: schema for s, schema in sources.items() if schema is not None}
    typed: dict[StreamId, QueryOperator] = {}
    for name in order:
        spec = specs.get(name)
        if spec is None or name in sources or any(s not in schemas for s in spec.inputs):
            continue
        path = ("query", str(name), _kind(section, name))
        inputs = [schemas[s] for s in spec.inputs]
        schema = _schema_of(spec, inputs, path, section[name][path[-1]], problems)
        if schema is not None:
            schemas[name] = schema
            typed[name] = QueryOperator(name, spec, schema)
    return typed


def _kind(section: Mapping[str, Any], name: str) -> str:
    return next(str(k) for k in section[name] if k in OPERATORS)


def _schema_of(
    spec: OperatorSpec, inputs: Sequence[Schema], path: Path, body: Any, problems: Problems
) -> Schema | None:
    """Returns the schema; or None, and reports mistakes: after a wrong column or aggregate, the others are checked."""
    rest: OperatorSpec | None = spec
    failed = False
    while rest is not None:
        try:
            schema = rest.output_schema(inputs)
            return None if failed else schema
        except ExpressionError as error:
            where = _path_of_text(rest, error.text, body)
            hint = f"; {error.hint}" if error.hint else ""
            problems.add((*path, *where), f"{error.message}{hint}", error.text, error.position)
        except QueryError as error:
            where = _written_path(rest, error.field)
            problems.add((*path, *where), error.message)
        failed = True
        rest = _without(rest, where)
    return None


def _written_path(spec: OperatorSpec, field: str) -> Path:
    """Path of a field, below the operator's kind; ``field`` is as in ``aggregates.total``."""
    head, *rest = field.split(".")
    if head in spec.ENTRIES:  # names may contain anything, but are followed by one part at most
        return (spec.ENTRIES[head], *rest[:1])
    return (spec.WRITTEN.get(head, head), *[int(r) if r.isdecimal() else r for r in rest]) if head else ()


def _path_of_text(spec: OperatorSpec, text: str, body: Any) -> Path:
    """Path of an expression, below the operator's kind."""
    for field, section in spec.ENTRIES.items():
        entries = getattr(spec, field)
        by_name = isinstance(entries, Mapping)
        for i, entry in enumerate(entries.values() if by_name else entries):
            if text == (entry[0] if isinstance(entry, tuple) else getattr(entry, "argument", entry)):
                if isinstance(body.get(section), list | tuple):
                    return (section, i)
                return (section, list(entries)[i]) if by_name else (section,)
    return ("where",) if getattr(spec, "where", None) == text else ()


def _without(spec: OperatorSpec, where: Path) -> OperatorSpec | None:
    """Returns the specification without the wrong entry, if the rest can be checked separately."""
    field = next((f for f, section in spec.ENTRIES.items() if where[:1] == (section,)), None)
    if field is None or len(where) < 2:
        return None
    entries, gone = getattr(spec, field), where[1]
    keys = list(entries) if isinstance(entries, Mapping) else range(len(entries))
    key = keys[gone] if isinstance(gone, int) and gone < len(keys) else gone
    if key not in keys:
        return None
    remaining = [k for k in keys if k != key]
    left = {k: entries[k] for k in remaining} if isinstance(entries, Mapping) else tuple(entries[k] for k in remaining)
    rest: OperatorSpec = replace(cast(Any, spec), **{field: left})
    return (
        rest if any(getattr(rest, f) for f in spec.ENTRIES) else None
    )  # an empty specification would be another mistake


def find_outputs(section: Any, specs: Mapping[StreamId, OperatorSpec | None], problems: Problems) -> list[StreamId]:
    """Returns the streams that clients read: as listed, or those that no operator reads."""
    if section is None:
        read = {s for spec in specs.values() if spec is not None and not spec.TAKES_REJECTED for s in spec.inputs}
        return [name for name in specs if name not in read]
    items = [section] if isinstance(section, str) else list(section) if isinstance(section, Mapping) else section
    if not isinstance(items, list | tuple) or not items:
        problems.add(
            ("outputs",), f"expected a list of operators, {one_of(list(specs))}; or a mapping: NAME: {{bound: 6s}}"
        )
        return []
    outputs: list[StreamId] = []
    for i, name in enumerate(items):
        path: Path = ("outputs", name if isinstance(section, Mapping) else i) if items != [section] else ("outputs",)
        if not isinstance(name, str) or name not in specs:
            hint = did_you_mean(str(name), specs)
            problems.add(path, f"no operator {name!r}{hint}; expected {one_of(list(specs))}")
        elif name in outputs:
            problems.add(path, f"{name!r} is listed twice")
        else:
            outputs.append(StreamId(name))
    return outputs
