"""op-tools serve: the page of a run in progress."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from .._base.core import Error
from .._commands.command_line import visible
from .._report.server import LOOPBACK, PageServer


def run_command(options: argparse.Namespace) -> int:
    for folder in options.folders:
        if not Path(folder).is_dir():
            raise Error(f"{folder}: there is no such folder")
    try:
        server = PageServer(options.folders, options.port, options.every)
    except OSError as error:
        raise Error(f"--port {options.port}: {LOOPBACK}: {error.strerror}") from None
    with server, contextlib.suppress(KeyboardInterrupt):
        sys.stdout.write(visible(f"{server.address}\n"))
        sys.stdout.flush()
        sys.stderr.write(
            "op-tools: Ctrl-C ends it. From another machine: "
            f"ssh -L {server.server_port}:{LOOPBACK}:{server.server_port} THIS_MACHINE, then the same address there\n"
        )
        server.serve_forever()
    return 0
