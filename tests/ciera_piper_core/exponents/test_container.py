"""Whole tensors: every type, shape and view comes back bit for bit, and changed bytes are an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ciera_piper_core.exponents import container
from ciera_piper_core.exponents.backend import Backend, BackendUnavailableError, default_backend
from ciera_piper_core.exponents.coding import CodedDataError
from ciera_piper_core.exponents.container import PART_VALUES, compress, decompress
from ciera_piper_core.exponents.container_format import ContainerFormat
from ciera_piper_core.exponents.host_coder import HostCoder
from ciera_piper_core.exponents.layout import BF16, FP32, LAYOUTS, FloatLayout
from tests.ciera_piper_core.exponents.samples import IDS, every_pattern, random_bits, weights


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that a few thousand values make several."""
    monkeypatch.setattr(container, "PART_VALUES", 1024)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def comes_back(tensor: torch.Tensor, used: Backend | None = None) -> torch.Tensor:
    """The coded bytes, once they were decoded and compared."""
    before = raw(tensor).clone()
    coded = compress(tensor, used)
    assert torch.equal(raw(tensor), before)
    assert coded.untyped_storage().nbytes() == coded.numel()
    decoded = decompress(coded, used)
    assert decoded.dtype is tensor.dtype
    assert decoded.shape == tensor.shape
    assert torch.equal(raw(decoded), before)
    return coded


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 7), (0, 4), (2, 0, 3), (1025,), (1,) * 12])
def test_every_shape_comes_back(layout: FloatLayout, shape: tuple[int, ...]) -> None:
    comes_back((torch.randn(shape) * 0.02).to(layout.dtype))


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("values", [1023, 1024, 1025, 2048, 2049, 4096, 7000, 20_000])
@pytest.mark.usefixtures("small_parts")
def test_parts_and_groups_join_without_gaps(layout: FloatLayout, values: int) -> None:
    comes_back(weights(layout, values).view(layout.dtype))


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.usefixtures("small_parts")
def test_every_pattern_and_constants_come_back(layout: FloatLayout) -> None:
    comes_back(every_pattern(layout).view(layout.dtype))
    comes_back(torch.zeros(5001, dtype=layout.dtype))
    comes_back(torch.full((5001,), float("nan"), dtype=layout.dtype))


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
def test_views_with_gaps_and_offsets_come_back(layout: FloatLayout) -> None:
    base = weights(layout, 60 * 70).view(layout.dtype).view(60, 70)
    for view in (base.t(), base[::2], base[:, 3:9], base.flatten()[1:], base.flatten()[7:-3]):
        comes_back(view)
    comes_back(base.clone().requires_grad_().detach())
    assert decompress(compress(base.clone().requires_grad_())).requires_grad is False


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.usefixtures("small_parts")
def test_the_bytes_do_not_depend_on_threads(layout: FloatLayout) -> None:
    tensor = weights(layout, 20_000).view(layout.dtype)
    one, two = default_backend(threads=1), default_backend(threads=2)
    assert torch.equal(comes_back(tensor, one), comes_back(tensor, two))


@pytest.mark.parametrize("layout", LAYOUTS, ids=IDS)
@pytest.mark.parametrize("values", [0, 1, 100, 1024, 5000])
@pytest.mark.usefixtures("small_parts")
def test_what_cannot_be_compressed_hardly_grows(layout: FloatLayout, values: int) -> None:
    coded = compress(random_bits(layout, values).view(layout.dtype))
    assert coded.numel() <= values * layout.value_bytes + 48 + 64 * -(-values // 1024)


def test_weights_shrink_to_their_entropy() -> None:
    tensor = weights(BF16, 2**20).view(torch.bfloat16)
    # 7.97 + 2.55 of 16 bits are information, see the figures of the research: 0.659.
    assert comes_back(tensor).numel() / raw(tensor).numel() < 0.668


@settings(max_examples=80, deadline=None)
@given(
    place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), near_front=st.booleans(), seed=st.integers(0, 99)
)
def test_changed_bytes_are_an_error_or_do_no_harm(place: float, flip: int, near_front: bool, seed: int) -> None:
    """Only padding and a coder's unused bits may change without harm."""
    tensor = weights(BF16, 1500, seed).view(torch.bfloat16)
    coded = compress(tensor).clone()
    coded[int(place * (64 if near_front else coded.numel()))] ^= flip
    try:
        decoded = decompress(coded)
    except CodedDataError:
        return
    assert torch.equal(raw(decoded), raw(tensor))


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 1600), data=st.binary(max_size=200))
def test_cut_and_foreign_bytes_are_an_error(length: int, data: bytes) -> None:
    coded = compress(weights(BF16, 1000).view(torch.bfloat16))
    if length < coded.numel():
        with pytest.raises(CodedDataError):
            decompress(coded[:length])
    with pytest.raises(CodedDataError):
        decompress(torch.cat([coded, torch.zeros(16, dtype=torch.uint8)]))
    with pytest.raises(CodedDataError):
        decompress(torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else coded[:0])


def test_what_cannot_be_coded_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"torch\.int32 cannot be coded"):
        compress(torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="blocks of 100 values"):
        compress(torch.zeros(3), block=100)
    with pytest.raises(ValueError, match=r"flat uint8, not torch\.float32"):
        decompress(torch.zeros(100))


@pytest.mark.parametrize("shape", [(0, 2**63), (2**64 - 1, 0), (2**62, 2**62, 0)])
def test_a_shape_that_no_tensor_has_is_an_error(shape: tuple[int, ...]) -> None:
    described = ContainerFormat(FP32, default_backend().coder.code, shape, 512, PART_VALUES)
    coded = torch.frombuffer(bytearray(described.front_to_bytes([])), dtype=torch.uint8)
    with pytest.raises(CodedDataError, match="impossible shape"):
        decompress(coded)


def test_bytes_of_another_coder_are_refused_by_name() -> None:
    usual = default_backend()
    coder = HostCoder(usual.coder)
    coder.code = 201
    other = replace(usual, coder=coder)
    coded = compress(torch.ones(100), other)
    assert torch.equal(decompress(coded, other), torch.ones(100))
    for asked in (None, usual):
        with pytest.raises(BackendUnavailableError, match="coded in format 201"):
            decompress(coded, asked)
