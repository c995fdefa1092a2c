"""For tests of `channelfit watch`: run folders as runs leave them, and a server in a thread."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from channelfit.front.watching.answers import Watched
from channelfit.front.watching.server import Server
from channelfit.results.run_state import this_process

#: What a run says that goes on in this very process.
TOLD: dict[str, Any] = {
    "state": "running",
    "stage": "searching",
    "name": "a fit",
    "started": "2030-01-02T03:04:05.000+00:00",
    "updated": "2030-01-02T03:05:05.000+00:00",
    "command": ["/somewhere/channelfit", "optimize", "a file.yaml"],
    "stop": {"generations": 300, "tolerance": 1e-6},
    "cost_unit": "pA^2",
    "generation": 20,
    "evaluations": 1000,
    "seconds": 60.0,
    "seconds_left": 90.0,
    "best_cost": 16.0,
    "median_cost": 25.0,
    "failed": 0.25,
    "warnings": ["data.csv: 3 samples: look at them"],
    "parameters": {
        "gmax": {"value": 2.5, "unit": "nS", "lower": 0.0, "upper": 10.0},
        "a12": {"value": 1.0, "unit": "1/ms", "lower": 0.0, "upper": 1.0},
    },
}
#: A process that runs no more.
GONE = this_process() | {"started": "another moment"}
HISTORY = "generation,evaluations,seconds,best_cost,median_cost,failed\n"


def made_run(folder: Path, n: int = 20, **news: Any) -> Path:
    """A folder as a run leaves it after n generations; news replace entries of its state."""
    folder.mkdir(parents=True)
    told = TOLD | {"process": this_process(), "generation": n} | news
    (folder / "state.json").write_text(json.dumps(told), encoding="utf-8")
    rows = [f"{k},{50 * k},{k / 10},{1000 / k!r},{2000 / k!r},0.0\n" for k in range(1, n + 1)]
    (folder / "history.csv").write_text(HISTORY + "".join(rows), encoding="utf-8")
    return folder


def made_batch(folder: Path, done: int = 120, **news: Any) -> Path:
    """A folder as a batch of 384 wells leaves it while it goes on; news replace entries."""
    folder.mkdir(parents=True)
    search = ("generation", "evaluations", "best_cost", "median_cost", "failed", "parameters")
    told = {key: value for key, value in TOLD.items() if key not in search}
    told |= {"process": this_process(), "stage": "fitting wells", "stop": {}, "wells": 384}
    told |= {"wells_done": done, "wells_failed": 3} | news
    (folder / "state.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "fit.yaml").write_text("no: fit of a search\n", encoding="utf-8")
    return folder


@contextmanager
def serving(place: Path, port: int = 0) -> Iterator[Server]:
    """A server of a place, in a thread of its own."""
    ended = threading.Event()
    server = Server(Watched(place), port)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(ended.is_set)))
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        thread.join()


class Answer:
    """An answer of a server: its status, headers and body."""

    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.headers = found.status, found.headers
        self.body = found.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def asked(server: Server, path: str, method: str = "GET", **headers: str) -> Answer:
    """Asks a server for a path, "~" standing for the token."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    try:
        connection.request(method, path.replace("~", server.token), headers=headers)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def asked_raw(server: Server, text: str) -> str:
    """Return a server's answer to some bytes, after which it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(text.replace("~", server.token).encode())
        found = b""
        while piece := connection.recv(65536):
            found += piece
    return found.decode("latin-1")
