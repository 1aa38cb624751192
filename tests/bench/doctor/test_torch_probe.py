"""What is said of a torch that works, that cannot be imported, that crashes, that hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.doctor.torch_probe import TorchProbe, probe_torch

if TYPE_CHECKING:
    from pathlib import Path


def break_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Put a torch of that source before the installed one, for processes that start from now on."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_the_installed_torch_works() -> None:
    import torch

    found = probe_torch()
    assert (found.version, found.error, found.gloo_error) == (torch.__version__, "", "")
    assert found.has_gloo
    assert len(found.devices) == torch.cuda.device_count()


def test_gloo_on_an_interface_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuchinterface0")
    found = probe_torch()
    assert found.version
    assert "nosuchinterface0" in found.gloo_error
    assert "\n" not in found.gloo_error


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "raise ImportError('libc10.so: cannot open\\n shared object file')",
            "ImportError: libc10.so: cannot open shared",
        ),
        ("import os; os.abort()", "status -6"),
        ("import sys; sys.exit('giving up')", "status 1: giving up"),
        ("import nosuchmodule", "No module named 'nosuchmodule'"),
    ],
)
def test_a_torch_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    break_torch(tmp_path, monkeypatch, source)
    found = probe_torch()
    assert reason in found.error
    assert found == TorchProbe(error=found.error)


def test_a_torch_whose_import_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_torch(tmp_path, monkeypatch, "import time; time.sleep(60)")
    assert probe_torch(timeout_s=1.0) == TorchProbe(error="its import did not end within 1 s")
