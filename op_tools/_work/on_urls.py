"""Commands whose paths are URLs: they work on local files, and their texts have the URLs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from .._base.core import Error
from .._base.remote_files import copy_of, forget_remote_files, is_url, loaded_text, local_path, urls_shown, with_urls


def run_on_local_files(
    function: Callable[[argparse.Namespace], int],
    options: argparse.Namespace,
    reads: Sequence[str],
    copies: Sequence[str],
) -> int:
    """Calls the function of a command with local paths in place of URLs.

    Args:
        function: takes the options, returns the exit status.
        options: of the command; paths of several files are a list.
        reads: names of options, whose files are loaded as far as they are read.
        copies: names of options, whose files are loaded before the call.

    Raises:
        op_tools.Error: a store cannot be read; or an error of the function, with the URLs.
    """
    try:
        for names, local_place in ((reads, local_path), (copies, copy_of)):
            for name in names:
                value = getattr(options, name)
                if isinstance(value, list):
                    setattr(options, name, [local_place(path) for path in value])
                elif value and is_url(value):
                    setattr(options, name, local_place(value))
        with urls_shown():
            status = function(options)
        sys.stderr.write(f"op-tools: {loaded_text()}\n")
        return status
    except Error as error:
        raise Error(with_urls(str(error))) from None
    finally:
        forget_remote_files()
