"""Checkpoints of any training system: saved whole or not at all, resumed on another number of ranks too.

A checkpoint is a folder ``step-00000200`` in the folder of a run: files of
``torch.distributed.checkpoint``, which every rank writes its part of, and ``about.json``. It is written
under another name beside, and renamed when all ranks are done and all is on the disk. So whatever
bears the name is whole: a rank that dies while saving leaves the checkpoint before as the latest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ciera_piper_core.ranges import region

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ciera_piper_core.systems.system import Ranks, TrainingSystem
    from ciera_piper_core.training.recipe import Recipe

VERSION = 1
ABOUT = "about.json"
_NAME = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"

FIXED = ("architecture", "sequence", "global_batch", "optimizer", "routing", "seed")
"""What of a recipe a run keeps for ever: another value would be another run, or could not be loaded."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; names the ranks and what each of them met."""


@dataclass(frozen=True)
class About:
    """What ``about.json`` says of a checkpoint.

    Attributes:
        step: updates so far; also the number of the next batch, because a batch is a function of its number.
        system: that saved it. exact_as: whose weights it has bit for bit, or itself.
        world: ranks that saved it. layout: theirs, by the names of ``systems.system.Layout``.
        recipe: its values as texts; of the architecture, the name and a digest.
        version: of this file.
    """

    step: int
    system: str
    exact_as: str
    world: int
    layout: dict[str, Any]
    recipe: dict[str, str]
    version: int = VERSION


@dataclass(frozen=True)
class Resumed:
    """A run that goes on.

    Attributes:
        step: the next one, and the number of its batch.
        about: the checkpoint.
        changed: values of the recipe that are others now (``learning_rate``, ``microbatches``, ...): from here on
            it is no longer what an uninterrupted run would have been.
    """

    step: int
    about: About
    changed: tuple[str, ...]


def save_checkpoint(system: TrainingSystem, folder: Path, step: int, *, keep: int = 2) -> Path:
    """Save all of a run (collective).

    Args:
        folder: of the run, on a file system that all ranks see; made if it is not there. One run a folder.
        step: updates so far.
        keep: this many of the latest stay; older ones are removed after the new one is whole; 0: all stay.

    Returns:
        the checkpoint; one of the same step is replaced.

    Raises:
        ValueError: ``step`` or ``keep`` is negative.
        CheckpointError: a rank could not write (named), on all ranks; what was saved before stays.
        RuntimeError: another rank died; likewise.
    """
    if step < 0 or keep < 0:
        raise ValueError(f"step and keep are 0 or more, not {step} and {keep}")
    ranks = system.ranks
    final = folder / f"step-{step:08d}"
    partial = folder / f".{final.name}{_PARTIAL}"
    with region("checkpoint"):
        if _first(ranks):
            folder.mkdir(parents=True, exist_ok=True)
            # Of saves that a rank did not live to end.
            for left in folder.glob(f".*{_PARTIAL}"):
                shutil.rmtree(left)
            partial.mkdir()
        _wait(ranks)
        state = {"system": system.state_dict(), "random": _random_state(ranks, range(ranks.world))}
        with _named_errors("written", partial):
            save(state, checkpoint_id=partial, process_group=_group(ranks), no_dist=_alone(ranks))
        if _first(ranks):
            about = About(
                step, system.name, system.exact_as or system.name, ranks.world, asdict(system.layout),
                _texts(system.recipe),
            )  # fmt: skip
            _publish(partial, final, about)
            _prune(folder, keep)
        _wait(ranks)
    return final


def load_checkpoint(system: TrainingSystem, path: Path) -> Resumed:
    """Bring a newly built system to where a checkpoint was saved (collective).

    Ranks may be others than those that saved, as many as the system can do with, and so may be the way that
    it spreads over them. With the same number, random numbers go on, too; ranks that were not there
    before keep theirs.

    Args:
        path: of a checkpoint, as ``latest_checkpoint`` gives it.

    Raises:
        ValueError: no checkpoint, or that of another system or recipe; says what differs.
        CheckpointError: it lacks something; the system is half loaded then, and must be built anew.
    """
    about = read_about(path)
    _refuse_other(about, system)
    ranks = system.ranks
    known = range(min(ranks.world, about.world))
    with region("checkpoint"):
        state = {"system": system.state_dict(), "random": _random_state(ranks, known)}
        with _named_errors("read", path):
            load(state, checkpoint_id=path, process_group=_group(ranks), no_dist=_alone(ranks))
        system.load_state_dict(state["system"])
        _set_random_state(ranks, state["random"])
        _wait(ranks)
    now = _texts(system.recipe)
    changed = tuple(sorted(name for name in now if about.recipe.get(name) != now[name]))
    return Resumed(about.step, about, changed)


def checkpoints(folder: Path) -> list[Path]:
    """All whole checkpoints of a run, the first one first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and (path / ABOUT).is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def latest_checkpoint(folder: Path) -> Path | None:
    """The last whole checkpoint of a run, or None."""
    found = checkpoints(folder)
    return found[-1] if found else None


def read_about(path: Path) -> About:
    """What a checkpoint says of itself.

    Raises:
        ValueError: there is none, or one of a newer version.
    """
    try:
        values = json.loads((path / ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is no checkpoint: it has no {ABOUT}") from None
    if values.get("version") != VERSION:
        raise ValueError(f"{path} has version {values.get('version')}, and this program reads {VERSION}; update it")
    return About(**values)


@contextmanager
def _named_errors(what: str, path: Path) -> Iterator[None]:
    """torch raises what no ``except Exception`` sees, and warns of a single process that wanted to be one."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except CheckpointException as error:
        met = "; ".join(f"rank {rank}: {cause[0]!r}" for rank, cause in sorted(error.failures.items()))
        raise CheckpointError(f"{path} could not be {what}: {met}") from error


def _publish(partial: Path, final: Path, about: About) -> None:
    """Make a complete folder the checkpoint of its step."""
    with (partial / ABOUT).open("w", encoding="utf-8") as file:
        json.dump(asdict(about), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(partial)
    replaced = final.with_name(f".{final.name}.replaced{_PARTIAL}")
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    _sync_folder(final.parent)
    if replaced.exists():
        shutil.rmtree(replaced)


def _prune(folder: Path, keep: int) -> None:
    for old in checkpoints(folder)[:-keep] if keep else ():
        # Renamed first: half a folder must not bear the name.
        going = old.with_name(f".{old.name}.old{_PARTIAL}")
        old.rename(going)
        shutil.rmtree(going)


def _sync_folder(folder: Path) -> None:
    """Names are on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_other(about: About, system: TrainingSystem) -> None:
    if about.exact_as != (system.exact_as or system.name):
        raise ValueError(f"the checkpoint is of system {about.system}, which {system.name} cannot continue")
    now = _texts(system.recipe)
    for name in FIXED:
        if about.recipe.get(name) != now[name]:
            raise ValueError(f"the checkpoint's {name} is {about.recipe.get(name)}, but the recipe's is {now[name]}")


def _texts(recipe: Recipe) -> dict[str, str]:
    """The recipe's values, comparable and short."""
    texts = {name: str(value) for name, value in vars(recipe).items()}
    digest = hashlib.sha256(repr(recipe.architecture).encode()).hexdigest()[:16]
    texts["architecture"] = f"{recipe.architecture.name} ({digest})"
    return texts


def _random_state(ranks: Ranks, of: range) -> dict[str, torch.Tensor]:
    """Of torch's generators on this rank, under a key of its own, if it is among ``of``."""
    rank = _rank(ranks)
    if rank not in of:
        return {}
    states = {f"{rank}.cpu": torch.get_rng_state()}
    if ranks.device.type == "cuda":
        states[f"{rank}.cuda"] = torch.cuda.get_rng_state(ranks.device)
    return states


def _set_random_state(ranks: Ranks, states: dict[str, torch.Tensor]) -> None:
    for key, state in states.items():
        if key.endswith(".cuda"):
            torch.cuda.set_rng_state(state, ranks.device)
        else:
            torch.set_rng_state(state)


def _alone(ranks: Ranks) -> bool:
    return not dist.is_initialized() or ranks.world == 1


def _group(ranks: Ranks) -> dist.ProcessGroup | None:
    return None if _alone(ranks) else ranks.group


def _rank(ranks: Ranks) -> int:
    return 0 if _alone(ranks) else dist.get_rank(ranks.group)


def _first(ranks: Ranks) -> bool:
    return _rank(ranks) == 0


def _wait(ranks: Ranks) -> None:
    if not _alone(ranks):
        dist.barrier(group=ranks.group)
