"""Fits a machine's bandwidths and terms to measured exchanges, and says what the fit is worth.

A predicted time is a sum of times, each proportional to one number of ``parameters`` (seconds a byte of
a NIC, seconds a message, ...), with whichever link binds. So a few rounds of bounded linear least
squares on relative errors find the numbers; cells that fit badly, or whose samples vary, count less.
A number whose best value is 0 is off, and that is a finding.

What changes no cell's time is left as the machine has it. So is what cannot be told from others: one
number of ranks, for example, cannot tell the cost of messages from that of phases. A cost of its own
is then off, or it would be counted twice.

Uniform traffic is fitted where there is enough of it, in closed form; cells of skewed traffic are
then predicted only. Half of the cells, every other size, are also predicted from a fit to the other
half and the reverse: these are the errors that a prediction of something new may have.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.platforms.platform import Term
from ciera_piper_core.simulate.closed_form import UniformModel
from ciera_piper_core.simulate.fitting import fit
from ciera_piper_core.simulate.flows import schedule
from ciera_piper_core.simulate.fluid import predict
from ciera_piper_core.simulate.measured_cells import Cells, read_cells
from ciera_piper_core.simulate.parameters import CAPS, PARAMETERS, uncapped, with_numbers, with_sources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ciera_piper_core.simulate.fitting import Fit
    from ciera_piper_core.simulate.machine import Machine
    from ciera_piper_core.simulate.measured_cells import Cell

    Floats = NDArray[np.float64]

ROW_BYTES = 64
"""Skewed traffic is dealt out in rows of this size by the suite ``alltoall``."""

LEAST_CELLS = 4

STEADY = 0.1
"""Spread of a cell's samples at which it counts half; what disturbed the measurement is no property of the machine."""

UNSTEADY = 0.2
"""Spread at which a cell is named as unsteady."""


@dataclass(frozen=True)
class Fitted:
    """One number that was fitted.

    Attributes:
        name: of the term, or of the node's rate.
        value: of it. error: relative standard error; infinite where the value is off.
    """

    name: str
    value: float
    error: float


@dataclass(frozen=True)
class Checked:
    """A cell beside its prediction."""

    cell: Cell
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.cell.seconds - 1


@dataclass(frozen=True)
class Calibration:
    """A machine that was fitted.

    Attributes:
        machine: with the fitted numbers, each of them known as measured.
        source: of the cells.
        fitted: numbers. left: the others, with the reason.
        fit: cells that were fitted, and others: cells that were only predicted, with the prediction.
        held_out: the fitted cells, each predicted from a fit without it; empty where too few are left for that.
        skipped: reasons with the number of rows that are no cells.
        lab: shape of the emulated cluster that was measured; empty for a real one.
    """

    machine: Machine
    source: str
    fitted: tuple[Fitted, ...]
    left: Mapping[str, str]
    fit: tuple[Checked, ...]
    others: tuple[Checked, ...] = ()
    held_out: tuple[Checked, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    lab: str = ""

    def describe(self) -> list[str]:
        """Lines for people: what was fitted, how well, and what was not."""
        lines = [f"calibrated with {len(self.fit)} cells of {self.source}: {error_text(self.fit)}"]
        if self.lab and not self.machine.name.startswith("lab"):
            lines.append(f"  they are of an emulated cluster, which --platform {self.lab} describes")
        unsteady = sum(each.cell.spread > UNSTEADY for each in self.fit)
        if unsteady:
            lines.append(f"  {unsteady} of them vary by more than {UNSTEADY:.0%}: measure on an idle machine")
        if self.held_out:
            lines.append(f"  predicted from a fit without them: {error_text(self.held_out)}")
        if self.others:
            lines.append(f"  {len(self.others)} cells of skewed traffic, not fitted: {error_text(self.others)}")
        known = {**self.machine.known, **self.machine.terms.known}
        names = {each.name: each.known or each.name for each in PARAMETERS}
        lines += [f"  {each.name}: {each.value:.4g}: {known[names[each.name]]}" for each in self.fitted]
        for name, reason in self.left.items():
            owner = self.machine.node if hasattr(self.machine.node, name) else self.machine.terms
            lines.append(f"  {name}: {getattr(owner, name):.4g}, not fitted: {reason}")
        lines += [f"  {count} rows left out: {reason}" for reason, count in self.skipped.items()]
        return lines


def calibrate_from(machine: Machine, source: str) -> Calibration:
    """Fit to a run: see ``measured_cells.read_cells`` for what ``source`` may be.

    Raises:
        ValueError: nothing to fit to, or cells that the machine has no place for.
    """
    return calibrate(machine, read_cells(source))


def calibrate(machine: Machine, measured: Cells) -> Calibration:
    """Fit to cells.

    Raises:
        ValueError: fewer than ``LEAST_CELLS`` cells, or one that the machine has no place for (more ranks
            on a node than GPUs, more nodes than the network connects).
    """
    _require_place(machine, measured)
    uniform = [cell for cell in measured.cells if cell.traffic == "uniform"]
    chosen = uniform if len(uniform) >= LEAST_CELLS else list(measured.cells)
    if len(chosen) < LEAST_CELLS:
        raise ValueError(
            f"{measured.source}: {len(chosen)} cells are too few to fit to, at least {LEAST_CELLS} are needed;"
            " measure more sizes or algorithms"
        )
    ready, fitted, left = _fitted(machine, chosen, f"fitted to {len(chosen)} cells of {measured.source}")
    others = [cell for cell in measured.cells if cell not in chosen]
    return Calibration(
        ready,
        measured.source,
        fitted,
        left,
        check(ready, chosen),
        check(ready, others),
        _held_out(machine, chosen),
        measured.skipped,
        measured.lab,
    )


def check(machine: Machine, cells: Sequence[Cell]) -> tuple[Checked, ...]:
    """The cells beside what the machine predicts for them."""
    if not cells:
        return ()
    predicted = _Predictor(cells).seconds(machine)
    return tuple(Checked(cell, float(seconds)) for cell, seconds in zip(cells, predicted, strict=True))


def error_text(cells: Sequence[Checked]) -> str:
    """Median and largest error in a few words, with the cell that has it."""
    errors = [abs(each.error) for each in cells]
    worst = max(cells, key=lambda each: abs(each.error))
    return f"error {np.median(errors):.1%} in the median, at most {worst.error:+.1%} ({worst.cell.describe()})"


def _require_place(machine: Machine, measured: Cells) -> None:
    for cell in measured.cells:
        if cell.ranks_per_node > machine.node.gpus:
            raise ValueError(
                f"{measured.source} was measured with {cell.ranks_per_node} ranks a node, but {machine.name!r} has"
                f" {machine.node.gpus} GPUs; name the platform that was measured, or describe it in a file"
            )
        machine.job(cell.ranks, cell.ranks_per_node)


def _held_out(machine: Machine, cells: list[Cell]) -> tuple[Checked, ...]:
    """Each cell predicted from a fit to half of the sizes, those in even places of their order, or the odd."""
    sizes: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for cell in cells:
        sizes[cell.ranks, cell.nodes].add(cell.bytes)
    order = {key: sorted(found) for key, found in sizes.items()}
    halves: tuple[list[Cell], list[Cell]] = ([], [])
    for cell in cells:
        halves[order[cell.ranks, cell.nodes].index(cell.bytes) % 2].append(cell)
    if min(map(len, halves)) < LEAST_CELLS:
        return ()
    return tuple(
        checked
        for fitted_to, left_out in (halves, halves[::-1])
        for checked in check(_fitted(machine, fitted_to, "")[0], left_out)
    )


class _Predictor:
    """Seconds of the same cells for many machines."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._count = len(cells)
        self._groups: dict[tuple[object, ...], list[int]] = {}
        self._skewed: list[tuple[int, Cell, NDArray[np.int64]]] = []
        self._cells = cells
        # Counting messages on links takes longer than all else, and only rates change what is counted.
        self._counted: tuple[object, ...] = ()
        self._models: list[UniformModel] = []
        for number, cell in enumerate(cells):
            if cell.traffic == "uniform":
                self._groups.setdefault((cell.algorithm, cell.ranks, cell.nodes), []).append(number)
            else:
                self._skewed.append((number, cell, _matrix(cell)))

    def seconds(self, machine: Machine) -> Floats:
        """Of each cell, in order."""
        result = np.empty(self._count)
        for numbers, model in zip(self._groups.values(), self._models_of(machine), strict=True):
            ready = replace(model, terms=machine.terms)
            result[numbers] = ready.at([self._cells[number].bytes for number in numbers]).seconds
        for number, cell, matrix in self._skewed:
            result[number] = predict(machine, schedule(cell.algorithm, cell.job(), matrix)).seconds
        return result

    def peers(self, machine: Machine, *, rails: bool) -> int:
        """The most ranks beyond its switch that one rank hears in a cell, all to all or along rails."""
        phases = [phase for model in self._models_of(machine) for phase in model.phases]
        return max((phase.peers for phase in phases if phase.rails == rails), default=0)

    def _models_of(self, machine: Machine) -> list[UniformModel]:
        """One a group of cells."""
        counted = (machine.node, machine.network, machine.terms.nic_sharing_loss)
        if counted != self._counted:
            cells = [self._cells[numbers[0]] for numbers in self._groups.values()]
            self._models = [UniformModel.of_job(machine, cell.algorithm, cell.job()) for cell in cells]
            self._counted = counted
        return self._models


def _matrix(cell: Cell) -> NDArray[np.int64]:
    from ciera_piper_core.alltoall.traffic import traffic_matrix

    return traffic_matrix(cell.traffic, cell.ranks, cell.bytes // ROW_BYTES, cell.seed) * ROW_BYTES


def _fitted(machine: Machine, cells: Sequence[Cell], source: str) -> tuple[Machine, tuple[Fitted, ...], dict[str, str]]:
    """The machine with fitted numbers, which these are, and why the others are not."""
    base = uncapped(machine)
    predictor = _Predictor(cells)
    names = [each.name for each in PARAMETERS]

    def with_all(numbers: Floats) -> Machine:
        return with_numbers(base, dict(zip(names, numbers.tolist(), strict=True)))

    found = fit(
        PARAMETERS,
        np.array([each.of(base) for each in PARAMETERS]),
        lambda numbers: predictor.seconds(with_all(numbers)),
        np.array([cell.seconds for cell in cells]),
        1 / (1 + (np.array([cell.spread for cell in cells]) / STEADY) ** 2),
    )
    told = [each for each in range(len(names)) if each in found.fitted or _off(found, each)]
    changed = {each: float(found.numbers[each]) for each in told}
    ready = with_numbers(machine, {names[each]: number for each, number in changed.items()})
    fitted, sources = [], {}
    for each in found.fitted:
        number, error = changed[each], found.errors[each]
        value = PARAMETERS[each].to_value(number)
        fitted.append(Fitted(names[each], value, error))
        how = f"{source}, standard error {error:.0%}" if number else f"{source}, {PARAMETERS[each].nothing}"
        sources[names[each]] = Term("measured", how)
        if names[each] in CAPS:
            ready, sources = _capped(machine, ready, names[each], number, predictor, sources)
    return with_sources(ready, sources), tuple(fitted), {names[each]: why for each, why in found.left.items()}


def _off(found: Fit, number: int) -> bool:
    """Whether a number that is not fitted is off, so as not to be counted twice."""
    return number in found.left and found.numbers[number] == 0 and PARAMETERS[number].low == 0


def _capped(
    machine: Machine, ready: Machine, name: str, number: float, predictor: _Predictor, sources: dict[str, Term]
) -> tuple[Machine, dict[str, Term]]:
    """With a fitted incast's largest factor: the machine's own, or else the largest that a cell has."""
    cap = CAPS[name]
    if getattr(machine.terms, cap) > 1:
        return ready, sources
    most = 1 + number * predictor.peers(ready, rails=name.startswith("rail"))
    terms = replace(ready.terms, **{cap: most})  # type: ignore[arg-type]  # a float
    return replace(ready, terms=terms), {**sources, cap: Term("measured", "no cell has more peers")}
