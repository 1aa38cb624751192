"""What each tool needs, and how a rank is started below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.launch.site import local_site
from bench.profiling import tools
from bench.profiling.settings import TOOLS, ProfileSettings
from bench.profiling.tools import WRAPPING, require_tool, wrapper


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.shutil, "which", lambda name: None)
    monkeypatch.setattr(tools, "py_spy_path", lambda: None)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("nsys", "no program nsys on PATH; it comes with NVIDIA Nsight Systems"),
        ("ncu", "no program ncu on PATH; it comes with NVIDIA Nsight Compute"),
        ("py-spy", "pip install py-spy"),
    ],
)
def test_a_missing_tool_is_named_in_one_line(tool: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        require_tool(tool, "cuda")  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_what_is_there_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.shutil, "which", lambda name: f"/usr/bin/{name}")
    for tool in TOOLS:
        require_tool(tool, "cuda")
    with pytest.raises(UsageError, match="profiles GPU kernels"):
        require_tool("ncu", "cpu")


def test_commands_of_the_wrapping_tools() -> None:
    site, command = local_site(1, 2, "cpu", 0), ["python", "-m", "worker"]
    assert [tool for tool in TOOLS if wrapper(tool, Path("/o"), "cpu")] == list(WRAPPING)
    for tool, device, report in (("nsys", "cuda", "rank1.nsys-rep"), ("ncu", "cuda", "rank1.ncu-rep")):
        wrapped = wrapper(tool, Path("/out"), device)  # type: ignore[arg-type]
        assert wrapped is not None
        line = wrapped(site, command)
        assert line[0] == tool
        assert line[-3:] == command
        assert any(word.endswith(f"=/out/{report}") for word in line)
    on_host = wrapper("nsys", Path("/out"), "cpu")
    assert on_host is not None
    assert not any("capture-range" in word for word in on_host(site, command)), "nothing would ever start it"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tool": "perf"}, "--with takes torch, py-spy, nsys, ncu, not 'perf'"),
        ({"iterations": 0}, "--iterations"),
        ({"seconds": float("nan")}, "--seconds"),
        ({"seconds": 0.5}, "--seconds"),
    ],
)
def test_settings_are_checked(changed: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ProfileSettings(**{"tool": "torch", "folder": "x", **changed})  # type: ignore[arg-type]
