"""YAML with the line of every key and value, so that each mistake can be shown in its place.

The schema is YAML 1.2's core schema rather than PyYAML's 1.1: ``on``, ``no`` and ``1:30`` are texts, as in a window's
``on: ts``; keys are always texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from spe.problems import Path, Problem, Problems, show_path

_INT: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
#: Most values of a configuration after its aliases are resolved: nine lines of aliases can make millions.
VALUES_MAX: Final = 100_000
_CONSTANTS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None, "~": None, "": None}


class LineMark(NamedTuple):
    """The place of a value.  Lines and columns count from 1.

    Attributes:
      text_column: column of the first character of a text that is unescaped on one line; 0 otherwise.
      file: file of the line; "" for the document itself.
    """

    line: int
    column: int
    text_column: int = 0
    file: str = ""


@dataclass
class Document:
    """A configuration as plain data, with the place of each part.

    Attributes:
      name: file name, for messages.
      text: the YAML; "" for a configuration made in Python.
      marks: path -> place of the value (of the key, for mappings and lists).
      home: folder for its relative paths.
      problems: mistakes in its syntax.
    """

    name: str
    data: Any
    text: str = ""
    marks: dict[Path, LineMark] = field(default_factory=dict)
    home: FilePath = FilePath()
    problems: Problems = field(default_factory=Problems)

    def to_yaml(self) -> str:
        """Returns the configuration as the text of a file."""
        return self.text or yaml.safe_dump(self.data, sort_keys=False, allow_unicode=True)

    def mark(self, path: Path) -> LineMark | None:
        """Returns the place of the longest known prefix of ``path``."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.marks:
                return self.marks[path[:length]]
        return None

    def render(self, problem: Problem) -> str:
        """Formats ``file:line: path: message``, with the line and a caret below for a mistake inside an expression."""
        mark = self.mark(problem.path)
        where = show_path(problem.path) or "the configuration"
        if mark is None:
            pointer = f"\n    {problem.text}\n    {' ' * problem.offset}^" if problem.text else ""
            return f"{self.name}: {where}: {problem.message}{pointer}"
        place = f"{mark.file or self.name}:{mark.line}"
        if not problem.text:
            return f"{place}: {where}: {problem.message}"
        line, column = self._locate(mark, problem)
        if line == 0:
            return f"{place}: {where}: {problem.message}\n    {problem.text}\n    {' ' * problem.offset}^"
        excerpt = self.text.splitlines()[line - 1]
        indent = len(excerpt) - len(excerpt.lstrip())
        caret = f"\n    {excerpt.strip()}\n    {' ' * (column - 1 - indent)}^"
        return f"{self.name}:{line}:{column}: {where}: {problem.message}{caret}"

    def _locate(self, mark: LineMark, problem: Problem) -> tuple[int, int]:
        """Line and column of a place in an expression; (0, 0) if the text is folded or escaped in the file."""
        if mark.text_column:
            start = self.text.splitlines()[mark.line - 1].find(problem.text, mark.text_column - 1)
            if start >= 0:
                return mark.line, start + problem.offset + 1
        return 0, 0

    def in_order(self, problems: Problems) -> list[str]:
        """Formats all problems, in the order of the file."""

        def place(problem: Problem) -> tuple[int, int]:
            mark = self.mark(problem.path)
            return (mark.line, mark.column) if mark else (0, 0)

        return [self.render(p) for p in sorted(problems.found, key=place)]


def parse(text: str, name: str, problems: Problems) -> Document:
    """Reads YAML; mistakes in its syntax are added to ``problems`` (``data`` is then None)."""
    document = Document(name, None, text)
    document.marks[()] = LineMark(1, 1)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        excerpt, offset = "", 0
        if mark is not None:
            document.marks[()] = LineMark(mark.line + 1, mark.column + 1)
            line = text.split("\n")[mark.line] if mark.line <= text.count("\n") else ""
            excerpt, offset = line.strip(), mark.column - (len(line) - len(line.lstrip()))
        context = f" ({error.context})" if error.context else ""
        problems.add((), f"not YAML: {error.problem}{context}{_advice(error)}", excerpt, max(0, offset))
        return document
    except yaml.reader.ReaderError as error:
        document.marks[()] = LineMark(text.count("\n", 0, error.position) + 1, 1)
        problems.add((), f"not YAML: {error.reason} ({error.character!r})")
        return document
    except RecursionError:
        problems.add((), "nested too deep")
        return document
    if node is not None:
        try:
            document.data = _Builder(document, problems).build(node, ())
        except _TooManyValues:
            problems.add((), f"expected at most {VALUES_MAX:,} values, aliases followed")
    return document


#: Advice for syntax errors, by words of PyYAML's message; the first match counts.
_ADVICE: Final = (
    ("found character '\\t'", "indent with spaces"),
    ("<stream end>", "a bracket or a quote above is not closed"),
    ("flow", 'put a text with a comma, a colon, a quote or a bracket in quotes, as in {n: "coalesce(a, 0)"}'),
    ("mapping values are not allowed", "put a text with a colon in quotes, or indent the line as its neighbours"),
    ("<block end>", "indent the line as those of the same section"),
)


def _advice(error: yaml.MarkedYAMLError) -> str:
    message = f"{error.problem} {error.context}"
    return next((f"; {advice}" for words, advice in _ADVICE if words in message), "")


class _TooManyValues(Exception):
    """Aliases of aliases make a document too large."""


class _Builder:
    """Converts nodes to plain data, and collects marks."""

    def __init__(self, document: Document, problems: Problems) -> None:
        self._document = document
        self._problems = problems
        self._open: list[Node] = []
        self._count = 0

    def build(self, node: Node, path: Path, at: LineMark | None = None) -> Any:
        self._count += 1
        if self._count > VALUES_MAX:
            raise _TooManyValues
        mark = at or LineMark(node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, ScalarNode):
            self._document.marks[path] = self._scalar_mark(node)
            return node.value if node.style else _plain(node.value)
        if at is not None or path not in self._document.marks:
            self._document.marks[path] = mark
        if any(node is n for n in self._open):
            self._problems.add(path, "an alias that refers to what it stands in")
            return None
        self._open.append(node)
        try:
            if isinstance(node, SequenceNode):
                return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
            assert isinstance(node, MappingNode), node
            return self._mapping(node, path)
        finally:
            self._open.pop()

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:  # before our own keys, whose marks take precedence
            if _is_merge(key_node):
                self._merge(value_node, path, merged)
        rest = 0
        for at, (key_node, value_node) in enumerate(node.value):
            if _is_merge(key_node) or at < rest:
                continue
            if not isinstance(key_node, ScalarNode):
                self._document.marks.setdefault((*path, "?"), _mark_of(key_node))
                self._problems.add((*path, "?"), "a key that is not a text; expected a name")
                continue
            key = str(key_node.value)
            if key in own:
                again = (*path, key)
                self._document.marks[again] = _mark_of(key_node)
                self._problems.add(again, "is given twice")
                continue
            own[key] = self.build(value_node, (*path, key), _mark_of(key_node))
            if node.flow_style and (whole := _split_text(node, at)):
                own[key], rest = whole
                self._problems.add((*path, key), f'a comma ends the text here; put it in quotes: {key}: "{own[key]}"')
        return {**merged, **own}

    def _merge(self, node: Node, path: Path, into: dict[str, Any]) -> None:
        """Merges ``<<: *defaults``; earlier mappings take precedence, as in YAML."""
        for part in node.value if isinstance(node, SequenceNode) else [node]:
            merged = self.build(part, path)
            if isinstance(merged, dict):
                for key, value in merged.items():
                    into.setdefault(key, value)
            else:
                self._problems.add(path, "<< takes a mapping or a list of mappings")

    def _scalar_mark(self, node: ScalarNode) -> LineMark:
        start, end = node.start_mark, node.end_mark
        quote = 1 if node.style in ("'", '"') else 0
        whole = end.column - start.column - 2 * quote == len(node.value) and start.line == end.line
        return LineMark(start.line + 1, start.column + 1, start.column + 1 + quote if whole else 0)


def _split_text(node: MappingNode, at: int) -> tuple[str, int] | None:
    """Joins a value that commas inside parentheses have split into entries; returns it and the next entry."""
    text = _text_of(node.value[at][1])
    for end in range(at + 1, len(node.value)):
        key, value = node.value[end]
        if text.count("(") <= text.count(")") or not _text_of(key) or value.value != "":
            return None
        text += f", {key.value}"
        if text.count("(") == text.count(")"):
            return text, end + 1
    return None


def _text_of(node: Node) -> str:
    """Returns a text without quotes; "" for other nodes."""
    return str(node.value) if isinstance(node, ScalarNode) and node.style is None else ""


def _mark_of(node: Node) -> LineMark:
    return LineMark(node.start_mark.line + 1, node.start_mark.column + 1)


def _is_merge(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value == "<<" and node.style is None


def _plain(text: str) -> Any:
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
