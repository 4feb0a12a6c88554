"""Kafka, a partitioned query, PostgreSQL: everything is killed in turn, and the table is right all the time."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import IO, Any, Final

import yaml

from examples.kafka_to_postgres import places
from examples.kafka_to_postgres.orders import SHOPS, Order, Sender, ends, orders
from examples.kafka_to_postgres.screen import Screen
from examples.kafka_to_postgres.watch import Row, Watch, first_difference, reference_rows

HERE: Final = Path(__file__).parent
SPE: Final = (sys.executable, "-m", "replicas.cli")
#: Orders are sent for so long, until all was broken.
SECONDS: Final = 56.0
RIGHT: Final = "RIGHT: it equals the reference, and never held two live rows of one result."
#: What `spe run` prints: a time, and perhaps a fault that began or ended.
_TOLD: Final = re.compile(r"\s*(-?[\d.]+) s  (?:fault (.*): (began|ended))?")

#: What happens: "page", "begin" of the run, a fault "began" or "ended"; which; seconds after the begin.
Story = SimpleQueue[tuple[str, str, float]]


def main() -> int:
    """Exit status: 0 where the table was right all the time, and is complete at the end."""
    parser = argparse.ArgumentParser(prog="python -m examples.kafka_to_postgres", description=__doc__)
    add = parser.add_argument
    add("--kafka", default=os.environ.get("KAFKA", ""), help="HOST:PORT of your brokers; default: $KAFKA")
    add("--postgres", default=os.environ.get("POSTGRES", ""), help="connection string; default: $POSTGRES")
    add("--files", action="store_true", help="results go into files, as where there is no database")
    add("--pace", type=float, default=1.0, help="2: all happens twice as fast; 0.5: for a slow machine")
    add("--seed", type=int, default=1, help="of the orders")
    given = parser.parse_args()
    if not given.pace > 0:
        parser.error("--pace: expected a number above 0")
    stamp = time.strftime("%m%d_%H%M%S")
    folder = Path("runs", f"kafka_to_postgres_{stamp}").absolute()
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        kafka = places.kafka(given.kafka, stack)
        results = places.results(given.postgres, given.files, f"totals_{stamp}", folder / "totals", stack)
        print(f"Kafka       {kafka.name}\nPostgreSQL  {results.name}\nrecorded    {folder}", flush=True)
        topics = {shop: f"{shop}_{stamp}" for shop in SHOPS}
        for topic in topics.values():
            kafka.make(topic)
        sent = list(orders(given.seed, SECONDS / given.pace))
        faults = write_configuration(folder, kafka.servers, topics, sent, results.sink, given.pace)
        breaks = [one.at(given.pace) for one in sorted([*kafka.breaks, *results.breaks])]
        watch = Watch(results.table)
        screen = Screen(watch)
        status = follow(folder, screen, watch, Sender(kafka.servers, topics, sent), breaks)
        rows = results.table.rows() or []
    watch.look(rows)
    (folder / "table.jsonl").write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    told = (folder / "told.txt").read_text()
    wrong = [f"spe run ended with {status}, and said:\n{told[-1000:]}"] if status else []
    if screen.over < faults + len(breaks):
        wrong.append(f"{screen.over} of {faults + len(breaks)} things were broken; a smaller --pace gives more time")
    wrong += judge(rows, reference(folder / "run"), watch, len(sent))
    print(f"\nThe table at the end: {len(rows)} rows. It was looked at {watch.looks} times.")
    print("\n".join(f"WRONG: {text}" for text in wrong) or RIGHT)
    return 1 if wrong else 0


def judge(rows: Sequence[Row], expected: Sequence[Row], watch: Watch, sent: int) -> list[str]:
    """What is wrong with the table at the end, or was on the way.  ``sent``: orders."""
    counted = sum(row["orders"] for row in rows)
    missing = f"{counted} of {sent} orders are counted" if counted != sent else ""
    return [text for text in (watch.wrong, first_difference(rows, expected), missing) if text]


def write_configuration(
    folder: Path, servers: str, topics: Mapping[str, str], sent: Sequence[Order], sink: Any, pace: float
) -> int:
    """shop.yaml with these servers, topics that end behind the last order, and this sink; faults.yaml at this pace.

    Returns the number of faults.
    """
    config = yaml.safe_load((HERE / "shop.yaml").read_text())
    for shop, topic in topics.items():
        reader = config["sources"][shop]["from"]["kafka"]
        reader |= {"servers": servers.split(","), "topics": topic, "until": ends(sent, shop)}
    config["clients"]["board"]["sinks"] = [sink]
    faults = yaml.safe_load((HERE / "faults.yaml").read_text())
    for fault in faults:
        fault |= {key: f"{float(fault[key][:-1]) / pace:.2f}s" for key in ("at", "for")}
    for name, content in (("shop.yaml", config), ("faults.yaml", faults)):
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False))
    return len(faults)


def follow(folder: Path, screen: Screen, watch: Watch, sender: Sender, breaks: Sequence[places.Break]) -> int:
    """Runs the query to its end while orders come and things break; returns the exit status of `spe run`."""
    command = [*SPE, "run", "shop.yaml", "--faults", "faults.yaml", "--run-dir", "run", "--no-view"]
    run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout is not None
    story, over = Story(), Event()
    Thread(target=listen, args=(run.stdout, folder / "told.txt", story), daemon=True).start()
    watch.start()
    try:
        while run.poll() is None or not story.empty():
            try:
                what, text, at_s = story.get(timeout=0.1)
            except Empty:
                screen.draw(live=sender.is_alive())
                continue
            if what == "page":
                print(f"page        {text}", flush=True)
            elif what == "begin":
                screen.begin()
                sender.start()
                Thread(target=break_servers, args=(breaks, story, over), daemon=True).start()
            elif what == "began":
                screen.breaks(at_s, text)
            elif what == "ended":
                screen.is_whole()
    finally:
        for one in (over, watch.over, sender.over):
            one.set()
        run.terminate()  # where it did not end by itself
        screen.end_line()
        watch.join()
    return run.wait()


def listen(lines: IO[str], copy: Path, story: Story) -> None:
    """To what `spe run` says, which is kept."""
    begun = False
    with copy.open("w") as file:
        for line in lines:
            file.write(line)
            if line.startswith("dashboard: "):
                story.put(("page", line.split()[1], 0.0))
            if (told := _TOLD.match(line)) is None:
                continue
            if not begun:
                begun = True
                story.put(("begin", "", 0.0))
            if told[2]:
                story.put((told[3], told[2], float(told[1])))


def break_servers(breaks: Sequence[places.Break], story: Story, over: Event) -> None:
    begun_s = time.monotonic()
    for one in breaks:
        if over.wait(max(0.0, begun_s + one.at_s - time.monotonic())):
            return
        story.put(("began", one.text, time.monotonic() - begun_s))
        with one.broken():
            over.wait(one.for_s)
        story.put(("ended", one.text, 0.0))


def reference(run: Path) -> list[Row]:
    """The same results, computed in one process from what the sources have logged."""
    done = subprocess.run([*SPE, "reference", str(run)], stdout=subprocess.PIPE, text=True)
    return reference_rows(done.stdout)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
