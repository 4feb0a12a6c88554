"""The ``accuracy`` section: measures of the tentative tuples of each output, for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from spe.config.validate import validated
from spe.plan.plan import AccuracyChoice
from spe.problems import Problems, did_you_mean, one_of
from spe.stream.names import StreamId
from spe.stream.schema import Schema
from spe.values import Length, Model, Names, names_of

Measure = Literal["overlap", "topk", "precision", "recall", "exact"]


def _names_or_none(value: Any) -> tuple[str, ...]:
    """Reads names; an empty list is allowed."""
    return () if value == [] else names_of(value)


class AccuracyModel(Model):
    """Measures of one output; defaults depend on its operator.

    Attributes:
      measures: shares from 0 to 1.
        Default: aggregates `[overlap, exact]`, top-k `[topk, exact]`, others `[precision, recall]`.
      key: when a tentative and a true tuple are the same result.
        Default: aggregates: group and window; top-k: all but the rank; others: all attributes.
      errors: mean relative error of each. Default: first four numeric attributes outside the key.
      window: results are compared per this much tuple time. Default: windows: `0s`; others: the bucket.
    """

    measures: Annotated[tuple[Measure, ...], BeforeValidator(names_of)] | None = None
    key: Names | None = None
    errors: Annotated[tuple[str, ...], BeforeValidator(_names_or_none)] | None = None
    window: Length | None = None

    def choice(self) -> AccuracyChoice:
        return AccuracyChoice(self.key, self.measures, self.errors, self.window)


def read_accuracy(
    section: Any, outputs: Sequence[StreamId], schemas: Mapping[StreamId, Schema], problems: Problems
) -> dict[StreamId, AccuracyChoice]:
    """Reads the section; returns the choice of each output.

    Args:
      schemas: schemas of the outputs that could be typed.
    """
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        problems.add(
            ("accuracy",), "expected a mapping: OUTPUT: {measures: [overlap, exact], key: [...], errors: [...]}"
        )
        return {}
    choices: dict[StreamId, AccuracyChoice] = {}
    for name, entry in section.items():
        if name not in outputs:
            hint = did_you_mean(str(name), outputs)
            problems.add(("accuracy", str(name)), f"no output {name!r}{hint}; expected {one_of(list(outputs))}")
            continue
        model = validated(AccuracyModel, {} if entry is None else entry, ("accuracy", name), problems)
        if model is None:
            continue
        choice = model.choice()
        if name in schemas:
            _check(choice, schemas[name], name, problems)
        choices[name] = choice
    return choices


def _check(choice: AccuracyChoice, schema: Schema, output: str, problems: Problems) -> None:
    for field, names in (("key", choice.key or ()), ("errors", choice.errors or ())):
        for i, name in enumerate(names):
            if name not in schema:
                hint = did_you_mean(name, schema.names)
                problems.add(
                    ("accuracy", output, field, i),
                    f"no attribute {name!r}{hint}; expected {one_of(list(schema.names))}",
                )
            elif field == "errors" and not schema[name].type.is_numeric:
                problems.add(("accuracy", output, field, i), f"{name!r} is {schema[name].type}; expected a number")
