"""Python programs as copies of a process that has imported torch and has done nothing else.

Importing torch takes two seconds; a copy of a process that has imported it takes 20 ms. A copy is as fresh as a process that has
just executed that import: the server runs no operator, and has a single thread. A program finds `sys.argv`, `sys.path`,
`__main__`, environment, folder, standard streams, exit status and signals as Python gives them; tests for which the start of
the interpreter itself matters (its options, variables that it or torch reads when it starts, `/proc/self/cmdline`) start one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.machinery
import json
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from stand_in import ask

OWN = (lambda: None).__code__.co_filename


# --- The server -----------------------------------------------------------------------------------------------------------


def serve(listening_number: int, life_number: int, python: str, modules: Sequence[str]) -> None:
    """Makes a copy for each program, until the process that wants them is gone.

    Args:
        listening_number: file number of the socket where programs are asked for.
        life_number: of a pipe that ends with that process.
        python: the path of the stand-in for Python in programs.
        modules: those that a copy has imported.
    """
    imported = {name: importlib.import_module(name) for name in modules}
    end_before_modules()
    gc.freeze()  # the collector writes into each object that it looks at, and each page that is written is copied
    listening = socket.socket(fileno=listening_number)
    with selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        waiting.register(life_number, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fd == life_number:
                    for child in {other.data[0] for other in waiting.get_map().values() if other.data}:
                        kill_group(child)
                    return
                if key.fileobj is not listening:
                    if key.fd in waiting.get_map():  # not the other file of a copy that ended in this round
                        ended(waiting, key)
                    continue
                caller, _ = listening.accept()
                text, files, _, _ = socket.recv_fds(caller, 1 << 20, 3)
                if len(files) < 3:
                    caller.close()
                    continue  # whoever asked is gone
                child = os.fork()
                if child == 0:
                    os.setpgid(0, 0)
                    for other in list(waiting.get_map().values()):
                        os.close(other.fd)
                    waiting.close()
                    caller.close()
                    end(run(json.loads(text), files, python, imported))
                for file in files:
                    os.close(file)
                process = os.pidfd_open(child)
                waiting.register(process, selectors.EVENT_READ, (child, process, caller))
                waiting.register(caller, selectors.EVENT_READ, (child, process, caller))
                with contextlib.suppress(OSError):
                    caller.sendall(f"{child}\n".encode())


def end_before_modules() -> None:
    """A copy that ends takes apart the libraries which it has loaded itself, and none that is loaded now: torch's objects alone take
    0.2 s, as each page of them is copied first. Tests of a program's end want `fresh` processes."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # handlers run in the opposite order
    libc.__cxa_atexit(libc.fflush, None, None)


def kill_group(child: int) -> None:
    """A copy, and the processes that it started, as a kill of the stand-in's group would."""
    os.kill(child, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)


def ended(waiting: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    """A copy ended, or nobody waits for it any more."""
    child, process, caller = key.data
    if key.fileobj is caller:
        kill_group(child)
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


class Imported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that a program does not find in sys.modules until it imports them, as they do not run again then: a hook that waits
    for the import of torch (op_tools/startup) sees it, and a program without torch has none."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        self._modules = dict(modules)
        for name in modules:
            del sys.modules[name]

    def find_spec(self, name: str, path: Sequence[str] | None = None, _: Any = None) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        own = self._modules[name].__spec__
        if spec is None or own is None or spec.origin != own.origin:
            raise RuntimeError(f"this program has another {name}: it needs a Python that is started for it")
        spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._modules.pop(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        spec.loader = importlib.machinery.SourceFileLoader(spec.name, str(spec.origin))


def start_again() -> None:
    """A sitecustomize on the path of the program, as Python runs it at its start."""
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def run(asked: Mapping[str, Any], files: Sequence[int], python: str, imported: Mapping[str, ModuleType]) -> int:
    """What `python *arguments` does after its start, and its exit status; SIGINT's number, negative, where it was interrupted."""
    import faulthandler
    import io
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
    sys.executable = python
    sys.orig_argv = [python, *arguments]
    unbuffered = bool(asked["environment"].get("PYTHONUNBUFFERED"))
    while arguments[0] in ("-X", "-W", "-u"):
        option = arguments.pop(0)
        if option == "-u":
            unbuffered = True
        elif option == "-W":
            warnings._processoptions([arguments.pop(0)])  # type: ignore[attr-defined]
        else:
            value = arguments.pop(0)
            assert value == "faulthandler", value
            faulthandler.enable()
    if unbuffered:
        for name, number in (("stdout", 1), ("stderr", 2)):
            old = getattr(sys, name)
            stream = io.TextIOWrapper(
                io.FileIO(number, "w", closefd=False),  # type: ignore[arg-type]  (as Python's own)
                encoding=old.encoding,
                errors=old.errors,
                write_through=True,
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    first = arguments.pop(0)
    more = asked["environment"].get("PYTHONPATH", "")
    sys.path[:1] = [path for path in more.split(os.pathsep) if path]
    sys.meta_path.insert(0, Imported(imported))
    start_again()
    sys.path.insert(0, str(Path.cwd()) if first == "-m" else "")
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

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; minus the signal that ended it."""
        if self.returncode is None:
            self._caller.settimeout(timeout)
            try:
                said = self._caller.recv(100)
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            if not said:
                raise RuntimeError("the process that makes copies is gone")
            self.returncode = int(said)
            self._caller.close()
        return self.returncode

    def kill(self) -> None:
        """Ends it, if it runs."""
        if self.returncode is None:
            self._caller.shutdown(socket.SHUT_WR)
            self.wait()


class ForkServer:
    """Programs in copies of a process.

    Args:
        modules: its first imports.
        environment: of the process; each program has its own.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="forked-"))
        self._address = str(self._folder / "socket")
        self.python = str(self._folder / "python")
        """A program that stands for Python in programs that start others, and in shells."""
        place = Path(__file__).parent
        words = [sys.executable, "-IS", str(place / "stand_in.py"), sys.executable, self._address]
        Path(self.python).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        Path(self.python).chmod(0o755)
        code = f"import sys; sys.path.insert(1, {str(place)!r}); from forked import serve; del sys.path[1]; serve"
        life, self._life = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self._address)
            listening.listen(100)
            self._server = subprocess.Popen(
                [sys.executable, "-c", f"{code}({listening.fileno()}, {life}, {self.python!r}, {list(modules)})"],
                pass_fds=[listening.fileno(), life],
                # numpy's library would start a thread for each core, and a copy of a process has one thread.
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
            )
        os.close(life)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, streams: Sequence[IO[Any]]
    ) -> Copy:
        """Begins to run what `python *arguments` would; `streams`: its input, output and error output."""
        caller = ask(self._address, arguments, environment, folder, [stream.fileno() for stream in streams])
        return Copy(int(caller.recv(100)), socket.socket(fileno=caller.detach()))

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
        """Ends the process and all copies."""
        os.close(self._life)
        self._server.wait()
        shutil.rmtree(self._folder)
