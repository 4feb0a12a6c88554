"""The application, to which the other modules add commands."""

from __future__ import annotations

from cyclopts import App, Parameter

from spe import __version__

app = App(
    name="spe",
    help="A replicated stream processor: tentative results during failures, correct results afterwards. "
    "The environment variable SPE_TOKEN is the secret that all processes of a cluster share.",
    version=__version__,
    default_parameter=Parameter(negative=()),
    help_format="plaintext",
)
