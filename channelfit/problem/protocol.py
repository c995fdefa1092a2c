"""Voltage-clamp protocols: sweeps of half-open segments [start, end).

Sample k of a sweep is at ``k * sampling_ms`` and belongs to the segment that holds that time.
Segment boundaries need not fall on samples; they are honored exactly. (The file is long because
each argument of the public class is explained where it is given.)
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from channelfit.problem.arguments import (
    CountedSamples,
    check_lengths,
    durations,
    even_step,
    numbers,
    quantities,
)
from channelfit.problem.ligands import Ligand, read_ligands, unknown_ligands
from channelfit.problem.segments import (
    Tabled,
    check_sweeps,
    command_table,
    quantity_text,
    read_sweeps,
    refuse_table,
    segment_rows,
    unusable_command,
)
from channelfit.problem.sweep_families import sweeps_of_epochs
from channelfit.problem.waves import TIME_TOLERANCE, Samples, Segment, shifted
from channelfit.reading.documents import Section, dump_yaml, read_yaml
from channelfit.reading.errors import InputError, shown
from channelfit.reading.files import EXISTS, save_text
from channelfit.reading.formats import read
from channelfit.reading.keys import KEYS
from channelfit.reading.plain import plain

#: mV: between the solutions of a recording; more is a slip of the unit.
_MAX_JUNCTION_MV = 100.0


@dataclass(frozen=True, repr=False)
class Protocol:
    """The command voltage of an experiment: sweeps of segments, and how they are sampled.

    Make one with `Protocol.steps`, `Protocol.from_segments`, `Protocol.from_command` or
    `Protocol.load`. Each sweep starts from the steady state at the holding potential; with
    `carry_over` only the first does, and `rest_ms` at the holding potential, or at `rest_mV` where
    that is given, lie between one sweep and the next. `ligands` are concentrations that are
    commanded beside the voltage. Voltages are in mV, times in ms. All voltages
    are those of the membrane: where the file or the call gives a liquid junction potential, that
    was subtracted from the command.

    Example:
        >>> import channelfit as cf
        >>> protocol = cf.Protocol.steps(
        ...     levels=range(-60, 41, 20), duration=40, before=5, holding=-80, sampling=0.1
        ... )
        >>> protocol
        <Protocol steps: 6 sweeps of 450 samples every 0.1 ms, holding -80 mV>
        >>> protocol.voltage().shape
        (6, 450)
    """

    name: str
    holding_mV: float
    sampling_ms: float
    sweeps: tuple[tuple[Segment, ...], ...]
    carry_over: bool = False
    rest_ms: float = 0.0
    description: str = ""
    source: str = ""
    junction_potential_mV: float = 0.0
    rest_mV: float | None = None
    ligands: tuple[Ligand, ...] = ()

    @classmethod
    def steps(
        cls,
        levels: Any,
        duration: Any,
        *,
        holding: float | str,
        sampling: float | str,
        before: Any = 0.0,
        after: Any = 0.0,
        after_level: Any = None,
        between_sweeps: str | Mapping[str, Any] = "steady state",
        junction_potential: float | str = 0.0,
        name: str = "steps",
        description: str = "",
        source: str = "",
    ) -> Protocol:
        """Return a step of the voltage, or a family of steps: a sweep for each level or duration.

        Each of `levels`, `duration`, `before`, `after` and `after_level` is a number, text with a
        unit (``"0.2 s"``), or a list, range or array (n_sweeps,) of these with one value for each
        sweep. Those that are lists vary together and need equal lengths.

        Arguments:
            levels: mV, of the step.
            duration: ms, of the step.
            holding: mV, before the step and between sweeps.
            sampling: ms, from one sample to the next.
            before: ms at the holding potential before the step.
            after: ms after the step.
            after_level: mV after the step, such as the voltage of a tail current; the holding
                potential without it.
            between_sweeps: "steady state", "carry over", or a mapping of carry_over and rest (ms).
            junction_potential: mV, the liquid junction potential, which is subtracted from all
                voltages that are given here: V_membrane = V_command - junction_potential.
            name: its name.
            description: its purpose, in words.
            source: its origin.

        Raises:
            InputError: an argument that cannot be used, with its name and what would be right.

        Example:
            A tail-current protocol, and recovery after pauses of different lengths:

            >>> import channelfit as cf
            >>> tails = cf.Protocol.steps(
            ...     levels=[-40, 0, 40], duration="1 s", after=500, after_level=-50,
            ...     holding=-80, sampling=1,
            ... )
            >>> tails.voltage([0, 999, 1000])
            array([[-40., -40., -50.],
                   [  0.,   0., -50.],
                   [ 40.,  40., -50.]])
            >>> cf.Protocol.steps(-100, [1, 10, 100], holding=-80, sampling=0.5, name="pauses")
            <Protocol pauses: 3 sweeps of 2 to 200 samples every 0.5 ms, holding -80 mV>
        """
        arguments = {
            "levels": quantities(levels, "levels", "voltage"),
            "duration": durations(duration, "duration"),
            "before": durations(before, "before"),
            "after": durations(after, "after"),
        }
        if after_level is not None:
            arguments["after_level"] = quantities(after_level, "after_level", "voltage")
            if not any(arguments["after"]):
                raise InputError("a level after the step needs a duration `after`", None, "after")
        check_lengths(arguments)
        family = {key: {"values": values} for key, values in arguments.items() if any(values)}
        rows = [{"step": {"values": arguments["levels"]}, "for": family.get("duration", 0)}]
        if "before" in family:
            rows.insert(0, {"hold": family["before"]})
        if "after" in family and after_level is None:
            rows.append({"hold": family["after"]})
        elif "after" in family:
            rows.append({"step": {"values": arguments["after_level"]}, "for": family["after"]})
        return cls.from_segments(
            rows,
            holding=holding,
            sampling=sampling,
            between_sweeps=between_sweeps,
            junction_potential=junction_potential,
            name=name,
            description=description,
            source=source,
        )

    @classmethod
    def from_segments(
        cls,
        segments: Sequence[Mapping[str, Any]],
        *,
        holding: float | str,
        sampling: float | str,
        between_sweeps: str | Mapping[str, Any] = "steady state",
        junction_potential: float | str = 0.0,
        ligands: Mapping[str, Any] | None = None,
        name: str = "protocol",
        description: str = "",
        source: str = "",
    ) -> Protocol:
        """Return a protocol from segments; the arguments are the keys of a protocol file.

        Arguments:
            segments: one mapping each: ``{"hold": 5}``, ``{"step": 40, "for": 20}``,
                ``{"ramp": [-120, 60], "for": 400}``, ``{"sines": {..}, "for": ..}`` or
                ``{"recorded": {"file": .., ..}}``. Instead of one value, ``hold``, ``step`` and
                ``for`` take ``{"values": [..]}`` or ``{"from": .., "to": .., "by": ..}``: one
                sweep for each value. Numbers are mV and ms; text such as ``"0.2 s"`` has a unit.
                Paths of recorded commands start from the current folder.
            holding: mV, between sweeps and in rows that hold.
            sampling: ms, from one sample to the next.
            between_sweeps: "steady state", "carry over", or a mapping of carry_over and rest (ms).
            junction_potential: mV, the liquid junction potential, which is subtracted from all
                voltages that are given here: V_membrane = V_command - junction_potential.
            ligands: concentrations by name, such as ``{"drug": "30 nM"}``; numbers are mM.
            name: its name.
            description: its purpose, in words.
            source: its origin.

        Raises:
            InputError: anything that cannot be used, with the argument and the key in it.

        Example:
            >>> import channelfit as cf
            >>> cf.Protocol.from_segments(
            ...     [
            ...         {"hold": 5},
            ...         {"step": {"from": -80, "to": 40, "by": 10}, "for": 40},
            ...         {"ramp": [40, -120], "for": 100},
            ...     ],
            ...     holding=-100,
            ...     sampling=0.1,
            ...     name="steps and a ramp",
            ... )
            <Protocol steps and a ramp: 13 sweeps of 1450 samples every 0.1 ms, holding -100 mV>
        """
        arguments = {
            "name": name,
            "description": description,
            "source": source,
            "holding": holding,
            "sampling": sampling,
            "junction_potential": junction_potential,
            "between_sweeps": between_sweeps,
            "segments": segments,
            **({} if ligands is None else {"ligands": ligands}),
        }
        return build_protocol(plain(arguments), None)

    @classmethod
    def from_command(
        cls,
        time: Any,
        voltage: Any,
        *,
        holding: float | str,
        sampling: float | str | None = None,
        between_sweeps: str | Mapping[str, Any] = "steady state",
        junction_potential: float | str = 0.0,
        name: str = "recorded command",
        description: str = "",
        source: str = "",
    ) -> Protocol:
        """Return a protocol from the samples of a command that was recorded or computed.

        The voltage is a straight line from each sample to the next, and the last sample is held
        for one more interval, so that a sweep has as many samples as the command has.

        Arguments:
            time: (n_times,) ms, increasing; the first sample begins the sweep.
            voltage: mV, (n_times,), or (n_sweeps, n_times) with a row for each sweep, or a pandas
                frame with a column for each sweep.
            holding: mV, before the first sample and between sweeps.
            sampling: ms, from one sample of the protocol to the next; needed only where the times
                are not evenly spaced, or where the current was sampled at another interval.
            between_sweeps: "steady state", "carry over", or a mapping of carry_over and rest (ms).
            junction_potential: mV, the liquid junction potential, which is subtracted from all
                voltages that are given here: V_membrane = V_command - junction_potential.
            name: its name.
            description: its purpose, in words.
            source: its origin.

        Raises:
            InputError: arrays of other shapes, turned, or not of finite numbers; times that do not
                increase, or are uneven without `sampling`; more than 1000 mV.

        Example:
            >>> import channelfit as cf
            >>> import numpy as np
            >>> time = np.arange(0, 100, 0.5)
            >>> cf.Protocol.from_command(time, 30*np.sin(0.1*time) - 40, holding=-40)
            <Protocol recorded command: 1 sweep of 200 samples every 0.5 ms, holding -40 mV>
        """
        times, commands = numbers(time, "time"), numbers(voltage, "voltage")
        if times.ndim != 1 or len(times) < 2:
            raise InputError(
                f"one row of two or more times was expected, not {times.shape}", None, "time"
            )
        rows = commands[None] if commands.ndim == 1 else commands
        if rows.ndim != 2 or rows.shape[1] != len(times) or not len(rows):
            turned = ": it is turned, give voltage.T" if rows.shape[:1] == times.shape else ""
            raise InputError(
                f"its shape is {commands.shape}, but time has {len(times)} samples, so "
                f"({len(times)},) or (n_sweeps, {len(times)}) was expected{turned}",
                None,
                "voltage",
            )
        for row in rows:
            if fault := unusable_command(times, row, CountedSamples()):
                raise InputError(f"not a usable command voltage: {fault}", None, "time, voltage")
        times = times - times[0]
        step = even_step(times) if sampling is None else sampling
        end = round(float(times[-1]) + float(np.diff(times)[-1]), 9)
        sweeps = tuple((Segment(0.0, end, Samples(times, row)),) for row in rows)
        root = Section(
            plain(
                {
                    "name": name,
                    "description": description,
                    "source": source,
                    "holding": holding,
                    "sampling": step,
                    "junction_potential": junction_potential,
                    "between_sweeps": between_sweeps,
                }
            ),
            None,
        )
        root.expect(KEYS["protocol"])
        return _built(root, name, sweeps)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Protocol:
        """Return the protocol in a YAML file, or in a ``.eph`` file of Nanion's SyncroPatch.

        Arguments:
            path: the file; the tables of recorded commands that it names are looked for beside it.

        Raises:
            InputError: anything that cannot be used, with file, key and what would be right.

        Example:
            >>> import channelfit as cf
            >>> cf.Protocol.load("protocols/activation.yaml")
            <Protocol activation: 13 sweeps of 500 samples every 0.1 ms, holding -100 mV>
        """
        return load_protocol(path)

    def to_yaml(self) -> str:
        """Return the text of a protocol file; reading it gives an equal protocol.

        Raises:
            InputError: a recorded command, which needs a table beside the file (use `save`); or
                sweeps that one protocol file cannot hold together.

        Example:
            >>> import channelfit as cf
            >>> print(cf.Protocol.steps([0, 20], 10, holding=-80, sampling=0.1).to_yaml())
            name: steps
            holding: -80 mV
            sampling: 0.1 ms
            segments:
            - step:
                values: [0 mV, 20 mV]
              for: 10 ms
            <BLANKLINE>
        """
        document = self._document(refuse_table)
        self._check_written(build_protocol(document, None))
        return dump_yaml(document)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Write the protocol file, and recorded commands as tables (CSV) beside it.

        Arguments:
            path: the file to write; tables are called after it.
            overwrite: whether files of these names may be replaced.

        Returns:
            The path of the protocol file.

        Raises:
            InputError: a file exists and `overwrite` is false, it cannot be written, or the sweeps
                are such that one protocol file cannot hold them together.

        Example:
            >>> import channelfit as cf
            >>> protocol = cf.Protocol.steps([0, 20], 10, holding=-80, sampling=0.1)
            >>> path = protocol.save("my_steps.yaml")
            >>> cf.Protocol.load(path) == protocol
            True
        """
        path = Path(path)
        tables: dict[str, str] = {}

        def tabled(commands: Sequence[Samples]) -> dict[str, Any]:
            file = f"{path.stem}_command{len(tables) + 1 if tables else ''}.csv"
            tables[file], names = command_table(commands)
            columns = {"column": names[0]} if len(names) == 1 else {"columns": names}
            return {"file": file, **columns, "unit": "mV", "time": {"column": "time", "unit": "ms"}}

        texts = {path.name: dump_yaml(self._document(tabled)), **tables}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in texts.items():
                save_text(Path(folder) / name, text)
            self._check_written(load_protocol(Path(folder) / path.name))
        for name in () if overwrite else texts:
            if (path.parent / name).exists():
                raise InputError(EXISTS, path.parent / name)
        for name, text in texts.items():
            save_text(path.parent / name, text, overwrite)
        return path

    def _document(self, tabled: Tabled) -> dict[str, Any]:
        """Return the protocol by the keys of a protocol file."""
        junction = self.junction_potential_mV
        command = _moved(self, junction)
        between: Any = "carry over" if self.carry_over else "steady state"
        if self.rest_ms > 0:
            between = {"carry_over": self.carry_over, "rest": quantity_text(self.rest_ms, "ms")}
            if command.rest_mV is not None:
                between["at"] = quantity_text(command.rest_mV, "mV")
        document = {
            "name": self.name,
            "description": self.description,
            "source": self.source,
            "holding": quantity_text(command.holding_mV, "mV"),
            "sampling": quantity_text(self.sampling_ms, "ms"),
            "junction_potential": quantity_text(junction, "mV"),
            "between_sweeps": between,
            "ligands": {one.name: one.document() for one in self.ligands},
            "segments": segment_rows(command.sweeps, command.holding_mV, tabled),
        }
        usual = {
            "description": "",
            "source": "",
            "junction_potential": quantity_text(0.0, "mV"),
            "between_sweeps": "steady state",
            "ligands": {},
        }
        return {key: value for key, value in document.items() if value != usual.get(key, ...)}

    def _check_written(self, again: Protocol) -> None:
        """Refuse to write what would be read as another protocol."""
        differ = [f.name for f in fields(self) if getattr(self, f.name) != getattr(again, f.name)]
        if differ:
            raise InputError(
                f"this protocol cannot be written as YAML: {', '.join(differ)} would differ when "
                "it is read again (times in a file are whole multiples of 1e-9 ms, segments follow "
                "each other without a gap, and text has no blanks at its ends)"
            )

    def __repr__(self) -> str:
        counts = sorted({self.n_times(k) for k in range(self.n_sweeps)})
        samples = str(counts[0]) + (f" to {counts[-1]}" if len(counts) > 1 else "")
        sweeps = f"{self.n_sweeps} sweep{'s' * (self.n_sweeps != 1)}"
        return (
            f"<Protocol {self.name}: {sweeps} of {samples} samples every {self.sampling_ms:g} ms, "
            f"holding {self.holding_mV:g} mV>"
        )

    @property
    def resting_mV(self) -> float:
        """The voltage of the rest between sweeps, mV."""
        return self.holding_mV if self.rest_mV is None else self.rest_mV

    @property
    def in_steps(self) -> bool:
        """Whether the voltage and all concentrations are held, and change at once."""
        commanded = self.sweeps, *(ligand.targets for ligand in self.ligands)
        held = all(part.is_constant for sweeps in commanded for sweep in sweeps for part in sweep)
        return held and all(ligand.exchange_ms == 0 for ligand in self.ligands)

    @property
    def n_sweeps(self) -> int:
        """The number of sweeps."""
        return len(self.sweeps)

    def n_times(self, sweep: int) -> int:
        """Return how many samples a sweep (from 0) has: those at k * sampling_ms before its end."""
        return math.ceil(self.sweeps[sweep][-1].end_ms / self.sampling_ms - TIME_TOLERANCE)

    @property
    def n_times_max(self) -> int:
        """The number of samples in the longest sweep."""
        return max(self.n_times(k) for k in range(self.n_sweeps))

    @property
    def times_ms(self) -> np.ndarray:
        """The times of the samples from the start of a sweep, (n_times_max,) ms."""
        return np.arange(self.n_times_max) * self.sampling_ms

    def sample_ranges(self, sweep: int) -> list[tuple[int, int]]:
        """Return the first sample of every segment of a sweep, and the one after its last."""
        n, h = self.n_times(sweep), self.sampling_ms
        edges = [0]
        edges += [
            min(n, math.ceil(segment.end_ms / h - TIME_TOLERANCE)) for segment in self.sweeps[sweep]
        ]
        return list(pairwise(edges))

    def command(self) -> np.ndarray:
        """Return the voltage at the samples, (n_sweeps, n_times_max) mV; NaN after the end."""
        t = self.times_ms
        out = np.full((self.n_sweeps, self.n_times_max), np.nan)
        for row, sweep, k in zip(out, self.sweeps, range(self.n_sweeps), strict=True):
            for segment, (a, b) in zip(sweep, self.sample_ranges(k), strict=True):
                row[a:b] = segment.voltage(np.maximum(t[a:b], segment.start_ms))
        return out

    def concentration(self, ligand: str) -> np.ndarray:
        """Return the concentration of a ligand at the samples, mM.

        Arguments:
            ligand: its name.

        Returns:
            (n_sweeps, n_times_max) mM; NaN after the end of a shorter sweep.

        Raises:
            InputError: a ligand that is not commanded.

        Example:
            >>> import channelfit as cf
            >>> puff = cf.Protocol.from_segments(
            ...     [{"hold": 3}], holding=-70, sampling=1, ligands={"drug": {"step": "2 mM"}}
            ... )
            >>> puff.concentration("drug")
            array([[2., 2., 2.]])
        """
        one = next((one for one in self.ligands if one.name == ligand), None)
        if one is None:
            known = ", ".join(one.name for one in self.ligands) or "none"
            raise InputError(f"no ligand {shown(ligand)}; there are: {known}", None, "ligand")
        out = np.full((self.n_sweeps, self.n_times_max), np.nan)
        for k, (_, sweep) in enumerate(one.course(self.carry_over, self.rest_ms)):
            t = self.times_ms[: self.n_times(k)]
            for segment in sweep:
                inside = t >= segment.start_ms - TIME_TOLERANCE * self.sampling_ms
                out[k, : len(t)][inside] = segment.voltage(np.maximum(t[inside], segment.start_ms))
        return out

    def voltage(self, times_ms: Any = None) -> np.ndarray:
        """Return the command voltage of every sweep, mV.

        It is NaN where a sweep has ended, or not begun.

        Arguments:
            times_ms: (n,) ms from the start of a sweep; without it the samples' times, `times_ms`.

        Returns:
            (n_sweeps, n) mV.

        Raises:
            InputError: times that are not numbers, or not in one row.

        Example:
            >>> import channelfit as cf
            >>> ramp = cf.Protocol.from_segments(
            ...     [{"ramp": [-80, 20], "for": 100}], holding=-80, sampling=1
            ... )
            >>> ramp.voltage([0, 50, 100])
            array([[-80., -30.,  nan]])
        """
        if times_ms is None:
            return self.command()
        t = np.atleast_1d(numbers(times_ms, "times_ms"))
        if t.ndim != 1:
            raise InputError(f"one row of times was expected, not {t.shape}", None, "times_ms")
        tiny = TIME_TOLERANCE * self.sampling_ms
        out = np.full((self.n_sweeps, len(t)), np.nan)
        for row, sweep in zip(out, self.sweeps, strict=True):
            for segment in sweep:
                inside = (t >= segment.start_ms - tiny) & (t < segment.end_ms - tiny)
                row[inside] = segment.voltage(np.maximum(t[inside], segment.start_ms))
        return out

    def step_times_ms(self, sweep: int, least_mV: float = 1.0) -> np.ndarray:
        """Return the times of jumps by more than `least_mV`, ms from the start of a sweep.

        Jumps inside a recorded command are among them, and so is the start of a sweep where the
        command leaves the voltage that was held before it.
        """
        times, before = list[float](), self.voltage_before(sweep)
        for s in self.sweeps[sweep]:
            first, last = s.voltage(np.array([s.start_ms, s.end_ms]))
            if abs(first - before) > least_mV:
                times.append(s.start_ms)
            if isinstance(s.wave, Samples):
                inside = s.start_ms + s.wave.jump_times_ms(self.sampling_ms, least_mV)
                times += [float(t) for t in inside if t < s.end_ms]
            before = last
        return np.array(times)

    def commanded(self, ligands: Sequence[str]) -> tuple[Ligand, ...]:
        """Return the commands of a model's ligands, in its order.

        Raises: InputError where these are not the ligands of the protocol.

        Example:
            >>> from channelfit import Protocol
            >>> Protocol.load("protocols/gaba_puff.yaml").commanded(["gaba"])[0].name
            'gaba'
        """
        known = {one.name: one for one in self.ligands}
        if set(known) != set(ligands):
            raise unknown_ligands(list(known), ligands, self.name)
        return tuple(known[name] for name in ligands)

    def voltage_before(self, sweep: int) -> float:
        """Return the voltage before a sweep, mV: of the rest, of the last sweep's end, or holding.

        Example:
            >>> from channelfit import Protocol
            >>> Protocol.steps([-20, 20], duration=10, holding=-80, sampling=0.1).voltage_before(1)
            -80.0
        """
        if sweep == 0 or not self.carry_over:
            return self.holding_mV
        if self.rest_ms > 0:
            return self.resting_mV
        last = self.sweeps[sweep - 1][-1]
        return float(last.voltage(np.array([last.end_ms]))[0])


# --- from YAML ---------------------------------------------------------------------------------


def load_protocol(path: str | os.PathLike[str]) -> Protocol:
    """Return the protocol in a YAML file, or in a ``.eph`` file of Nanion's SyncroPatch.

    Raises InputError: anything that cannot be used, with file, key and what would be right.
    """
    if os.path.splitext(path)[1].lower() == ".eph":
        contents = read(Path(path))
        stated = {"holding": contents.holding_mV, "sampling": contents.sampling_ms}
        root = Section({**stated, "description": " ".join(contents.notes)}, path)
        root.expect(KEYS["protocol"])
        return _built(root, Path(path).stem, sweeps_of_epochs(contents.epochs))
    return build_protocol(read_yaml(path), path)


def build_protocol(document: Mapping[str, Any], file: str | os.PathLike[str] | None) -> Protocol:
    """Return a protocol from plain data by the keys of a protocol file.

    Arguments:
        document: the data; it is not changed.
        file: where they come from, for messages; relative paths in it start from its folder.

    Raises InputError: anything that cannot be used, with file, key and what would be right.
    """
    root = Section(document, file)
    root.expect(KEYS["protocol"])
    name = os.path.splitext(os.path.basename(file))[0] if file else "protocol"
    return _built(root, name)


def _built(root: Section, name: str, sweeps: tuple[tuple[Segment, ...], ...] = ()) -> Protocol:
    """Return the protocol that a document describes.

    Arguments:
        name: its name where the document gives none.
        sweeps: where these are known already; otherwise they are read from the document.
    """
    name = root.text("name", name)
    description, source = root.text("description"), root.text("source")
    holding = root.quantity("holding")
    sampling = root.quantity("sampling")
    if sampling <= 0:
        raise root.error(f"a sampling interval above 0 was expected, not {sampling:g}", "sampling")
    junction = root.quantity("junction_potential")
    if not abs(junction) <= _MAX_JUNCTION_MV:
        raise root.error(
            f"a liquid junction potential within {_MAX_JUNCTION_MV:g} mV was expected, not "
            f"{junction:g} mV",
            "junction_potential",
        )
    carry_over, rest, rest_mV = _between(root)
    sweeps = sweeps or read_sweeps(root, holding)
    sweeps, ligands = read_ligands(root, sweeps)
    root.finish()
    check_sweeps(root, sweeps, sampling, holding, holding if rest_mV is None else rest_mV)
    protocol = Protocol(
        name,
        holding,
        sampling,
        sweeps,
        carry_over,
        rest,
        description,
        source,
        junction,
        rest_mV,
        ligands,
    )
    return _moved(protocol, -junction)


def with_ligands(row: Section, protocol: Protocol) -> Protocol:
    """Return a protocol with the concentrations that an experiment has in place of its own.

    Arguments:
        row: the experiment.

    Raises InputError: concentrations that cannot be used, with file and key.
    """
    if "ligands" not in row:
        return protocol
    sweeps, ligands = read_ligands(row, protocol.sweeps, protocol.ligands)
    return replace(protocol, sweeps=sweeps, ligands=ligands)


def _moved(protocol: Protocol, by_mV: float) -> Protocol:
    """Return the protocol with all of its voltages moved, as by a liquid junction potential."""
    if by_mV == 0:
        return protocol
    sweeps = tuple(
        tuple(replace(segment, wave=shifted(segment.wave, by_mV)) for segment in sweep)
        for sweep in protocol.sweeps
    )
    holding = round(protocol.holding_mV + by_mV, 9)
    rest = None if protocol.rest_mV is None else round(protocol.rest_mV + by_mV, 9)
    return replace(protocol, holding_mV=holding, rest_mV=rest, sweeps=sweeps)


def _between(root: Section) -> tuple[bool, float, float | None]:
    """Return the rest between sweeps.

    Returns:
        Whether the channel's state is carried over; the duration of the rest, ms; and its voltage,
        mV, None for the holding potential.
    """
    raw = root.take("between_sweeps")
    if isinstance(raw, Mapping):
        inner = root.section("between_sweeps")
        inner.expect(KEYS["between_sweeps"])
        carry, rest = inner.flag("carry_over"), inner.quantity("rest")
        at = inner.quantity("at")
        inner.finish()
        if rest < 0:
            raise inner.error(f"a time of 0 or more was expected, not {rest:g}", "rest")
        if rest > 0 and not carry:
            raise inner.error("a rest between sweeps needs `carry_over: true`", "rest")
        if at is not None and rest == 0:
            raise inner.error("a voltage between sweeps needs a time, `rest: 5 s`", "at")
        return carry, rest, at
    return root.choice("between_sweeps") == "carry over", 0.0, None
