"""Tests of calibration: numbers that were put in come out, and what cannot be known is left."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ciera_piper_core.simulate import ALGORITHMS
from ciera_piper_core.simulate.calibrate import Calibration, calibrate, calibrate_from, check
from ciera_piper_core.simulate.machine import Machine, Node
from ciera_piper_core.simulate.measured_cells import Cell, Cells
from ciera_piper_core.simulate.platforms import load_machine
from ciera_piper_core.simulate.terms import Terms
from ciera_piper_core.simulate.topology import FatTree, SingleSwitch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ciera_piper_core.alltoall import TrafficKind
    from ciera_piper_core.simulate import Algorithm

START = Machine("lab", Node(2, 1e10, 1, 50e6), SingleSwitch())
TRUE = Machine(
    "lab",
    Node(2, 1.2e9, 1, 44e6),
    SingleSwitch(),
    Terms(message_inter_s=2e-4, message_intra_s=6e-5, phase_start_s=3e-4, copy_bytes_s=4e8, overlap_share=0.4),
)
SIZES = tuple(1 << power for power in range(10, 25, 2))
"""Bytes a peer."""


def measured(
    machine: Machine,
    groups: Iterable[tuple[int, int]],
    algorithms: Sequence[Algorithm] = ALGORITHMS,
    *,
    sizes: Sequence[int] = SIZES,
    traffic: TrafficKind = "uniform",
    noise: float = 0.0,
    seed: int = 0,
) -> Cells:
    """What a machine that is exactly ``machine`` would have measured, for groups of so many ranks on so many nodes."""
    random = np.random.default_rng(seed)
    cells = [
        Cell(algorithm, ranks, nodes, size * ranks, 1.0, traffic)
        for ranks, nodes in groups
        for size in sizes
        for algorithm in algorithms
    ]
    found = check(machine, cells)
    scatter = np.exp(noise * random.standard_normal(len(cells)))
    return Cells(
        tuple(
            replace(each.cell, seconds=each.predicted_s * float(by)) for each, by in zip(found, scatter, strict=True)
        ),
        "a test",
    )


def value(calibration: Calibration, name: str) -> float:
    return next(each.value for each in calibration.fitted if each.name == name)


def test_what_was_put_in_comes_out() -> None:
    found = calibrate(START, measured(TRUE, [(2, 1), (4, 2), (8, 4)]))
    assert found.machine.node.nic_bytes_s == pytest.approx(44e6, rel=1e-3)
    assert found.machine.node.port_bytes_s == pytest.approx(1.2e9, rel=1e-3)
    for name in ("message_inter_s", "message_intra_s", "phase_start_s", "copy_bytes_s", "overlap_share"):
        assert value(found, name) == pytest.approx(getattr(TRUE.terms, name), rel=0.01), name
    assert max(abs(each.error) for each in found.fit) < 1e-3
    assert max(abs(each.error) for each in found.held_out) < 1e-3
    assert len(found.held_out) == len(found.fit)


def test_noise_is_averaged_and_its_errors_are_told() -> None:
    found = calibrate(START, measured(TRUE, [(2, 1), (4, 2), (8, 4)], noise=0.05))
    assert value(found, "nic_bytes_s") == pytest.approx(44e6, rel=0.05)
    assert value(found, "message_inter_s") == pytest.approx(2e-4, rel=0.2)
    by_name = {each.name: each for each in found.fitted}
    assert 0.001 < by_name["nic_bytes_s"].error < 0.05
    errors = [abs(each.error) for each in found.held_out if each.cell.bytes_per_peer >= 1 << 16]
    assert max(errors) < 0.2


def test_what_was_fitted_is_known_as_measured_and_the_rest_is_not() -> None:
    frontier = load_machine("frontier")
    start = replace(START, terms=replace(frontier.terms, copy_bytes_s=1e9))
    found = calibrate(start, measured(TRUE, [(4, 2), (8, 4)], ["flat"]))
    how = found.machine.terms.how
    assert how("message_inter_s").status == "measured"
    assert "16 cells of a test" in how("message_inter_s").text
    assert "message_inter_s" in found.machine.terms.measured
    # Flat exchanges pack nothing, and one switch has no peers beyond it.
    assert found.machine.terms.copy_bytes_s == 1e9
    assert how("copy_bytes_s") == frontier.terms.how("copy_bytes_s")
    assert found.machine.terms.incast == frontier.terms.incast
    assert how("peers_that_halve") == frontier.terms.how("peers_that_halve")
    assert found.machine.known["inter_node"].status == "measured"


def test_a_cost_that_cannot_be_told_from_another_is_not_counted_twice() -> None:
    start = replace(START, terms=Terms(phase_start_s=5e-3))
    found = calibrate(start, measured(TRUE, [(8, 4)], ["flat"]))
    assert found.machine.terms.phase_start_s == 0
    assert found.left["phase_start_s"] == "the cells cannot tell it from message_inter_s"
    assert max(abs(each.error) for each in found.fit) < 0.01


def test_incast_is_found_where_the_cells_have_it_and_capped_at_what_they_have() -> None:
    network = FatTree(1, nodes=1 << 20)
    start = Machine("cluster", Node(4, 1e11, 4, 2e10), network)
    true = replace(start, terms=Terms(message_inter_s=5e-6, peers_that_halve=64.0, incast_most=10.0))
    found = calibrate(start, measured(true, [(8, 2), (16, 4), (32, 8), (64, 16)]))
    assert value(found, "peers_that_halve") == pytest.approx(64, rel=0.02)
    assert found.machine.terms.incast_most == pytest.approx(1 + 60 / 64, rel=0.02)
    assert found.machine.terms.rail_incast_most == 1


def test_skewed_cells_are_predicted_from_the_fit_to_uniform_ones() -> None:
    groups = [(4, 2), (8, 4)]
    even = measured(TRUE, groups)
    hot = measured(TRUE, groups, sizes=(1 << 12, 1 << 18), traffic="hot_rank")
    found = calibrate(START, Cells((*even.cells, *hot.cells), "a test", skipped={"it was simulated": 3}))
    assert [each.cell for each in found.others] == list(hot.cells)
    assert max(abs(each.error) for each in found.others) < 0.02
    text = "\n".join(found.describe())
    assert "20 cells of skewed traffic, not fitted" in text
    assert "3 rows left out: it was simulated" in text


def test_skewed_cells_alone_are_fitted() -> None:
    found = calibrate(
        START, measured(TRUE, [(4, 2)], ["flat", "halo_v0"], sizes=(1 << 12, 1 << 14, 1 << 18), traffic="zipf")
    )
    assert value(found, "nic_bytes_s") == pytest.approx(44e6, rel=0.02)
    assert found.others == ()


def test_the_description_has_values_errors_and_what_was_left() -> None:
    lines = calibrate(START, measured(TRUE, [(4, 2), (8, 4)])).describe()
    assert lines[0].startswith("calibrated with 80 cells of a test: error 0.0% in the median, at most ")
    assert lines[1].startswith("  predicted from a fit without them: error ")
    assert any(
        line.startswith("  nic_bytes_s: 4.4e+07: measured: fitted to 80 cells of a test, standard error")
        for line in lines
    )
    assert any(line == "  peers_that_halve: inf, not fitted: no cell shows it" for line in lines)


def test_too_few_cells_are_refused() -> None:
    cells = measured(TRUE, [(8, 4)], ["flat"], sizes=SIZES[:3])
    with pytest.raises(ValueError, match="3 cells are too few to fit to, at least 4 are needed; measure more"):
        calibrate(START, cells)


def test_few_cells_have_none_to_hold_out() -> None:
    found = calibrate(START, measured(TRUE, [(8, 4)], ["flat"], sizes=SIZES[:5]))
    assert found.held_out == ()
    assert not any("without them" in line for line in found.describe())


def test_cells_of_another_machine_are_refused() -> None:
    with pytest.raises(ValueError, match="measured with 4 ranks a node, but 'lab' has 2 GPUs; name the platform"):
        calibrate(START, measured(load_machine("frontier"), [(8, 2)], ["flat"]))
    small = replace(START, max_gpus=4)
    with pytest.raises(ValueError, match="no place for 8 ranks"):
        calibrate(small, measured(TRUE, [(8, 4)], ["flat"]))


def test_a_file_is_read_and_fitted(tmp_path: Path) -> None:
    import json

    file = tmp_path / "rows.json"
    lines = [
        json.dumps(
            {
                "suite": "alltoall",
                "metric": "latency",
                "unit": "us",
                "value": cell.seconds * 1e6,
                "status": "ok",
                "params": {
                    "algorithm": cell.algorithm,
                    "ranks": cell.ranks,
                    "nodes": cell.nodes,
                    "bytes": cell.bytes,
                    "traffic": cell.traffic,
                },
            }
        )
        for cell in measured(TRUE, [(4, 2), (8, 4)], ["flat"]).cells
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    found = calibrate_from(START, str(file))
    assert found.source == str(file)
    assert value(found, "nic_bytes_s") == pytest.approx(44e6, rel=1e-3)


def test_a_machine_that_needs_no_change_stays() -> None:
    found = calibrate(TRUE, measured(TRUE, [(2, 1), (4, 2), (8, 4)]))
    assert found.machine.node.nic_bytes_s == pytest.approx(TRUE.node.nic_bytes_s, rel=1e-6)
    assert found.machine.terms.overlap_share == pytest.approx(0.4, rel=1e-3)
    assert found.machine.terms.peers_that_halve == math.inf
    assert found.machine.network == TRUE.network


def test_cells_of_a_lab_ask_for_its_machine() -> None:
    shape = "nodes=4,ranks-per-node=2,rate=400mbit"
    cells = replace(measured(TRUE, [(4, 2), (8, 4)]), place={"lab": shape})
    hint = f"  they are of an emulated cluster, which --platform {shape} describes"
    assert hint in calibrate(replace(START, name="frontier"), cells).describe()
    assert hint not in calibrate(load_machine(shape), cells).describe()
