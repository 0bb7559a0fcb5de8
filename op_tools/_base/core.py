"""The only door to the C++ core: all other files import the core's names from here."""

from .._C import *  # noqa: F403
from .._C import __version__ as __version__
