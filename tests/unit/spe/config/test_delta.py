"""What a configuration may say of Delta tables."""

from __future__ import annotations

import pytest

from spe.config import load_plan_text
from spe.config.load import load_data
from spe.errors import ConfigError

CONFIG = """
sources: {{s: {{schema: {{ts: timestamp!, n: int64}}, time: ts, from: {{tcp: "127.0.0.1:0"}}}}}}
query: {{q: {{filter: {{from: s, where: n > 0}}}}}}
outputs: [q]
nodes: [n1]
clients: {{c: {{reads: [q], sinks: [{{delta: {sink}}}]}}}}
"""


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ("lake/t", "expected an absolute path, file:///… or s3://BUCKET/PREFIX, got 'lake/t'"),
        ("s3://bucket", "expected an absolute path"),
        ("file://host/t", "expected an absolute path"),
        ("s3://user:word@bucket/t", "expected no credentials and no options in a URL"),
        ("{path: /t, endpoint: 'https://s3:9000'}", "endpoint goes with s3://"),
        ("{path: s3://b/t, endpoint: s3}", "expected http://HOST"),
        ("{path: /t, every: 0}", "every"),
        ("/t, mode: newest", "mode"),
    ],
)
def test_mistakes_are_named(sink: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plan_text(CONFIG.format(sink=sink))
    assert problem in str(caught.value)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("sink", "path"), [("/lake/../t/", "/t"), ("file:///a%20b", "/a b"), ("s3://bucket/t/", "s3://bucket/t")]
)
def test_paths(sink: str, path: str) -> None:
    import yaml

    loaded = load_data(yaml.safe_load(CONFIG.format(sink=sink)), "the configuration", ".")
    (spec,) = loaded.directory.clients["c"].sinks
    assert (spec["path"], spec["every"], spec["append"], spec["mode"]) == (path, 10_000_000, False, "stable")
