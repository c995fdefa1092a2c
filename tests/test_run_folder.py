"""The run folder: it belongs to one run alone, and a full disk loses nothing that is known."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from channelfit.front.main import main
from channelfit.reading.errors import InputError
from channelfit.results import run_folder
from channelfit.results.run_folder import Claim

MODEL = Path(__file__).parents[1] / "models" / "k_hh.yaml"
SMALL = ["--population", "8", "--generations", "2", "--quiet"]


class OneSecond(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2030, 1, 2, 3, 4, 5)


def test_runs_of_the_same_second_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "datetime", OneSecond)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(Claim.by_name, ["a/b"] * 24))
    assert len({claim.path for claim in claims}) == 24
    assert all(claim.path.is_dir() for claim in claims)
    for claim in claims:
        claim.release()
    assert not list((tmp_path / "runs").iterdir())


def test_one_of_many_runs_gets_a_given_folder(tmp_path):
    place = tmp_path / "deep" / "out"

    def claim(_: int) -> str:
        try:
            return str(Claim(place).path)
        except InputError as error:
            return error.message

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(claim, range(24)))
    assert told.count(str(place)) == 1
    assert all("another run" in text for text in told if text != str(place))


def test_a_folder_is_taken_before_anything_is_read(tmp_path, monkeypatch):
    place = tmp_path / "out"
    Claim(place)

    def never(*_: object) -> None:
        raise AssertionError("a run without a folder has begun to work")

    monkeypatch.setattr("channelfit.front.commands.optimize.as_overrides", never)
    said = CliRunner().invoke(main, ["optimize", str(MODEL), "--out", str(place), *SMALL])
    assert said.exit_code == 2
    assert "another run is using this folder" in said.stderr


def test_a_refused_run_leaves_no_folder(tmp_path):
    place = tmp_path / "deep" / "out"
    said = CliRunner().invoke(main, ["optimize", str(MODEL), "--out", str(place), "--set", "no=1"])
    assert said.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_runs_under_a_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        Claim.by_name("a")
