"""Names of collectives, as the libraries and versions write them."""

from __future__ import annotations

import pytest

from bench.trace.collectives import COLLECTIVES, collective_of, host_collective, is_communication_kernel


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)", "reduce_scatter"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgs)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgs)", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "p2p"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgs)", "other"),
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("alltoall_base", "all_to_all"),
        ("recv_", "p2p"),
        ("", "other"),
    ],
)
def test_collectives_by_name(name: str, expected: str) -> None:
    assert collective_of(name) == expected
    assert expected in COLLECTIVES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gloo:all_gather", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::recv_", "p2p"),
        ("gloo:barrier", "barrier"),
        ("aten::scatter_add_", None),
        ("moe:all_gather", None),
    ],
)
def test_ops_of_the_host(name: str, expected: str | None) -> None:
    assert host_collective(name) == expected


@pytest.mark.parametrize(
    ("name", "moves_data"),
    [
        ("ncclDevKernel_AllGather_RING_LL(x)", True),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", True),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", True),
        ("void vllm::cross_device_reduce_1stage<half, 8>(x)", True),
        ("void at::native::reduce_kernel<512, 1>(x)", False),
        ("void gather_kernel(x)", False),
        ("sm90_xmma_gemm_bf16bf16", False),
    ],
)
def test_kernels_that_move_data(name: str, moves_data: bool) -> None:
    assert is_communication_kernel(name) is moves_data
