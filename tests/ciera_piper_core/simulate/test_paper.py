"""Piper's figures beside ours: exchanges, peaks, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ciera_piper_core.simulate.closed_form import UniformModel
from ciera_piper_core.simulate.paper import HALO, NEAR, Comparison, compare, doubling_sizes, published
from ciera_piper_core.simulate.platforms import load_machine

FRONTIER = load_machine("frontier")
BESIDE = compare(FRONTIER)


def claim(beside: Comparison, words: str) -> bool:
    (found,) = (each for each in beside.claims if words in each.paper)
    return found.agrees


def test_figure_5_has_its_gpus_and_the_closed_form_s_bandwidth() -> None:
    assert [(curve.gpus, curve.nodes) for curve in BESIDE.figure5] == [
        (2, 1),
        (4, 1),
        (8, 1),
        (16, 2),
        (32, 4),
        (64, 8),
    ]
    for curve in BESIDE.figure5:
        model = UniformModel.build(FRONTIER, "flat", curve.gpus)
        for size, rate in zip(curve.sizes, curve.bytes_s, strict=True):
            leaving = size * (curve.gpus - 1) / curve.gpus
            assert rate == pytest.approx(leaving / model.prediction(size).seconds)


def test_figure_8_has_its_panels_and_sizes() -> None:
    assert [panel.nodes for panel in BESIDE.figure8] == [16, 32, 64, 128, 256, 512]
    assert [panel.gpus for panel in BESIDE.figure8] == [128, 256, 512, 1024, 2048, 4096]
    assert [panel.certain for panel in BESIDE.figure8] == [True, True, True, False, False, False]
    for panel in BESIDE.figure8:
        # 2.1 or 33.6 MB up to 4295 MB, as on the axes.
        assert panel.sizes[0] / 1e6 == pytest.approx(2.1 if panel.nodes < 64 else 33.6, rel=0.01)
        assert panel.sizes[-1] / 1e6 == pytest.approx(4295, rel=0.001)
        assert set(panel.speedups) == set(HALO)
        assert panel.peak == max(max(values) for values in panel.speedups.values())
        assert panel.ratio == panel.peak / max(panel.paper)
        verdict = panel.difference.partition(":")[0]
        assert verdict == (
            "agrees" if abs(panel.ratio - 1) <= NEAR else f"ours is {'higher' if panel.ratio > 1 else 'lower'}"
        )
        assert f"{panel.ratio:.2f} times" in panel.difference


def test_published_peaks_are_inside_the_paper_s_own_range() -> None:
    figure = published()["figure8"]
    for panel in figure["panels"]:
        assert panel["peaks"] == sorted(panel["peaks"], reverse=True)
        assert all(figure["least"] <= peak <= figure["most"] for peak in panel["peaks"])


def test_frontier_gains_from_16_nodes_up_inside_the_paper_s_range() -> None:
    assert claim(BESIDE, "gains from 16 nodes up")
    assert claim(BESIDE, "1.1 to 9 times")
    assert claim(BESIDE, "drops significantly")
    assert claim(BESIDE, "50 GB/s on the mean")


def test_without_terms_the_paper_s_gain_is_not_there() -> None:
    fluid = compare(FRONTIER.fluid)
    assert not claim(fluid, "gains from 16 nodes up")
    assert all(panel.peak <= 1 + 1e-9 for panel in fluid.figure8)
    assert all(panel.difference.startswith("ours is lower") for panel in fluid.figure8)


def test_a_machine_without_room_for_the_figures_says_so() -> None:
    small = replace(FRONTIER, max_gpus=64)
    with pytest.raises(ValueError, match=r"nothing can be predicted: .*has 64 GPUs"):
        compare(small)


def test_sizes_double() -> None:
    assert doubling_sizes(4, 33) == (4, 8, 16, 32)
