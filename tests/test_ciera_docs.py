"""docs/ciera.md is true: its Python runs as it stands, on real ranks, and what it says of memory is what is kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from ciera_piper_core.allgather.change_trace import ChangeTrace
from ciera_piper_core.allgather.communicator import CompressedGather
from ciera_piper_core.allgather.plan import CodingSettings, GatherPlan
from ciera_piper_core.exponents.layout import layout_of
from suites.model_file import FILE_VARIABLE, INSTALL
from tests.gloo_world import run_world

if TYPE_CHECKING:
    from bench.suite import Context

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "ciera.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
HIDDEN, LAYERS = 64, 2


class Model(torch.nn.Module):
    """Something with ``layers``, as the page's script has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(LAYERS))
        self.head = torch.nn.Linear(HIDDEN, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x)
        return out


def train_step(model: torch.nn.Module) -> None:
    x = torch.randn(8, HIDDEN, dtype=torch.bfloat16)
    model(x).float().square().mean().backward()
    for weight in model.parameters():
        if weight.grad is not None:
            weight.data.sub_(1e-3 * weight.grad)
            weight.grad = None


def test_every_block_of_the_page_runs(tmp_path: Path) -> None:
    def body(context: Context) -> dict[str, Any]:
        import os

        os.chdir(tmp_path / str(context.group.rank))
        torch.manual_seed(0)
        names: dict[str, Any] = {"model": Model(), "train_step": train_step}
        names["shard"] = torch.full((1000,), float(context.group.rank), dtype=torch.float16)
        for number, block in enumerate(BLOCKS):
            if "trace.json" in block or "AdaptiveCompression" in block:
                # The page's other ways: of a run in which everything is compressed still.
                names["compressed"].remove()
                names["compressed"] = names["compress_all_gathers"](names["model"])
            exec(compile(block, f"block {number} of docs/ciera.md", "exec"), names)
        gathered = sum(sum(each.gathers.values()) for each in names["compressed"].statistics.values())
        return {"full": names["full"].tolist(), "gathered": gathered, "gathers": len(names["compressed"].plans)}

    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
    for outcome in run_world(2, body, tmp_path, timeout_s=110):
        assert outcome["full"] == [0.0] * 1000 + [1.0] * 1000
        assert outcome["gathers"] == LAYERS + 1
        assert outcome["gathered"] > 0
    assert ChangeTrace.load(tmp_path / "0" / "trace.json").source == "OLMoE, learning rate 1e-4"
    assert not (tmp_path / "1" / "trace.json").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_memory_is_what_the_table_says(dtype: torch.dtype, tmp_path: Path) -> None:
    values, world = 10 * 512, 3
    exponents = layout_of(dtype).exponent_bytes(values)
    own = {"delta": exponents, "auto": exponents, "block": 32 * values // 512}

    def body(context: Context) -> dict[str, int]:
        found = {}
        for mode in own:
            plan = GatherPlan.single(values, dtype, CodingSettings(mode))  # type: ignore[arg-type]  # the three modes
            gather = CompressedGather(plan, context.group.data)
            found[mode] = gather.state_bytes
            gather.close()
        return found

    expected = {mode: (world - 1) * exponents + size for mode, size in own.items()}
    assert run_world(world, body, tmp_path) == [expected] * world


def test_the_page_names_what_the_code_does() -> None:
    from ciera_piper_core.allgather.fsdp_groups import KNOWN_TORCH
    from ciera_piper_core.exponents.backend import BACKENDS

    assert INSTALL in PAGE
    assert FILE_VARIABLE in PAGE
    assert all(f"torch {version}" in PAGE for version in KNOWN_TORCH)
    assert all(f"| `{name}` |" in PAGE for name in BACKENDS)
    assert dist.is_available()
