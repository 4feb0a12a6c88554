"""The ``query`` section to a typed query, with every mistake of every operator that can be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from spe.config.operators import NEVER_FAIL, OPERATORS, AnyOperator, written_path
from spe.config.validate import validated
from spe.errors import ExpressionError, QueryError
from spe.plan.graphs import stable_order
from spe.problems import Path, Problems, did_you_mean, one_of
from spe.query.query import AggregateSpec, FilterSpec, MapSpec, Operator, OperatorSpec, TopKSpec, inputs_of
from spe.query.typing import derive_schema
from spe.stream.names import StreamId
from spe.stream.schema import Schema


def read_operators(section: Any, problems: Problems) -> dict[StreamId, OperatorSpec | None]:
    """Specification per operator, None where its entry is wrong."""
    if not isinstance(section, Mapping) or not section:
        problems.add(("query",), "expected a mapping of operators: NAME: {filter: {from: …, where: …}}")
        return {}
    specs: dict[StreamId, OperatorSpec | None] = {}
    for name, entry in section.items():
        specs[StreamId(name)] = _read_one(entry, ("query", name), problems)
    return specs


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
    if kind == "union" and not isinstance(body, Mapping):
        body = {"from": body}
    if kind in NEVER_FAIL and isinstance(body, Mapping) and "on_error" in body:
        problems.add((*path, kind, "on_error"), f"{kind} has no on_error: no row makes it fail")
        body = {key: value for key, value in body.items() if key != "on_error"}
    model = cast("AnyOperator | None", validated(OPERATORS[kind], body, (*path, kind), problems))
    return None if model is None else model.spec()


def type_query(
    sources: Mapping[StreamId, Schema | None],
    specs: Mapping[StreamId, OperatorSpec | None],
    section: Mapping[str, Any],
    problems: Problems,
) -> dict[StreamId, Operator]:
    """Operators in topological order; those with mistakes, and what reads them, are left out.

    Args:
      sources: schema per source, None where it is not known for a mistake.
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
        for port, stream in enumerate(inputs_of(spec)):
            if stream not in known:
                hint = did_you_mean(stream, known)
                where = _input_path(kind, section[name][kind], port)
                problems.add(
                    (*path, kind, *where), f"no stream {stream!r}{hint}; expected a source or operator, {one_of(known)}"
                )
            elif stream in specs:
                graph[name].append(stream)
    order, circles = stable_order(graph)
    for circle in circles:
        problems.add(("query", str(circle[0])), f"reads itself: {' → '.join(circle)}; a query has no circles")
    return _type_in_order(order, sources, specs, section, problems)


def _type_in_order(
    order: Sequence[StreamId],
    sources: Mapping[StreamId, Schema | None],
    specs: Mapping[StreamId, OperatorSpec | None],
    section: Mapping[str, Any],
    problems: Problems,
) -> dict[StreamId, Operator]:
    schemas: dict[StreamId, Schema] = {s: schema for s, schema in sources.items() if schema is not None}
    typed: dict[StreamId, Operator] = {}
    for name in order:
        spec = specs.get(name)
        if spec is None or name in sources or any(s not in schemas for s in inputs_of(spec)):
            continue
        path = ("query", str(name), _kind(section, name))
        inputs = [schemas[s] for s in inputs_of(spec)]
        schema = _schema_of(spec, inputs, path, section[name][path[-1]], problems)
        if schema is not None:
            schemas[name] = schema
            typed[name] = Operator(name, spec, schema)
    return typed


def _kind(section: Mapping[str, Any], name: str) -> str:
    return next(str(k) for k in section[name] if k in OPERATORS)


def _input_path(kind: str, body: Any, port: int) -> Path:
    if kind == "join":
        return (("left", "right")[port],)
    names = body if kind == "union" and not isinstance(body, Mapping) else body["from"]
    prefix: Path = () if names is body else ("from",)
    return prefix if isinstance(names, str) else (*prefix, port)


def _schema_of(
    spec: OperatorSpec, inputs: Sequence[Schema], path: Path, body: Any, problems: Problems
) -> Schema | None:
    """The schema, or None and what is wrong: when one column or aggregate is, the others are looked at as well."""
    rest: OperatorSpec | None = spec
    failed = False
    while rest is not None:
        try:
            schema = derive_schema(rest, inputs)
            return None if failed else schema
        except ExpressionError as error:
            where = _path_of_text(rest, error.text, body)
            hint = f"; {error.hint}" if error.hint else ""
            problems.add((*path, *where), f"{error.message}{hint}", error.text, error.position)
        except QueryError as error:
            where = written_path(error.field)
            problems.add((*path, *where), error.message)
        failed = True
        rest = _without(rest, where)
    return None


def _path_of_text(spec: OperatorSpec, text: str, body: Any) -> Path:
    """Which field of the specification has this expression."""
    if isinstance(spec, MapSpec):
        return next((("compute", n) for n, t in spec.columns.items() if t == text), ())
    if isinstance(spec, AggregateSpec):
        for name, call in spec.aggregates.items():
            if call.argument == text:
                return ("compute", name)
        for i, (name, expression) in enumerate(spec.group_by.items()):
            if expression == text:
                written = body.get("group_by")
                return ("group_by", i if isinstance(written, list | tuple) else name)
    if isinstance(spec, TopKSpec):
        for i, (expression, _) in enumerate(spec.order_by):
            if expression == text:
                return ("order_by", i) if isinstance(body.get("order_by"), list | tuple) else ("order_by",)
    if isinstance(spec, FilterSpec) or getattr(spec, "where", None) == text:
        return ("where",)
    return ()


def _without(spec: OperatorSpec, where: Path) -> OperatorSpec | None:
    """The specification less the part that is wrong, if something remains to be judged by itself."""
    if len(where) < 2:
        return None
    section, name = where[0], where[1]
    if isinstance(spec, MapSpec) and section == "compute":
        columns = {n: t for n, t in spec.columns.items() if n != name}
        return replace(spec, columns=columns) if columns and len(columns) < len(spec.columns) else None
    if isinstance(spec, AggregateSpec) and section == "compute":
        calls = {n: c for n, c in spec.aggregates.items() if n != name}
        return (
            replace(spec, aggregates=calls) if len(calls) < len(spec.aggregates) and _judgeable(spec, calls) else None
        )
    if isinstance(spec, AggregateSpec) and section == "group_by":
        names = list(spec.group_by)
        gone = names[name] if isinstance(name, int) and name < len(names) else name
        groups = {n: t for n, t in spec.group_by.items() if n != gone}
        left = replace(spec, group_by=groups)
        return left if len(groups) < len(names) and _judgeable(left, spec.aggregates) else None
    if isinstance(spec, TopKSpec) and section == "order_by" and isinstance(name, int):
        orders = spec.order_by[:name] + spec.order_by[name + 1 :]
        return replace(spec, order_by=orders) if orders else None
    return None


def _judgeable(spec: AggregateSpec, calls: Mapping[str, Any]) -> bool:
    """An aggregate without groups and calls would be a mistake of its own."""
    return bool(calls or spec.group_by)


def find_outputs(section: Any, specs: Mapping[StreamId, OperatorSpec | None], problems: Problems) -> list[StreamId]:
    """The streams that clients read: as listed, or those that no operator reads."""
    if section is None:
        read = {s for spec in specs.values() if spec is not None for s in inputs_of(spec)}
        return [name for name in specs if name not in read]
    items = [section] if isinstance(section, str) else section
    if not isinstance(items, list | tuple) or not items:
        problems.add(("outputs",), f"expected a list of operators, {one_of(list(specs))}")
        return []
    outputs: list[StreamId] = []
    for i, name in enumerate(items):
        path: Path = ("outputs", i) if items is section else ("outputs",)
        if not isinstance(name, str) or name not in specs:
            hint = did_you_mean(str(name), specs)
            problems.add(path, f"no operator {name!r}{hint}; expected {one_of(list(specs))}")
        elif name in outputs:
            problems.add(path, f"{name!r} is listed twice")
        else:
            outputs.append(StreamId(name))
    return outputs
