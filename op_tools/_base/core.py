"""The only door to the C++ core: all other files import the core's names from here."""

import sys

import torch  # noqa: F401  (first: it loads the libraries that the extension needs)

from .torch_version import check_torch

check_torch(sys.modules[__name__.partition(".")[0]].__path__)

from .._C import *  # noqa: E402, F403
from .._C import __version__ as __version__  # noqa: E402
