"""The command line: verbs that parse, call and print. Everything heavy is imported when it is used,
so that ``--help`` answers at once."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from channelfit import __version__
from channelfit.fitzhugh_nagumo.command import fhn
from channelfit.reading.errors import InputError
from channelfit.scoring.machine.announcements import told_to

if TYPE_CHECKING:
    import numpy as np

    from channelfit.model.channel import ChannelModel
    from channelfit.problem.protocol import Protocol
    from channelfit.reading.cautions import Caution
    from channelfit.results.report.artist import Artist
    from channelfit.results.report.terminal import SearchScreen
    from channelfit.results.run_folder import RunFolder
    from channelfit.scoring.scorer import Scorer
    from channelfit.search.fit_file import Fit

BAD_INPUT, INTERRUPTED = 2, 130
#: More parameters than this are not listed on the screen; they stand in the results' folder.
_MOST_ROWS = 64


class _Commands(click.Group):
    """Turns a mistake of the user's into one message and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(str(error), err=True)
            ctx.exit(BAD_INPUT)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="channelfit")
def main() -> None:
    """Fit kinetic models of ion channels to voltage-clamp recordings.

    A model is one YAML file: states, rates as plain expressions, parameters with ranges, and a
    `fit` section that says which recordings (or simulated data) to fit it to.

    \b
    Begin with
      channelfit show models/model_b.yaml          what a model file says
      channelfit optimize models/model_b.yaml      fit it
      channelfit doctor                            what this machine can do

    \b
    Exit codes
      0    done
      1    a defect of channelfit (a traceback follows; please report it), or
           `validate` found an error above its tolerance
      2    the input cannot be used; one message says what and where
      130  interrupted; `optimize` has saved the best so far
    """


_set = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change one entry of the file for this call, e.g. parameters.gmax.value=3 or "
    "fit.optimizer.mutation_rate=0.02. May be given several times.",
)
_model = click.argument("model", type=click.Path(path_type=Path))
_backend = click.option(
    "--backend",
    type=click.Choice(["auto", "reference", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What computes the currents.",
)
_path = click.option(
    "--path",
    type=click.Choice(["auto", "stepping", "modal", "closed-form"]),
    default="auto",
    show_default=True,
    help="How: sample by sample; in a scheme's modes; or without samples, from sums over the "
    "recording. A backend may have one only.",
)


def _dtype(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--dtype",
        type=click.Choice(["float64", "float32"]),
        default="float64",
        show_default=True,
        help=what,
    )


# --- optimize ----------------------------------------------------------------------------------


@main.command(short_help="Fit the parameters of a model to its data.")
@_model
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results; must be new or empty. [default: runs/NAME-DATE-TIME]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed of the search: the same seed gives the same result. [default: the file's, or 0]",
)
@_backend
@_dtype("Precision of the search; the result is scored in float64 either way.")
@_path
@click.option(
    "--chunk",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates in one launch on a GPU, where it must be fewer than the population.",
)
@click.option(
    "--population",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates a generation. [default: the file's]",
)
@click.option(
    "--generations",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after so many generations. [default: the file's]",
)
@click.option(
    "--optimizer",
    metavar="NAME",
    help="Search method: hybrid, genetic, swarm, ring, groups, differential, cma, or "
    "asynchronous_ring for functions on a GPU. Another than the file's starts from its own "
    "settings, not from the file's. [default: the file's]",
)
@_set
@click.option("--quiet", is_flag=True, help="Print the results' folder and nothing else.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the content of summary.json on standard output and nothing else there.",
)
def optimize(
    model: Path,
    out: Path | None,
    seed: int | None,
    backend: str,
    dtype: str,
    path: str,
    chunk: int | None,
    population: int | None,
    generations: int | None,
    optimizer: str | None,
    overrides: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Fit the parameters of MODEL to its data.

    MODEL is a model file with a `fit` section, or a fit file that names its model. Progress is
    shown on standard error; Ctrl-C ends the search and keeps the best so far (exit code 130).

    \b
    The results' folder
      fit.yaml      the model with the fitted values; can be simulated, and fitted again
      traces.png    data, fit, residual and command voltage
      history.csv   best and median cost of every generation
      summary.json  numbers, parameters, seed, versions, machine, why it stopped
      source.py     the code that was generated for this model (source.cu with a GPU)

    \b
    Examples
      channelfit optimize models/model_b.yaml
      channelfit optimize models/model_b.yaml --population 1120 --generations 50 --seed 3
      channelfit optimize my_cell.yaml --out runs/cell7 --set fit.stop.seconds=60
      channelfit optimize models/k_hh.yaml --json --quiet > summary.json
    """
    from channelfit.results.report.artist import hired

    with hired() as artist:  # who gets ready while everything else is imported
        from channelfit.results import run_folder as runs
        from channelfit.results.report import terminal

        if out is not None:
            runs.check_folder(out)
        options = _options(model, overrides, seed, population, generations, optimizer)
        with terminal.SearchScreen(model.name, quiet) as screen:
            with _compile_notice(screen), _nothing_collected():
                fit, scorer = _prepare(model, options, backend, dtype, path, screen)
                _set_chunk(scorer, chunk)
                _score_one(fit, scorer, screen)
            folder = runs.open_folder(out or runs.default_folder(fit.name), fit, artist)
            summary = _search(fit, scorer, folder, screen)
    if as_json:
        click.echo(runs.json_text(summary), nl=False)
    elif quiet:
        click.echo(str(folder.path))
    else:
        _print_result(summary, folder.path)
    if summary["stop_reason"] == "interrupted":
        sys.exit(INTERRUPTED)


def _options(
    file: Path,
    overrides: Sequence[str],
    seed: int | None,
    population: int | None,
    generations: int | None,
    optimizer: str | None,
) -> list[str]:
    """The options as overrides of the file, after those that the user wrote out."""
    options = list(overrides)
    if optimizer is not None:
        if _optimizer_of(file) not in (None, optimizer):
            options.insert(0, "fit.optimizer={}")
        options.append(f"fit.optimizer.name={optimizer}")
    if seed is not None:
        options.append(f"fit.seed={seed}")
    if population is not None:
        options.append(f"fit.optimizer.population={population}")
    if generations is not None:
        options.append(f"fit.optimizer.generations={generations}")
        if _gives_generations_to_stop(file):
            options.append(f"fit.stop.generations={generations}")
    return options


def _optimizer_of(file: Path) -> str | None:
    """The search method that a file's settings are for; None where it has no settings."""
    from channelfit.search.fit_file import default_optimizer, read_fit_document

    fit = read_fit_document(file)[0].get("fit")
    section = fit.get("optimizer") if isinstance(fit, dict) else None
    return (
        str(section.get("name", default_optimizer(section))) if isinstance(section, dict) else None
    )


def _gives_generations_to_stop(file: Path) -> bool:
    """A file may give the number in either place; both must then agree."""
    from channelfit.search.fit_file import read_fit_document

    fit = read_fit_document(file)[0].get("fit")
    stop = fit.get("stop") if isinstance(fit, dict) else None
    return isinstance(stop, dict) and "generations" in stop


def _prepare(
    file: Path, options: Sequence[str], backend: str, dtype: str, path: str, screen: SearchScreen
) -> tuple[Fit, Scorer]:
    from channelfit.problem.experiment import Problem
    from channelfit.scoring.scorer import make_scorer
    from channelfit.search.fit_file import load_fit

    screen.begin(f"reading {file.name} and its data")
    fit = load_fit(file, options, backend)
    screen.warn(fit.cautions)
    scorer = make_scorer(fit.problem, backend, dtype, path)
    free = fit.space.n_free
    screen.title = f"{fit.name}: {fit.optimizer}, {free} free parameters, seed {fit.seed}"
    screen.say(screen.title)
    if fit.inherited:
        screen.say(f"from the fit section of {fit.model_file.name}: {', '.join(fit.inherited)}")
    screen.say(_backend_line(scorer, backend))
    screen.rules = fit.stop_rules
    screen.of_currents = isinstance(fit.problem, Problem)
    return fit, scorer


def _set_chunk(scorer: Scorer, chunk: int | None) -> None:
    if chunk is None:
        return
    if not hasattr(scorer, "chunk"):
        raise InputError(f"--chunk is for GPUs; backend {scorer.backend} does without")
    scorer.chunk = chunk


def _score_one(fit: Fit, scorer: Scorer, screen: SearchScreen) -> None:
    """Which compiles."""
    import numpy as np

    screen.begin("scoring the first candidate")
    scorer.score(fit.space.to_physical(np.full((fit.space.n_free, 1), 0.5)))


def _backend_line(scorer: Scorer, asked: str) -> str:
    """Which backend, and why it."""
    from channelfit.front.doctor import backends

    state = backends()
    why = "as asked"
    if asked == "auto":
        missing = [f"{name} {row.state}" for name, row in state.items() if not row.usable]
        why = "; ".join(["auto: the fastest here", *missing])
    return f"backend {scorer.backend}, {scorer.dtype} ({why})"


def _search(fit: Fit, scorer: Scorer, folder: RunFolder, screen: SearchScreen) -> dict[str, Any]:
    import numpy as np

    from channelfit.search.loop import Progress
    from channelfit.search.loop import optimize as search

    def on_generation(progress: Progress) -> None:
        screen.update(progress)
        folder.record(progress)

    try:
        folder.save_source(scorer)
        screen.begin("scoring the first generation")
        optimizer = fit.make_optimizer(getattr(scorer, "xp", np))
        try:
            result = search(optimizer, fit.objective(scorer), fit.stop_rules, on_generation)
        except InputError as error:
            why = "; ".join(fit.failing_examples())
            raise InputError(f"{error}; for instance {why}", fit.file) if why else error from None
        screen.begin("drawing")
        with _compile_notice(screen):
            winner = folder.rescore(scorer, result.values)
            summary: dict[str, Any] = folder.finish(result, scorer, winner)
    except BaseException:
        folder.abandon()
        raise
    return summary


class _Notice:
    """Shows on a screen what is announced, and then again what was there before."""

    def __init__(self, screen: SearchScreen) -> None:
        self.screen, self.depth, self.said, self.before = screen, 0, False, ""

    def begins(self, what: str) -> None:
        self.depth += 1
        if self.depth == 1:
            self.before = self.screen.stage
            self.screen.begin(what)
            if not self.said and not self.screen.live:
                self.screen.say(self.screen.stage)
            self.said = True

    def ends(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.screen.begin(self.before)


@contextmanager
def _compile_notice(screen: SearchScreen) -> Iterator[None]:
    """Says so when something is really compiled, which is done once for each model.

    An interrupt inside the compiler can come out of it as any error; here it is an interrupt again.
    """
    notice = _Notice(screen)
    with told_to(notice), _noting_interrupts() as interrupted:
        try:
            yield
        except InputError:
            raise
        except Exception:
            if interrupted and notice.said:
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Spares looking for garbage, again and again, among all that is imported and built once."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def _noting_interrupts() -> Iterator[list[bool]]:
    """A list that is no longer empty once Ctrl-C was pressed."""
    seen: list[bool] = []

    def note(number: int, frame: Any) -> None:
        seen.append(True)
        signal.default_int_handler(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _print_result(summary: dict[str, Any], folder: Path) -> None:
    from rich.console import Console

    from channelfit.results.report import terminal

    console = Console(highlight=False)
    console.print()
    if len(summary["parameters"]) <= _MOST_ROWS:
        console.print(terminal.result_table(summary["parameters"]))
        console.print()
    for line in terminal.result_lines(summary):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"results    {folder}", soft_wrap=True, markup=False)


# --- simulate ----------------------------------------------------------------------------------


@main.command(short_help="Currents of a model under a protocol.")
@_model
@click.argument("protocol", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PREFIX",
    help="Path of the two files, without .csv and .png. [default: MODEL-PROTOCOL here]",
)
@_backend
@_dtype("Precision of the currents.")
@_path
@_set
def simulate(
    model: Path,
    protocol: Path,
    out: Path | None,
    backend: str,
    dtype: str,
    path: str,
    overrides: tuple[str, ...],
) -> None:
    """Current of MODEL under PROTOCOL, at the values in the model file.

    Writes PREFIX.csv (time in ms, then current in pA and voltage in mV of every sweep) and
    PREFIX.png, replacing what is there. Cells after the end of a shorter sweep are empty.

    \b
    Examples
      channelfit simulate models/model_b.yaml protocols/activation.yaml
      channelfit simulate runs/cell7/fit.yaml protocols/staircase.yaml --out predictions/cell7
      channelfit simulate models/k_hh.yaml protocols/ramp.yaml --set parameters.gmax.value=3
    """
    from channelfit.results.report.artist import hired

    with hired() as artist:
        files = _simulate(model, protocol, out, backend, dtype, path, overrides, artist)
    for file in files:
        click.echo(str(file))


def _simulate(
    model: Path,
    protocol: Path,
    out: Path | None,
    backend: str,
    dtype: str,
    path: str,
    overrides: tuple[str, ...],
    artist: Artist,
) -> list[Path]:
    """Writes table and picture; returns where they are."""
    from channelfit.problem.experiment import Experiment, Problem
    from channelfit.problem.plausibility import protocol_cautions
    from channelfit.problem.protocol import load_protocol
    from channelfit.results.report import terminal
    from channelfit.results.report.traces import Page, Traces
    from channelfit.results.run_folder import file_name
    from channelfit.scoring.machine import gpu
    from channelfit.scoring.scorer import make_scorer

    channel, values, name = _model_with_values(model, overrides)
    command = load_protocol(protocol)
    _warn(protocol_cautions(command, str(protocol)))
    prefix = out or Path(".")
    if prefix.is_dir():
        prefix /= file_name(f"{name}-{command.name}")
    on_gpu = backend == "cuda" or (backend == "auto" and gpu.is_available())
    _tell_extremes(channel, values, [command], model, dtype if on_gpu else "float64")
    with terminal.SearchScreen(name) as screen, _compile_notice(screen):
        screen.begin("simulating")
        scorer = make_scorer(Problem(channel, (Experiment(command),)), backend, dtype, path)
        current = scorer.simulate(values[:, None])[0][:, :, 0]
    files = [prefix.with_name(prefix.name + suffix) for suffix in (".csv", ".png")]
    with _writing(prefix):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        artist.begin(Page((Traces(command, current, title=command.name),), name), files[1])
        _write_traces(files[0], command, current)
        artist.finish()
    return files


def _tell_extremes(
    channel: ChannelModel, values: np.ndarray, protocols: Sequence[Protocol], file: Path, dtype: str
) -> None:
    """Refuses values that give no current; says of others which rates are strange, and where."""
    from channelfit.problem.extreme_rates import CEILINGS, extremes, voltages_of

    strange = extremes(channel, values, voltages_of(protocols), CEILINGS[dtype])
    if strange and strange[0].fails:
        raise InputError("; ".join(str(e) for e in strange if e.fails), file)
    for extreme in strange:
        click.echo(f"note: {extreme}", err=True)


def _describe_extremes(channel: ChannelModel, document: Mapping[str, Any], file: Path) -> None:
    """Strange rates at the voltages of the fit section's protocols, or at ordinary ones."""
    from channelfit.front.validation import protocols_of
    from channelfit.problem.extreme_rates import extremes, voltages_of

    if all(p.value is not None for p in channel.parameters):
        voltages = voltages_of(protocols_of(document, file))
        for extreme in extremes(channel, channel.values(), voltages):
            click.echo(f"note: {extreme}", err=True)


def _model_with_values(
    file: Path, overrides: Sequence[str]
) -> tuple[ChannelModel, np.ndarray, str]:
    """The model, its values, and the name that a fit file gives, else its own."""
    channel, document = _load(file, overrides)
    name = str((document.get("fit") or {}).get("name", channel.name))
    try:
        return channel, channel.values(), name
    except InputError as error:
        raise error.at(file) from None


def _load(file: Path, overrides: Sequence[str]) -> tuple[ChannelModel, dict[str, Any]]:
    """The model of a model file or a fit file, and the whole document."""
    from channelfit.functions.function import is_function
    from channelfit.search.fit_file import read_fit_document
    from channelfit.search.joined_files import build_fitted_model

    document, model_file = read_fit_document(file, overrides)
    if is_function(document):
        raise InputError("a function has no currents; only optimize and show serve it", file)
    channel = build_fitted_model(document, file, model_file)
    _warn(channel.cautions)
    return channel, document


def _warn(cautions: Iterable[Caution]) -> None:
    """What looks wrong, on standard error, before the work."""
    from channelfit.results.report.terminal import SearchScreen

    SearchScreen("").warn(cautions)


def _write_traces(path: Path, command: Protocol, current: np.ndarray) -> None:
    from channelfit.results.run_folder import write_text

    voltage = command.command()
    names = ["time_ms"]
    for k in range(1, command.n_sweeps + 1):
        names += [f"sweep_{k}_current_pA", f"sweep_{k}_voltage_mV"]
    lines = [",".join(names)]
    columns = [row for pair in zip(current, voltage, strict=True) for row in pair]
    table = list(zip(*(c.tolist() for c in columns), strict=True))
    for t, row in zip(command.times_ms.tolist(), table, strict=True):
        cells = ["" if x != x else f"{x:.9g}" for x in row]
        lines.append(",".join([f"{t:.9g}", *cells]))
    write_text(path, "\n".join(lines) + "\n")


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """A place that cannot be written to is the user's mistake, not ours."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", place) from None


# --- uncertainty, compare ----------------------------------------------------------------------


@main.command(short_help="How sure a fit is, and what the data leave open.")
@click.argument("fit", type=click.Path(path_type=Path))
@click.option(
    "--profiles",
    metavar="NAMES",
    default="",
    help="Profile likelihoods of these parameters, separated by commas, or all.",
)
@click.option(
    "--families",
    type=click.IntRange(1),
    metavar="N",
    is_flag=False,
    flag_value=64,
    help="Look for other fits as good as this one, from N starts. [64 without a number]",
)
@click.option(
    "--posterior",
    type=click.IntRange(4),
    metavar="STEPS",
    is_flag=False,
    flag_value=2000,
    help="Sample the posterior, so many steps of every walker. [2000 without a number]",
)
@click.option(
    "--walkers",
    type=click.IntRange(4),
    metavar="N",
    help="Walkers of the posterior. [default: four a parameter, 32 or more]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of starts and walkers.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results. [default: the run folder FIT stands in, else uncertainty/ here]",
)
@_backend
@_set
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the content of uncertainty.json and nothing else.",
)
def uncertainty(
    fit: Path,
    profiles: str,
    families: int | None,
    posterior: int | None,
    walkers: int | None,
    seed: int,
    out: Path | None,
    backend: str,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """How sure the fitted values in FIT are, such as fit.yaml of a run folder.

    They are refined by least squares first. Standard errors and intervals come from the curvature
    of the cost and the noise in the residuals; what the data do not determine is told in words.
    Profiles follow the cost where it is no parabola; families are equally good fits that nothing
    connects; the posterior is a sample of all parameters that the data allow.

    \b
    Writes
      uncertainty.json, uncertainty.png            always
      refined.yaml                                 where refining made the fit better
      profiles.csv, profiles.png                   with --profiles
      families.png                                 with --families
      posterior.csv, posterior.png                 with --posterior

    \b
    Examples
      channelfit uncertainty runs/cell7/fit.yaml
      channelfit uncertainty runs/cell7/fit.yaml --profiles all --families
      channelfit uncertainty runs/cell7/fit.yaml --profiles a12,gmax --posterior 5000
    """
    from channelfit.front.uncertainty import Wanted, study
    from channelfit.problem.experiment import Problem
    from channelfit.results import run_folder as runs
    from channelfit.results.report import terminal
    from channelfit.scoring.scorer import make_scorer
    from channelfit.search.fit_file import load_fit

    with terminal.SearchScreen(fit.stem) as screen, _compile_notice(screen):
        screen.begin(f"reading {fit.name} and its data")
        loaded = load_fit(fit, overrides, backend)
        screen.warn(loaded.cautions)
        if not isinstance(loaded.problem, Problem):
            raise InputError("a function has no currents; only optimize and show serve it", fit)
        scorer = make_scorer(loaded.problem, backend)
        names = tuple(name.strip() for name in profiles.split(",") if name.strip())
        wanted = Wanted(names, families or 0, posterior or 0, walkers, seed)
        folder = out or (
            fit.parent if (fit.parent / "summary.json").exists() else Path("uncertainty")
        )
        summary, files = study(loaded, scorer, folder, wanted, screen.begin)
    if as_json:
        click.echo(runs.json_text(summary), nl=False)
        return
    _print_uncertainty(summary)
    for file in files:
        click.echo(str(file))


def _print_uncertainty(summary: dict[str, Any]) -> None:
    from rich.console import Console

    from channelfit.results.report import terminal

    console = Console(highlight=False)
    console.print(terminal.result_table(summary["parameters"]))
    console.print()
    before, cost = summary["cost_before_refining"], summary["cost"]
    gained = f" (before refining {before:.6g})" if before > cost else ""
    console.print(f"cost       {cost:.6g} pA^2{gained}", soft_wrap=True)
    if "profiles" in summary or "posterior" in summary:
        console.print(terminal.profile_table(summary))
        console.print()
    lines = terminal.sure_lines(summary["uncertainty"])
    lines += terminal.family_lines(summary["families"]) if "families" in summary else []
    lines += [
        f"posterior  {warning}" for warning in summary.get("posterior", {}).get("warnings", ())
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


@main.command(short_help="Candidate schemes fitted to the same data.")
@click.argument("fits", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=Path("comparison"),
    show_default=True,
    help="Folder for comparison.json and comparison.png.",
)
@click.option(
    "--as-is", is_flag=True, help="Take the values as they are; else least squares refines them."
)
@_backend
@click.option(
    "--json", "as_json", is_flag=True, help="Print the content of comparison.json and nothing else."
)
def compare(fits: tuple[Path, ...], out: Path, as_is: bool, backend: str, as_json: bool) -> None:
    """Compare FITS of different schemes to the same data, such as fit.yaml of several run folders.

    Cost, parameters, and the information criteria of Akaike and Schwarz: differences to the best,
    and how likely each scheme is the best of them. Experiments with weight 0 were held out of the
    fits, and are predicted here.

    \b
    Examples
      channelfit compare runs/three_states/fit.yaml runs/four_states/fit.yaml
      channelfit compare runs/*/fit.yaml --out which_scheme
    """
    from rich.console import Console

    from channelfit.front import uncertainty as command
    from channelfit.results import run_folder as runs
    from channelfit.results.report import terminal

    with terminal.SearchScreen("comparison") as screen, _compile_notice(screen):
        summary, files = command.compare(fits, out, backend, as_is, screen.begin)
    if as_json:
        click.echo(runs.json_text(summary), nl=False)
        return
    console = Console(highlight=False)
    console.print(terminal.comparison_table(summary["fits"]))
    console.print()
    console.print(terminal.comparison_quality(summary["fits"]))
    console.print()
    console.print(terminal.comparison_parameters(summary["fits"]))
    console.print()
    for line in [*summary["remarks"], *(f"Warning: {w}" for w in summary["warnings"])]:
        console.print(line, soft_wrap=True, markup=False)
    for file in files:
        click.echo(str(file))


# --- show --------------------------------------------------------------------------------------


def _show_function(file: Path, source: str | None, dtype: str, overrides: Sequence[str]) -> bool:
    """Shows a function, if it is one."""
    from channelfit.functions.function import build_function, is_function
    from channelfit.functions.pictures import describe
    from channelfit.functions.source import FunctionSource
    from channelfit.search.fit_file import read_fit_document

    document, function_file = read_fit_document(file, overrides)
    if not is_function(document):
        return False
    problem = build_function(document, function_file)
    if source == "nmodl":
        raise InputError("a function is no mechanism for NEURON; --source cpu or cuda", file)
    if source is None:
        click.echo(describe(problem), nl=False)
    else:
        target = "cuda" if source == "cuda" else "cpu"
        click.echo(FunctionSource(problem, dtype, target).text, nl=False)
    return True


@main.command(short_help="Scheme, rates, generator matrix and parameters.")
@_model
@click.option(
    "--source",
    type=click.Choice(["cpu", "cuda", "nmodl"]),
    help="Print the generated code instead: of the cpu backend, of the cuda "
    "backend, or a mechanism for NEURON.",
)
@_dtype("Precision of the generated code.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Draw the scheme into this file as well.",
)
@_set
def show(
    model: Path, source: str | None, dtype: str, out: Path | None, overrides: tuple[str, ...]
) -> None:
    """What MODEL says: its scheme, rates, generator matrix and parameters.

    \b
    Examples
      channelfit show models/model_b.yaml
      channelfit show models/na_markov.yaml --out na_markov.png
      channelfit show models/model_b.yaml --source cuda --dtype float32 > model_b.cu
      channelfit show models/na_hh.yaml --source nmodl > na_hh.mod
    """
    if _show_function(model, source, dtype, overrides):
        return
    channel, document = _load(model, overrides)
    if source == "cpu":
        from channelfit.scoring.kernels.cpu_source import CpuSource

        click.echo(CpuSource(channel, dtype).text, nl=False)
    elif source == "cuda":
        from channelfit.scoring.kernels.cuda_source import CudaSource

        click.echo(CudaSource(channel, dtype).text, nl=False)
    elif source == "nmodl":
        from channelfit.scoring.neuron.nmodl import nmodl_text

        click.echo(nmodl_text(channel), nl=False)
    else:
        from channelfit.results.report.description import describe

        describe(channel)
        _describe_extremes(channel, document, model)
    if out is not None:
        from channelfit.results.report.plots import save
        from channelfit.results.report.scheme import scheme_figure

        out = out if out.suffix.lower() == ".png" else out.with_name(out.name + ".png")
        with _writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            save(scheme_figure(channel), out)
        click.echo(str(out), err=source is not None)


# --- validate ----------------------------------------------------------------------------------


@main.command(short_help="Compare a model's currents with NEURON's.")
@_model
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Parameter sets to compare: the file's values and others drawn from the ranges.",
)
@click.option(
    "--protocol",
    "protocols",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Protocol to compare under, several allowed. [default: the fit's]",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "reference", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="What is compared with NEURON.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of the parameter sets.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for a figure of the worst case of each protocol.",
)
@_set
def validate(
    model: Path,
    candidates: int,
    protocols: tuple[Path, ...],
    backend: str,
    seed: int,
    out: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Compare the currents of MODEL with those that NEURON computes.

    NEURON gets the channel as NMODL and integrates it with CVODE to 1e-12. For every protocol the
    largest difference in any trace is given as a part of that trace's largest current. The
    tolerance is 1e-5 where the voltage is held in steps and 1e-4 where it varies; beyond it the
    exit code is 1. Needs NEURON and a C++ compiler; `channelfit doctor` tells.

    \b
    Examples
      channelfit validate models/model_b.yaml
      channelfit validate models/na_hh.yaml --candidates 50 --protocol protocols/na_iv.yaml
      channelfit validate models/herg_beattie.yaml --out validation
    """
    from channelfit.front.validation import compare_with_neuron

    channel, document = _load(model, overrides)
    if not compare_with_neuron(channel, document, model, candidates, protocols, backend, seed, out):
        sys.exit(1)


# --- tune --------------------------------------------------------------------------------------


@main.command(short_help="Find the fastest threads a block on this GPU.")
@_model
@click.option(
    "--population",
    type=click.IntRange(1),
    metavar="N",
    help="Candidates to score each time. [default: the file's]",
)
@_dtype("Precision of the search to be tuned.")
@_path
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Where to draw time and occupancy. [default: MODEL-launches.png here]",
)
@_set
def tune(
    model: Path,
    population: int | None,
    dtype: str,
    path: str,
    out: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Measure how fast MODEL is scored on this GPU with every number of threads a block.

    The fastest is remembered in the cache folder, for this model and this GPU, and every later
    `optimize` uses it. Prints a table, and draws time and occupancy against threads a block. The
    cpu backend has nothing to tune.

    \b
    Examples
      channelfit tune models/model_b.yaml --population 1000000
      channelfit tune models/herg_markov.yaml --dtype float32 --out launches.png
    """
    from channelfit.results.report import plots, terminal
    from channelfit.results.run_folder import file_name
    from channelfit.scoring.machine import gpu
    from channelfit.scoring.machine import launch_tuning as tuning

    device = gpu.device()
    options = _options(model, overrides, None, population, None, None)
    with terminal.SearchScreen(model.name) as screen, _compile_notice(screen):
        fit, scorer = _prepare(model, options, "cuda", dtype, path, screen)
        parameters = fit.space.to_physical(fit.make_optimizer().ask())

        def say(row: tuning.Measured) -> None:
            screen.begin(f"{row.kernel}, {row.launch.threads} threads a block")

        rows = tuning.tune(scorer, gpu.cupy().asarray(parameters), device.name, say)  # type: ignore[arg-type]
    n = parameters.shape[1]
    terminal.print_launches(rows, n)
    click.echo(f"The fastest are remembered for {device.name}, and used from now on.")
    name = file_name(fit.name)
    out = out or Path(f"{name}-launches.png")
    out = out if out.suffix.lower() == ".png" else out.with_name(out.name + ".png")
    with _writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        title = f"{fit.name}, {dtype}, {n:,} candidates, {device.name}"
        plots.save(plots.launches_figure(rows, n, title), out)
    click.echo(str(out))


# --- doctor ------------------------------------------------------------------------------------


@main.command(short_help="What is installed and what each backend can do.")
def doctor() -> None:
    """What is installed here, what each backend can do, and how to get what is missing.

    \b
    Example
      channelfit doctor
    """
    from channelfit.front.doctor import report

    report()


main.add_command(fhn)
