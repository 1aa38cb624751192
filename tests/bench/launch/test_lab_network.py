"""What a lab's links let through: no more than their rate whatever the load, and not much less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.launch.lab import Lab, LabShape
from bench.launch.lab_network import FRAME_BYTES, QUEUE_BYTES, Shaper, build_steps, node_address
from tests.bench.launch.lab_traffic import Transfer, sent_bytes, transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

RATE = 2 * 10**7
PAYLOAD_SHARE = 1448 / FRAME_BYTES
"""Bytes that TCP carries, of a full frame."""


class TestShaper:
    @pytest.mark.parametrize(
        ("rate", "segments"), [(10**6, 1), (10**8, 1), (10**9, 12), (10**10, 43), (10**11, 43), (10**12, 43)]
    )
    def test_packets_grow_with_the_rate(self, rate: int, segments: int) -> None:
        shaper = Shaper(rate)
        assert shaper.segments == segments
        # A packet larger than a bucket would be cut up by the kernel, or never pass.
        assert segments * FRAME_BYTES <= shaper.peak_burst_bytes <= shaper.burst_bytes < QUEUE_BYTES
        assert Shaper(rate, 2).burst_bytes == 2 * shaper.burst_bytes

    def test_text_is_what_tc_takes(self) -> None:
        expected = "tbf rate 1000000000bit burst 53125 limit 67108864 peakrate 1100000000bit mtu 21875"
        assert str(Shaper(10**9)) == expected

    def test_nodes_have_addresses_of_their_own(self) -> None:
        assert len({node_address(node) for node in range(1000)}) == 1000

    def test_delay_is_one_way_so_only_at_the_nodes(self) -> None:
        tools = {"ip": "ip", "tc": "tc"}
        steps = build_steps(2, 10**9, 300, holder=1, tools=tools)
        assert [step["namespace"] for step in steps if "netem" in step["input"]] == [1, 2]
        assert all("netem" not in step["input"] for step in build_steps(2, 10**9, 0, holder=1, tools=tools))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(LabShape(nodes=4, ranks_per_node=2, rate_bits_per_s=RATE)) as running:
        yield running


@pytest.mark.lab
@pytest.mark.usefixtures("lab_available")
class TestLinks:
    """At 20 Mbit/s, so that a busy machine keeps up. The least times hold under any load."""

    @pytest.mark.parametrize("route", [(0, 1), (1, 0), (3, 2)])
    def test_no_message_is_faster_than_the_rate(self, lab: Lab, route: tuple[int, int]) -> None:
        sizes = [5_000, 50_000, 500_000]
        for size, transfer in zip(sizes, transfers(lab, [route], sizes)[0], strict=True):
            assert transfer.seconds >= _least_seconds(size)

    def test_nodes_share_nothing_but_their_own_links(self, lab: Lab) -> None:
        ring = [(node, (node + 1) % 4) for node in range(4)]
        size = 500_000
        # Through one shared link, it would take four times as long.
        assert any(_span(transfers(lab, ring, [size])) < 2.5 * size * 8 / RATE for _ in range(3))

    def test_a_node_cannot_receive_faster_than_its_link(self, lab: Lab) -> None:
        size = 200_000
        span = _span(transfers(lab, [(1, 0), (2, 0), (3, 0)], [size]))
        assert span >= _least_seconds(3 * size, depth=2)

    def test_a_node_cannot_send_faster_than_its_link(self, lab: Lab) -> None:
        size = 200_000
        span = _span(transfers(lab, [(0, 1), (0, 2), (0, 3)], [size]))
        assert span >= _least_seconds(3 * size)

    def test_ranks_of_a_node_talk_over_its_loopback(self, lab: Lab) -> None:
        size = 10_000_000
        links = [sent_bytes(lab, node, lab.node_interface(node)) for node in range(4)]
        loopback = sent_bytes(lab, 2, "lo")
        seconds = min(_span(transfers(lab, [(2, 2)], [size])) for _ in range(3))
        assert sent_bytes(lab, 2, "lo") - loopback > 3 * size
        assert seconds < _least_seconds(size) / 2
        assert [sent_bytes(lab, node, lab.node_interface(node)) for node in range(4)] == links

    def test_bytes_between_two_nodes_touch_no_third(self, lab: Lab) -> None:
        size = 200_000
        before = [sent_bytes(lab, node, lab.node_interface(node)) for node in range(4)]
        transfers(lab, [(0, 3)], [size])
        zero, one, two, _ = [sent_bytes(lab, node, lab.node_interface(node)) - was for node, was in enumerate(before)]
        assert zero >= size / PAYLOAD_SHARE
        assert max(one, two) < size / 100


@pytest.mark.lab
@pytest.mark.alone
@pytest.mark.usefixtures("lab_available")
@pytest.mark.parametrize("rate", [10**8, 10**9])
def test_one_transfer_reaches_the_rate_and_no_more(rate: int) -> None:
    size = rate // 8 // 4
    best = 0.0
    with Lab(LabShape(nodes=2, ranks_per_node=1, rate_bits_per_s=rate)) as lab:
        for _ in range(10):
            best = max(best, size * 8 / transfers(lab, [(0, 1)], [65536, size])[0][1].seconds)
            if best >= 0.9 * rate:
                break
    assert 0.9 * rate <= best <= rate


def _span(routes: list[list[Transfer]]) -> float:
    """Seconds from the first start to the last end; senders of a busy machine start apart."""
    every = [transfer for transfers_of_route in routes for transfer in transfers_of_route]
    return max(transfer.end for transfer in every) - min(transfer.start for transfer in every)


def _least_seconds(size: int, depth: int = 1) -> float:
    """What a message of ``size`` bytes takes at least over a link at ``RATE``, however long it was idle."""
    return (size / PAYLOAD_SHARE - Shaper(RATE, depth).burst_bytes) * 8 / RATE
