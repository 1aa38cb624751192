"""The largest matrix product rate that the device reaches, by dtype: what MFU is measured against.

Square, deep and wide products of the same number of operations; operands rotate through more memory
than the caches hold, so that no product finds its inputs warm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from bench.suite import Axis
from suites.compute import DTYPE, DTYPES, THREADS, ComputeSuite, ThreadedWorkload, item_bytes, rotation
from suites.tensors import count_wrong, fill, row_scale, tolerance, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from bench.suite import Case, Context, Preset, Site, Value

CHECKED_ROWS = 64
MOST_SETS = 8
"""Copies of the operands at most: large ones leave the caches by themselves."""


def dimensions(shape: str, size: int) -> tuple[int, int, int]:
    """``(m, n, k)`` of the product ``(m, k) @ (k, n)``; each shape has ``2 * size**3`` operations.

    Deep sums over a long k, as gradients of weights do; wide has many rows, as tokens times weights.
    """
    return {
        "square": (size, size, size),
        "deep": (size // 2, size // 2, 4 * size),
        "wide": (4 * size, size // 2, size // 2),
    }[shape]


class MatmulPeakSuite(ComputeSuite):
    """One product a case, all operands from memory."""

    name: ClassVar[str] = "matmul_peak"
    summary: ClassVar[str] = "largest reachable matrix product rate, by dtype and shape"
    method_version: ClassVar[int] = 1
    characterizes: ClassVar[bool] = True
    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("dtype", "str", f"{DTYPE.help}; float8 gives bfloat16", (*DTYPES, "float8_e4m3fn")),
        Axis("size", "int", "edge of the square product; even", minimum=2),
        Axis("shape", "str", "square, deep (long k) or wide (many rows)", ("square", "deep", "wide")),
        THREADS,
    )
    presets: ClassVar[Mapping[Preset, Mapping[str, Sequence[Value]]]] = {
        "quick": {"dtype": DTYPES, "size": (2048,), "shape": ("square", "deep", "wide"), "threads": (0,)},
        "standard": {
            "dtype": (*DTYPES, "float8_e4m3fn"),
            "size": (1024, 2048, 4096, 8192),
            "shape": ("square", "deep", "wide"),
            "threads": (0,),
        },
        "full": {
            "dtype": (*DTYPES, "float8_e4m3fn"),
            "size": (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
            "shape": ("square", "deep", "wide"),
            "threads": (0, 1),
        },
    }

    def cases(self, preset: Preset, overrides: Mapping[str, Sequence[Value]]) -> Iterable[Case]:
        for case in super().cases(preset, overrides):
            m, n, k = dimensions(case["shape"], case["size"])
            yield type(case)({**case.params, "m": m, "n": n, "k": k})

    def keeps(self, case: Case) -> bool:
        return int(case["size"]) % 2 == 0

    def flops(self, case: Case) -> int:
        return 2 * int(case["m"]) * int(case["n"]) * int(case["k"])

    def memory_bytes(self, case: Case, site: Site) -> int:
        # The check's double precision rows and columns are small beside the rotated sets.
        check = 8 * CHECKED_ROWS * 2 * int(case["k"])
        return _sets(case) * _set_bytes(case) + check

    def setup(self, case: Case, context: Context) -> _Product:
        return _Product(self, case, context)


def _set_bytes(case: Case) -> int:
    """Bytes of both operands and the result."""
    m, n, k = (int(case[name]) for name in ("m", "n", "k"))
    return item_bytes(case) * (m * k + k * n) + max(2, item_bytes(case)) * m * n


def _sets(case: Case) -> int:
    return min(MOST_SETS, rotation(_set_bytes(case)))


class _Product(ThreadedWorkload):
    """``c = a @ b.T`` with ``a`` of ``(m, k)`` and ``b`` of ``(n, k)``, the layout of a linear layer."""

    def __init__(self, suite: MatmulPeakSuite, case: Case, context: Context) -> None:
        import torch

        super().__init__(case, context.site)
        self.work = suite.work(case, context.site)
        dtype, device = torch_dtype(case["dtype"]), context.site.device
        self._out_dtype = torch.bfloat16 if case["dtype"].startswith("float8") else dtype
        m, n, k, seed = case["m"], case["n"], case["k"], context.site.seed
        self._sets = [
            (
                fill(torch.empty(m, k, dtype=dtype, device=device), seed + 3 * index),
                fill(torch.empty(n, k, dtype=dtype, device=device), seed + 3 * index + 1, k**-0.5),
                # NaN until a product overwrites it: the check would see one that never ran.
                torch.full((m, n), torch.nan, dtype=self._out_dtype, device=device),
            )
            for index in range(_sets(case))
        ]
        self._current = 0
        self._one = torch.ones((), device=device)

    def prepare(self) -> None:
        self._current = (self._current + 1) % len(self._sets)

    def run(self) -> None:
        import torch

        a, b, c = self._sets[self._current]
        if a.dtype == c.dtype:
            torch.mm(a, b.T, out=c)
        else:
            self._sets[self._current] = (a, b, self._scaled(a, b))

    def _scaled(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The product of float8 operands, each with one scale."""
        from torch.nn.functional import ScalingType, scaled_mm

        whole = ScalingType.TensorWise
        return scaled_mm(a, b.T, self._one, whole, self._one, whole, output_dtype=self._out_dtype)

    def check(self) -> int:
        """Wrong elements of the last product, in a grid of rows and columns over all of it."""
        a, b, c = self._sets[self._current]
        rows, columns = _spread(a.shape[0]), _spread(b.shape[0])
        expected = a[rows].double() @ b[columns].double().T
        allowed = tolerance(self._out_dtype, a.shape[1])
        return count_wrong(c[rows][:, columns], expected, allowed, scale=row_scale(expected))


def _spread(length: int) -> list[int]:
    """Indices from the first to the last of ``length``, in irregular steps; a set that needs no seed."""
    if length <= CHECKED_ROWS:
        return list(range(length))
    step = length / (CHECKED_ROWS - 1)
    return sorted({min(length - 1, int(index * step) + index % 3) for index in range(CHECKED_ROWS)})
