"""Tasks on workers of Dask, which die, hang, come late and differ."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import channelfit
from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.tasks import cluster as clusters
from channelfit.tasks import cluster_start
from channelfit.tasks.cluster import Cluster, open_cluster
from channelfit.tasks.cluster_file import ClusterPlan
from channelfit.tasks.executor import SerialExecutor
from channelfit.tasks.result_store import Arrays, Key
from support.places import TESTS
from support.toy_tasks import Toy, keys, table

pytestmark = pytest.mark.integration


ROOT = Path(channelfit.__file__).parents[1]

pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def two(said: list[str]) -> Iterator[Cluster]:
    """Two workers of this computer."""
    with Cluster(ClusterPlan(local=2), said.append, patience=2) as found:
        yield found


def done(executor: Any, work: Any, count: int) -> dict[Key, Arrays]:
    """Return the results of so many tasks, and check that each came once."""
    found = list(executor(work, keys(count)))
    assert sorted(key for key, _ in found) == keys(count)
    return dict(found)


# --- what comes out ------------------------------------------------------------------------------


def test_nobody_else_can_reach_the_cluster(two: Cluster) -> None:
    psutil = pytest.importorskip("psutil")
    for process in [os.getpid(), *processes(two)]:
        for one in psutil.Process(process).net_connections("inet"):
            if one.status == psutil.CONN_LISTEN:
                assert one.laddr.ip == "127.0.0.1"


def test_who_has_no_key_gets_no_program_run(two: Cluster) -> None:
    """Another user of this computer, who knows where the scheduler, workers and nannies listen."""
    from distributed import Security
    from distributed.comm import connect

    async def asked(address: str, security: Any) -> Any:
        given = security.get_connection_args("client")
        comm = await connect(address, timeout=2, **given)
        try:
            sent = {"function": os.getpid, "args": (), "kwargs": {}}
            await comm.write({"op": "run", **{k: pickle.dumps(v) for k, v in sent.items()}})
            return await asyncio.wait_for(comm.read(), 2)
        finally:
            comm.abort()

    nannies = list(two.jobs.workers.values())
    workers = [nanny.worker_address for nanny in nannies]
    answer = asyncio.run(asked(workers[0], two.jobs.security))  # so this is how one asks
    assert answer["result"] == nannies[0].pid
    strangers = Security.temporary(), Security()
    for there in (two.jobs.scheduler_address, *workers, *(nanny.address for nanny in nannies)):
        for security in strangers:
            bare = there if security.require_encryption else there.replace("tls:", "tcp:")
            with pytest.raises(OSError):
                asyncio.run(asked(bare, security))


def test_without_keys_no_cluster_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for plan in (ClusterPlan(local=2), ClusterPlan(job_class="SLURMCluster")):
        with pytest.raises(InputError, match=r"needs cryptography.*channelfit\[cluster\]"):
            cluster_start.security_of(plan)


def test_the_same_task_set_at_once_again_is_another_one(two: Cluster) -> None:
    """No earlier result is taken for a new one, and no new task is canceled with the old ones."""
    for turn in range(40):
        wanted = keys(6)[:: -1 if turn % 2 else 1]
        for key, arrays in two(Toy(), wanted):
            assert int(arrays["number"][0]) == key[1]
        late = two(Toy(seconds=0.05), wanted)  # its tasks are running when it is closed
        next(late)
        late.close()


def test_a_fault_of_the_input_comes_back_as_it_is(two: Cluster) -> None:
    with pytest.raises(InputError) as caught:
        done(two, Toy(faults={3: "refused"}), 6)
    assert (caught.value.file, caught.value.key) == ("toy.yaml", "a.b")
    assert str(caught.value) == "toy.yaml: a.b: is not good"
    done(two, Toy(), 4)  # and others go on


def test_another_error_says_where_it_was(two: Cluster) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        done(two, Toy(faults={3: "broken"}), 6)
    assert "on worker tls://127.0.0.1" in caught.value.__notes__[0]
    assert "toy_tasks.py" in caught.value.__notes__[0]


# --- workers that go, hang, or differ ------------------------------------------------------------


def processes(cluster: Cluster) -> list[int]:
    """The processes of the workers on this computer."""
    return [nanny.pid for nanny in cluster.jobs.workers.values()]


def test_a_worker_that_is_killed_costs_its_task_alone(two: Cluster, tmp_path: Path) -> None:
    work = Toy(seconds=0.02, folder=tmp_path, faults={5: "killed"})
    assert table(done(two, work, 20)) == table(done(SerialExecutor(), Toy(), 20))
    assert work.begun(5) == 2
    # of others, at most those that had begun in that process
    assert sum(work.begun(number) for number in range(20)) <= 22


def test_a_deadly_task_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_MOST_ENDS", 3)
    work = Toy(seconds=0.05, folder=tmp_path, faults={1: "deadly"})
    with Cluster(ClusterPlan(local=2)) as cluster:
        # or one that lay beside it on each worker that ended
        with pytest.raises(InputError, match=r"task task \d+ was lost 3 times.*of worker.*mem"):
            done(cluster, work, 40)
    assert 1 <= work.begun(1) <= 3  # on a busy machine a worker may end before it begins


def test_another_version_is_refused_with_the_difference(two: Cluster) -> None:
    work = Toy(identity={"version of numpy": "1.0.0"})
    with pytest.raises(
        InputError, match=r"no worker can be used: .*version of numpy is .*, and 1\.0\.0 is"
    ):
        done(two, work, 3)


@pytest.mark.slow
def test_a_worker_that_hangs_costs_its_task_alone(tmp_path: Path) -> None:
    said: list[str] = []
    work = Toy(seconds=0.02, folder=tmp_path, faults={7: "stopped"})
    began = time.monotonic()
    # on a busy machine others may rest for some seconds, too
    with Cluster(ClusterPlan(local=3), said.append, patience=10) as cluster:
        found = done(cluster, work, 40)
        stopped = int((tmp_path / "task7").read_text().split()[0])
        assert stopped != int(found["task", 7]["where"][0])
        os.kill(stopped, signal.SIGCONT)
        done(cluster, Toy(), 10)  # it computes again, or its task is just lost
    assert table(found) == table(done(SerialExecutor(), Toy(), 40))
    assert any(text.startswith("task task 7 has run for") for text in said), said
    assert work.begun(7) == 2
    assert sum(work.begun(number) for number in range(40)) <= 42
    assert time.monotonic() - began < 60


# --- a scheduler and workers of their own ---------------------------------------------------------


def runs(process: int) -> bool:
    """Return whether a process is there and is no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "waited for too long"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def started(*words: str, path: Path = ROOT) -> Iterator[subprocess.Popen[bytes]]:
    """A program of Dask, which is killed in the end."""
    places = f"{path}{os.pathsep}{TESTS}"
    process = subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.dask_{words[0]}", *words[1:]],
        env=os.environ | {"PYTHONPATH": places},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=TESTS,  # from where it would take this channelfit otherwise
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended, and was waited for
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def scheduler(port: int, *more: str) -> Any:
    return started("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", *more)


def worker(port: int, *more: str, path: Path = ROOT, protocol: str = "tcp") -> Any:
    address = f"{protocol}://127.0.0.1:{port}"
    words = ("--nthreads", "1", "--no-dashboard", "--death-timeout", "20", *more)
    return started("worker", address, *words, path=path)


@contextmanager
def open_cluster_after(
    start: Any, port: int, said: list[str], wait: float = 60
) -> Iterator[tuple[Any, Any]]:
    plan = ClusterPlan(scheduler=f"tcp://127.0.0.1:{port}", wait=wait)
    with start as first, Cluster(plan, said.append) as cluster:
        yield cluster, first


@pytest.mark.slow
def test_a_scheduler_that_does_not_come_back_is_an_error(tmp_path: Path) -> None:
    port, said = free_port(), list[str]()
    with open_cluster_after(scheduler(port), port, said, wait=3) as (cluster, first):
        with worker(port):
            coming = cluster(Toy(seconds=0.05), keys(40))
            next(coming)
            os.killpg(first.pid, signal.SIGKILL)
            with pytest.raises(InputError, match=r"not back within 3 s; \d+ tasks are unfinished"):
                list(coming)


def test_a_scheduler_that_is_not_there_is_an_error() -> None:
    plan = ClusterPlan(scheduler=f"tcp://127.0.0.1:{free_port()}", wait=1)
    with pytest.raises(InputError, match=r"the scheduler tcp://.* cannot be used"):
        with Cluster(plan):
            pass


@contextmanager
def no_scheduler(port: int, answer: bytes) -> Iterator[int]:
    """A program that accepts connections, and says something else than a scheduler, or nothing."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve() -> None:
            with suppress(OSError):  # the end of the server
                while True:
                    connections.append(server.accept()[0])
                    connections[-1].sendall(answer)

        connections: list[socket.socket] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in connections:
            one.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"])
@pytest.mark.filterwarnings("error")
def test_what_is_no_scheduler(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_ANSWERING", 0.5)
    with no_scheduler(0, answer) as port:
        plan = ClusterPlan(scheduler=f"tcp://127.0.0.1:{port}", wait=1)
        with pytest.raises(InputError, match="does not answer as a scheduler of Dask does"):
            with Cluster(plan):
                pass


async def nthreads(cluster: Cluster) -> dict[str, int]:
    return dict(await cluster.client.nthreads())


def certificates(folder: Path) -> dict[str, str]:
    """A certificate that signs itself, and its key."""
    security = pytest.importorskip("distributed").Security
    pytest.importorskip("cryptography")
    keys = security.temporary()
    (folder / "ca.pem").write_text(keys.tls_ca_file)
    (folder / "me.pem").write_text(keys.tls_client_cert)
    (folder / "me.key").write_text(keys.tls_client_key)
    return {"ca": "ca.pem", "certificate": "me.pem", "key": "me.key"}


@pytest.mark.slow
def test_connections_by_tls(tmp_path: Path) -> None:
    port, tls = free_port(), certificates(tmp_path)
    words = [
        word
        for option, key in (("ca-file", "ca"), ("cert", "certificate"), ("key", "key"))
        for word in (f"--tls-{option}", str(tmp_path / tls[key]))
    ]
    file = tmp_path / "cluster.yaml"
    file.write_text(dump_yaml({"scheduler": f"tls://127.0.0.1:{port}", "tls": tls}))
    safe = ("--protocol", "tls")
    with scheduler(port, *safe, *words), worker(port, *words, protocol="tls"):
        with open_cluster(str(file)) as cluster:
            assert table(done(cluster, Toy(), 8)) == table(done(SerialExecutor(), Toy(), 8))
        (tmp_path / "other").mkdir()
        others = {key: f"other/{file}" for key, file in certificates(tmp_path / "other").items()}
        file.write_text(
            dump_yaml({"scheduler": f"tls://127.0.0.1:{port}", "tls": others, "wait": "2 s"})
        )
        with pytest.raises(InputError, match="cannot be used"):
            with open_cluster(str(file)):
                pass


SLURM = """
import signal
from channelfit.tasks.cluster import open_cluster
from support.toy_tasks import Toy, keys

if __name__ == "__main__":
    before = signal.getsignal(signal.SIGINT)
    with open_cluster("slurm.yaml") as cluster:
        assert signal.getsignal(signal.SIGINT) is before
        print(len(list(cluster(Toy(), keys(8)))))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the played programs need its setsid")
def test_jobs_of_slurm(tmp_path: Path) -> None:
    """In a process that has loaded nothing else; programs of SLURM's names play its part."""
    pytest.importorskip("dask_jobqueue")
    programs = {
        # like SLURM's it keeps the script, which is removed as soon as this ends
        "sbatch": "cp $1 job.sh\nsetsid sh job.sh > job.log 2>&1 &\necho Submitted batch job $!",
        "scancel": 'kill -9 -- -"$1"; touch canceled',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "slurm.yaml").write_text(
        dump_yaml({"class": "SLURMCluster", "job": {"cores": 1, "memory": "1 GB"}})
    )
    (tmp_path / "client.py").write_text(SLURM)
    found = subprocess.run(
        [sys.executable, "client.py"],
        env=os.environ
        | {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"}
        | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (found.returncode, found.stdout) == (0, "8\n"), found.stderr
    assert (tmp_path / "canceled").exists()


# --- how it ends -----------------------------------------------------------------------------

CLIENT = """
import sys
from channelfit.front import interrupts
from channelfit.tasks.cluster import open_cluster
from support.toy_tasks import Toy, keys

if __name__ == "__main__":
    interrupts.begin()
    try:
        with interrupts.acted_upon():
            with open_cluster("local:2") as cluster:
                for key, arrays in cluster(Toy(seconds=0.2), keys(1000)):
                    print(arrays["where"][0], flush=True)
    except KeyboardInterrupt:
        sys.exit(interrupts.exit_code())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_command(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    workers = {int(process.stdout.readline()) for _ in range(6)}
    members = descendants(process.pid)
    assert workers <= members
    if how == signal.SIGINT:  # as a terminal sends it, to all of them
        os.killpg(process.pid, how)
    else:
        process.send_signal(how)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == (-9 if how == signal.SIGKILL else 128 + how)
    assert b"Traceback" not in errors, errors
    wait_until(lambda: not any(map(runs, members)))


def descendants(process: int) -> set[int]:
    """All processes below one."""
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # it has just ended
            for child in task.read_text().split():
                found |= {int(child)} | descendants(int(child))
    return found
