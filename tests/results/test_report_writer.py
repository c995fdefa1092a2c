"""The picture of a fit, drawn by a process of its own: the same picture, whatever happens to it."""

import json
import subprocess
import sys
from typing import IO

import numpy as np
import pytest
from matplotlib.image import imread

from channelfit.model.model_file import load_model
from channelfit.problem.protocol import load_protocol
from channelfit.results.report import report_writer
from channelfit.results.report.page_content import Facts, ModelScheme
from channelfit.results.report.page_facts import scheme_of
from channelfit.results.report.report_writer import ReportWriter, draw, write_report
from channelfit.results.report.traces import TracePicture, Traces
from support.places import ROOT

pytestmark = pytest.mark.integration


def page(title: str = "a fit") -> TracePicture:
    """Of two experiments, one with data that do not all count."""
    protocol = load_protocol(ROOT / "protocols" / "activation.yaml")
    t = np.linspace(0, 1, protocol.n_times_max)
    result = np.outer(np.arange(1.0, 1 + protocol.n_sweeps), 1 - np.exp(-5 * t))
    weight = np.where(t > 0.1, 1.0, 0.0) * np.ones_like(result)
    panels = (
        Traces(protocol, result, result + 0.1, weight, "with data", ("good", "enough")),
        Traces(protocol, result),
    )
    return TracePicture(panels, title, "said beside it")


def facts(scheme: ModelScheme | None = None) -> Facts:
    """Of a fit of a function, which takes the least; of a model with a scheme."""
    rows = {"p": {"value": 1.0, "unit": "", "lower": 0.0, "upper": 2.0}}
    numbers = {"cost": 0.5, "generations": 3, "evaluations": 30, "seconds": 0.1, "seed": 1}
    words = {"name": "f", "model": "f", "file": "f.yaml", "stop_reason": "because"}
    words |= {"optimizer": "swarm", "backend": "cpu", "dtype": "float64"}
    rest = {"rms_error": None, "parameters": rows, "settings": {}, "machine": {}}
    summary = numbers | words | rest | {"versions": {"channelfit": "0"}}
    return Facts(json.dumps(summary), scheme, (), np.array([[1.0, 10.0, 0.1, 0.5]]))


def test_the_other_process_writes_the_report(tmp_path):
    """Which is the one that this process would write, with the scheme that it was sent before."""
    scheme = scheme_of(load_model(ROOT / "models" / "model_a.yaml"))
    write_report(None, facts(scheme), tmp_path / "here.html")
    other = started()
    other.announce(scheme)
    other.report(facts(scheme), tmp_path / "there.html")
    other._end_messages()
    assert other._child.wait(120) == 0
    here, there = ((tmp_path / f"{name}.html").read_text() for name in ("here", "there"))
    figures = '<script type="application/json"'  # in which Bokeh numbers everything anew
    assert there.partition(figures)[0] == here.partition(figures)[0]
    other.finish()


def started() -> ReportWriter:
    return ReportWriter(report_writer._started_process())


def test_the_other_process_draws_the_same_picture(tmp_path, monkeypatch):
    draw(page(), tmp_path / "here.png")
    monkeypatch.chdir(tmp_path)  # where nothing is imported from
    (tmp_path / "json.py").write_text("raise SystemExit(3)", encoding="utf-8")
    other = started()
    other.begin(page(), tmp_path / "there.png")
    other._end_messages()
    assert other._child.wait(60) == 0  # it is there before anything is drawn here
    there = imread(tmp_path / "there.png")
    assert np.array_equal(imread(tmp_path / "here.png"), there)
    other.finish()
    assert {f.name for f in tmp_path.iterdir()} == {"here.png", "there.png", "json.py"}


@pytest.mark.parametrize("why", ["died", "none"])
def test_what_another_process_has_not_made_is_made_here(why, tmp_path, monkeypatch):
    if why == "none":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no such python"))
    picture, report = started(), started()
    for one in (picture, report) if why == "died" else ():
        one._child.kill()
        one._child.wait()
    picture.begin(page(), tmp_path / "x.png")
    picture.finish()
    report.report(facts(), tmp_path / "report.html")
    report.finish()
    assert imread(tmp_path / "x.png").shape[0] > 100
    assert "<h1><bdi>f</bdi></h1>" in (tmp_path / "report.html").read_text()


def test_nobody_stays_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(report_writer, "_saves_time", lambda: True)
    with report_writer.started_writer() as idle:
        child = idle._child
        assert child.poll() is None
    assert child.poll() is not None
    with report_writer.started_writer() as busy:
        busy.begin(page(), tmp_path / "x.png")
    assert [f.name for f in tmp_path.iterdir()] == ["x.png"]
    one = started()  # ends with the one that started it, who closes its end of the pipe
    one._child.stdin.close()
    assert one._child.wait(60) == 0


def test_a_search_does_not_load_matplotlib(tmp_path):
    """Whatever it draws: the process that it starts does."""
    code = (
        "import sys; from channelfit.front.main import main\n"
        "from channelfit.results.report import report_writer\n"
        "report_writer._saves_time = lambda: True\n"  # on a single core as well
        "main(sys.argv[1:], standalone_mode=False)\n"
        "assert not {'matplotlib', 'bokeh', 'jinja2', 'scipy.fft', 'scipy.special'} & "
        "set(sys.modules)"
    )
    command = ["optimize", ROOT / "models" / "model_a.yaml", "--out", tmp_path / "out", "--quiet"]
    command += ["--population", "48", "--generations", "2", "--backend", "cpu"]
    subprocess.run([sys.executable, "-c", code, *map(str, command)], check=True, cwd=tmp_path)
    assert imread(tmp_path / "out" / "traces.png").shape[0] > 100
    # and who writes reports loads neither SymPy nor SciPy, which takes longer than a report
    told = "import sys, channelfit.results.report.page, channelfit.results.report.report_writer; "
    told += "print(sorted({'sympy', 'scipy', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Impatient(subprocess.Popen[bytes]):
    """A process that is waited for two minutes at most."""

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(120 if timeout is None else timeout)


class Struck:
    """A pipe to a process; an interrupt comes when half of what is written has been sent."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.pipe, self.close = pipe, pipe.close

    def write(self, body: bytes) -> None:
        self.pipe.write(body[: len(body) // 2])
        self.pipe.flush()
        raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["within", "report"])
def test_an_interrupt_while_the_page_is_sent_ends_the_process(tmp_path, monkeypatch, where):
    """Which would wait for the rest of the page, and the command for its end."""

    monkeypatch.setattr(report_writer.subprocess, "Popen", Impatient)
    one = started()
    child, pipe = one._child, one._child.stdin
    if where == "within":
        monkeypatch.setattr(child, "stdin", Struck(pipe))

    def interrupted() -> None:
        one.begin(page(), tmp_path / "x.png")
        if where == "report":
            monkeypatch.setattr(child, "stdin", Struck(pipe))
            one.report(facts(), tmp_path / "report.html")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    child.stdin = child.stdin if where == "within" else pipe
    one.close()
    assert child.poll() is not None
    assert [f.name for f in tmp_path.iterdir()] == ["x.png"] * (where == "report")
