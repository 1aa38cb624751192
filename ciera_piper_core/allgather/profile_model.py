"""The gain model of a platform profile: Comm from its collectives, kernel times from its codec rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ciera_piper_core.allgather.comm import profile_comm
from ciera_piper_core.allgather.gain import DEFAULT_MARGIN, GainModel
from ciera_piper_core.allgather.kernel_times import codec_kernel_times
from ciera_piper_core.platforms import profile

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTIONS = ("identity", "collectives", "codec")


@dataclass(frozen=True)
class ModelChoice:
    """What of a profile counts, and how; None leaves the choice to the profile.

    Attributes:
        ranks: of the gathers. nodes: that they are on. scope: where they talk.
        backend, isa, threads: of the codec rows.
        pipelined, margin: as in ``GainModel``.
    """

    ranks: int
    nodes: int | None = None
    scope: str | None = None
    backend: str | None = None
    isa: str | None = None
    threads: int | None = None
    pipelined: bool = False
    margin: float = DEFAULT_MARGIN


def load_gain_model(path: Path | str, dtype: str, choice: ModelChoice) -> GainModel:
    """The model of a profile file, or of the folder that ``bench characterize`` wrote it to.

    Args:
        dtype: of the values that are gathered.

    Raises:
        ValueError: the file cannot be used; one line that names it, what is missing, and what to run.
    """
    place = Path(path)
    if place.is_dir():
        place /= "profile.json"
    data = profile.read(place, SECTIONS)
    try:
        comm = profile_comm(data["collectives"], choice.ranks, choice.nodes, choice.scope)
        emulated = comm.scope == "lab"
        kernels = codec_kernel_times(
            data["codec"],
            dtype,
            choice.backend,
            choice.isa,
            choice.threads,
            sharing=_sharing(data["identity"], choice, comm.ranks if emulated else -(-comm.ranks // comm.nodes)),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"is not as its schema says ({error})"
        raise ValueError(f"profile {place} {what}; run {profile.CHARACTERIZE} again") from error
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    return GainModel(comm, kernels, choice.pipelined, choice.margin)


def _sharing(identity: Mapping[str, Any], choice: ModelChoice, ranks_on_host: int) -> float:
    """By how much ranks that share a host's cores slow each other's kernels; accelerators are not shared."""
    if identity.get("gpus"):
        return 1.0
    cores = (identity.get("cpu") or {}).get("usable_logical_cpus") or ranks_on_host
    return max(1.0, ranks_on_host * (choice.threads or 1) / float(cores))
