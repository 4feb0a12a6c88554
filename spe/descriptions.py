"""Names with a description, for the tables of the documentation."""

from __future__ import annotations

import enum
from typing import Self


class DescribedName(enum.StrEnum):
    """An enum whose members are written ``MEMBER = "name", "description"``.

    Attributes:
      about: the description.
    """

    about: str

    def __new__(cls, name: str, about: str = "") -> Self:
        member = str.__new__(cls, name)
        member._value_, member.about = name, about
        return member
