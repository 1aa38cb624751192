"""Marks what FSDP2 does around a module's computing as regions: gathering parameters, reducing gradients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ciera_piper_core.allgather.fsdp_groups import UnsupportedTorchError, fsdp_modules
from ciera_piper_core.ranges import region
from ciera_piper_core.systems.hook_regions import AFTER, BEFORE, mark_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

STEPS = {
    "unshard": "parameter_gather",
    "wait_for_unshard": "parameter_gather",
    "pre_forward": "parameter_gather",
    "post_forward": "parameter_gather",
    "pre_backward": "parameter_gather",
    "post_backward": "gradient_reduce",
    "finalize_backward": "gradient_reduce",
}
"""By method of FSDP2's parameter groups, the region that a call of it is."""
STEPS_OF_MODULE = {
    "_pre_backward": "parameter_gather",
    "_root_post_backward_final_callback": "gradient_reduce",
}
"""The same of the methods that its modules' hooks call in backward passes."""


def mark_regions(model: torch.nn.Module) -> None:
    """Mark gathers and reductions of every FSDP2 module under ``model``, copies and casts included.

    A gather that a module's forward or backward pass starts ahead of time is two regions: its start and the wait.

    Raises:
        UnsupportedTorchError: FSDP2 is not built as expected.
    """
    for group in _all_groups(model):
        _mark(group, STEPS)
    for module in fsdp_modules(model):
        state = module._get_fsdp_state()
        _mark(state, STEPS_OF_MODULE)
        for kept in (BEFORE, AFTER):
            if not mark_hooks(cast("torch.nn.Module", module), kept, "parameter_gather", partial(_is_of, state)):
                raise UnsupportedTorchError(f"{type(state).__name__} in {kept}")


def _mark(of: Any, steps: Mapping[str, str]) -> None:
    for method, name in steps.items():
        original = getattr(of, method, None)
        if original is None:
            raise UnsupportedTorchError(f"{type(of).__name__}.{method}")
        setattr(of, method, region(name)(original))


def _is_of(state: object, hook: object) -> bool:
    return getattr(hook, "__self__", None) is state


def _all_groups(model: torch.nn.Module) -> Iterator[Any]:
    seen: set[int] = set()
    for module in fsdp_modules(model):
        # Parameter groups of one rank are among them, which ``parameter_groups`` leaves out.
        for group in module._get_fsdp_state()._fsdp_param_groups:
            if id(group) not in seen:
                seen.add(id(group))
                yield group
