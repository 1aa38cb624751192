"""The line between supervisor and worker."""

from __future__ import annotations

import threading

import pytest

from bench.launch.channel import Channel, ChannelClosedError, channel_pair


def receive_all(channel: Channel, count: int) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    while len(messages) < count:
        messages += channel.receive()
    return messages


def test_messages_arrive_whole_and_in_order_whatever_their_size() -> None:
    ours, theirs = channel_pair()
    worker = Channel(theirs)
    sent = [{"n": n, "text": "ü\n" * n} for n in (0, 1, 100_000, 3)]
    sender = threading.Thread(target=lambda: [worker.send(message) for message in sent])
    sender.start()
    assert receive_all(ours, 4) == sent
    sender.join()
    ours.close()
    worker.close()


def test_threads_do_not_mix_their_messages() -> None:
    ours, theirs = channel_pair()
    worker = Channel(theirs)
    threads = [
        threading.Thread(target=lambda k=k: [worker.send({"k": k, "fill": "x" * 5000}) for _ in range(50)])  # type: ignore[misc]
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    assert sorted(message["k"] for message in receive_all(ours, 200)) == sorted([0, 1, 2, 3] * 50)  # type: ignore[type-var]
    for thread in threads:
        thread.join()
    ours.close()
    worker.close()


def test_either_end_learns_that_the_other_is_gone() -> None:
    ours, theirs = channel_pair()
    worker = Channel(theirs)
    worker.send({"last": True})
    worker.close()
    assert receive_all(ours, 1) == [{"last": True}]
    with pytest.raises(ChannelClosedError):
        ours.receive()
    with pytest.raises(ChannelClosedError):
        ours.send({"anyone": "there"})
    ours.close()
