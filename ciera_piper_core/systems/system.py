"""The interface of a training system: how it is built, stepped, saved and compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    import torch.distributed as dist

    from ciera_piper_core.alltoall.placement import Placement
    from ciera_piper_core.training.recipe import Recipe


@dataclass(frozen=True)
class Ranks:
    """The ranks that train together.

    Attributes:
        group: of them.
        placement: which of them are on which node.
        device: of this rank.
    """

    group: dist.ProcessGroup
    placement: Placement
    device: torch.device

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.placement.world


@dataclass(frozen=True)
class Layout:
    """How a system spreads over the ranks.

    Attributes:
        pp, ep, dp, tp: pipeline stages; ranks that share a layer's experts; copies of those; ranks that share a matrix.
        data_width: ranks (or groups of ranks) that a batch is split over.
        sharded: what is sharded instead of copied over data ranks, for people: ``parameters, gradients, optimizer``.
    """

    pp: int = 1
    ep: int = 1
    dp: int = 1
    tp: int = 1
    data_width: int = 1
    sharded: str = ""


@dataclass(frozen=True)
class Option:
    """A setting of one system: ``pp`` of ``piper:pp=2``.

    Attributes:
        default: its value where nothing is said; its type is that of the option (int, float, bool or str).
        help: what it means, with its unit.
        choices: the values that it may have; empty for any.
        minimum: of numbers; None for any.
    """

    default: int | float | bool | str
    help: str
    choices: tuple[int | float | bool | str, ...] = field(default=())
    minimum: int | None = None


class TrainingSystem(ABC):
    """A way to train the model of a recipe on many ranks.

    All methods are collective: every rank calls them, in the same order. A step is ``accumulate``, then
    ``update``. Every system starts from the same weights: those of ``models.initialisation`` for the
    recipe's seed.

    Class attributes:
        name: as on the command line.
        summary: one line.
        options: settings, by name.
        loss_tolerance: largest relative difference of a step's loss to the plain model's, over the first 20
            steps in fp32; 0 means equal to the bit to ``exact_as``.
        exact_as: the system whose losses and weights this one has bit for bit; empty for none.

    Attributes:
        recipe, ranks: as given.
        layout: what became of them.
        model: this rank's part of the plain model, if it has one: from its routers is known where trainings part.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    options: ClassVar[Mapping[str, Option]] = {}
    loss_tolerance: ClassVar[float] = 1e-5
    exact_as: ClassVar[str] = ""

    recipe: Recipe
    ranks: Ranks
    layout: Layout
    model: torch.nn.Module | None = None

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        """Why this system cannot run that recipe on those ranks (one line, what to change), or None."""
        return None

    @abstractmethod
    def __init__(self, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> None:
        """Build it.

        Args:
            options: one value for each of the class's ``options`` (``parse_options`` fills in defaults).

        Raises:
            ValueError: what ``refusal`` says.
        """

    @abstractmethod
    def accumulate(self, batch: torch.Tensor) -> float:
        """Forward and backward passes of a step, gradients reduced over ranks; the mean loss over the whole batch.

        Args:
            batch: ``(global_batch, sequence + 1)``, int64, on the CPU, the same on all ranks; each takes its share.

        Returns:
            the mean cross-entropy of the batch's tokens, the same on all ranks; without auxiliary losses.
        """

    @abstractmethod
    def update(self) -> float:
        """Clip and apply the gradients, and clear them; the global gradient norm before clipping, experts included.

        With loss scaling, a step whose gradients are not finite is left out, and NaN or infinity returned.
        """

    @abstractmethod
    def evaluate(self, batch: torch.Tensor) -> float:
        """The mean cross-entropy of a batch of the same shape, without learning."""

    @abstractmethod
    def full_parameters(self) -> dict[str, torch.Tensor]:
        """On rank 0 the whole float32 weights, on the CPU, by the plain model's names; elsewhere empty."""

    @abstractmethod
    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Likewise the gradients, after ``accumulate`` and before ``update``; without the loss's scale."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, for ``torch.distributed.checkpoint``: also for another number of ranks."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` gave, filled by ``torch.distributed.checkpoint.load``."""

    def close(self) -> None:
        """Release groups, threads and hooks."""


def parse_options(system: type[TrainingSystem], given: Mapping[str, str]) -> dict[str, int | float | bool | str]:
    """Values of all options of ``system``, from texts.

    Raises:
        ValueError: an unknown option (the message lists them), or a value of another type, not among its choices, or
            below its minimum.
    """
    if unknown := sorted(given.keys() - system.options.keys()):
        known = ", ".join(system.options) or "none"
        raise ValueError(f"system {system.name!r} has no option {unknown[0]!r}; it has: {known}")
    values = {name: option.default for name, option in system.options.items()}
    for name, text in given.items():
        option = system.options[name]
        values[name] = _parse(system.name, name, text, option.default)
        if option.choices and values[name] not in option.choices:
            choices = ", ".join(str(choice) for choice in option.choices)
            raise ValueError(f"{system.name}: {name} is one of {choices}, not {text!r}")
        value = values[name]
        # So written, what is no number (nan) is refused too.
        if option.minimum is not None and not (isinstance(value, (int, float)) and value >= option.minimum):
            raise ValueError(f"{system.name}: {name} is {option.minimum} or more, not {text}")
    return values


def parse_system(text: str) -> tuple[str, dict[str, str]]:
    """``piper:pp=2:ep=4`` as a name and the texts of its options.

    Raises:
        ValueError: an option without a value, or one that is there twice.
    """
    name, *parts = text.split(":")
    options: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise ValueError(f"{text!r}: options are written name=value, not {part!r}")
        if key in options:
            raise ValueError(f"{text!r}: {key} is there twice")
        options[key] = value
    return name, options


def _parse(system: str, name: str, text: str, default: int | float | bool | str) -> int | float | bool | str:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(f"{system}: {name} is true or false, not {text!r}")
        return text == "true"
    try:
        return type(default)(text)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise ValueError(f"{system}: {name} is {kind}, not {text!r}") from None
