"""The models that can be scored by modes: all chains decay without oscillating.

Chains of up to three states are served by formulas that mark the candidates of which they cannot
tell the modes apart. More states need detailed balance around every cycle, which is checked here.
"""

from __future__ import annotations

import numpy as np

from channelfit.model.channel import Chain, ChannelModel
from channelfit.model.evaluation import evaluate

_TRIALS = 20  # random values and voltages at which an identity of rates is tried


def reason_without_modes(model: ChannelModel) -> str | None:
    """Explain why an open probability is no sum of decaying modes; return None if it is one."""
    for chain in model.chains:
        if len(chain.states) > 3 and not keeps_detailed_balance(model, chain):
            return (
                f"the {len(chain.states)} states {', '.join(chain.states)} do not keep detailed "
                "balance around every cycle, so their occupancies may oscillate"
            )
    return None


def modes_are_real(model: ChannelModel) -> bool:
    """Return whether no chain can oscillate: each is a tree, or keeps detailed balance."""
    return all(_is_tree(chain) or keeps_detailed_balance(model, chain) for chain in model.chains)


def _is_tree(chain: Chain) -> bool:
    return len({frozenset((t.source, t.target)) for t in chain.transitions}) < len(chain.states)


def longest_detour(chain: Chain) -> int:
    """Return how many transitions a way around takes: of shortest cycles the longest.

    A cycle counts from three states on, and for each transition the shortest one through it.
    """
    after: dict[str, set[str]] = {state: set() for state in chain.states}
    for t in chain.transitions:
        after[t.source].add(t.target)
    longest = 0
    for source, targets in after.items():
        for target in targets:
            reached, rim, steps = {target}, after[target] - {source, target}, 2
            while rim and all(source not in after[state] for state in rim):
                reached |= rim
                rim = set().union(*(after[state] for state in rim)) - reached
                steps += 1
            longest = max(longest, steps + 1 if rim else 0)
    return longest


def keeps_detailed_balance(model: ChannelModel, chain: Chain) -> bool:
    """Return whether the rates around every cycle multiply to the same both ways.

    Kolmogorov's criterion, tried at random values and voltages: an identity of expressions holds
    at all of them, and anything else fails at nearly every one.
    """
    index = {s: i for i, s in enumerate(chain.states)}
    edges = {(index[t.source], index[t.target]) for t in chain.transitions}
    if any((j, i) not in edges for i, j in edges):
        return False
    if len(edges) == 2 * (len(chain.states) - 1):
        return True
    logs = _log_rates(model, chain)
    height = {0: np.zeros(_TRIALS)}
    waiting = [0]
    # Where a rate is 0 the difference is no number, and balance is not claimed.
    with np.errstate(invalid="ignore"):
        while waiting:
            i = waiting.pop()
            for j in (j for a, j in edges if a == i and j not in height):
                height[j] = height[i] + logs[i, j] - logs[j, i]
                waiting.append(j)
        worst = [np.abs(height[j] - height[i] - logs[i, j] + logs[j, i]) for i, j in edges]
    return bool(np.max(worst) < 1e-9)


def _log_rates(model: ChannelModel, chain: Chain) -> dict[tuple[int, int], np.ndarray]:
    """Return (source, target) -> (_TRIALS,) logarithm of the rate, where every one is positive."""
    random = np.random.default_rng(0)
    index = {s: i for i, s in enumerate(chain.states)}
    scope: dict[str, np.ndarray] = {"v": random.uniform(-60.0, 20.0, _TRIALS)}
    scope |= {name: 10 ** random.uniform(-6, 1, _TRIALS) for name in model.ligands}
    for p in model.parameters:
        middle = p.value if p.value is not None else 0.5 * (p.lower + p.upper)
        scope[p.name] = middle * random.uniform(0.9, 1.1, _TRIALS)
    for name, expression in model.definitions:
        scope[name] = evaluate(expression, scope)
    with np.errstate(all="ignore"):
        return {
            (index[t.source], index[t.target]): np.log(t.multiplicity * evaluate(t.rate, scope))
            for t in chain.transitions
        }
