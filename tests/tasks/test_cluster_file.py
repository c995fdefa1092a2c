"""The value of --cluster: keys of its file, what they make of jobs, and what is refused."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from channelfit.reading.documents import dump_yaml
from channelfit.reading.errors import InputError
from channelfit.reading.keys import KEYS
from channelfit.tasks import cluster_start
from channelfit.tasks.cluster import open_cluster
from channelfit.tasks.cluster_file import ClusterPlan, read_cluster
from channelfit.tasks.executor import SerialExecutor
from support.toy_tasks import Toy, keys, table

pytest.importorskip("distributed")


def test_pieces_on_workers_are_those_of_this_process() -> None:
    """All else of clusters, and of workers that die, hang or differ, is in `test_cluster`."""
    with open_cluster("local:2") as cluster:
        found = dict(cluster(Toy(), keys(6)))
    assert table(found) == table(dict(SerialExecutor()(Toy(), keys(6))))


@pytest.mark.parametrize(
    "text",
    [
        *("", "local:0", "local:two", "tcp://head", "http://head:80", "head:8786", "tcp:// :1"),
        *("tcp://head:0", "tls://head:65536", "tcp://head:99999"),
    ],
)
def test_what_cannot_be_given(text: str) -> None:
    with pytest.raises(InputError, match="tcp://HOST:PORT"):
        read_cluster(text)


QUEUE: dict[str, Any] = {"class": "SLURMCluster", "job": {"cores": 8, "memory": "16 GB"}}
TLS = {"scheduler": "tls://a:1", "tls": {"ca": "f", "certificate": "f", "key": "f"}}
BETWEEN = {**QUEUE, "adaptive": {"minimum": 2, "maximum": 5}}
JOB: dict[str, Any] = {
    "cores": 4,
    "memory": "2 GB",
    "processes": 4,
    "queue": "gpu",
    "account": "lab",
    "walltime": "01:00:00",
    "interface": "lo",
    "local_directory": "/scratch",
    "log_directory": "logs",
    "python": "/bin/python",
    "job_extra_directives": ["--gres=gpu:1"],
    "job_script_prologue": ["module load cuda"],
    "worker_extra_args": ["--lifetime", "1h"],
}
#: By section and key, a document in which the key acts, and what it makes of the plan.
SEEN: dict[tuple[str, str], tuple[dict[str, Any], Callable[[ClusterPlan], Any], Any]] = {
    ("cluster", "local"): ({"local": 3}, lambda p: p.local, 3),
    ("cluster", "scheduler"): ({"scheduler": "tcp://a:1"}, lambda p: p.scheduler, "tcp://a:1"),
    ("cluster", "class"): (QUEUE, lambda p: p.job_class, "SLURMCluster"),
    ("cluster", "job"): (QUEUE, lambda p: p.job["cores"], 8),
    ("cluster", "jobs"): ({**QUEUE, "jobs": 5}, lambda p: (p.least, p.most), (5, 5)),
    ("cluster", "adaptive"): (BETWEEN, lambda p: (p.least, p.most), (2, 5)),
    ("cluster adaptive", "minimum"): (BETWEEN, lambda p: p.least, 2),
    ("cluster adaptive", "maximum"): (BETWEEN, lambda p: p.most, 5),
    ("cluster", "tls"): (TLS, lambda p: p.ca.name, "f"),  # type: ignore[union-attr]
    ("cluster", "worker_ttl"): ({"local": 1, "worker_ttl": "5 s"}, lambda p: p.worker_ttl, 5.0),
    ("cluster", "wait"): ({"local": 1, "wait": "2 min"}, lambda p: p.wait, 120.0),
}
for _key, _value in JOB.items():
    _document = {**QUEUE, "job": {**QUEUE["job"], _key: _value}}
    SEEN["cluster job", _key] = _document, lambda p, key=_key: p.job[key], _value  # type: ignore[misc]
for _key in TLS["tls"]:
    SEEN["cluster tls", _key] = TLS, lambda p, key=_key: getattr(p, key).name, "f"  # type: ignore[misc]


def written(folder: Path, document: dict[str, Any]) -> str:
    (folder / "f").write_text("")
    file = folder / "cluster.yaml"
    file.write_text(dump_yaml(document))
    return str(file)


def test_every_key_acts(tmp_path: Path) -> None:
    sections = [name for name in KEYS if name.partition(" ")[0] == "cluster"]
    assert set(SEEN) == {(name, key) for name in sections for key in KEYS[name]}
    for where, (document, seen, wanted) in SEEN.items():
        assert seen(read_cluster(written(tmp_path, document))) == wanted, where


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "one of local, scheduler and class was expected, not none"),
        ({"local": 1, "jobs": 2}, '"jobs" has no meaning beside local'),
        ({"local": 1, "adaptive": {"maximum": 2}}, '"adaptive" has no meaning'),
        ({"local": 1, "tls": {"ca": "f", "certificate": "f", "key": "f"}}, "of their own"),
        ({"locale": 1}, "did you mean local"),
        ({"scheduler": "tcp://a:1", "worker_ttl": "5 s"}, '"worker_ttl" has no meaning'),
        (
            {"scheduler": "tcp://a:1", "tls": {"ca": "f", "certificate": "f", "key": "f"}},
            "tls goes with an address tls",
        ),
        (
            {"scheduler": "tls://a:1", "tls": {"ca": "no", "certificate": "f", "key": "f"}},
            "no such file",
        ),
        ({**QUEUE, "class": "Popen"}, "is not one of SLURMCluster"),
        ({**QUEUE, "adaptive": {"minimum": 3, "maximum": 2}}, "the least is above the most"),
        ({**QUEUE, "job": {"cores": 4, "memory": "1 GB", "processes": 3}}, "shared out evenly"),
        ({**QUEUE, "job": {"cores": 4, "memory": "1\nGB"}}, "one line of text"),
        ({**QUEUE, "job": {**QUEUE["job"], "worker_extra_args": [["a"]]}}, "text was expected"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, document: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_cluster(written(tmp_path, document))
    assert message in str(caught.value)
    assert "cluster.yaml" in str(caught.value)


def test_a_queue_gets_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its keys lie where only their user reads them, as long as there are jobs."""
    pytest.importorskip("dask_jobqueue")
    monkeypatch.chdir(tmp_path)
    document = {**QUEUE, "job": {**JOB, "cores": 8}, "worker_ttl": "90 s"}
    plan = read_cluster(written(tmp_path, document))

    async def script() -> tuple[str, float]:
        async with await cluster_start.queue_cluster(plan, cluster_start.security_of(plan)) as jobs:
            assert jobs.scheduler_address.startswith("tls://")
            keys = set(tmp_path.glob(".dask-jobqueue.*"))
            assert len(keys) == 3
            if sys.platform != "win32":
                assert {file.stat().st_mode & 0o777 for file in keys} == {0o600}
            return jobs.job_script(), jobs.scheduler.worker_ttl

    text, ttl = asyncio.run(script())
    assert ttl == 90
    assert f"--tls-key {tmp_path}" in text
    assert "PRIVATE" not in text
    (tmp_path / "a folder").mkdir()
    monkeypatch.chdir(tmp_path / "a folder")
    with pytest.raises(InputError, match="call the command in another folder"):
        asyncio.run(script())
    for line in ("#SBATCH -p gpu", "#SBATCH -A lab", "#SBATCH --gres=gpu:1", "#SBATCH -t 01:00:00"):
        assert line in text
    for words in ("module load cuda", "--nworkers 4", "--nthreads 2", "--lifetime 1h", "/scratch"):
        assert words in text


def test_encryption_without_certificates_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"give --cluster a FILE\.yaml with scheduler and tls"):
        with open_cluster("tls://127.0.0.1:1"):
            pass


def test_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_start, "gpus", lambda: ["3", "5"])
    security = cluster_start.security_of(ClusterPlan(scheduler="tcp://a:1"))
    arguments = cluster_start.local_cluster(ClusterPlan(local=0), security)
    seen = [w["options"]["env"]["CUDA_VISIBLE_DEVICES"] for w in arguments["workers"].values()]
    assert seen == ["3", "5"]
    assert arguments["scheduler"]["options"]["host"] == "127.0.0.1"


def test_gpus_are_those_that_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        @staticmethod
        def getDeviceCount() -> int:
            return 2

    class Played:
        class cuda:
            runtime = Runtime

    monkeypatch.setattr(cluster_start.gpu, "is_available", lambda: True)
    monkeypatch.setattr(cluster_start.gpu, "cupy", lambda: Played)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cluster_start.gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-7")
    assert cluster_start.gpus() == ["4", "GPU-7"]
