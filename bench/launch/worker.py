"""One supervised rank: takes cases from the supervisor, measures them, sends rows and heartbeats."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from bench.launch.channel import Channel, ChannelClosedError, Message
from bench.launch.diagnosis import one_line
from bench.launch.stacks import allow_tracing, die_with_parent
from bench.measure.progress import Progress

if TYPE_CHECKING:
    from bench.suite import Context, Suite

HEARTBEAT_INTERVAL_S = 0.5


def main() -> None:
    """Entry point of ``python -m bench.launch.worker FD``; FD is the inherited channel."""
    die_with_parent()
    allow_tracing()
    channel = Channel.from_fd(int(sys.argv[1]))
    progress = Progress()
    threading.Thread(target=_heartbeat, args=(channel, progress), daemon=True).start()
    try:
        _serve(channel, progress)
    except ChannelClosedError:
        # The supervisor is gone; nobody would read a goodbye, and peers may be stuck waiting for us.
        os._exit(0)


def _serve(channel: Channel, progress: Progress) -> None:
    """Join the group, then do as the supervisor says until it says stop."""
    messages = _messages(channel)
    context = _join(next(messages))
    channel.send({"type": "ready"})
    suites: dict[str, Suite] = {}
    for message in messages:
        if message["type"] == "stop":
            from bench.launch.connect import disconnect

            disconnect(context.group)
            return
        try:
            rows = _measure(message, suites, context, progress)
        except SystemExit as ending:
            _leave_at_once(ending)
        except Exception as error:
            # The group is in an unknown state now: report, and wait to be ended.
            text = {"error": one_line(error), "traceback": traceback.format_exc()}
            channel.send({"type": "error", **text, **_position(progress)})
            continue
        channel.send({"type": "done", "rows": rows if context.site.rank == 0 else []})


def _leave_at_once(ending: SystemExit) -> NoReturn:
    """End as a suite asked for, but before the interpreter tidies up: that may take longer than peers need to fail.

    They fail because this rank is gone, and the supervisor tells cause from consequence by who ended first.
    """
    if isinstance(ending.code, str):
        print(ending.code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ending.code if isinstance(ending.code, int) else int(ending.code is not None))


def _messages(channel: Channel) -> Any:
    while True:
        yield from channel.receive()


def _join(start: Message) -> Context:
    from bench.launch.connect import connect, file_store, with_nccl
    from bench.launch.site import site_from_dict
    from bench.suite import Context

    site = site_from_dict(start["site"])
    store = file_store(start["rendezvous"], site.world) if site.world > 1 else None
    group = connect(site.rank, site.world, store)
    if site.device == "cuda":
        group = with_nccl(group, site.local_rank)
    return Context(site, group)


def _measure(message: Message, suites: dict[str, Suite], context: Context, progress: Progress) -> list[dict[str, Any]]:
    from bench.measure.runner import run_case
    from bench.measure.sampling import Sampling
    from bench.registry import load_suite
    from bench.suite import Case

    name = message["suite"]
    if name not in suites:
        suites[name] = load_suite(name)
    if message["type"] == "profile":
        from bench.profiling.in_rank import profile_case
        from bench.profiling.settings import ProfileSettings

        settings, sampling = ProfileSettings(**message["settings"]), Sampling(**message["sampling"])
        return profile_case(suites[name], Case(message["params"]), context, sampling, settings, progress)
    if message["type"] != "case":
        from bench.comparison.in_rank import answer

        return answer(message, suites[name], Case(message["params"]), context, progress)
    rows = run_case(suites[name], Case(message["params"]), context, Sampling(**message["sampling"]), progress)
    return [row.to_dict() for row in rows]


def _heartbeat(channel: Channel, progress: Progress) -> None:
    """Say every half second that this process lives, and how far it is."""
    pause = threading.Event()
    while True:
        try:
            channel.send({"type": "heartbeat", **_position(progress)})
        except ChannelClosedError:
            os._exit(0)
        pause.wait(HEARTBEAT_INTERVAL_S)


def _position(progress: Progress) -> Message:
    return {"phase": progress.phase, "iteration": progress.iteration, "ticks": progress.ticks}


if __name__ == "__main__":
    main()
