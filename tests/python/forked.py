"""Python programs as copies of a process that has imported torch and has done nothing else.

Importing torch takes two seconds; a copy of a process that has imported it takes 20 ms. A copy is as fresh as a process that has
just executed that import: the server runs no operator, and has a single thread. A program finds `sys.argv`, `sys.path`,
`__main__`, environment, folder, standard streams, exit status and signals as Python gives them; tests for which the start of
the interpreter itself matters (its options, variables that it or torch reads when it starts, `/proc/self/cmdline`) start one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

OWN = (lambda: None).__code__.co_filename


# --- The server -----------------------------------------------------------------------------------------------------------


def serve(number: int, modules: Sequence[str]) -> None:
    """Makes a copy for each program, until nobody asks any more."""
    for name in modules:
        __import__(name)
    gc.freeze()  # the collector writes into each object that it looks at, and each page that is written is copied
    channel = socket.socket(fileno=number)
    with selectors.DefaultSelector() as waiting:
        waiting.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not channel:
                    if key.fd in waiting.get_map():  # not the other file of a copy that ended in this round
                        ended(waiting, key)
                    continue
                text, files, _, _ = socket.recv_fds(channel, 1 << 20, 4)
                if not text:
                    return  # whoever asked is gone
                child = os.fork()
                if child == 0:
                    for other in list(waiting.get_map().values()):
                        os.close(other.fd)
                    waiting.close()
                    end(run(json.loads(text), files))
                streams = files[:3]
                for file in streams:
                    os.close(file)
                caller = socket.socket(fileno=files[3])
                process = os.pidfd_open(child)
                waiting.register(process, selectors.EVENT_READ, (child, process, caller))
                waiting.register(caller, selectors.EVENT_READ, (child, process, caller))
                with contextlib.suppress(OSError):
                    caller.sendall(f"{child}\n".encode())


def ended(waiting: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """A copy ended, or nobody waits for it any more."""
    child, process, caller = key.data
    if key.fileobj is caller:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    for end in (process, caller):
        waiting.unregister(end)
    os.close(process)
    caller.close()


def end(status: int) -> None:
    """As Python ends, but for the modules, whose objects it takes apart one by one: in a copy each page of them would be
    copied first, which takes a second. Files that the program left open are written, as their objects would be."""
    import atexit
    import ctypes
    import io
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # By type: isinstance asks __class__, and a weak proxy whose object is gone raises there.
    for stream in [item for item in gc.get_objects() if issubclass(type(item), io.IOBase)]:
        with contextlib.suppress(Exception):  # as Python ends: closed, detached, or half made
            stream.flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    ctypes.PyDLL(None).exit(status)  # with the lock of the interpreter: libraries still hold objects of Python


def run(asked: Mapping[str, Any], files: Sequence[int]) -> int:
    """The work of `python *arguments` after its start, and its exit status; SIGINT's number, negative, where it was interrupted."""
    import faulthandler
    import random
    import runpy
    import warnings

    import __main__

    for number, file in enumerate(files):
        if number < 3:
            os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    random.seed()
    if "torch" in sys.modules and (threads := asked["environment"].get("OMP_NUM_THREADS")):
        sys.modules["torch"].set_num_threads(int(threads))
    arguments = list(asked["arguments"])
    if "multiprocessing.process" in sys.modules:  # where a child that is started looks for the program
        sys.modules["multiprocessing.process"].ORIGINAL_DIR = str(Path.cwd())
    sys.orig_argv = [sys.executable, *arguments]
    while arguments[0] in ("-X", "-W"):
        option, value = arguments.pop(0), arguments.pop(0)
        if option == "-W":
            warnings._processoptions([value])  # type: ignore[attr-defined]
        else:
            assert value == "faulthandler", value
            faulthandler.enable()
    first = arguments.pop(0)
    more = asked["environment"].get("PYTHONPATH", "")
    sys.path[:1] = [str(Path.cwd()) if first == "-m" else "", *filter(None, more.split(os.pathsep))]
    own = __main__.__dict__
    keep = ("__builtins__", "__name__", "__doc__", "__loader__", "__spec__", "__package__")
    for name in [name for name in own if name not in keep]:
        del own[name]
    sys.argv = arguments
    try:
        if first == "-m":
            runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]
        elif first == "-c":
            text, sys.argv = arguments[0], ["-c", *arguments[1:]]
            exec(compile(text, "<string>", "exec"), own)  # noqa: S102, as Python does
        else:
            sys.argv = [first, *arguments]
            sys.path[0] = os.path.dirname(os.path.realpath(first))  # noqa: PTH120, as Python does
            own["__file__"] = str(Path.cwd() / first)
            exec(compile(Path(first).read_bytes(), first, "exec"), own)  # noqa: S102, as Python does
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 255
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException as error:
        shown = error.__traceback__
        while shown and shown.tb_frame.f_code.co_filename in (OWN, "<frozen runpy>"):
            shown = shown.tb_next
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


# --- Those who ask --------------------------------------------------------------------------------------------------------


@dataclass
class Copy:
    """A program that runs."""

    pid: int
    _caller: socket.socket
    returncode: int | None = None
    _read: bytes = field(default=b"", repr=False)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; minus the signal that ended it."""
        if self.returncode is None:
            self._caller.settimeout(timeout)
            try:
                while not self._read.endswith(b"\n"):
                    self._read += self._caller.recv(100)
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self.returncode = int(self._read)
            self._caller.close()
        return self.returncode

    def kill(self) -> None:
        """Ends it, if it runs."""
        if self.returncode is None:
            self._caller.shutdown(socket.SHUT_WR)
            self.wait()


def _start(
    channel: socket.socket,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    streams: Sequence[IO[Any]],
) -> Copy:
    caller, theirs = socket.socketpair()
    asked = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
    files = [*(stream.fileno() for stream in streams), theirs.fileno()]
    socket.send_fds(channel, [json.dumps(asked).encode()], files)
    theirs.close()
    pid = b""
    while not pid.endswith(b"\n"):
        pid += caller.recv(1)
    return Copy(int(pid), caller)


class ForkServer:
    """Programs in copies of a process.

    Args:
        modules: its first imports.
        environment: of the process; each program has its own.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        place = str(Path(__file__).parent)
        code = f"import sys; sys.path.insert(1, {place!r}); from forked import serve; del sys.path[1]; serve({theirs.fileno()}, {list(modules)})"
        self._server = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            # numpy's library would start a thread for each core, and a copy of a process has a single thread.
            env={**environment, "OPENBLAS_NUM_THREADS": "1"},
        )
        theirs.close()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, streams: Sequence[IO[Any]]
    ) -> Copy:
        """Begins to run `python *arguments`; `streams`: its input, output and error output."""
        return _start(self._channel, arguments, environment, folder, streams)

    def for_commands(self) -> tuple[str, dict[str, Any]]:
        """A command that stands for `python` in a shell, and how subprocess.run starts the shell."""
        number = self._channel.fileno()
        return f"{sys.executable} -IS {OWN} {number}", {"pass_fds": [number]}

    def run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        timeout: float,
        standard_input: str | None = None,
    ) -> tuple[int | None, str, str]:
        """The results of `python *arguments`: exit status (None: it ran too long), output, error output."""
        with tempfile.TemporaryFile("w+") as text, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            text.write(standard_input or "")
            text.seek(0)
            copy = self.start(arguments, environment, folder, (text, out, err))
            status: int | None = None
            try:
                status = copy.wait(timeout)
            except subprocess.TimeoutExpired:
                copy.kill()
            for file in (out, err):
                file.seek(0)
            return status, out.read().decode(errors="replace"), err.read().decode(errors="replace")

    def cpu_seconds(self) -> float:
        """Of the process and of all copies that ended."""
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Ends the process."""
        self._channel.close()
        self._server.kill()
        self._server.wait()


if __name__ == "__main__":
    channel = socket.socket(fileno=int(sys.argv[1]))
    status = _start(channel, sys.argv[2:], os.environ, Path.cwd(), (sys.stdin, sys.stdout, sys.stderr)).wait()
    sys.exit(status if status >= 0 else 128 - status)
