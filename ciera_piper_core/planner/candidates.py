"""All strategies that a question allows, and how many each constraint rules out before memory and time are known."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ciera_piper_core.models.architecture import Attention
from ciera_piper_core.planner.schedules import SCHEDULES, broken_limits
from ciera_piper_core.planner.strategy import CHOICES, Strategies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ciera_piper_core.models.architecture import Architecture, Layer
    from ciera_piper_core.planner.schedules import Limit
    from ciera_piper_core.planner.stages import LayerKinds
    from ciera_piper_core.planner.strategy import Question

CONSTRAINTS: Mapping[str, str] = {
    "gpus": "PP * EP * DP * TP must be the number of GPUs",
    "layers": "every pipeline stage needs a layer, so PP times the schedule's chunks is at most the layers",
    "experts": "EP must divide the experts of every layer (with uneven placement: be at most their number)",
    "tensor": "TP must divide heads and inner widths, and fit within a node",
    "locality": "EP * TP must fit within the nodes that are one hop apart, g * N_h GPUs",
    "batch": "the sequences of a step must be a whole number for each of the EP * DP data-parallel ranks",
    "microbatches": "1F1B and DualPipeV need as many microbatches as stages, zero bubble here as many as ranks",
    "rounds": "interleaved and zero-bubble schedules need microbatches that divide into equal rounds",
    "memory": "the fullest pipeline rank must fit into the memory of a GPU",
    "peak": "no prediction may be faster than the peak allows for the model's FLOPs",
}
"""What can rule a strategy out, in the order in which it is tested; a strategy counts at the first that it breaks."""

MESH = ("pp", "ep", "dp", "tp")

_LIMIT_CONSTRAINT: Mapping[Limit, str] = {"stages": "layers", "microbatches": "microbatches", "rounds": "rounds"}


def candidates(
    question: Question, kinds: LayerKinds, *, smallest_microbatches: bool = False
) -> tuple[Strategies, Counter[str]]:
    """The strategies left to estimate, and how many each constraint ruled out.

    Dimensions that do not matter are not varied: the schedule of a pipeline of one stage, the
    all-to-all within a node, the ZeRO stage of one data-parallel rank. A mesh that is ruled out as a
    whole counts as often as it would have had strategies.

    Args:
        smallest_microbatches: only the largest number of microbatches of each mesh, which needs the
            least memory.
    """
    rejected: Counter[str] = Counter()
    inner = {name: _allowed(question, name) for name in CHOICES}
    inner_count = int(np.prod([len(values) for values in inner.values()]))
    pp, ep, dp, tp = _meshes(question, rejected, inner_count)
    data_ranks = ep * dp
    of_job = question.global_sequences
    sequences = (
        np.full_like(pp, question.sequences_per_gpu or 0)
        if of_job is None
        else np.where(pp > 0, of_job // data_ranks, 0)
    )
    uneven = sequences * data_ranks != of_job if of_job is not None else np.zeros(len(pp), dtype=np.bool_)
    layers = len(kinds.order)
    broken = {
        "layers": pp > layers,
        "experts": ~_experts_fit(question, kinds.kinds, ep),
        "tensor": ~_tensor_fits(question.architecture, kinds.kinds, tp, question.platform.gpus_per_node),
        "locality": (ep > 1) & (ep * tp > question.platform.gpus_per_node * question.platform.single_hop_nodes),
        "batch": uneven | (sequences < 1),
    }
    options = [_microbatches(question, int(count)) for count in sequences]
    if smallest_microbatches:
        options = [each[-1:] for each in options]
    weight = np.array([max(1, len(each)) for each in options], dtype=np.int64) * inner_count
    alive = np.ones(len(pp), dtype=np.bool_)
    for name, mask in broken.items():
        rejected[name] += int(weight[alive & mask].sum())
        alive &= ~mask
    kept = np.flatnonzero(alive)
    cuts = np.array([len(options[place]) for place in kept], dtype=np.int64)
    # A restriction on microbatches that no mesh's sequences divide into.
    rejected["batch"] += int((cuts == 0).sum()) * inner_count
    mesh = np.repeat(kept, cuts)
    microbatches = np.array([count for place in kept for count in options[place]], dtype=np.int64)
    rows = {"pp": pp[mesh], "ep": ep[mesh], "dp": dp[mesh], "tp": tp[mesh], "microbatches": microbatches}
    rows["sequences_per_gpu"] = sequences[mesh]
    return _expand(rows, inner, layers, question.platform.gpus_per_node, rejected), +rejected


def _meshes(question: Question, rejected: Counter[str], inner_count: int) -> list[NDArray[np.int64]]:
    """Every ``(pp, ep, dp, tp)`` with the right product, ordered; asked-for values that are in none are counted."""
    divisors = _divisors(question.gpus)
    values = {name: sorted(map(int, question.only.get(name, divisors))) for name in MESH}
    data = set(values["dp"])
    found = []
    for pp, ep, tp in itertools.product(values["pp"], values["ep"], values["tp"]):
        dp, rest = divmod(question.gpus, pp * ep * tp)
        if dp and not rest and dp in data:
            found.append((pp, ep, dp, tp))
    asked = [place for place, name in enumerate(MESH) if name in question.only]
    met = {tuple(mesh[place] for place in asked) for mesh in found}
    wanted = set(itertools.product(*(values[MESH[place]] for place in asked))) if asked else set()
    rejected["gpus"] += len(wanted - met) * inner_count
    columns = np.array(found, dtype=np.int64).reshape(-1, len(MESH))
    return [columns[:, place] for place in range(len(MESH))]


def _expand(
    rows: Mapping[str, NDArray[np.int64]],
    inner: Mapping[str, Sequence[int]],
    layers: int,
    gpus_per_node: int,
    rejected: Counter[str],
) -> Strategies:
    """Every row with every schedule that can run it, and with every checkpointing, ZeRO stage and all-to-all."""
    after_schedule = int(np.prod([len(inner[name]) for name in ("checkpointing", "zero_stage", "alltoall")]))
    count = len(rows["pp"])
    places, schedules = [], []
    single = _preferred(inner["schedule"], SCHEDULES.index("1f1b"))
    for code in inner["schedule"]:
        able = (rows["pp"] > 1) | (code == single)
        if count:
            for limit, mask in broken_limits(SCHEDULES[code], rows["pp"], rows["microbatches"], layers).items():
                if limit == "microbatches" and SCHEDULES[code] == "zero_bubble":
                    mask = rows["microbatches"] < rows["pp"]
                rejected[_LIMIT_CONSTRAINT[limit]] += int((mask & able).sum()) * after_schedule
                able &= ~mask
        chosen = np.flatnonzero(able)
        places.append(chosen)
        schedules.append(np.full(len(chosen), code, dtype=np.int64))
    place = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)
    schedule = np.concatenate(schedules) if schedules else np.zeros(0, dtype=np.int64)
    grid = np.meshgrid(
        np.arange(len(place)), *(inner[name] for name in ("checkpointing", "zero_stage", "alltoall")), indexing="ij"
    )
    index, checkpointing, zero_stage, alltoall = (np.asarray(each, dtype=np.int64).ravel() for each in grid)
    columns = {name: values[place][index] for name, values in rows.items()}
    all_of_them = Strategies(
        **columns,
        schedule=schedule[index],
        checkpointing=checkpointing,
        zero_stage=zero_stage,
        alltoall=alltoall,
    )
    matters = all_of_them.ep * all_of_them.tp > gpus_per_node
    matters |= alltoall == _preferred(inner["alltoall"], 0)
    matters &= (all_of_them.ep * all_of_them.dp > 1) | (zero_stage == _preferred(inner["zero_stage"], 0))
    return all_of_them if matters.all() else all_of_them.take(matters)


def _preferred(allowed: Sequence[int], wanted: int) -> int:
    return wanted if wanted in allowed or not allowed else allowed[0]


def _allowed(question: Question, name: str) -> list[int]:
    """Places in ``CHOICES`` of the values that a dimension may take."""
    chosen = question.only.get(name, tuple(CHOICES[name]))
    return [place for place, value in enumerate(CHOICES[name]) if value in chosen]


def _microbatches(question: Question, sequences: int) -> list[int]:
    """Numbers of microbatches into which so many sequences can be cut."""
    numbers = _divisors(sequences) if sequences > 0 else []
    wanted = question.only.get("microbatches")
    if "sequences_per_gpu" in question.only and sequences not in question.only["sequences_per_gpu"]:
        return []
    return numbers if wanted is None else [number for number in numbers if number in wanted]


def _experts_fit(question: Question, kinds: Sequence[Layer], ep: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where EP spreads the experts of every layer evenly, or at all."""
    counts = {kind.experts.experts for kind in kinds if kind.experts is not None}
    if not counts:
        return np.asarray(ep == 1)
    if question.placement == "uneven":
        return np.asarray(ep <= min(counts))
    return np.asarray(np.logical_and.reduce([experts % ep == 0 for experts in counts]))


def _tensor_fits(
    architecture: Architecture, kinds: Sequence[Layer], tp: NDArray[np.int64], gpus_per_node: int
) -> NDArray[np.bool_]:
    """Where TP divides all that it has to divide, and stays within a node."""
    fits = tp <= gpus_per_node
    for kind in kinds:
        for block in (kind.mixer, kind.cross):
            if isinstance(block, Attention):
                shared = (block.kv_heads % tp == 0) | (tp % block.kv_heads == 0)
                fits &= (block.heads % tp == 0) & (shared if block.mla is None else True)
            elif block is not None:
                fits &= block.width % tp == 0
        widths = [kind.dense.ffn] if kind.dense else []
        widths += [kind.experts.ffn, kind.experts.shared_ffn] if kind.experts else []
        for width in widths:
            fits &= width % tp == 0
    return fits


def _divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
