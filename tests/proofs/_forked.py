"""Runs Python programs in copies of a process that has imported what takes long, and nothing else.

A copy is as fresh as a process that has just executed these imports: the server itself runs no operator, starts no thread and
loads no library. It saves the seconds that the imports take.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = """
import json, os, runpy, signal, sys, time
for name in sys.argv[1:]:
    __import__(name)

def work(asked, out, err):
    os.dup2(os.open(out, os.O_WRONLY), 1)
    os.dup2(os.open(err, os.O_WRONLY), 2)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    first, *sys.argv = asked["arguments"]
    if first == "-c":
        text, sys.argv = sys.argv[0], ["-c", *sys.argv[1:]]
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [first, *sys.argv]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")

for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        status = 0
        try:
            work(asked, asked["out"], asked["err"])
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            import traceback
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    end, status = time.monotonic() + asked["timeout"], None
    while status is None:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        else:
            time.sleep(0.005)
    print(json.dumps(status), flush=True)
"""


class ForkServer:
    """Programs in copies of one process.

    Args:
        modules: what it imports first.
        environment: of the process; each program has its own.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment),
        )

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, timeout: float
    ) -> tuple[int | None, str, str]:
        """What `python *arguments` would give: exit status (None: it ran too long), output, error output."""
        assert self._server.stdin and self._server.stdout
        with tempfile.TemporaryDirectory() as made:
            out, err = Path(made) / "out", Path(made) / "err"
            for path in (out, err):
                path.touch()
            asked = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
            asked |= {"timeout": timeout, "out": str(out), "err": str(err)}
            self._server.stdin.write(json.dumps(asked) + "\n")
            self._server.stdin.flush()
            status: int | None = json.loads(self._server.stdout.readline())
            return status, out.read_text(errors="replace"), err.read_text(errors="replace")

    def end(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self._server.communicate(timeout=10)
