"""Tables of the documentation that declarations make: ``python -m tests.support.doc_tables docs/*/*.md``.

In a page, what stands between the lines ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from inspect import cleandoc
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from consistency.dpc.states import TRANSITIONS
from consistency.faults.kind import Maker
from consistency.faults.kinds import KINDS
from consistency.proof.report.model import Flaw
from replicas.planning.files import OperatorModel
from replicas.spark.options import READING, WRITING, Option
from spe.config.accuracy import AccuracyModel
from spe.config.deployment import CheckpointModel, CoordinatorModel, LimitsModel, NodeModel, TimingModel
from spe.config.recovery import RecoveryModel
from spe.config.sources import SourceModel
from spe.connectors import READERS, SINKS
from spe.connectors.declaration import CURRENT, OPTIONS, SinkDeclaration
from spe.expressions.functions import FUNCTIONS
from spe.expressions.functions import OPERATORS as OPERATORS_IN_SQL
from spe.plan.generators import GENERATORS
from spe.query.aggregates import AGGREGATES
from spe.query.operators import OPERATORS
from spe.status import ClusterStatus, CommonStatus
from spe.stream.names import NodeState
from spe.text_table import markdown_table
from spe.values import PositiveDuration, Size
from spe.wire.messages.message import EVERYBODY, MESSAGES
from tests.support.sql_examples import EXAMPLES

ROOT: Final = Path(__file__).parents[2]

#: A field in the docstring of a class, whose description may go on in further lines.
_ATTRIBUTE: Final = re.compile(r"^  (\w+): (.*(?:\n    .*)*)", re.MULTILINE)
_TYPES: Final[Mapping[Any, str]] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    NodeState: "[state](states.md)",
    type(None): "null",
}
_PLACE: Final = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with its tables as they are to be."""
    return _PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"{line}\n" for line in markdown_table(head, rows))


def _guarantees() -> str:
    rows = [
        (f"{keyword}, {one.what}" if one.what else keyword, one.time, one.order)
        for keyword, declared in OPERATORS.items()
        for one in declared.GUARANTEES
    ]
    return _table(("operator", "time of a result", "order of results of equal time"), rows)


def _keys() -> str:
    rows = [
        (f"`{keyword}`" if i == 0 else "", *row)
        for keyword, declared in OPERATORS.items()
        for i, row in enumerate(_fields(declared.KEYS))
    ]
    return _table(("operator", "key", "default", ""), rows)


def _code(path: str) -> str:
    code = re.sub("^# ruff: .*\n", "", (ROOT / path).read_text(encoding="utf-8"))
    return f"```python\n{code}```\n"


def _aggregates() -> str:
    rows = [
        (
            f"`{name.replace('_', '(')} x)`" if name == "count_distinct" else f"`{name}(x)`",
            "int64, float64" if function.numeric else "any",
            function.about,
            "0" if function.is_count else "null",
        )
        for name, function in AGGREGATES.items()
    ]
    return _table(("function", "argument", "result", "of nulls only"), rows)


def _readers() -> str:
    rows = [(f"`{{{kind}: {one.written}}}`", _names(one.options)) for kind, one in READERS.items()]
    live = _names(kind for kind, one in READERS.items() if one.live)
    below = f"Live are {live}: their rows come once. The others can be read again."
    return f"{_table(('`from:`', 'options'), rows)}\n{below}\n"


def _options() -> str:
    return _table(("option", ""), [(f"`{name}`", about) for name, (_, about) in OPTIONS.items()])


def _generators() -> str:
    rows = [(f"`{n}`", one.about, f"`{one.schema}`" if one.schema else "the source's") for n, one in GENERATORS.items()]
    return _table(("generator", "rows", "schema"), rows)


def _sinks() -> str:
    return _table(("sink", "modes"), [(f"`{{{k}: {one.written}}}`", _names(one.modes)) for k, one in SINKS.items()])


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


#: Rows of a connector: the table, what holds or happens, and what is stated of it.
_Row = tuple[str, str, str]
_HEADS: Final = {"holds": ("", "what holds"), "fails": ("what happens", "what it does")}


def _connectors() -> str:
    """A section for each connector; what several of them state in the same words stands once, before them."""
    return "\n".join(_side(what, list(known.values())) for what, known in (("from", READERS), ("sinks", SINKS)))


def _recipes() -> str:
    """The title and the query of each example of the cookbook; the files have the sources, too."""
    out = []
    for file in sorted((ROOT / "configs/cookbook").glob("*.yaml")):
        title, _, rest = file.read_text(encoding="utf-8").partition("\n")
        query = rest[rest.index("query:") :]
        out.append(f"#{title}\n\n```yaml\n# {file.relative_to(ROOT)}\n{query}```\n")
    return "\n".join(out)


def _side(what: str, declared: list[Any]) -> str:
    sections: dict[int, list[Any]] = {}
    for one in declared:
        sections.setdefault(id(one.guarantees) if _model_of(one.value) is None else id(one), []).append(one)
    rows = {key: _rows(ones[0]) for key, ones in sections.items()}
    users: dict[_Row, list[str]] = {}
    for key, ones in sections.items():
        for row in rows[key]:
            users.setdefault(row, []).append(_kinds(ones))
    shared = {row: names for row, names in users.items() if len(names) > 1}
    out = [f"## `{what}`: in common\n\n" + _in_common(shared)]
    for key, ones in sections.items():
        own = [row for row in rows[key] if row not in shared]
        out.append(f"## `{what}`: {_kinds(ones)}\n\n{_about(ones)}{_stated(own, len(own) < len(rows[key]), what)}")
    return "\n".join(out)


def _kinds(declared: Iterable[Any]) -> str:
    return ", ".join(f"`{one.kind}`" for one in declared)


def _rows(declared: Any) -> list[_Row]:
    """What a connector states, and what it does when something fails."""
    states = declared.guarantees
    crashes = {"durable copy": states.durable, "after our crash": states.own_crash, "after theirs": states.other_crash}
    rows = [("holds", *pair) for pair in crashes.items()]
    if isinstance(declared, SinkDeclaration):
        rows += [("holds", f"mode `{mode}`", about) for mode, about in declared.modes.items()]
        if CURRENT not in declared.modes:
            rows.append(("holds", f"no mode `{CURRENT}`", declared.not_current))
    return rows + [("fails", *pair) for pair in states.failures.items()]


def _in_common(shared: Mapping[_Row, list[str]]) -> str:
    rows = [(", ".join(names), left, right) for (_, left, right), names in shared.items()]
    return _table(("of", "what holds or happens", ""), rows)


def _about(declared: Sequence[Any]) -> str:
    """What it is, an example, and its options; of several that are alike a table."""
    if len(declared) > 1:
        rows = [(f"`{one.kind}`", one.about, f"`{one.example}`") for one in declared]
        return _table(("kind", "", "example"), rows) + "\n"
    (one,) = declared
    first = next(at for at, c in enumerate(one.about) if c.isalpha())
    about = f"{one.about[:first]}{one.about[first].upper()}{one.about[first + 1 :]}"
    options = "" if (keys := _model_of(one.value)) is None else _options_of(keys, one) + "\n"
    return f"{about}.\n\n```yaml\n{one.example}\n```\n\n{options}"


def _options_of(keys: type[BaseModel], declared: Any) -> str:
    """The keys of a connector; those that a sink shares with the reader of its kind stand there only."""
    reader = READERS.get(declared.kind) if isinstance(declared, SinkDeclaration) else None
    known = [] if reader is None or (model := _model_of(reader.value)) is None else _fields(model)
    rows = _fields(keys)
    own = _table(("key", "default", ""), [row for row in rows if row not in known])
    if not (same := [row[0] for row in rows if row in known]):
        return own
    link = f"{', '.join(same)}: as [of the source](#from-{declared.kind}).\n"
    return link if len(same) == len(rows) else f"{own}\n{link}"


def _stated(rows: list[_Row], more: bool, what: str) -> str:
    tables = [_table(head, [row[1:] for row in rows if row[0] == kind]) for kind, head in _HEADS.items()]
    link = [f"More is [in common](#{what}-in-common).\n"] if more else []
    return "\n".join([*(table for table in tables if table.count("\n") > 2), *link])


def _model_of(value: Any) -> type[BaseModel] | None:
    """The model in a type, if there is one."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value
    return next((found for one in get_args(value) if (found := _model_of(one)) is not None), None)


def _spark(options: Mapping[str, Option]) -> str:
    rows = []
    for name, one in options.items():
        default = "required" if one.default is None else f"`{one.default}`" if one.default else "none"
        rows.append((f"`{name}`", default, one.about))
    return _table(("option", "default", "meaning"), rows)


def _fields(keys: type[BaseModel]) -> list[tuple[str, str, str]]:
    fields = keys.model_fields.items()
    return [(f"`{field.alias or name}`", _default(field), str(field.description)) for name, field in fields]


def _settings(model: type[BaseModel], prefix: str = "", *, leaving_out: tuple[str, ...] = ()) -> str:
    """The keys of a section of the configuration, as the docstrings of its model describe them."""
    about = _attributes(model)
    rows = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        text, _, default = about[key].removesuffix(".").partition(" Default: ")
        if key not in leaving_out:
            rows.append((f"`{prefix}{key}`", default or _default(field), text.removesuffix(".")))
    return _table(("key", "default", ""), rows)


def _attributes(described: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each attribute."""
    about: dict[str, str] = {}
    for base in reversed(described.__mro__):
        about |= _ATTRIBUTE.findall(cleandoc(base.__doc__ or ""))
    return {name: " ".join(text.split()) for name, text in about.items()}


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None or value in ((), {}):
        return "none"
    if get_args(Size)[1] in field.metadata:
        return f"`{value >> 20}MiB`"
    if get_args(PositiveDuration)[1] in field.metadata:
        return f"`{value // 1000}ms`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower()}`"


def _statuses() -> str:
    """A section for each class of a status, with a table of its fields; fields of every process stand once."""
    common = get_type_hints(CommonStatus).keys() - {"kind"}
    sections = []
    for one in dict.fromkeys([ClusterStatus, CommonStatus, *_classes(ClusterStatus)]):
        about = _attributes(one)
        left_out = common if one is not CommonStatus and issubclass(one, CommonStatus) else ()
        rows = [(f"`{n}`", _type(hint), about[n]) for n, hint in get_type_hints(one).items() if n not in left_out]
        first = cleandoc(one.__doc__ or "").splitlines()[0]
        sections.append(f"## {one.__name__}\n\n{first}\n\n{_table(('field', 'type', ''), rows)}")
    return "\n".join(sections)


def _classes(hint: Any) -> Iterator[type]:
    """Dataclasses in a type, each before those of its fields."""
    if is_dataclass(hint) and isinstance(hint, type):
        yield hint
    inner = get_type_hints(hint).values() if is_dataclass(hint) else get_args(hint)
    for each in inner:
        yield from _classes(each)


def _type(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(f'`"{one}"`' for one in inner)
    if origin in (Union, UnionType):
        return " or ".join(map(_type, inner))
    if origin is tuple:
        return f"list of {_type(inner[0])}"
    if origin is not None:
        return f"map of text to {_type(inner[1])}"
    return _TYPES[hint] if hint in _TYPES else f"[{hint.__name__}](#{hint.__name__.lower()})"


def _messages() -> str:
    """The names of messages by the roles that send them, in the order of their declaration."""
    by_senders: dict[str, list[str]] = {}
    for _, message in sorted(MESSAGES.items()):
        senders = "all" if message.SENDERS == EVERYBODY else ", ".join(sorted(message.SENDERS))
        by_senders.setdefault(senders or "answers", []).append(message.__name__)
    rows = [(senders, ", ".join(names)) for senders, names in by_senders.items()]
    return _table(("role of the process that connected", "messages that it sends"), rows)


def _docstring(file: str) -> str:
    """Of a module, as Markdown."""
    text = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8"))) or ""
    text = re.sub(r"::\n\n((?:    .*\n?)+)", lambda block: f":\n\n```text\n{cleandoc(block[1])}\n```\n", text + "\n")
    return re.sub(r"(?<!`)``([^`]+)``(?!`)", r"`\1`", text)


def _sql_examples() -> str:
    escaped = {text.replace("|", "\\|"): value for text, value in EXAMPLES.items()}
    return _table(("expression", "value"), [(f"`{text}`", f"`{value}`") for text, value in escaped.items()])


def _functions() -> str:
    """Functions by the type of their result; numbers may be of either type, and optional arguments are in brackets."""
    found: dict[str, list[str]] = {}
    for name, rows in FUNCTIONS.items():
        if name in OPERATORS_IN_SQL:
            continue
        first, last = rows[0].arguments, rows[-1].arguments
        types = ["number" if a != b else str(a) for a, b in zip(first, last, strict=False)]
        rest = "".join(f" [, {a}]" for a in last[len(first) :]) + (", …" if rows[0].variadic else "")
        result = "number" if rows[0].result != rows[-1].result else str(rows[0].result)
        found.setdefault(result, []).append(f"`{name}({', '.join(types)}{rest})`")
    return _table(("result", "functions"), [(result, ", ".join(each)) for result, each in found.items()])


def _faults() -> str:
    rows = []
    only = {Maker.PROCESSES: "", Maker.PROXY: "`--links proxy`", Maker.SIMULATION: "simulation"}
    for name, kind in KINDS.items():
        rows.append((f"`{name}`", ", ".join(f"`{field}`" for field in kind.fields), only[kind.maker], kind.about))
    return _table(("kind", "fields, besides `at`", "only with", "what happens"), rows)


def _flaws() -> str:
    return _table(("flaw", "meaning"), [(str(flaw), flaw.about) for flaw in Flaw])


def _states() -> str:
    """The transition table as a Mermaid diagram."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> RECOVERING"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state.name} --> {target.name}: {event.value}" for event, target in row.items()]
    return "\n".join([*lines, "```", ""])


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "guarantees of the operators": _guarantees,
    "aggregate functions": _aggregates,
    **{
        f"code of {path}": partial(_code, path)
        for path in (
            "tests/support/sample_operator.py",
            "tests/support/range_aggregate.py",
            "tests/support/cumulate_window.py",
        )
    },
    "keys of the operators": _keys,
    "readers": _readers,
    "options of readers": _options,
    "generators": _generators,
    "sinks": _sinks,
    "connectors": _connectors,
    "recipes": _recipes,
    "options of Spark readers": partial(_spark, READING),
    "options of Spark writers": partial(_spark, WRITING),
    "classes of a status": _statuses,
    "keys of a source": partial(_settings, SourceModel),
    "keys of the coordinator": partial(_settings, CoordinatorModel, "coordinator."),
    "keys of recovery": partial(_settings, RecoveryModel),
    "keys of a node": partial(_settings, NodeModel),
    "keys of a checkpoint log": partial(_settings, CheckpointModel, leaving_out=("every", "disk", "continuous")),
    "keys of accuracy": partial(_settings, AccuracyModel),
    "keys of timing": partial(_settings, TimingModel, "timing."),
    "keys of limits": partial(_settings, LimitsModel, "limits."),
    "messages": _messages,
    "faults": _faults,
    "functions": _functions,
    "examples of expressions": _sql_examples,
    "keys of an operator": partial(_settings, OperatorModel),
    "docstring of replicas/client/start.py": partial(_docstring, "replicas/client/start.py"),
    "docstring of spe/wire/framing.py": partial(_docstring, "spe/wire/framing.py"),
    "docstring of spe/wire/layout.py": partial(_docstring, "spe/wire/layout.py"),
    "docstring of spe/wire/string_table.py": partial(_docstring, "spe/wire/string_table.py"),
    "flaws": _flaws,
    "states": _states,
}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(filled(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
