# ruff: noqa: ANN001, ANN201, ANN204
"""Every n-th tuple: ``thinned: {sample: {from: orders, every: 10}}``."""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from operators.build import register
from operators.operator import Operator
from spe.query.declaration import From, Guarantee, Keys, OneInput
from spe.stream.names import StreamId
from spe.stream.times import BEFORE_TIME
from spe.values import Count


class SampleKeys(Keys):
    from_: From
    every: Count = Field(description="one tuple of so many passes")


@dataclass(frozen=True, slots=True)
class SampleSpec(OneInput):
    KEYWORD = "sample"
    KEYS = SampleKeys
    GUARANTEES = (Guarantee("", "the tuple's", "the tuples'"),)

    input: StreamId
    every: int

    def output_schema(self, inputs):
        return inputs[0]  # raise QueryError(field, message) to refuse inputs

    def described(self):
        return f"one in {self.every} of {self.input}"

    def key_names(self, inputs):
        return inputs[0]  # the partition key stays where it was

    def tied(self, key):
        return "a sample"  # ties in time decide which tuples pass


class Sample(Operator):
    def __init__(self, spec, schema):
        self.schema = schema
        self._every, self._count = spec.every, 0

    def step(self, ports, boundary):
        rows = ports[0]
        if rows is None:
            return None
        places = np.arange(self._count + 1, self._count + 1 + len(rows))
        self._count += len(rows)
        passed = rows.select(places % self._every == 0)
        return passed if len(passed) else None

    def snapshot(self):
        return {"count": self._count}

    def restore(self, state):
        self._count = state["count"]

    def oldest_needed(self):
        return BEFORE_TIME  # the count depends on all earlier tuples


register(SampleSpec, lambda spec, inputs, schema: Sample(spec, schema))
