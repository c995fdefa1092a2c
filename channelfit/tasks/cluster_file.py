"""The value of `--cluster`: processes on this computer, a running scheduler, or batch jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from channelfit.reading.documents import Section, read_yaml
from channelfit.reading.errors import InputError, shown
from channelfit.reading.keys import KEYS

_LOCAL = re.compile(r"local(?::([1-9][0-9]{0,3}))?")
_ADDRESS = re.compile(r"(?:tcp|tls)://[^\s/]+:([0-9]{1,5})")
_LISTS = ("job_extra_directives", "job_script_prologue", "worker_extra_args")


@dataclass(frozen=True)
class ClusterPlan:
    """The workers of a cluster; one of `local`, `scheduler` and `job_class` is given.

    Attributes:
        local: the number of processes on this computer; 0 for one a GPU, or as the cores allow.
        scheduler: the address of a scheduler.
        job_class: a class of dask-jobqueue. job: its arguments.
        least, most: limits of the number of jobs.
        ca, certificate, key: the files for TLS; None without TLS.
        worker_ttl: seconds without a sign of life after which a worker counts as dead.
        wait: seconds to wait for a scheduler.
    """

    local: int | None = None
    scheduler: str | None = None
    job_class: str | None = None
    job: Mapping[str, Any] = field(default_factory=dict)
    least: int = 1
    most: int = 1
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    worker_ttl: float = 60.0
    wait: float = 60.0


def is_local(text: str) -> bool:
    """Return whether a value of `--cluster` means processes on this computer."""
    return _LOCAL.fullmatch(text) is not None


def read_cluster(text: str) -> ClusterPlan:
    """Read a value of `--cluster`.

    Raises: InputError if it is none of local, local:N, tcp://HOST:PORT, tls://HOST:PORT and the
    name of a YAML file, and for mistakes in the file.
    """
    if found := _LOCAL.fullmatch(text):
        return ClusterPlan(local=int(found[1] or 0))
    if "://" in text:
        return ClusterPlan(scheduler=_address(text))
    if not text.endswith((".yaml", ".yml")):
        raise InputError(
            f"--cluster is local, local:N, tcp://HOST:PORT, tls://HOST:PORT or a FILE.yaml, "
            f"not {shown(text)}"
        )
    return _from_file(Path(text))


def _address(text: str) -> str:
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[1]) < 2**16:
        raise InputError(
            "the address of a scheduler is tcp://HOST:PORT or tls://HOST:PORT, with a port from 1 "
            f"to 65535, not {shown(text)}"
        )
    return text


def _from_file(path: Path) -> ClusterPlan:
    section = Section(read_yaml(path), path)
    section.expect(KEYS["cluster"])
    _check_together(section)
    tls = _tls(section)
    arguments: dict[str, Any] = {}
    if "local" in section:
        arguments["local"] = section.integer("local")
        if tls:
            raise section.error(
                "processes on this computer have certificates of their own; remove it", "tls"
            )
    elif "scheduler" in section:
        try:
            arguments["scheduler"] = _address(section.text("scheduler"))
        except InputError as error:
            raise section.error(error.message, "scheduler") from None
        if tls and not arguments["scheduler"].startswith("tls:"):
            raise section.error("tls goes with an address tls://HOST:PORT", "scheduler")
    else:
        arguments |= {"job_class": section.choice("class"), "job": _job(section)}
        arguments |= _jobs(section)
    if "scheduler" not in section:
        arguments["worker_ttl"] = _seconds(section, "worker_ttl")
    arguments["wait"] = _seconds(section, "wait")
    section.finish()
    return ClusterPlan(**arguments, **tls)


def _seconds(section: Section, key: str) -> float:
    milliseconds = float(section.quantity(key))
    if milliseconds < 1000:
        raise section.error(f"at least 1 s was expected, not {milliseconds:g} ms", key)
    return milliseconds / 1000


def _check_together(section: Section) -> None:
    """Raise InputError for keys that exclude each other, and if no kind of cluster is given."""
    places = [key for key in ("local", "scheduler", "class") if key in section]
    if len(places) != 1:
        given = " and ".join(places) or "none of them"
        raise section.error(f"one of local, scheduler and class was expected, not {given}")
    if "jobs" in section and "adaptive" in section:
        raise section.error("either jobs or adaptive may be given, not both", "adaptive")


def _tls(section: Section) -> dict[str, Any]:
    if "tls" not in section:
        return {}
    inner = section.section("tls")
    inner.expect(KEYS["cluster tls"])
    found = {key: inner.existing(inner.text(key), key) for key in inner.given()}
    for key in KEYS["cluster tls"]:
        inner.text(key)  # all are required
    return found


def _job(section: Section) -> dict[str, Any]:
    inner = section.section("job")
    inner.expect(KEYS["cluster job"])
    found: dict[str, Any] = {
        "cores": inner.integer("cores"),
        "processes": inner.integer("processes"),
    }
    for key in inner.given():
        if key in _LISTS:
            found[key] = [_line(inner, key, each) for each in inner.items(key)]
        elif key not in found:
            found[key] = _line(inner, key, inner.text(key))
    if found["cores"] % found["processes"]:
        raise inner.error(
            f"{found['cores']} cores cannot be shared out evenly among {found['processes']} "
            "processes",
            "processes",
        )
    inner.finish()
    return found


def _line(section: Section, key: str, value: object) -> str:
    """Return a value as text for one line of a script."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise section.error(f"text was expected, not {shown(value)}", key)
    if not str(value).isprintable():
        raise section.error(f"one line of text was expected, not {shown(value)}", key)
    return str(value)


def _jobs(section: Section) -> dict[str, int]:
    if "adaptive" not in section:
        count = section.integer("jobs", 1)
        return {"least": count, "most": count}
    inner = section.section("adaptive")
    inner.expect(KEYS["cluster adaptive"])
    least, most = inner.integer("minimum"), inner.integer("maximum")
    if least > most:
        raise inner.error(f"the least is above the most, {most}: {least}", "minimum")
    inner.finish()
    return {"least": least, "most": most}
