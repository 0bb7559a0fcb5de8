"""Results in a remote store (``s3://bucket/run``, ``https://host/run``): each file stands in a local folder with its name and size, and its
bytes are loaded when they are read. Stores are those of fsspec, which is imported where a URL is read."""

from __future__ import annotations

import atexit
import importlib
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TextIO, cast

from .core import Error, set_range_loader
from .error_text import one_line

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # a drive of Windows has a single letter
_MEMBER = re.compile(r"(.*\.zip)!(.*)", re.DOTALL)  # a call in a container
_READ_BY_THE_CORE = (".zip", ".oprec", ".blackbox", ".pth")  # the core's readers call the range loader
_BLOCK = 1 << 16  # bytes: a request has this size at least
_MOST_AHEAD = 1 << 7  # blocks, loaded at once of a file that is read from its begin to its end
_THREADS = 16  # small files wait for the network, not for a core


@dataclass
class _RemoteFile:
    """A file of a store. A lock for each: threads that read other files do not wait."""

    store: Any
    path: str
    url: str
    size: int
    absent: set[int]
    """Numbers of the blocks that are not loaded."""
    following: int = 0
    """The block after those of the last request."""
    ahead: int = 0
    """Blocks of the next request, beyond those asked for, where it goes on there: doubled each time."""
    lock: threading.Lock = field(default_factory=threading.Lock)


_files: dict[str, _RemoteFile] = {}  # by the local file's path
_places: dict[str, str] = {}  # a local folder or file -> its URL
_root = ""


def is_url(text: object) -> bool:
    """Whether a text is the URL of a store."""
    return isinstance(text, str) and _URL.match(text) is not None


def _runs_of(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring numbers as (first, number after the last)."""
    start = end = -1
    for block in sorted(blocks):
        if block != end:
            if start >= 0:
                yield start, end
            start = block
        end = block + 1
    if start >= 0:
        yield start, end


def _load_bytes(local: str, begin: int, end: int) -> None:
    """Loads bytes of a file that are not there; the core calls it (set_range_loader)."""
    file = _files.get(local)
    if file is None:
        return
    with file.lock:
        wanted = file.absent.intersection(range(begin // _BLOCK, (end - 1) // _BLOCK + 1))
        if not wanted:
            return
        first, last = min(wanted), max(wanted) + 1
        file.ahead = min(2 * file.ahead + 1, _MOST_AHEAD) if first == file.following else 0
        wanted |= file.absent.intersection(range(last, last + file.ahead))
        file.following = max(wanted) + 1
        for first, last in _runs_of(wanted):
            start, stop = first * _BLOCK, min(last * _BLOCK, file.size)
            try:
                content: bytes = file.store.cat_file(file.path, start=start, end=stop)
            except Exception as error:  # whatever the store raises
                raise Error(f"{file.url}: bytes {start} to {stop} cannot be loaded: {one_line(error)}") from None
            if len(content) == file.size:  # a server without ranges sends all
                start, first, last = 0, 0, -(-file.size // _BLOCK)
            elif len(content) != stop - start:
                raise Error(
                    f"{file.url}: bytes {start} to {stop}: {len(content)} bytes came; the file changes, or the server lacks ranges"
                )
            with Path(local).open("r+b") as out:
                out.seek(start)
                out.write(content)
            file.absent.difference_update(range(first, last))


def _new_root() -> str:
    root = os.path.realpath(tempfile.mkdtemp(prefix="op_tools_remote_"))
    set_range_loader(root, _load_bytes)
    return root


def forget_remote_files() -> None:
    """Removes the local files; a URL that is read again is listed again."""
    global _root
    if _root:
        shutil.rmtree(_root, ignore_errors=True)
    _root = ""
    _files.clear()
    _places.clear()


atexit.register(forget_remote_files)


def _listed(url: str) -> tuple[Any, str, dict[str, int]]:
    """The store, the path in it, and the sizes of all files at or below it."""
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError:
        raise Error(f"{url}: a URL is read by fsspec: pip install fsspec (for s3:// also s3fs)") from None
    try:
        store, path = fsspec.core.url_to_fs(url)
        listed = store.find(path, detail=True) or {path: store.info(path)}
        sizes = {
            name: facts["size"] if facts.get("size") is not None else store.info(name)["size"]
            for name, facts in listed.items()
        }
    except Exception as error:  # whatever the store raises: no such bucket, no rights, a package that it needs
        raise Error(f"{url}: cannot be read: {one_line(error)}") from None
    without = next((name for name, size in sizes.items() if size is None), None)
    if without is not None:
        raise Error(f"{url}: the store does not say how long {without} is")
    return store, path.rstrip("/"), sizes


def _local_place(url: str) -> str:
    """The local file or folder of a URL; its small files are loaded."""
    global _root
    store, path, sizes = _listed(url)
    _root = _root or _new_root()
    place = Path(_root, str(len(_places)), PurePosixPath(path).name or "store")
    eager = []
    for name, size in sizes.items():
        below = name.removeprefix(path).removeprefix("/")
        if any(part in ("", ".", "..") or "\0" in part for part in below.split("/")) and below:
            raise Error(f"{url}: the name {name!r} leads out of its folder")
        local = place / below
        local.parent.mkdir(parents=True, exist_ok=True)
        with local.open("xb") as out:
            out.truncate(size)
        file = _RemoteFile(store, name, f"{url.rstrip('/')}/{below}".rstrip("/"), size, set(range(-(-size // _BLOCK))))
        _files[str(local)] = file
        if not name.endswith(_READ_BY_THE_CORE) and size:
            eager.append(str(local))
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(lambda local: _load_bytes(local, 0, _files[local].size), eager):
            pass
    _places[str(place)] = url.rstrip("/")
    return str(place)


def local_path(text: str) -> str:
    """The local path by which the results at a URL are read; a path stays as it is.

    Args:
        text: a path, a URL of a file or of a folder, or that of a call in a container (``s3://bucket/run/calls.zip!OP/ID``).

    Raises:
        op_tools.Error: the store cannot be read, or has no such file.
    """
    if not is_url(text):
        return text
    if member := _MEMBER.fullmatch(text):
        return f"{local_path(member[1])}!{member[2]}"
    url = text.rstrip("/")
    known = next((place for place, known_url in _places.items() if known_url == url), None)
    return known or _local_place(text)


def with_urls(text: str) -> str:
    """A text in which local paths of remote files are their URLs."""
    if _root and _root in text:
        for place, url in _places.items():
            text = text.replace(place, url)
    return text


def loaded_text() -> str:
    """How much of the remote files was loaded, for a line at a command's end; "" where no URL was read."""
    if not _files:
        return ""
    whole = sum(file.size for file in _files.values())
    absent = sum(
        min(_BLOCK, file.size - block * _BLOCK) for file in list(_files.values()) for block in list(file.absent)
    )
    return f"{len(_files)} remote files of {whole / 1e6:.1f} MB: {(whole - absent) / 1e6:.1f} MB were loaded"


class _WithUrls:
    """A stream whose text has URLs where local paths of remote files stand."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(with_urls(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def urls_shown() -> Iterator[None]:
    """Within it, what this process prints from Python names URLs instead of local paths of remote files."""
    with (
        redirect_stdout(cast(TextIO, _WithUrls(sys.stdout))),
        redirect_stderr(cast(TextIO, _WithUrls(sys.stderr))),
    ):
        yield


def copy_of(text: str) -> str:
    """As local_path(), with all bytes of the files: for readers that are not of the core, or in another process.

    Raises:
        op_tools.Error: a file cannot be loaded.
    """
    path = local_path(text)
    for local, file in _files.items():
        if file.size and (local == path or local.startswith(f"{path}/")):
            _load_bytes(local, 0, file.size)
    return path
