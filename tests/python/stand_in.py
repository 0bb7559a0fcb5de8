"""Stands for `python` where a program that a test runs starts Python programs of its own: asks the server of forked.py for a copy.

Where a copy would not do the same, it becomes that Python: interpreter options, variables that Python or torch read when they
start, open files that the program inherits. Few imports, as every such program waits for them.
"""

import _signal
import _socket
import array
import json
import os
import sys

REFERENCE = "FORKED_READ_AT_START"
"""The variable with the result of read_at_start() when the test began, as JSON."""

# Variables that Python, torch or the libraries under it read when they start, or that load something then.
_READ_AT_START = ("PYTHON", "LD_", "TORCH", "PYTORCH", "MALLOC_", "GLIBC_", "OPENBLAS_", "MKL_", "KMP_", "GOMP_")
_READ_AT_START += ("LANG", "LC_")
# A copy follows the first two as Python does; the launcher of torch gives the others to ranks, which read them later.
_READ_LATER = ("PYTHONPATH", "PYTHONUNBUFFERED", "TORCHELASTIC_", "TORCH_NCCL_")

_FORWARDED = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)


def read_at_start(environment):
    """The variables that a process which has imported torch already would have needed at its start."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER)
    }


def ask(address, arguments, environment, folder, files):
    """Asks the server for a copy that runs `python *arguments` with these three streams: a socket, on which the server says the
    number of the process in a line, and its exit status in another line. Closing the socket kills the copy."""
    caller = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    caller.connect(address)
    text = json.dumps({"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)})
    caller.sendmsg([text.encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", files))])
    return caller


def _is_plain(arguments):
    """Can a copy run this? A file, a module or a text, behind options that it knows."""
    rest = list(arguments)
    while rest and rest[0] in ("-u", "-W", "-X"):
        option = rest.pop(0)
        if option != "-u" and (not rest or (rest.pop(0) != "faulthandler" and option == "-X")):
            return False
    if not rest:
        return False
    return rest[0] in ("-c", "-m") or (not rest[0].startswith("-") and os.path.isfile(rest[0]))  # noqa: PTH113


def _has_another_torch():
    """Like the Python of a program that is not ours."""
    return any(
        os.path.exists(os.path.join(folder, name))  # noqa: PTH110, PTH118
        for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        for name in ("torch", "torch.py")
        if folder
    )


def _inherits_files():
    with os.scandir("/proc/self/fd") as entries:
        numbers = [int(entry.name) for entry in entries]
    return any(number > 2 and os.path.exists(f"/proc/self/fd/{number}") for number in numbers)  # noqa: PTH110


def _stand(address, arguments):
    arrived = []
    for number in _FORWARDED:
        _signal.signal(number, lambda number, _: arrived.append(number))
    caller = ask(address, arguments, os.environ, os.getcwd(), [0, 1, 2])  # noqa: PTH109
    pid = int(caller.recv(100))

    def forward(number, _):
        try:  # noqa: SIM105, contextlib takes long to import
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    for number in _FORWARDED:
        _signal.signal(number, forward)
    while arrived:
        forward(arrived.pop(), None)
    said = caller.recv(100)
    status = int(said) if said else 70  # the server is gone
    if status < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    _python, _address, *_arguments = sys.argv[1:]
    _reference = os.environ.get(REFERENCE)
    _alike = _reference is not None and json.loads(_reference) == read_at_start(os.environ)
    try:
        _alike = _alike and _is_plain(_arguments) and not _has_another_torch() and not _inherits_files()
        _streams = _alike and [os.fstat(number) for number in (0, 1, 2)]
    except OSError:
        _alike = False
    if not _alike:
        os.execv(_python, [_python, *_arguments])  # noqa: S606
    _stand(_address, _arguments)
