"""The keys of a file that describes a cluster: processes, GPUs, machines, jobs of a queue."""

from __future__ import annotations

from channelfit.reading.keys.shapes import (
    Choice,
    Integer,
    Key,
    Keys,
    List,
    Quantity,
    Rules,
    Text,
    Within,
)

#: The classes of dask-jobqueue, one for each kind of batch system.
QUEUES = (
    "SLURMCluster",
    "PBSCluster",
    "SGECluster",
    "LSFCluster",
    "OARCluster",
    "MoabCluster",
    "HTCondorCluster",
)

CLUSTER = Keys(
    "cluster",
    "Where pieces of work are done: a file for `--cluster`. It is as much a program as the script "
    "of a job is, so use your own only.",
    Rules(
        one=(("local", "scheduler", "class"),),
        apart=(("jobs", "adaptive"),),
        needs={"class": ("job",), "job": ("class",), "jobs": ("class",), "adaptive": ("class",)},
    ),
    local=Key(
        Integer(0),
        "How many processes are started on this computer; 0 for one for each GPU, or as many as "
        "suit its cores.",
        4,
    ),
    scheduler=Key(
        Text("an address"),
        "The address of a scheduler that runs already.",
        "tls://head:8786",
    ),
    class_=Key(
        Choice(QUEUES),
        "The class of dask-jobqueue that submits jobs.",
        "SLURMCluster",
    ),
    job=Key(Within("cluster job"), "What one job is.", {"cores": 8, "memory": "16 GB"}),
    jobs=Key(
        Integer(1), "How many jobs there are.", 10, otherwise="1, where `adaptive` is not given"
    ),
    adaptive=Key(
        Within("cluster adaptive"),
        "How many jobs there are at least and at most: as many as there are pieces.",
        {"minimum": 0, "maximum": 40},
    ),
    tls=Key(
        Within("cluster tls"),
        "The files by which scheduler, workers and this computer trust each other.",
        {"ca": "ca.pem", "certificate": "me.pem", "key": "me.key"},
    ),
    worker_ttl=Key(
        Quantity("time"),
        "After how long a silence the scheduler takes a worker for dead, at least 1 s. A scheduler "
        "that runs already has its own.",
        "2 min",
        60e3,
    ),
    wait=Key(
        Quantity("time"),
        "How long a scheduler is waited for that does not answer, or has gone, at least 1 s.",
        "5 min",
        60e3,
    ),
)
JOB = Keys(
    "cluster job",
    "One job of a batch system. The names are those of the arguments of dask-jobqueue, where each "
    "is explained.",
    cores=Key(Integer(1), "The cores of a job, shared out among its processes.", 8, required=True),
    memory=Key(Text("a size"), "The memory of a job.", "16 GB", required=True),
    processes=Key(Integer(1), "The processes of a job, such as one for each GPU.", 2, 1),
    queue=Key(Text(), "The queue or partition.", "gpu"),
    account=Key(Text(), "Whom the time is charged to. PBS and SLURM know it.", "lab"),
    walltime=Key(Text("a time"), "The longest time that a job may take.", "02:00:00"),
    interface=Key(Text(), "The network of scheduler and workers.", "ib0"),
    local_directory=Key(
        Text("a path"), "Where workers may write, on a disk of theirs.", "/scratch"
    ),
    log_directory=Key(Text("a path"), "Where the output of jobs goes.", "logs"),
    python=Key(Text("a path"), "The Python that workers run.", "/home/me/venv/bin/python"),
    job_extra_directives=Key(
        List(Text()), "More lines for the head of the script of a job.", ["--gres=gpu:1"]
    ),
    job_script_prologue=Key(
        List(Text()), "Commands of a shell before the worker is started.", ["module load cuda"]
    ),
    worker_extra_args=Key(List(Text()), "More arguments of `dask worker`.", ["--lifetime", "110m"]),
)
ADAPTIVE = Keys(
    "cluster adaptive",
    "How many jobs there are.",
    minimum=Key(Integer(0), "The least.", 1, 0),
    maximum=Key(Integer(1), "The most.", 40, required=True),
)
TLS = Keys(
    "cluster tls",
    "Files for encrypted connections; paths are taken from where the file stands.",
    ca=Key(Text("a path"), "The certificates that are trusted (PEM).", "ca.pem", required=True),
    certificate=Key(
        Text("a path"), "The certificate of this computer and its workers.", "me.pem", required=True
    ),
    key=Key(Text("a path"), "The private key of that certificate.", "me.key", required=True),
)

SECTIONS = (CLUSTER, JOB, ADAPTIVE, TLS)
