"""Work that the processes of a launch share: the ranks of torchrun, the tasks of srun, or those of --jobs.

Each works on its part; the first puts the parts together, and tells. They meet in files of a folder that all of them see, so no network
is needed:

    launch           the token of the first process: parts for an earlier launch of the same name are not taken for this one's
    alive-I          a number that process I counts up while it works
    part-R-I         token and part of process I, of round R
    answer-R         token and answer of the first, and which parts it is made of
    failed-I         why process I gives no part

Each has its final name when it is whole. A process that shows no sign of life for OP_TOOLS_SHARE_TIMEOUT seconds is missing: the first
process goes on without its part, and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .._base.core import Error, run_op_from_data
from .._base.own_command import WRONG_USAGE

T = TypeVar("T")
Find = Callable[[str], Callable[..., Any] | None]

_TIMEOUT = 300.0  # seconds; a shared file system may show a file a minute late
_FAREWELL = 10.0  # seconds that the first process waits for the others to read the answer
_BEAT, _LOOK = 2.0, 0.02  # seconds between two signs of life, and two looks at the folder
_FIRST_OWN_STEP = (
    4_294_967_280  # Slurm's numbers of steps that srun did not start: a batch script, an interactive shell
)
_SHARE = "OP_TOOLS_SHARE"
_MOST_DIGITS = 7  # of a number of processes
_inside = False  # a command that another command calls is not shared again


class LaunchError(Error):
    """A variable of the launch that is not allowed: nothing has run."""

    exit_status = WRONG_USAGE


@dataclass(frozen=True)
class Launch:
    """This process among those that share its work."""

    number: int
    count: int
    name: str
    """The same for all of them, and for no other launch at the same time."""
    folder: str = ""
    """In which they meet; "": the command says where."""


def _process_number(name: str, text: str) -> int:
    """Of a variable."""
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise LaunchError(f"{name}={text}: is no number of a process, or of processes")
    return int(text)


def _number_of(name: str, without: int) -> int:
    """Of a variable, which may be missing."""
    return _process_number(name, os.environ.get(name) or str(without))


def _launch(variable: str, number: int, count: int, name: str, folder: str = "") -> Launch:
    """Processes are counted from 0; the variable has the number."""
    if number >= count:
        raise LaunchError(f"{variable}: there is no process {number} of {count}, which are counted from 0")
    return Launch(number, count, name, folder)


def launch_of_this_process() -> Launch | None:
    """None: this process works alone, or shares its work already.

    Raises:
        LaunchError: a variable of the launcher is wrong, or torchrun gave its processes on several machines no name.
    """
    variables = os.environ
    if _inside:
        return None
    if share := variables.get(_SHARE):
        number, _, rest = share.partition("/")
        of_all, _, folder = rest.partition("/")
        return _launch(_SHARE, _process_number(_SHARE, number), _process_number(_SHARE, of_all), "jobs", folder)
    if "TORCHELASTIC_RUN_ID" in variables and (count := _number_of("WORLD_SIZE", 1)) > 1:
        run = variables["TORCHELASTIC_RUN_ID"]
        if variables.get("LOCAL_WORLD_SIZE") == str(count):
            run += f"-{os.getppid()}"  # all have the same parent
        elif run == "none":
            raise LaunchError(
                "torchrun on several machines: give it --rdzv-id NAME, by which its processes find each other"
            )
        name = f"{run}-{variables.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        return _launch("RANK", _number_of("RANK", 0), count, name)
    step = variables.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) < _FIRST_OWN_STEP:
        count = _number_of("SLURM_STEP_NUM_TASKS", 0) or _number_of("SLURM_NTASKS", 1)
        name = f"{variables.get('SLURM_JOB_ID', '')}-{step}"
        return _launch("SLURM_PROCID", _number_of("SLURM_PROCID", 0), count, name) if count > 1 else None
    return None


def local_rank() -> int:
    """Of this process among those of its machine: the number of its device."""
    return _number_of("LOCAL_RANK" if os.environ.get("LOCAL_RANK") else "SLURM_LOCALID", 0)


def _timeout() -> float:
    """Seconds without a sign of life.

    Raises:
        LaunchError: OP_TOOLS_SHARE_TIMEOUT is wrong.
    """
    text = os.environ.get("OP_TOOLS_SHARE_TIMEOUT", "")
    try:
        seconds = float(text or _TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:  # false of nan, too
        raise LaunchError(f"OP_TOOLS_SHARE_TIMEOUT={text}: is no number of seconds above 0")
    return seconds


def is_shared(arguments: Sequence[str]) -> bool:
    """Several processes of a launch run this, and the arguments say nothing else about parts."""
    others = any(
        argument.partition("=")[0] in ("--shard", "--merge", "--help", "-h", "--version") for argument in arguments
    )
    return not others and launch_of_this_process() is not None


def _put_file(path: Path, content: bytes) -> None:
    """In a single step."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)


def _file_content(path: Path) -> bytes:
    """b"" where there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


class _Pulse:
    """Counts a file up while it is entered, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def _beat(self) -> None:
        count = 0
        while not self._end.is_set():
            count += 1
            with contextlib.suppress(OSError):
                _put_file(self._path, str(count).encode())
            self._end.wait(_BEAT)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


class _Watch:
    """How long another process has shown no sign of life."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen, self._since = b"", time.monotonic()

    def silence(self) -> float:
        """Seconds."""
        if (now := _file_content(self._path)) != self._seen:
            self._seen, self._since = now, time.monotonic()
        return time.monotonic() - self._since


class Ranks:
    """This process among those that share its work; a single process has no others to wait for."""

    def __init__(
        self, number: int = 0, count: int = 1, folder: Path = Path(), children: Sequence[subprocess.Popen[bytes]] = ()
    ) -> None:
        self.number, self.count = number, count
        self._timeout = _timeout() if count > 1 else 0.0
        self._folder = folder
        self._children = children
        self._round = 0
        self._mine = b""
        self._token = b""
        self._name = uuid.uuid4().hex  # in this process's parts, and in the answers that were made of them
        self._names: list[str] = []
        self.missing: list[str] = []
        """On the first process: why parts are missing, by their numbers."""

    def begin(self) -> None:
        """Before the work: the first process names the launch; another takes back what an earlier launch left of it."""
        if self.number == 0:
            self._token = uuid.uuid4().hex.encode()
            _put_file(self._folder / "launch", self._token)
        else:
            (self._folder / f"failed-{self.number}").unlink(missing_ok=True)

    def gathered(self, mine: Any) -> list[Any] | None:
        """On the first process: the parts of all, None in place of those that are missing; elsewhere None."""
        if self.count == 1:
            return [mine]
        self._mine = pickle.dumps((self._name, mine))
        if self.number > 0:
            return None
        watches = {number: _Watch(self._folder / f"alive-{number}") for number in range(1, self.count)}
        parts: list[Any] = [mine, *([None] * (self.count - 1))]
        absent: dict[int, str] = {}
        while watches:
            for number, watch in list(watches.items()):
                content = self._content(f"part-{self._round}-{number}", self._token)
                if content is not None:
                    name, parts[number] = pickle.loads(content)
                    self._names.append(name)
                elif why := self._why_missing(number, watch):
                    absent[number] = f"process {number} of {self.count} gave no part: {why}"
                else:
                    continue
                del watches[number]
            time.sleep(_LOOK)
        self.missing += [why for _, why in sorted(absent.items())]
        return parts

    def _why_missing(self, number: int, watch: _Watch) -> str:
        if failed := _file_content(self._folder / f"failed-{number}"):
            return failed.decode(errors="replace")
        if self._children and (status := self._children[number - 1].poll()) is not None:
            if self._content(f"part-{self._round}-{number}", self._token) is not None:
                return ""
            return f"it ended with status {status}"
        if watch.silence() > self._timeout:
            return f"no sign of life for {self._timeout:g} s (OP_TOOLS_SHARE_TIMEOUT)"
        return ""

    def _content(self, name: str, token: bytes) -> bytes | None:
        content = _file_content(self._folder / name)
        return content[len(token) :] if token and content.startswith(token) else None

    def agreed(self, of_first: T) -> T:
        """The value of the first process, on all of them.

        Raises:
            op_tools.Error: the first process failed, or is missing.
        """
        if self.count == 1:
            return of_first
        name = f"answer-{self._round}"
        if self.number == 0:
            _put_file(self._folder / name, self._token + pickle.dumps((self._names, of_first)))
            self._round += 1
            return of_first
        watch = _Watch(self._folder / "alive-0")
        while True:
            if (answer := self._content(name, self._token)) is not None:
                names, value = pickle.loads(answer)
                if self._name in names:
                    self._round += 1
                    told: T = value
                    return told
            # A launch of the same name may have left its token: that of this launch comes later.
            if (token := _file_content(self._folder / "launch")) != self._token and token:
                self._token = token
                _put_file(self._folder / f"part-{self._round}-{self.number}", token + self._mine)
            if (failed := self._content("failed-0", self._token)) is not None:
                raise Error(f"the first process failed: {failed.decode(errors='replace')}")
            if watch.silence() > self._timeout:
                raise Error(f"the first process showed no sign of life for {self._timeout:g} s, in {self._folder}")
            time.sleep(_LOOK)

    def fail(self, error: BaseException) -> None:
        """Tells the others that this process gives no part, or no answer."""
        with contextlib.suppress(OSError):
            token = self._token if self.number == 0 else b""
            _put_file(self._folder / f"failed-{self.number}", token + str(error).encode())

    def end(self) -> None:
        """Takes away what this process wrote; the first, when the others have read its answer, the folder."""
        if self.number > 0:
            for path in self._folder.glob(f"*-{self.number}"):
                path.unlink(missing_ok=True)
            return
        ends = time.monotonic() + _FAREWELL
        while time.monotonic() < ends and any(self._folder.glob("part-*-*")):
            time.sleep(_LOOK)
        shutil.rmtree(self._folder, ignore_errors=True)


def _own_folder(folder: Path) -> Path:
    """A folder of this user alone: parts are Python's pickles.

    Raises:
        op_tools.Error: it cannot be made, or is somebody else's.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise Error(f"{folder}: the processes of the launch cannot meet here: {error.strerror}") from None
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or folder.is_symlink():
        raise Error(f"{folder}: is not a folder of this user alone; remove it")
    return folder


def _children(words: Sequence[str], count: int, folder: Path) -> list[subprocess.Popen[bytes]]:
    """The other processes of --jobs."""
    return [
        subprocess.Popen(
            [sys.executable, "-m", "op_tools", *words],
            env={**os.environ, _SHARE: f"{number}/{count}/{folder}"},
            stdout=subprocess.DEVNULL,
        )
        for number in range(1, count)
    ]


@contextmanager
def ranks(place: str | os.PathLike[str] = "", jobs: int = 1, words: Sequence[str] = ()) -> Iterator[Ranks]:
    """The processes that share the work, while it is entered; this one alone where no launcher started it.

    Args:
        place: a folder that all of them see: of the results; "": the working folder.
        jobs: processes that this one starts where no launcher did; its own among them.
        words: the command of op-tools that these run.

    Raises:
        op_tools.Error: they cannot meet; LaunchError: a variable of the launch is wrong.
    """
    global _inside
    launch = launch_of_this_process()
    if launch is None and (jobs <= 1 or _inside):
        yield Ranks()
        return
    _timeout()  # a wrong value is refused before anything runs
    children: list[subprocess.Popen[bytes]] = []
    if launch is None:
        folder = Path(tempfile.mkdtemp(prefix="op_tools_share_"))
        children = _children(words, jobs, folder)
        launch = Launch(0, jobs, "jobs", str(folder))
    folder = _own_folder(Path(launch.folder or Path(place or ".") / f".op_tools_share_{launch.name}"))
    group = Ranks(launch.number, launch.count, folder, children)
    group.begin()
    _inside = True
    try:
        with _Pulse(folder / f"alive-{launch.number}"):
            yield group
    except BaseException as error:
        group.fail(error)
        for child in children:
            child.terminate()
        if launch.number == 0:
            group.end()
        raise
    else:
        group.end()
    finally:
        _inside = False
        for child in children:
            child.wait()


def _own(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compare")
    parser.add_argument("--allow-unseen", action="store_true")
    return parser.parse_known_args(list(arguments))


def replay_part(arguments: Sequence[str], find: Find) -> int:
    """Replays this process's calls; the first prints the summary of all and writes the JSON report of all.

    Args:
        arguments: as on the command line, the same for all processes.
        find: gives the Python function of a name.

    Returns:
        the exit status of the whole, the same on all processes.
    """
    options, rest = _own(arguments)
    device = options.device
    if device != "cpu" and ":" not in device:
        device += f":{local_rank()}"
    place = Path(options.json).parent if options.json else Path()
    with ranks(place) as group, tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "part.json"
        shard = f"{group.number}/{group.count}"
        part = ["--shard", shard, "--device", device, "--json", str(report), "--no_summary"]
        status = run_op_from_data([*rest, *part], find)
        content = zlib.compress(report.read_bytes(), 1) if report.exists() else None
        parts = group.gathered((status, content))
        if parts is not None:
            status = _told(parts, group.missing, Path(folder), options, find)
        return group.agreed(status)


def _empty_part(first: bytes, number: int, count: int, why: str) -> bytes:
    """A report for a process that gave no part: a problem in place of its calls, beside the reports of the other processes."""
    settings = json.loads(first)["summary"]
    calls = settings["shard"][2]
    problem = f"part {number}/{count}, {len(range(number, calls, count))} of {calls} calls: {why}"
    summary = {**settings, "left_out": 0, "seconds": 0, "shard": [number, count, calls]}
    return json.dumps({"summary": summary, "problems": [problem], "calls": []}).encode()


def _told(parts: list[Any], missing: Sequence[str], folder: Path, options: argparse.Namespace, find: Find) -> int:
    sys.stderr.write("".join(f"run_op_from_data: NOT JUDGED: {text}\n" for text in missing))
    failed: list[int] = [part[0] for part in parts if part is not None and part[1] is None]
    if failed:
        return failed[0]  # wrong usage: each process has printed its error
    reports = [b"" if part is None else zlib.decompress(part[1]) for part in parts]
    why = iter(missing)
    files = []
    for number, report in enumerate(reports):
        files.append(folder / f"part-{number}.json")
        files[-1].write_bytes(report or _empty_part(reports[0], number, len(parts), next(why)))
    more = [
        argument
        for name in ("json", "compare")
        for argument in (f"--{name}", getattr(options, name))
        if getattr(options, name)
    ]
    if options.allow_unseen:
        more.append("--allow-unseen")
    return run_op_from_data(["--merge", *map(str, files), *more], find)
