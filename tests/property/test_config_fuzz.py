"""Damaged configurations and fault files give a plan, or mistakes with their lines, and no other exception."""

from __future__ import annotations

import os
import re
from pathlib import Path
from random import Random

import pytest

from replicas.faults.model import load_faults_text
from spe.config import load, load_plan_text
from spe.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "configs"
#: Damaged texts per configuration; more by hand: ``CONFIG_FUZZ=10000``.
INPUTS = int(os.environ.get("CONFIG_FUZZ", "60"))

#: Replacements of a value.
ODD = (
    "", "null", "~", "-1", "0", "1e400", ".nan", "true", "[]", "{}", "[[]]", "{a: {b: [}}", "'", '"', "&a *a", "*b",
    "!!python/object:x {}", "2s", "-2s", "9999999999h", "\u0000", "ß", "a" * 300, "2001-01-01", "0x7f", "1_000",
    "<<: *x", "? x", "|", ">-", "%", "@", "`",
)  # fmt: skip
#: The place of a mistake: file, line, and in an expression the column.
PLACE = re.compile(r"f\.yaml(:\d+){0,2}: | ")


def damaged(text: str, random: Random) -> str:
    """The text with one to three typical mistakes of people or programs."""
    for _ in range(random.randint(1, 3)):
        lines = text.split("\n")
        at = random.randrange(len(lines))
        match random.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[random.randrange(len(lines))])
            case 2:
                lines[at] = " " * random.randint(1, 5) + lines[at]
            case 3:
                lines[at] = lines[at].lstrip()
            case 4:
                lines[at] = re.sub(r"(: *)[^,}\n]+", lambda m: m[1] + random.choice(ODD), lines[at], count=1)
            case 5:
                words = re.findall(r"\w+", text)
                lines[at] = re.sub(r"\w+", random.choice(words), lines[at], count=1)
            case 6:
                place = random.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + random.choice("{}[]:,'\"#&*!|>\t\\é\x07") + lines[at][place:]
            case _:
                lines[at] = lines[at][: random.randrange(len(lines[at]) + 1)]
        text = "\n".join(lines)
        if not text:
            return text
    return text


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda p: p.stem)
def test_damaged_configuration_gives_plan_or_located_errors(path: Path) -> None:
    text, random, refused = path.read_text(), Random(path.stem), 0
    placeless: list[str] = []
    for _ in range(INPUTS):
        bad = damaged(text, random)
        try:
            load_plan_text(bad, "f.yaml")
        except ConfigError as error:
            refused += 1
            placeless += [line for line in str(error).splitlines() if not PLACE.match(line)]
    assert placeless == []
    assert refused > 0


@pytest.mark.parametrize("path", sorted((FOLDER / "faults").glob("*.yaml")), ids=lambda p: p.stem)
def test_damaged_fault_file_gives_faults_or_located_errors(path: Path) -> None:
    directory = load(FOLDER / path.name).directory
    text, random, refused = path.read_text(), Random(path.stem), 0
    placeless: list[str] = []
    for _ in range(4 * INPUTS):
        bad = damaged(text, random)
        try:
            load_faults_text(bad, "f.yaml", directory)
        except ConfigError as error:
            refused += 1
            placeless += [line for line in str(error).splitlines() if not PLACE.match(line)]
    assert placeless == []
    assert INPUTS < refused < 4 * INPUTS, "some damage is a mistake, some changes nothing"
