"""Does any fault of a cluster lose a result, count one twice, or change one?

    python tests/faults_cluster.py                     # everything
    python tests/faults_cluster.py kill --runs 50 --workers 4 --seed 3 --out /tmp/faults
    python tests/faults_cluster.py namespaces          # as root: machines are played by networks

The faults are

    kill        workers are killed (kill -9) at random moments of each run
    stop        a worker is stopped (SIGSTOP) for a minute within a run
    scheduler   the scheduler is killed within a run and started anew, with its workers
    namespaces  scheduler and workers in two network namespaces, whose link is cut for some seconds
                at random moments; needs `ip netns` and root
    commands    workers of --cluster local are killed at random moments of real commands: curves,
                batch, optimize with islands and with seeds, uncertainty

A run of the first four does some dozens of pieces of a toy, one of the last each of the commands,
whose tables are compared with those of the same command without a cluster. Wanted is that each
piece is counted once and that the table is that of a run without faults, to the bit. A run that
differs is printed, and the exit code of this program is then 1. Results are written as those of
benchmarks, to benchmarks/results/faults_cluster.json or into the folder of --out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from channelfit.tasks.cluster import Cluster
from channelfit.tasks.cluster_file import ClusterPlan
from channelfit.tasks.executor import SerialExecutor
from support.places import ROOT
from support.plate_folder import write_plate
from support.toy_tasks import Toy, keys, table

sys.path.append(str(ROOT / "benchmarks"))  # a folder that is no package

from report import RESULTS, Row, as_script, finish

#: The two networks, and the addresses at the ends of the link between them.
NETWORKS = ("channelfit-head", "channelfit-node")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
LINKS = ("cfhead", "cfnode")
PORT = 8797


@dataclass(frozen=True)
class Settings:
    """What is tried. seconds: how long a piece takes."""

    runs: int
    workers: int
    pieces: int
    seconds: float
    seed: int


@dataclass
class Seen:
    """What came of some runs.

    good: those with the table of a run without faults, each piece once. faults: how many there
    were; again: pieces that were begun more than once.
    """

    runs: int = 0
    good: int = 0
    faults: int = 0
    again: int = 0
    slowest: float = 0.0


class Runs:
    """Runs of the same work, each looked at in the same way."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.seen = settings, Seen()
        self._wanted = table(dict(SerialExecutor()(Toy(), keys(settings.pieces))))

    def one(self, cluster: Cluster, strike: Callable[[threading.Event], int]) -> None:
        """One run. strike: does harm until the event is set; returns how often."""
        own = self.settings
        with tempfile.TemporaryDirectory() as folder:
            work = Toy(seconds=own.seconds, folder=Path(folder))
            over, struck = threading.Event(), list[int]()
            thread = threading.Thread(target=lambda: struck.append(strike(over)))
            thread.start()
            began = time.monotonic()
            try:
                found = list(cluster(work, keys(own.pieces)))
            finally:
                over.set()
                thread.join()
            self.seen.slowest = max(self.seen.slowest, time.monotonic() - began)
            counts = Counter(key for key, _ in found)
            once = sorted(counts) == keys(own.pieces) and set(counts.values()) == {1}
            same = once and table(dict(found)) == self._wanted
            self.seen.again += sum(work.begun(number) > 1 for number in range(own.pieces))
        assert struck, "nothing struck: the fault itself has failed"
        self.seen.runs += 1
        self.seen.good += same
        self.seen.faults += sum(struck)
        told = "as wanted" if same else f"wrong: pieces {dict(counts)}"
        print(f"run {self.seen.runs}, {sum(struck)} faults: {told}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def local_workers(cluster: Cluster) -> list[int]:
    """The processes of workers that have started and live."""
    running = [nanny.process for nanny in list(cluster.jobs.workers.values()) if nanny.process]
    return [process.pid for process in running if process.pid and process.status.name == "running"]


def kill(settings: Settings) -> Seen:
    """Workers are killed at random moments."""
    runs, dice = Runs(settings), random.Random(settings.seed)
    with Cluster(ClusterPlan(local=settings.workers), say, patience=5) as cluster:

        def strike(over: threading.Event) -> int:
            count = 0
            while not over.wait(dice.uniform(0.1, 1.5)):
                there = local_workers(cluster)
                if len(there) > 1:  # on a busy machine they are killed faster than they start
                    with suppress(ProcessLookupError):  # it has just ended
                        os.kill(dice.choice(there), signal.SIGKILL)
                        count += 1
            return count

        for _ in range(settings.runs):
            runs.one(cluster, strike)
    return runs.seen


def stop(settings: Settings) -> Seen:
    """A worker is stopped for a minute; the run goes on without it, and it comes back."""
    runs, dice = Runs(settings), random.Random(settings.seed)
    plan = ClusterPlan(local=settings.workers, worker_ttl=300)
    with Cluster(plan, say, patience=5) as cluster:

        def strike(over: threading.Event) -> int:
            time.sleep(dice.uniform(0.2, 1))
            process = dice.choice(local_workers(cluster))
            os.kill(process, signal.SIGSTOP)
            waker = threading.Timer(60, os.kill, (process, signal.SIGCONT))
            waker.start()
            over.wait()
            wakers.append(waker)
            return 1

        wakers: list[threading.Timer] = []
        for _ in range(settings.runs):
            runs.one(cluster, strike)
            wakers.pop().join()
            runs.one(cluster, lambda over: 0)  # with the worker that was stopped
    return runs.seen


@contextmanager
def program(*words: str, network: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A program of Dask, in one of the networks or in that of this process."""
    inside = ["ip", "netns", "exec", network] if network else []
    process = subprocess.Popen(
        [*inside, sys.executable, "-m", f"distributed.cli.dask_{words[0]}", *words[1:]],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def head(address: str) -> list[str]:
    return ["scheduler", "--host", address, "--port", str(PORT), "--no-dashboard"]


def workers(settings: Settings, address: str) -> list[str]:
    counts = ["--nworkers", str(settings.workers), "--nthreads", "1"]
    return ["worker", f"tcp://{address}:{PORT}", *counts, "--no-dashboard"]


def scheduler(settings: Settings) -> Seen:
    """The scheduler is killed within each run, and started anew with its workers."""
    runs, dice = Runs(settings), random.Random(settings.seed)
    address = "127.0.0.1"
    with ExitStack() as started:
        started.enter_context(program(*head(address)))
        started.enter_context(program(*workers(settings, address)))
        plan = ClusterPlan(scheduler=f"tcp://{address}:{PORT}")
        with Cluster(plan, say, patience=5) as cluster:

            def strike(over: threading.Event) -> int:
                if over.wait(dice.uniform(0.5, 2)):
                    return 0
                started.close()
                time.sleep(dice.uniform(0, 2))
                started.enter_context(program(*head(address)))
                started.enter_context(program(*workers(settings, address)))
                return 1

            for _ in range(settings.runs):
                runs.one(cluster, strike)
    return runs.seen


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def two_networks() -> Iterator[None]:
    """Two network namespaces with a link between them."""
    try:
        for network in NETWORKS:
            ip("netns", "add", network)
        ip("link", "add", LINKS[0], "netns", NETWORKS[0], "type", "veth",
           "peer", "name", LINKS[1], "netns", NETWORKS[1])  # fmt: skip
        for network, link, address in zip(NETWORKS, LINKS, ADDRESSES, strict=True):
            ip("-n", network, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", network, "link", "set", link, "up")
            ip("-n", network, "link", "set", "lo", "up")
        yield
    finally:
        for network in NETWORKS:
            subprocess.run(["ip", "netns", "del", network], check=False, capture_output=True)


def namespaces(settings: Settings) -> Seen:
    """Scheduler and command in one network, workers in another; the link between them is cut.

    This process itself stays in its own network, and a second one of this program runs in that of
    the scheduler.
    """
    with two_networks():
        start = program(*head(ADDRESSES[0]), network=NETWORKS[0])
        there = program(*workers(settings, ADDRESSES[0]), network=NETWORKS[1])
        with start, there:
            words = json.dumps(vars(settings))
            found = subprocess.run(
                ["ip", "netns", "exec", NETWORKS[0], sys.executable, __file__, "--inside", words],
                check=True,
                stdout=subprocess.PIPE,
            )
    return Seen(**json.loads(found.stdout.splitlines()[-1]))


def inside(settings: Settings) -> Seen:
    """The part of `namespaces` that runs where the scheduler does."""
    runs, dice = Runs(settings), random.Random(settings.seed)
    plan = ClusterPlan(scheduler=f"tcp://{ADDRESSES[0]}:{PORT}")
    with Cluster(plan, say, patience=5) as cluster:

        def strike(over: threading.Event) -> int:
            count = 0
            while not over.wait(dice.uniform(0.5, 2)):
                for state in ("down", "up"):
                    ip("-n", NETWORKS[0], "link", "set", LINKS[0], state)
                    if state == "down":
                        time.sleep(dice.uniform(0.5, 8))
                count += 1
                if count == 2:
                    break
            over.wait()
            return count

        for _ in range(settings.runs):
            runs.one(cluster, strike)
    return runs.seen


MODEL = ROOT / "models" / "k_hh_gate.yaml"
#: A search so long that workers are killed within it.
SEARCH = [str(MODEL), "--optimizer", "genetic", "--population", "60", "--seed", "1"]
#: By name the words of a command and the files that it leaves beside or in its folder.
COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "curves": (["curves", "double_exponential", "tails.npy", "--covariance"],
               [".csv", "-covariance.npy"]),
    "batch": (["batch", "fit.yaml", "plate"], ["/wells.csv"]),
    "islands": (["optimize", *SEARCH, "--generations", "300", "--set", "fit.optimizer.islands=4"],
                ["/summary.json", "/history.csv"]),
    "seeds": (["optimize", *SEARCH, "--generations", "150", "--seeds", "4"], ["/summary.json"]),
    "profiles": (["uncertainty", "fitted/fit.yaml", "--profiles", "all", "--seed", "4"],
                 ["/uncertainty.json"]),
}  # fmt: skip
#: Seconds after which a command is taken to hang.
HANGS = 900


def commands(settings: Settings) -> Seen:
    """Workers of real commands are killed at random moments."""
    seen, dice = Seen(), random.Random(settings.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data_of_commands(folder, settings.seed)
        command(folder, ["optimize", str(MODEL), "--seed", "1", "--out", "fitted"])
        for what, (words, files) in COMMANDS.items():
            command(folder, [*words, "--out", f"{what}-here"])
            wanted = [lasting(folder / f"{what}-here{file}") for file in files]
            for number in range(settings.runs):
                out, began = f"{what}-{number}", time.monotonic()
                more = ["--out", out, "--cluster", f"local:{settings.workers}"]
                faults = command(folder, [*words, *more], dice)
                same = wanted == [lasting(folder / f"{out}{file}") for file in files]
                seen.slowest = max(seen.slowest, time.monotonic() - began)
                seen.runs, seen.good = seen.runs + 1, seen.good + same
                seen.faults += faults
                say(f"{what}, {faults} faults: {'as wanted' if same else 'wrong'}")
    return seen


def data_of_commands(folder: Path, seed: int) -> None:
    """Writes tails of two exponentials, and the recordings of a small plate."""
    draw, t = np.random.default_rng(seed), np.arange(60.0)
    fast, slow = draw.uniform(2, 5, 300_000), draw.uniform(12, 40, 300_000)
    tails = 2 * np.exp(-t / fast[:, None]) + np.exp(-t / slow[:, None])
    np.save(folder / "tails.npy", tails + draw.normal(0, 0.02, tails.shape))
    write_plate(folder, 160, seed)


def command(folder: Path, words: list[str], dice: random.Random | None = None) -> int:
    """Runs a command; returns how many of its workers were killed, as the dice have said when."""
    with (folder / "told").open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "channelfit", *words, "--backend", "cpu"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=told,
            stderr=told,
            cwd=folder,
            start_new_session=True,
        )
        try:
            faults = 0 if dice is None else struck(process, dice, folder / "told")
            code = process.wait(HANGS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        raise SystemExit(f"{words[0]} ended with {code}:\n{(folder / 'told').read_text()}")
    return faults


def struck(process: subprocess.Popen[bytes], dice: random.Random, told: Path) -> int:
    """Kills workers below a process from their start until it ends; returns how many."""
    count, until = 0, time.monotonic() + HANGS
    while "dashboard" not in told.read_text() and process.poll() is None:
        time.sleep(0.05)
    while process.poll() is None and time.monotonic() < until:
        time.sleep(dice.uniform(0.1, 3))
        there = workers_below(process.pid)
        if len(there) > 1:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(there), signal.SIGKILL)
                count += 1
    return count


def workers_below(process: int) -> list[int]:
    """The processes that a command on this computer has started as workers, and that live."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # it has just ended
            for child in map(int, task.read_text().split()):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
    return found


def lasting(file: Path) -> object:
    """What a file says, less clocks and the names of folders."""
    if file.name == "summary.json":
        left = ("seconds", "candidates_per_second", "finished", "file", "command")
        return {k: v for k, v in json.loads(file.read_text()).items() if k not in left}
    if file.name == "history.csv":
        rows = [line.split(",") for line in file.read_text().splitlines()]
        clock = rows[0].index("seconds")
        return [row[:clock] + row[clock + 1 :] for row in rows]
    return file.read_bytes()


FAULTS: dict[str, tuple[Callable[[Settings], Seen], int]] = {
    "kill": (kill, 50),
    "stop": (stop, 1),
    "scheduler": (scheduler, 5),
    "namespaces": (namespaces, 5),
    "commands": (commands, 3),
}


def written(rows: dict[str, Row], folder: Path) -> None:
    """Writes the table; rows of other faults that stand there already stay."""
    file = folder / "faults_cluster.json"
    if file.exists():
        before = [Row(**row) for row in json.loads(file.read_text())["rows"]]
        rows = {row.name: row for row in before} | rows
    ordered = [rows[name] for name in FAULTS if name in rows]
    title = "Faults of a cluster, and how many runs are right"
    finish("faults_cluster", title, ordered, "cpu", folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for; prints and writes a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("faults", nargs="*", help=f"{', '.join(FAULTS)}; all by default")
    parser.add_argument("--runs", type=int, help="50 with kills, 1 to 5 of others")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pieces", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.1, help="that a piece takes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    told = parser.parse_args(arguments)
    if told.inside:
        print(json.dumps(vars(inside(Settings(**json.loads(told.inside))))))
        return 0
    settings = Settings(0, told.workers, told.pieces, told.seconds, told.seed)
    rows, all_good = dict[str, Row](), True
    for name in told.faults or FAULTS:
        do, usual = FAULTS[name]
        seen = do(replace(settings, runs=told.runs or usual))
        pieces = f"{seen.again} pieces begun again", f"{told.pieces} pieces of {told.seconds:g} s"
        if name == "commands":
            pieces = ", ".join(COMMANDS), "each as often"
        note = (
            f"{seen.faults} faults, {pieces[0]}, the slowest run took {seen.slowest:.1f} s; "
            f"{told.workers} workers, {pieces[1]}, seed {told.seed}"
        )
        rows[name] = Row(name, seen.good, "runs as wanted", seen.runs, seen.good / seen.runs, note)
        written(rows, told.out)
        all_good &= seen.good == seen.runs
    return 0 if all_good else 1


if __name__ == "__main__":
    as_script(main, writes=False)
