"""The secret of a run, outside of its directory: that is shown, copied and archived, and holds no secret."""

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

#: Where a folder for such files is made, the first that can be written: of the user, else of the machine.
_STATE: Final = "XDG_STATE_HOME"


@contextmanager
def kept_secret() -> Iterator[tuple[str, Path]]:
    """A new secret and the file that holds it for as long as the block lasts; only its owner reads it.

    Files of supervisors that were killed are removed.

    Raises:
      SpeError: there is no folder where it can be kept.
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
    """The secret of a run; "" when the run is over.  Raises SpeError: it is there, and not for us to read."""
    if not path:
        return ""
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SpeError(f"{path}: the secret of the run cannot be read: {error.strerror}; who started it can") from error


def _folder() -> Path:
    given = os.environ.get(_STATE)
    homes = [Path(given)] if given else []
    with suppress(RuntimeError):  # nobody knows the home of this user
        homes.append(Path.home() / ".local/state")
    tried = [*(home / "spe" for home in homes), Path(tempfile.gettempdir()) / f"spe-{os.getuid()}"]
    for folder in tried:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if ours and not stat.S_IMODE(found.st_mode) & 0o077 and os.access(folder, os.W_OK):
                return folder
    shown = ", ".join(map(str, tried))
    raise SpeError(f"the secret of the run can be kept in none of {shown}; expected one that is ours, with mode 700")


def _sweep(folder: Path) -> None:
    """Removes what supervisors left that are gone."""
    for path in folder.glob("*.token"):
        pid = path.name.partition("-")[0]
        with suppress(OSError):
            if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
                path.unlink()
