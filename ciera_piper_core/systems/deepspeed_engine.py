"""What the systems that train in DeepSpeed's own engine have in common: its import, its settings, the step.

The weights, the batches, the loss and the optimizer are those of all systems; everything between
(gathers, reductions, masters, clipping, loss scaling) is DeepSpeed's code.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import sys
from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ciera_piper_core.moe.balance import update_biases
from ciera_piper_core.moe.router import Router
from ciera_piper_core.ranges import region
from ciera_piper_core.systems.agreed_stop import stop_at_loss
from ciera_piper_core.systems.data_parallel import DataParallelSystem
from ciera_piper_core.training.health import NonFiniteError, check_batch
from ciera_piper_core.training.loss_scaling import LossScaler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor

    from ciera_piper_core.systems.system import Ranks
    from ciera_piper_core.training.recipe import Recipe

INSTALL = "pip install 'ciera-piper-bench[deepspeed]'"
MASTER = "master"
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Parts of AdamW's state that are as large as a parameter."""

STEPS_PER_PRINT = 10**9
"""DeepSpeed's own progress lines, which nobody asked for: never."""


def import_deepspeed(device: torch.device) -> Any:
    """The package, told to use ``device`` and to keep quiet.

    Raises:
        ImportError: it is not installed; says how to.
    """
    if importlib.util.find_spec("deepspeed") is None:
        raise ImportError(f"DeepSpeed is not installed: {INSTALL}")
    if device.type == "cpu":
        # Else it takes the first accelerator that it sees, whatever the model is on.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Its own rows would be on stdout, among ours; and some of its lines are no log records at all.
    with _stdout_to_stderr():
        import deepspeed
        import deepspeed.ops
        from deepspeed.utils import logger

        logger.setLevel(logging.ERROR)
        # On CPUs it would compile a shared-memory extension for a minute when it connects, and wait for ever
        # for the lock of a build that was killed. Training does not use it: its collectives are torch's.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


class DeepSpeedSystem(DataParallelSystem):
    """See the module. A subclass builds ``model``, says its settings (``zero_settings``) and how weights map.

    Attributes:
        model: the plain model as DeepSpeed has it now; its modules are the engine's.
        engine: ``deepspeed.DeepSpeedEngine``.
        steps: updates so far.
    """

    engine: Any
    steps: int

    @classmethod
    def refusal(cls, recipe: Recipe, ranks: Ranks, options: Mapping[str, Any]) -> str | None:
        try:
            recipe.sequences_per_microbatch(ranks.world)
        except ValueError as error:
            return str(error)
        if recipe.optimizer != "adam":
            return (
                f"DeepSpeed flattens parameters, so {recipe.optimizer} cannot see the rows and columns that it"
                " factors by; use adam"
            )
        if importlib.util.find_spec("deepspeed") is None:
            return f"DeepSpeed is not installed: {INSTALL}"
        if recipe.precision == "fp16":
            import_deepspeed(ranks.device)
            from deepspeed.accelerator import get_accelerator

            if not get_accelerator().is_fp16_supported():
                return "DeepSpeed does not compute in fp16 on this device; use bf16 or fp32"
        if dist.get_world_size() != ranks.world:
            return f"DeepSpeed trains on all {dist.get_world_size()} ranks of a job, not on {ranks.world} of them"
        return None

    @abstractmethod
    def zero_settings(self) -> dict[str, Any]:
        """DeepSpeed's section ``zero_optimization``."""

    def settings(self) -> dict[str, Any]:
        """DeepSpeed's configuration for the recipe; what is not said here or by ``zero_settings`` is its default."""
        recipe = self.recipe
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": recipe.sequences_per_microbatch(self.ranks.world),
            "gradient_accumulation_steps": recipe.microbatches,
            "gradient_clipping": recipe.clip_norm,
            "communication_data_type": recipe.gradient_precision,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": self.zero_settings(),
            "steps_per_print": STEPS_PER_PRINT,
        }
        if recipe.precision == "bf16":
            settings["bf16"] = {"enabled": True}
        elif recipe.precision == "fp16":
            settings["fp16"] = {
                "enabled": True,
                "initial_scale_power": int(math.log2(LossScaler.INITIAL)),
                "loss_scale_window": LossScaler.GROWTH_INTERVAL,
                "min_loss_scale": LossScaler.LEAST,
                "hysteresis": 1,
            }
        return settings

    def connect(self) -> Any:
        """DeepSpeed on the ranks' group; the package."""
        deepspeed = import_deepspeed(self.ranks.device)
        from deepspeed.utils import groups

        # It reads this wherever it wants a device.
        if unset := "LOCAL_RANK" not in os.environ:
            os.environ["LOCAL_RANK"] = str(self.ranks.placement.local_index(dist.get_rank(self.ranks.group)))
        self._set_local_rank = unset
        with _stdout_to_stderr():
            deepspeed.init_distributed(dist_backend=dist.get_backend(self.ranks.group), verbose=False)
        # What it would make is a group of all ranks with the job's default backend, which need not be
        # the one that moves tensors here.
        groups._WORLD_GROUP = self.ranks.group
        return deepspeed

    def start(self, deepspeed: Any, optimizer: torch.optim.Optimizer) -> None:
        """Give the model to a new engine (collective)."""
        with _stdout_to_stderr():
            self.engine, *_ = deepspeed.initialize(
                model=self.model, optimizer=optimizer, config=self.settings(), dist_init_required=False
            )
        # After a backward pass; of what ZeRO reduces during it, the optimizer knows.
        self.engine._backward_epilogue = region("gradient_reduce")(self.engine._backward_epilogue)
        # The engine rounded them to the working precision, with all else that floats.
        for part in self.model.modules():
            if isinstance(part, Router):
                part.bias = None if part.bias is None else part.bias.float()
                part.reset_buffers()
        self.steps = 0

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied with before its backward pass."""
        return float(self.engine.optimizer.loss_scale) if self.recipe.precision == "fp16" else 1.0

    def logits(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.engine(tokens)
        return logits

    def accumulate(self, batch: Tensor) -> float:
        check_batch(batch, self.recipe, self.steps)
        parts = self.microbatches(batch)
        self.model.auxiliary.value = self.loss_scale / len(parts)
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        for number, part in enumerate(parts):
            loss = self.loss(part)
            with region("loss"):
                total += loss.detach()
            # It divides by the microbatches and multiplies with the loss scale itself.
            self.engine.backward(loss)
            with region("loss"):
                # All that the passes kept goes with it.
                del loss
            if number < len(parts) - 1:
                with region("optimizer"):
                    # Between microbatches a step only counts them.
                    self.engine.step()
        mean = self.mean_over_data(total / len(parts))
        if self.recipe.precision != "fp16":
            stop_at_loss(mean, self.steps, self.model, self.ranks.group, lambda: self.forward_only(parts))
        return mean

    def update(self) -> float:
        with region("optimizer"):
            self.engine.step()
            # -1 is its word for a norm that is none.
            norm = float(self.engine.get_global_grad_norm() or 0.0)
            left_out = bool(self.engine.optimizer.overflow) or not 0 <= norm < math.inf
            update_biases(self.model, (self.ranks.group,), applied=not left_out)
        if left_out and self.recipe.precision != "fp16":
            # It has dropped them, so that of which weight it was cannot be said any more.
            raise NonFiniteError(self.steps, "some weight", "gradient")
        self.steps += 1
        return math.nan if left_out else norm

    def evaluate(self, batch: Tensor) -> float:
        self.engine.eval()
        try:
            return super().evaluate(batch)
        finally:
            self.engine.train()

    def scaler_state(self) -> dict[str, float]:
        """Of the loss scale; empty where there is none."""
        if self.recipe.precision != "fp16":
            return {}
        scaler = self.engine.optimizer.loss_scaler
        return {
            "scale": float(scaler.cur_scale),
            "iteration": float(scaler.cur_iter),
            "last_overflow": float(scaler.last_overflow_iter),
        }

    def load_scaler_state(self, state: Mapping[str, float]) -> None:
        """Take over what ``scaler_state`` gave."""
        if self.recipe.precision == "fp16":
            scaler = self.engine.optimizer.loss_scaler
            scaler.cur_scale = float(state["scale"])
            scaler.cur_iter, scaler.last_overflow_iter = int(state["iteration"]), int(state["last_overflow"])

    def buffers(self) -> dict[str, Tensor]:
        """The model's buffers that outlive a step (routers' biases), by name; the same on all ranks."""
        kept = {name for part_name, part in self.model.named_modules() for name in _persistent(part_name, part)}
        return {name: buffer for name, buffer in self.model.named_buffers() if name in kept}

    def close(self) -> None:
        from deepspeed.utils import groups

        self.engine.destroy()
        if self._set_local_rank:
            os.environ.pop("LOCAL_RANK", None)
        # Its groups belong to the process, and the next system's have the same names.
        groups._WORLD_GROUP = None
        for table in (
            groups._EXPERT_PARALLEL_GROUP,
            groups._EXPERT_PARALLEL_GROUP_RANKS,
            groups._EXPERT_DATA_PARALLEL_GROUP,
            groups._EXPERT_DATA_PARALLEL_GROUP_RANKS,
        ):
            table.clear()


def adamw(recipe: Recipe, groups: Iterable[Any]) -> torch.optim.Optimizer:
    """The recipe's AdamW as ``training.optimizer`` makes it, for DeepSpeed to put its flat partitions into.

    Args:
        groups: parameters, or torch's parameter groups.
    """
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)


def adam_state(optimizer: torch.optim.Optimizer, flat: Tensor) -> dict[str, Tensor]:
    """AdamW's state of one of DeepSpeed's flat partitions, made now if the first step has not yet."""
    state: dict[str, Tensor] = optimizer.state[flat]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
        for part in MOMENTS:
            state[part] = torch.zeros_like(flat)
    return state


def _persistent(name: str, part: torch.nn.Module) -> Iterator[str]:
    for own in part._buffers.keys() - part._non_persistent_buffers_set:
        yield f"{name}.{own}" if name else own


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What others print goes to stderr: rows are printed on stdout."""
    before, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = before
