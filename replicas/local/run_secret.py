"""Stores the secret of a run outside of its directory, which is shown, copied and archived."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from spe.errors import SpeError

#: Variable with the place of a folder for such files: the first writable one, of the user, else of the machine.
_STATE: Final = "XDG_STATE_HOME"


@contextmanager
def kept_secret() -> Iterator[tuple[str, Path]]:
    """Yields a new secret and its file, which exists while the block lasts; only its owner reads it.

    Files of killed supervisors are removed.

    Raises:
      SpeError: there is no folder for it.
    """
    folder = _folder()
    _sweep(folder)
    token = secrets.token_urlsafe(16)
    path = folder / f"{os.getpid()}-{secrets.token_hex(8)}.token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    try:
        yield token, path
    finally:
        path.unlink(missing_ok=True)


def read_secret(path: str) -> str:
    """Returns the secret of a run; "" when the run is over.  Raises SpeError: the file is not readable for us."""
    if not path:
        return ""
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SpeError(f"{path}: the secret of the run cannot be read: {error.strerror}; who started it can") from error


def _folder() -> Path:
    state_home = os.environ.get(_STATE)
    homes = [Path(state_home)] if state_home else []
    with suppress(RuntimeError):  # the home of this user is unknown
        homes.append(Path.home() / ".local/state")
    tried = [*(home / "spe" for home in homes), Path(tempfile.gettempdir()) / f"spe-{os.getuid()}"]
    for folder in tried:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stat_ = folder.lstat()
            ours = stat.S_ISDIR(stat_.st_mode) and stat_.st_uid == os.getuid()
            if ours and not stat.S_IMODE(stat_.st_mode) & 0o077 and os.access(folder, os.W_OK):
                return folder
    shown = ", ".join(map(str, tried))
    raise SpeError(f"the secret of the run can be kept in none of {shown}; expected one that is ours, with mode 700")


def _sweep(folder: Path) -> None:
    """Removes files of supervisors that are gone."""
    for path in folder.glob("*.token"):
        pid = path.name.partition("-")[0]
        with suppress(OSError):
            if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
                path.unlink()
