"""Loss scaling for float16 gradients: a factor that grows while they fit and shrinks when they do not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ciera_piper_core.training.recipe import Precision


class LossScaler:
    """The factor that a loss is multiplied with before its backward pass.

    It is agreed over ranks without a collective of its own: all ranks give ``after_step`` the same global norm.

    Attributes:
        scale: the factor now; a power of two, always 1 if not dynamic.
        dynamic: whether it changes.
    """

    INITIAL, GROWTH_INTERVAL, LEAST, MOST = 2.0**14, 1000, 1.0, 2.0**24

    def __init__(self, precision: Precision) -> None:
        """Dynamic for ``fp16``, else 1 for ever."""
        self.dynamic = precision == "fp16"
        self.scale = self.INITIAL if self.dynamic else 1.0
        self._good_steps = 0

    def after_step(self, norm: float) -> bool:
        """Whether the step may be applied; the next factor is half if not, double after ``GROWTH_INTERVAL`` good steps.

        Args:
            norm: the global gradient norm over all ranks' parameters: the same number on all of them.
        """
        finite = math.isfinite(norm)
        if not self.dynamic:
            return finite
        if not finite:
            self.scale, self._good_steps = max(self.scale / 2, self.LEAST), 0
            return False
        self._good_steps += 1
        if self._good_steps == self.GROWTH_INTERVAL:
            self.scale, self._good_steps = min(self.scale * 2, self.MOST), 0
        return True

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs."""
        return {"scale": self.scale, "good_steps": float(self._good_steps)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over what ``state_dict`` gave."""
        self.scale, self._good_steps = float(state["scale"]), int(state["good_steps"])
