"""A sender and a receiver of their own, of Python's standard library: ``python -m tests.support.http_programs …``.

The sender keeps nothing: it asks the source how far it is.  The receiver keeps what came in a file, which it syncs
before it answers.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

#: Rows of a request, and event time between two of them.
EACH = 5
STEP_US = 10_000


def body_of(number: int, base_us: int) -> bytes:
    """The same each time."""
    rows = [{"ts": base_us + n * STEP_US, "n": n} for n in range((number - 1) * EACH, number * EACH)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def ask(address: str, token: str, method: str, body: bytes | None = None, key: str = "") -> tuple[int, Any]:
    """Until there is an answer that says something."""
    while True:
        connection = http.client.HTTPConnection(address, timeout=5)
        try:
            headers = {"Authorization": f"Bearer {token}", **({"Idempotency-Key": key} if key else {})}
            connection.request(method, "/", body, headers)
            response = connection.getresponse()
            found = json.loads(response.read())
            if response.status != 503:
                return response.status, found
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.05)


def send(address: str, base_us: int, count: int) -> None:
    token = os.environ["TOKEN"]
    status, found = ask(address, token, "GET")
    assert status == 200, found
    for number in range(found["last"].get("till", 0) + 1, count + 1):
        time.sleep(max(0, (base_us + number * EACH * STEP_US) / 1e6 - time.time()))
        status, found = ask(address, token, "POST", body_of(number, base_us), f"till:{number}")
        assert status == 200, found


def read(file: Path) -> list[tuple[str, str]]:
    """(key, body) of each request; a torn line is none."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [(found["key"], found["body"]) for found in map(json.loads, lines)]


def receive(port: int, file: Path) -> None:
    last = {key.rpartition(":")[0]: int(key.rpartition(":")[2]) for key, _ in read(file)}
    writing = Lock()
    out = file.open("ab")
    if out.tell():
        whole = file.read_bytes().rfind(b"\n") + 1
        os.truncate(file, whole)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            key = self.headers["Idempotency-Key"].strip('"')
            sender, _, number = key.rpartition(":")
            with writing:
                if int(number) > last.get(sender, 0):
                    out.write(json.dumps({"key": key, "body": body.decode()}).encode() + b"\n")
                    out.flush()
                    os.fsync(out.fileno())
                    last[sender] = int(number)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", address, base_us, count]:
            send(address, int(base_us), int(count))
        case ["receive", port, file]:
            receive(int(port), Path(file))
