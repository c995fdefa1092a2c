"""The server of `channelfit watch`: one page for one user of this computer, which only reads.

It listens on the loopback interface alone. Every address begins with a random token, without which
nothing is answered. The name by which a browser asks must be that of this computer, so that no
foreign site can ask under a name of its own that leads here (DNS rebinding). No part of an address
is ever used as a path: a run is named by a number that this server has made up. A strict
Content-Security-Policy keeps a page from running or loading anything but its own files.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler

from channelfit.front.watching.answers import Watched
from channelfit.reading.errors import InputError
from channelfit.reading.second_process import give_up
from channelfit.results.report.page_shell import SCRIPT, STYLE, library_file, rendered

#: The interface that no other computer reaches.
LOOPBACK = "127.0.0.1"
#: Names of this computer that stand in front of the port.
_NAMES = ("127.0.0.1", "localhost")
#: Bytes of a request, and seconds that one may take to come in.
_MOST_BYTES, _SECONDS = 16_384, 10
#: The policy of a page, which forbids everything that it does not name.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
#: A report is one file that holds its own scripts. It is shown in a sandbox, where it may run them,
#: and neither load nor send anything, nor see the pages of this server.
_REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PAGES = Path(__file__).parent / "page"
#: By name, the kind of a file that a page loads, and the files of which it consists.
_FILES = {
    "watch.js": ("text/javascript", (SCRIPT, _PAGES / "watch.js")),
    "watch.css": ("text/css", (STYLE, _PAGES / "watch.css")),
    "bokeh.min.js": ("text/javascript", (library_file(),)),
}


class Server:
    """A server of one watched place, which answers as long as its event loop runs.

    Arguments:
        watched: what is shown.
        port: the port to listen on; 0 for a free one.

    Raises InputError: the port is taken, or not allowed.
    """

    def __init__(self, watched: Watched, port: int = 0) -> None:
        try:
            (self._socket,) = bind_sockets(port, LOOPBACK, socket.AF_INET)
        except OSError as error:
            why = "is taken by another program"
            if error.errno != errno.EADDRINUSE:
                why = f"cannot be used: {error.strerror or error}"
            text = f"port {port} {why}; give another one, or none for one that is free"
            raise InputError(text, key="--port") from None
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_urlsafe(24)
        self.pass_once = secrets.token_urlsafe(24)
        self.work = ThreadPoolExecutor(1, "watch")
        self.slow_work = ThreadPoolExecutor(1, "traces")
        self.watched = watched

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        return f"http://{LOOPBACK}:{self.port}/{self.token}/"

    @property
    def address_once(self) -> str:
        """An address that leads to the page once, and never again.

        It is for the call of a browser, which every user of this computer can see.
        """
        return f"http://{LOOPBACK}:{self.port}/open/{self.pass_once}"

    async def serve(self, ended: Callable[[], bool]) -> None:
        """Answer until a function says that it is over."""
        within = r"/([^/]*)/"
        run = within + r"run/([\w=-]+)/"
        application = Application(
            [
                (r"/open/([^/]*)", _Once),
                (within, _Page),
                (within + "queue", _Queue),
                (within + r"static/([\w.]+)", _Static),
                (run, _Page),
                (run + "state", _Run),
                (run + "traces", _TracesOf),
                (run + r"figure/(cost/log|cost/linear|data/\d{1,4})", _Figure),
                (run + "report", _Report),
                (run + r"(traces(?:_\d{1,4})?\.csv)", _Table),
            ],
            default_handler_class=_Nothing,
            log_function=lambda handler: None,  # an address holds the token
            server=self,
        )
        http = HTTPServer(
            application,
            max_body_size=_MOST_BYTES,
            max_header_size=_MOST_BYTES,
            body_timeout=_SECONDS,
            idle_connection_timeout=10 * _SECONDS,
        )
        http.add_sockets([self._socket])
        try:
            while not ended():
                await asyncio.sleep(0.1)
        finally:
            http.stop()
            await http.close_all_connections()
            for pool in (self.work, self.slow_work):
                pool.shutdown(wait=False, cancel_futures=True)
            give_up()


class _Handler(RequestHandler):
    """The common part of all answers: accepted names, tokens and methods, and headers."""

    SUPPORTED_METHODS = ("GET", "HEAD")
    needs_token = True

    @property
    def server(self) -> Server:
        server: Server = self.settings["server"]
        return server

    def set_default_headers(self) -> None:
        self.nonce = secrets.token_urlsafe(16)
        self.clear_header("Server")
        for name, value in _HEADERS.items():
            self.set_header(name, value)
        self.set_header("Content-Security-Policy", _POLICY.format(nonce=self.nonce))

    def prepare(self) -> None:
        """Refuse requests by a foreign name or without the token."""
        if self.request.host not in {f"{name}:{self.server.port}" for name in _NAMES}:
            raise HTTPError(421)
        if self.request.method not in self.SUPPORTED_METHODS:
            raise HTTPError(405)
        if self.needs_token and not _same(self.path_args[0] if self.path_args else "", self.token):
            raise HTTPError(404)

    @property
    def token(self) -> str:
        return self.server.token

    async def head(self, *parts: str) -> None:
        """Answer as to a GET; Tornado leaves out the body."""
        await self.get(*parts)

    async def get(self, *parts: str) -> None:
        raise HTTPError(404)

    def run_folder(self, own: str) -> Path:
        """Return the folder that a run's id stands for."""
        folder = self.server.watched.folder(own)
        if folder is None:
            raise HTTPError(404)
        return folder

    async def answer(self, find: Callable[[], Any], slow: bool = False) -> None:
        """Send what a function returns as JSON; it is called beside the event loop."""
        pool = self.server.slow_work if slow else self.server.work
        found = await asyncio.get_running_loop().run_in_executor(pool, find)
        if found is None:
            raise HTTPError(404)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(found, allow_nan=False))

    def write_error(self, status_code: int, **_: Any) -> None:
        """Send a plain line that repeats nothing of the request."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        words = {404: "Not found.", 405: "This page only reads.", 421: "Not this computer."}
        self.finish(words.get(status_code, "This cannot be answered.") + "\n")


def _same(token: str, other: str) -> bool:
    """Return whether two tokens are the same, in a time that says nothing of where they differ."""
    return hmac.compare_digest(token.encode(errors="replace"), other.encode())


class _Nothing(_Handler):
    """Any other address."""


class _Once(_Handler):
    """Leads a browser to the page, at the first request."""

    needs_token = False

    async def get(self, *parts: str) -> None:
        pass_once = self.server.pass_once
        if not pass_once or not _same(parts[0], pass_once):
            raise HTTPError(404)
        if self.request.method == "GET":  # a look at the address is no use of it
            self.server.pass_once = ""
        self.redirect(f"/{self.token}/")


class _Page(_Handler):
    """The page of a queue or of a run."""

    async def get(self, *parts: str) -> None:
        watched = self.server.watched
        if len(parts) > 1:
            self.run_folder(parts[1])
        kind = "queue" if len(parts) == 1 and not watched.alone else "run"
        base = f"/{self.token}/"
        at = base
        if kind == "run":
            at += f"run/{watched.only if watched.alone else parts[1]}/"
        back = "" if watched.alone else base
        self.set_header("Content-Type", "text/html; charset=utf-8")
        context = {"kind": kind, "base": base, "at": at, "back": back, "nonce": self.nonce}
        self.finish(rendered(_PAGES / f"{kind}.html", context))


class _Queue(_Handler):
    """The rows of a queue."""

    async def get(self, *parts: str) -> None:
        await self.answer(self.server.watched.queue)


class _Run(_Handler):
    """The facts of one run."""

    async def get(self, *parts: str) -> None:
        await self.answer(partial(self.server.watched.run, self.run_folder(parts[1])))


class _TracesOf(_Handler):
    """The fit of one run over its data."""

    async def get(self, *parts: str) -> None:
        await self.answer(partial(self.server.watched.traces, self.run_folder(parts[1])), slow=True)


class _Figure(_Handler):
    """A figure of Bokeh, with the data of this moment."""

    async def get(self, *parts: str) -> None:
        of = "cost" if parts[2].startswith("cost") else parts[2]
        find = partial(self.server.watched.figure, self.run_folder(parts[1]), of)
        await self.answer(find, slow=of != "cost")


class _Report(_Handler):
    """The report of a finished run, in a sandbox."""

    async def get(self, *parts: str) -> None:
        body = self.server.watched.report(self.run_folder(parts[1]))
        if body is None:
            raise HTTPError(404)
        self.set_header("Content-Security-Policy", _REPORT_POLICY)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(body)


class _Table(_Handler):
    """A table of traces, to which the report of a run leads."""

    async def get(self, *parts: str) -> None:
        body = self.server.watched.table(self.run_folder(parts[1]), parts[2])
        if body is None:
            raise HTTPError(404)
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="{parts[2]}"')
        self.finish(body)


class _Static(_Handler):
    """A file that belongs to the page itself."""

    async def get(self, *parts: str) -> None:
        if parts[1] not in _FILES:
            raise HTTPError(404)
        kind, _ = _FILES[parts[1]]
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        self.set_header("Cache-Control", "private, max-age=86400")
        self.finish(_asset(parts[1]))


@cache
def _asset(name: str) -> bytes:
    """Return a file that a page loads."""
    return b"\n".join(file.read_bytes() for file in _FILES[name][1])
