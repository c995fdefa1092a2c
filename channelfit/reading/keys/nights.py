"""The keys of a file that describes a night: jobs, and which of them wait for others."""

from __future__ import annotations

from channelfit.reading.keys.models import DESCRIPTION
from channelfit.reading.keys.shapes import (
    Flag,
    Integer,
    Key,
    Keys,
    List,
    Named,
    Rules,
    Text,
    Within,
    either,
)

#: The name of a job, which is also that of its folder and of its log.
JOB_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}"
#: The name of an argument of a command, as on the command line, without the dashes before it.
ARGUMENT_NAME = r"[a-z][a-z0-9-]{0,39}"

_VALUE = either(Within("job result"), Text(), Flag())

#: Kinds of jobs, each a command of channelfit, with arguments as an example.
COMMANDS = {
    "optimize": {"model": "my_cell.yaml", "seed": 3},
    "discover": {"model": "my_cell.yaml", "states": "3..5"},
    "batch": {"fit": "my_cell.yaml", "recordings": ["plate_7/*.csv"], "groups": "auto"},
    "curves": {"curve": "boltzmann", "data": "activation.csv"},
    "fhn": {"nodes": 4001, "end": 1000},
    "uncertainty": {"fit": {"run": "four_states"}, "profiles": "all"},
    "compare": {"fits": [{"run": "three_states"}, {"run": "four_states"}]},
    "report": {"runs": {"run": "four_states"}, "figures": "pdf"},
    "export": {"fit": {"run": "four_states"}, "to": "nmodl", "point-process": True},
    "simulate": {"model": {"run": "four_states"}, "protocol": "staircase.yaml"},
    "cell": {"cell": "neuron.yaml", "scale": "k=0.8"},
    "validate": {"model": {"run": "four_states"}},
}

NIGHT = Keys(
    "night",
    "Jobs that `channelfit run` does one after the other or side by side. Paths start from the "
    "folder of this file.",
    name=Key(Text(), "What the night is called.", "cell 7", otherwise="the file's name"),
    description=DESCRIPTION,
    side_by_side=Key(
        Integer(1, 256),
        "How many jobs may run at the same time. They share the processor's cores evenly.",
        2,
        1,
    ),
    jobs=Key(
        Named(Within("job"), "job", pattern=JOB_NAME, least=1),
        "The jobs. The name of each is that of the folder of its results.",
        {"four_states": {"optimize": {"model": "four_states.yaml"}}},
        required=True,
    ),
)
JOB = Keys(
    "job",
    "One job of a night: a command of channelfit with its arguments by name.",
    Rules(one=(tuple(COMMANDS),)),
    after=Key(
        List(Text("the name of a job", strict=True)),
        "Jobs that are to have finished before this one begins, beside those whose results it "
        "uses. If one of them fails, this one is skipped.",
        ["three_states", "four_states"],
    ),
    **{
        command: Key(
            Named(List(_VALUE, 1), "argument", pattern=ARGUMENT_NAME),
            f"The arguments and options of `channelfit {command}`: each stands under its name on "
            "the command line, without dashes. A list gives several values, and true an option "
            "that has none.",
            example,
        )
        for command, example in COMMANDS.items()
    },
)
JOB_RESULT = Keys(
    "job result",
    "The result of another job, which is then waited for.",
    run=Key(
        Text("the name of a job", strict=True),
        "The job. Its result is the fit of `optimize`, and the folder of every other job.",
        "four_states",
        required=True,
    ),
    file=Key(
        Text("the name of a file", strict=True),
        "A file in the folder of the job.",
        "refined.yaml",
        otherwise="the result of the job",
    ),
)

SECTIONS = (NIGHT, JOB, JOB_RESULT)
