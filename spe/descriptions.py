"""Names with a description, from which the tables of the documentation are made."""

from __future__ import annotations

import enum
from typing import Self


class DescribedName(enum.StrEnum):
    """``MEMBER = "name", "what it means"``.

    Attributes:
      about: what it means.
    """

    about: str

    def __new__(cls, name: str, about: str = "") -> Self:
        member = str.__new__(cls, name)
        member._value_, member.about = name, about
        return member
