"""Reads FSDP2's parameter groups: what each gathers, for which parameters, among which ranks.

All that is not FSDP2's public interface is touched here and nowhere else, and checked before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ciera_piper_core.allgather.categories import category_of, plain_name
from ciera_piper_core.allgather.plan import GatherPlan, Segment
from ciera_piper_core.exponents.layout import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import ProcessGroup
    from torch.distributed.fsdp import FSDPModule

    from ciera_piper_core.allgather.plan import CodingSettings

KNOWN_TORCH = ("2.13",)
"""Versions of torch whose FSDP2 the tests ran with."""

CODABLE = frozenset(layout.dtype for layout in LAYOUTS)
"""Types of values whose exponents can be coded."""

_GROUP_FIELDS = ("fsdp_params", "device", "mesh_info", "mp_policy", "modules", "_all_gather_comm", "_all_gather_result")
_PARAMETER_FIELDS = (
    "_module_info",
    "_orig_size",
    "_sharded_local_tensor",
    "padded_sharded_param_size",
    "sharded_param",
)


class UnsupportedTorchError(ImportError):
    """This torch's FSDP2 is not one that the compressed Allgather knows; the message says which it knows."""

    def __init__(self, missing: str) -> None:
        known = ", ".join(f"{version}.x" for version in KNOWN_TORCH)
        super().__init__(
            f"the compressed Allgather works with FSDP2 of torch {known}; torch {torch.__version__} has no {missing}. "
            "Install a torch that is known to work, or call CompressedGather without FSDP"
        )


@dataclass(frozen=True)
class GatheredParameter:
    """One parameter's part in a group's gather.

    Attributes:
        name: of the parameter, from the model's root. shape: of the whole parameter.
        values: of each rank's shard, padding included: all ranks send as many.
        dtype: as gathered, which may be narrower than the optimizer's.
        packs_itself: a tensor subclass that brings its own ``fsdp_pre_all_gather``.
    """

    name: str
    shape: tuple[int, ...]
    values: int
    dtype: torch.dtype
    packs_itself: bool = False

    @property
    def codable(self) -> bool:
        """Whether its exponents can be coded."""
        return not self.packs_itself and self.dtype in CODABLE


@dataclass(frozen=True)
class ParameterGroup:
    """What one FSDP2 module gathers at once.

    Attributes:
        name: of the module, from the model's root; ``root`` for the root itself. Where parameters of one
            module are sharded over several sets of ranks, all groups but the first are numbered.
        parameters: in the order of the shard.
        ranks: the process group that the parameters are sharded over.
        fsdp: FSDP2's own object.
    """

    name: str
    parameters: tuple[GatheredParameter, ...]
    ranks: ProcessGroup
    fsdp: Any

    @property
    def device(self) -> torch.device:
        """Of the shards when they are gathered."""
        device: torch.device = self.fsdp.device
        return device

    @property
    def gathered_dtype(self) -> torch.dtype:
        """The type in which FSDP2 gathers: bytes, if the parameters are of several."""
        kinds = {one.dtype for one in self.parameters}
        return kinds.pop() if len(kinds) == 1 else torch.uint8

    @property
    def packs_itself(self) -> bool:
        """Whether some parameter decides by itself what is gathered for it; then sizes are not known."""
        return any(one.packs_itself for one in self.parameters)

    def plan(
        self,
        settings: CodingSettings,
        category: Callable[[str, tuple[int, ...]], str | None] | None = None,
        only: Callable[[Segment], bool] | None = None,
    ) -> GatherPlan:
        """The plan of this group's gather.

        Parameters of several types in one group are gathered as bytes: then those of one type are
        coded, the one that fills most of them if the others' shards are multiples of it, and the rest
        is plain.

        Args:
            settings: how exponents are coded.
            category: of a parameter, by name and shape; None from it or in its place leaves the
                choice to :func:`~ciera_piper_core.allgather.categories.category_of`.
            only: whether to code a segment; None for all that are at least a block long.
        """
        dtype = self._coded_dtype()
        segments = []
        offset = 0
        for one in self.parameters:
            values = one.values * one.dtype.itemsize // dtype.itemsize
            kind = category(one.name, one.shape) if category else None
            segment = Segment(one.name, offset, values, kind or category_of(one.name, one.shape))
            chosen = only(segment) if only else segment.values >= settings.block
            coded = bool(chosen) and one.codable and one.dtype is dtype
            segments.append(replace(segment, compressed=coded))
            offset += values
        return GatherPlan(tuple(segments), dtype, settings, self.name)

    def _coded_dtype(self) -> torch.dtype:
        """The type whose values are coded, in units of which all segments can be counted; else uint8."""
        if self.gathered_dtype is not torch.uint8:
            return self.gathered_dtype
        sizes: dict[torch.dtype, int] = {}
        for one in self.parameters:
            if one.codable:
                sizes[one.dtype] = sizes.get(one.dtype, 0) + one.values * one.dtype.itemsize
        for dtype in sorted(sizes, key=lambda dtype: -sizes[dtype]):
            if all(one.values * one.dtype.itemsize % dtype.itemsize == 0 for one in self.parameters):
                return dtype
        return torch.uint8


def parameter_groups(model: torch.nn.Module) -> Iterator[ParameterGroup]:
    """Every parameter group under ``model`` that gathers from more than one rank, in the order of its modules.

    Raises:
        UnsupportedTorchError: FSDP2 is not built as expected.
    """
    names = {id(module): name for name, module in model.named_modules(remove_duplicate=True)}
    seen: set[int] = set()
    named: dict[str, int] = {}
    for module in fsdp_modules(model):
        state = _field(module, "_get_fsdp_state")()
        _field(_field(state, "_training_state"), "name")
        for group in _field(state, "_fsdp_param_groups"):
            if id(group) in seen:
                continue
            seen.add(id(group))
            for field in _GROUP_FIELDS:
                _field(group, field)
            ranks = getattr(group.mesh_info, "shard_process_group", None)
            if ranks is None or ranks.size() == 1:
                continue
            name = plain_name(", ".join(names.get(id(each), "") for each in group.modules)) or "root"
            named[name] = named.get(name, 0) + 1
            if named[name] > 1:
                name = f"{name} [{named[name]}]"
            parameters = tuple(_parameter(each, group.mp_policy, names) for each in group.fsdp_params)
            yield ParameterGroup(name, parameters, ranks, group)


def with_current_dtypes(group: ParameterGroup) -> ParameterGroup:
    """The group as it is after its parameters were given other types (``model.to``)."""
    pairs = zip(group.parameters, group.fsdp.fsdp_params, strict=True)
    policy = group.fsdp.mp_policy
    return replace(group, parameters=tuple(replace(one, dtype=_gathered_dtype(now, policy)) for one, now in pairs))


def fsdp_modules(model: torch.nn.Module) -> Iterator[FSDPModule]:
    """The modules under ``model`` that FSDP2 manages.

    Raises:
        UnsupportedTorchError: this torch has no FSDP2.
    """
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        raise UnsupportedTorchError("torch.distributed.fsdp.FSDPModule") from None
    _field(FSDPModule, "set_custom_all_gather")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield module


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether FSDP2 manages any module under ``model``.

    Raises:
        UnsupportedTorchError: this torch has no FSDP2.
    """
    return next(fsdp_modules(model), None) is not None


def current_all_gather(group: ParameterGroup) -> Any:
    """The ``AllGather`` that a group gathers through."""
    return group.fsdp._all_gather_comm


def set_all_gather(group: ParameterGroup, all_gather: Any) -> Any:
    """Have a group gather through another ``AllGather``; returns the one that it had."""
    previous = group.fsdp._all_gather_comm
    module = group.fsdp.modules[0]
    if len(module._get_fsdp_state()._fsdp_param_groups) == 1:
        module.set_custom_all_gather(all_gather)
    else:
        # The public way refuses modules whose parameters are sharded over several sets of ranks.
        group.fsdp._all_gather_comm = all_gather
    return previous


def waits_at_once(group: ParameterGroup) -> bool:
    """Whether FSDP2 gathers for a module that is about to run, and not ahead of its time."""
    state = group.fsdp.modules[0]._get_fsdp_state()._training_state
    return bool(state.name != "IDLE")


def forget_gather(group: ParameterGroup) -> None:
    """After a gather that failed: FSDP2 must not take it for pending, or it would wait for it again."""
    group.fsdp._all_gather_result = None


def abandon_iteration(root: FSDPModule) -> None:
    """After an exception inside of a forward or backward pass: make ready for another try.

    ``reset_iter_state`` alone (torch 2.13) leaves the gradients of parameters that were whole at the
    time, and the next backward pass would add its own to them. All gradients of the iteration are
    dropped, those of earlier micro-batches too.

    Args:
        root: the module that the forward pass began with.
    """
    root.reset_iter_state()
    for module in fsdp_modules(root):  # type: ignore[arg-type]
        for group in _field(_field(module, "_get_fsdp_state")(), "_fsdp_param_groups"):
            for parameter in group.fsdp_params:
                parameter.unsharded_accumulated_grad = None
                whole = getattr(parameter, "_unsharded_param", None)
                if whole is not None:
                    whole.grad = None


def parameter_modules(group: ParameterGroup) -> list[torch.nn.Module]:
    """The modules that own the group's parameters, each once."""
    modules = {id(each._module_info.module): each._module_info.module for each in group.fsdp.fsdp_params}
    return list(modules.values())


def _parameter(fsdp_parameter: Any, policy: Any, names: dict[int, str]) -> GatheredParameter:
    for field in _PARAMETER_FIELDS:
        _field(fsdp_parameter, field)
    owner = fsdp_parameter._module_info
    prefix = names.get(id(owner.module), "")
    return GatheredParameter(
        name=plain_name(f"{prefix}.{owner.param_name}" if prefix else owner.param_name),
        shape=tuple(fsdp_parameter._orig_size),
        values=fsdp_parameter.padded_sharded_param_size.numel(),
        dtype=_gathered_dtype(fsdp_parameter, policy),
        packs_itself=hasattr(fsdp_parameter._sharded_local_tensor, "fsdp_pre_all_gather"),
    )


def _gathered_dtype(fsdp_parameter: Any, policy: Any) -> torch.dtype:
    original: torch.dtype = fsdp_parameter.sharded_param.dtype
    return (policy.param_dtype if original.is_floating_point else None) or original


def _field(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        kind = owner if isinstance(owner, type) else type(owner)
        raise UnsupportedTorchError(f"{kind.__name__}.{name}") from None
