"""The command that docs/internals/new-command.md adds: its messages, its handler and its function."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from replicas.cli import app as command_line
from replicas.cli.app import operation
from replicas.link.rights import check_right
from replicas.local.ports import free_addresses
from replicas.placement.coordinator import Coordinator, run_coordinator
from spe.config import load
from spe.errors import RemoteProtocolError
from spe.runtime.production import production_env
from spe.wire.framing import HEADER_BYTES
from spe.wire.messages import commands, message

PAGE = Path(__file__).parents[4] / "docs" / "internals" / "new-command.md"
CONFIG = """
cluster: demo
sources:
  a: {{from: {{generator: {{name: sequence, rate: 10, count: 10}}}}}}
query:
  small: {{filter: {{from: a, where: n < 3}}}}
nodes: [n1, n2]
coordinator: {{address: '{}'}}
"""


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, str, str]]:
    """The messages of the page in a module, and its other two pieces."""
    messages, handler, command = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    module = ModuleType("new_messages")
    module.__dict__.update({k: v for k, v in vars(commands).items() if not k.startswith("__")})
    monkeypatch.setitem(sys.modules, "new_messages", module)
    exec(compile(f"from __future__ import annotations\n{messages}", "new_messages", "exec"), module.__dict__)
    yield module, handler, command
    for tag in (41, 42):
        del message._messages[tag]


def test_new_messages_are_encoded_and_checked_by_their_fields(blocks: Any) -> None:
    module, _, _ = blocks
    answer = module.EpochAnswer(7, "")
    body = bytes(answer.encode())[HEADER_BYTES:]
    assert message.decode_message(body.rstrip(b"\0")) == answer
    with pytest.raises(RemoteProtocolError, match=r"EpochAnswer\.epoch"):
        message.decode_message(b"\x93\x2a\xa1x\xa0")
    check_right(None, "control", "control", module.EpochRequest())  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match="a client must not send EpochRequest"):
        check_right(None, "client", "client:c", module.EpochRequest())  # type: ignore[arg-type]
    assert module.EpochRequest().refusal("n1").error == "n1 is not the coordinator, which has an epoch"


def test_a_tag_is_taken_once(blocks: Any) -> None:
    with pytest.raises(TypeError, match="Other has the tag of EpochRequest: 41"):
        type("Other", (message.Message,), {"TAG": 41, "__module__": "new_messages"})


def test_the_new_command_asks_a_running_coordinator(
    blocks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, handler, command = blocks
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG.format(free_addresses(1)[0]))
    exec(command, {**vars(operation), **vars(module), "__name__": operation.__name__})
    running, began, epochs = threading.Event(), [], []

    async def serve() -> None:
        plan, directory = load(config)

        def made(coordinator: Coordinator) -> None:
            coordinator.handlers.update(eval(f"{{{handler}}}", {**vars(module), "self": coordinator}))
            began.append(coordinator)

        async with trio.open_nursery() as nursery:
            start = nursery.start
            await start(lambda task_status: run_coordinator(
                production_env(tmp_path), plan, directory, made=made, task_status=task_status))  # fmt: skip
            epochs.append(began[0].epoch)
            stop.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            running.set()

    stop: list[Any] = []
    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        assert running.wait(60)
        assert command_line.execute(["epoch", str(config)]) == 0
    finally:
        token, scope = stop[0]
        token.run_sync_soon(scope.cancel)
        thread.join(60)
        command_line.app._commands.pop("epoch", None)
    assert capsys.readouterr().out == f"{epochs[0]}\n"
    assert epochs[0] > 0
