"""The page of a run in progress, for a browser on this machine: op-tools serve

Answers GET of a single address, which has a secret word in it, with the page of the folders as they are now. It writes nothing, opens no
file by a name that comes from a request, and follows no symbolic link. Each request has a thread; the page is made under a lock.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .._base.core import Error
from .page import message_page, page_of
from .scan import read_parts

LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def _state_of(places: Sequence[Path]) -> frozenset[tuple[str, int, int]]:
    """Names, sizes and times of all files: another state, another page."""
    state = set()
    for place in places:
        for folder, _, files in os.walk(place):
            for name in files:
                path = f"{folder}/{name}"
                try:
                    facts = os.lstat(path)
                except OSError:
                    continue  # gone meanwhile
                if stat.S_ISREG(facts.st_mode):
                    state.add((path, facts.st_size, facts.st_mtime_ns))
    return frozenset(state)


class _Pages:
    """The page of the folders, made anew where a file has changed."""

    def __init__(self, places: Sequence[Path], title: str) -> None:
        self._places, self._title = places, title
        self._lock = threading.Lock()
        self._state: frozenset[tuple[str, int, int]] | None = None
        self._page = b""

    def now(self) -> bytes:
        """The page of this moment; a sentence where there is nothing to show yet."""
        with self._lock:
            state = _state_of(self._places)
            if state != self._state:
                try:
                    text = page_of(read_parts(self._places), self._title)
                except Error as error:  # no result yet, or a file that is half written
                    text = message_page(self._title, str(error))
                self._page, self._state = text.encode("utf-8", "replace"), state
            return self._page


class PageServer(ThreadingHTTPServer):
    """Serves the page of folders on the loopback address.

    Args:
        places: folders with results, which may still be empty.
        port: 0: a free port.
        every: seconds after which a browser loads the page again; 0: it does not.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, places: Sequence[str | os.PathLike[str]], port: int = 0, every: int = 0) -> None:
        folders = [Path(place).resolve() for place in places]
        self.pages = _Pages(folders, f"op_tools: {', '.join(folder.name for folder in folders)}")
        self.every = every
        self.word = secrets.token_urlsafe(24)
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def address(self) -> str:
        """For a browser."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.word}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "op-tools", ""
    timeout = 30  # seconds that a connection may be idle

    def _is_allowed(self) -> bool:
        """The secret word is in the address, and the browser means this machine: a page of another site that names it by a name of its
        own is refused."""
        port = self.server.server_port
        is_here = self.headers.get("Host", "") in (f"{LOOPBACK}:{port}", f"localhost:{port}")
        wanted = f"/{self.server.word}/".encode()
        return hmac.compare_digest(self.path.encode("utf-8", "replace"), wanted) and is_here

    def _answer(self, status: HTTPStatus, content: bytes, *, with_content: bool) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if self.server.every and status is HTTPStatus.OK:
            self.send_header("Refresh", str(self.server.every))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def _page(self, *, with_content: bool) -> None:
        try:
            if self._is_allowed():
                self._answer(HTTPStatus.OK, self.server.pages.now(), with_content=with_content)
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"not found\n", with_content=with_content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the browser went away

    def do_GET(self) -> None:
        """The page."""
        self._page(with_content=True)

    def do_HEAD(self) -> None:
        """Its headers."""
        self._page(with_content=False)

    def log_message(self, *_: object) -> None:
        """Says nothing: an address in a log would tell the word."""
