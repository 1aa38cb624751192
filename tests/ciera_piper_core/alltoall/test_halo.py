"""HALO: which phase waits for which, what is sent when, and where rows lie between phases."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ciera_piper_core.alltoall import communicators
from ciera_piper_core.alltoall.communicators import Communicators
from ciera_piper_core.alltoall.halo import HaloAllToAll
from ciera_piper_core.alltoall.halo_layout import EqualLayout, UnevenLayout
from ciera_piper_core.alltoall.hierarchy import Shares
from ciera_piper_core.alltoall.placement import even_placement
from ciera_piper_core.ranges import recording
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from pathlib import Path

    from bench.suite import Context
    from ciera_piper_core.ranges import Span


ALONG = ("exchange_along_rail", "start_along_rail")


def without_sockets() -> None:
    """As on a GPU: rows go through library calls."""
    for name in ("connect_node", "connect_rail"):
        setattr(communicators, name, lambda *_: None)


def spans_of(variant: str, tmp_path: Path, splits: list[int] | None, way: str = "sockets") -> list[Span]:
    """Rank 0's regions of one exchange over 3 nodes of 2 ranks."""

    def body(context: Context) -> list[Span]:
        assert context.group.data is not None
        if way == "library":
            without_sockets()
        halo = HaloAllToAll(context.group.data, even_placement(6, 2), variant=variant)
        with recording() as spans:
            halo.exchange(torch.zeros(6, 2), splits, splits, torch.zeros(6, 2))
        return spans

    spans: list[Span] = run_world(6, body, tmp_path)[0]
    return spans


def within(inner: str, outer: str, spans: list[Span]) -> bool:
    by_name = {span.name: span for span in spans}
    one, other = by_name[f"alltoall.{inner}"], by_name[f"alltoall.{outer}"]
    return other.start_ns <= one.start_ns and one.end_ns <= other.end_ns


def before(first: str, second: str, spans: list[Span]) -> bool:
    by_name = {span.name: span for span in spans}
    return by_name[f"alltoall.{first}"].end_ns <= by_name[f"alltoall.{second}"].start_ns


@pytest.mark.parametrize(
    ("way", "order"),
    [
        # Sockets take rows from where they lie, and bring them where they belong.
        ("sockets", ["phase1", "phase2", "phase3"]),
        ("library", ["phase1", "phase2", "pack", "phase3", "unpack"]),
    ],
)
def test_v0_does_one_phase_after_the_other(way: str, order: list[str], tmp_path: Path) -> None:
    spans = spans_of("v0", tmp_path, None, way)
    assert [span.name for span in spans] == [f"alltoall.{name}" for name in order]
    assert all(before(first, second, spans) for first, second in itertools.pairwise(order))


@pytest.mark.parametrize("way", ["sockets", "library"])
def test_v1_does_phase_1_beside_phase_2(way: str, tmp_path: Path) -> None:
    spans = spans_of("v1", tmp_path, None, way)
    assert within("phase1", "phase2", spans)
    assert before("phase2", "phase3", spans)


def test_v2_does_phase_1_beside_phase_3(tmp_path: Path) -> None:
    spans = spans_of("v2", tmp_path, None)
    assert within("phase1", "phase3", spans)
    assert before("phase2", "phase1", spans)


def test_counts_come_first_where_shares_are_uneven(tmp_path: Path) -> None:
    spans = spans_of("v1", tmp_path, [1] * 6)
    assert spans[0].name == "alltoall.counts"
    assert before("counts", "phase2", spans)


@pytest.mark.parametrize("way", ["sockets", "library"])
@pytest.mark.parametrize(("variant", "calls"), [("v0", "iri"), ("v1", "rii"), ("v2", "ri")])
def test_what_goes_between_nodes_is_one_call_along_the_rail(
    variant: str, calls: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(context: Context) -> tuple[str, int]:
        group, rank = context.group.data, context.group.rank
        assert group is not None
        if way == "library":
            without_sockets()
        halo = HaloAllToAll(group, even_placement(6, 2), variant=variant)
        seen, sent = [], 0
        originals = {name: getattr(Communicators, name) for name in ("start_pieces", "exchange_within_node", *ALONG)}

        def counting(name: str) -> Any:
            def call(self: Any, first: Any, second: Any, *more: Any) -> Any:
                nonlocal sent
                rail = first == "rail" if name == "start_pieces" else name in ALONG
                seen.append("r" if rail else "i")
                if rail and name == "start_pieces":
                    sent += sum(len(piece) for pieces in second for piece in pieces)
                elif rail:
                    sent += sum(count for peer, count in enumerate(more[1]) if peer != rank // 2) * second[:1].nbytes
                return originals[name](self, first, second, *more)

            return call

        plan = halo.plan([1, 2, 3, 4, 5, 6], [rank + 1] * 6)
        for name in originals:
            monkeypatch.setattr(Communicators, name, counting(name))
        halo.run(plan, torch.zeros(21, 4), torch.zeros(6 * (rank + 1), 4))
        return "".join(seen), sent

    for rank, (seen, sent) in enumerate(run_world(6, body, tmp_path)):
        assert seen == calls
        # All that is for other nodes, once, and nothing else: no padding.
        assert sent == 16 * (21 - [3, 7, 11][rank // 2])


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        assert context.group.data is not None
        with pytest.raises(ValueError, match="unknown variant 'v9' of HALO; known: v0, v1, v2"):
            HaloAllToAll(context.group.data, even_placement(2, 1), variant="v9")
        with pytest.raises(ValueError, match="a placement of 4 ranks for a group of 2"):
            HaloAllToAll(context.group.data, even_placement(4, 2))

    run_world(2, body, tmp_path)


def test_a_plan_of_a_flat_exchange_is_refused(tmp_path: Path) -> None:
    def body(context: Context) -> None:
        from ciera_piper_core.alltoall.flat import FlatAllToAll

        assert context.group.data is not None
        plan = FlatAllToAll(context.group.data).plan([1] * 4, [1] * 4)
        halo = HaloAllToAll(context.group.data, even_placement(4, 2))
        with pytest.raises(ValueError, match="let halo_v1 plan its own"):
            halo.run(plan, torch.zeros(4, 1), torch.zeros(4, 1))

    run_world(4, body, tmp_path)


@pytest.mark.parametrize("with_own", [False, True])
def test_layouts_agree_where_shares_happen_to_be_equal(with_own: bool) -> None:
    nodes, per_node, node, block = 3, 2, 1, 4
    counts = ((block,) * per_node,) * nodes
    equal = EqualLayout(nodes, per_node, node, nodes * per_node * block, with_own)
    uneven = UnevenLayout(Shares(counts, counts, counts), node, with_own)
    for name in ("transit_rows", "packed_rows", "staged_rows", "own_sent", "own_received"):
        assert getattr(equal, name) == getattr(uneven, name), name
    transit = torch.arange(equal.transit_rows)[:, None]
    packed, staged = (
        [torch.full((equal.packed_rows, 1), -1) for _ in range(2)],
        torch.arange(equal.staged_rows)[:, None],
    )
    outs = [torch.full((equal.transit_rows, 1), -1) for _ in range(2)]
    for layout, into, out in zip((equal, uneven), packed, outs, strict=True):
        layout.pack(transit, into)
        layout.unpack(staged, out)
    assert torch.equal(*packed)
    assert torch.equal(*outs)
    # Phase 1 may have put rows there already.
    own = outs[0][equal.own_received]
    assert bool((own == -1).all()) != with_own


def test_sizes_beyond_what_32_bits_count() -> None:
    # Over 2**31 rows of a byte for one rank, on a device that keeps no data.
    huge = (1 << 31) + 7
    send, recv, transit = ((1, 2), (huge, 3)), ((4, 0), (5, huge)), ((2, 2), (huge, 1))
    layout = UnevenLayout(Shares(send, recv, transit), 0, with_own=False)
    assert layout.transit_rows == huge + 5
    assert layout.own_sent == slice(0, 3)
    assert layout.phase_3 == ([5, huge], [huge, 1])
    out = torch.empty((sum(map(sum, recv)), 1), dtype=torch.uint8, device="meta")
    layout.pack(out.new_empty((layout.transit_rows, 1)), out.new_empty((layout.packed_rows, 1)))
    layout.unpack(out.new_empty((layout.staged_rows, 1)), out)
    whole = UnevenLayout(Shares(send, recv, transit), 1, with_own=True)
    assert whole.own_sent == slice(3, huge + 6)
    assert whole.phase_3 == ([9, huge], [huge + 2, 3])
    equal = EqualLayout(2, 2, 1, 1 << 34, with_own=False)
    assert equal.own_sent == slice(1 << 33, 1 << 34)
    rows = torch.empty((1 << 34, 1), dtype=torch.uint8, device="meta")
    equal.pack(rows, rows.new_empty((equal.packed_rows, 1)))
    equal.unpack(rows.new_empty((equal.staged_rows, 1)), rows)
