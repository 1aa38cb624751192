"""The lab's shape, its life, and what runs in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench
from bench.errors import LaunchError, UsageError
from bench.launch import lab as lab_module
from bench.launch.lab import Lab, LabShape, unavailable_reason
from bench.launch.lab_holder import processes_in
from tests.bench.launch.lab_traffic import transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = LabShape(nodes=2, ranks_per_node=1, rate_bits_per_s=10**8)
REPOSITORY = Path(bench.__file__).parent.parent

needs_lab = [pytest.mark.lab, pytest.mark.usefixtures("lab_available")]


class TestShape:
    @given(
        nodes=st.integers(1, 1000),
        ranks_per_node=st.integers(1, 10**6),
        rate=st.integers(10**6, 10**12),
        delay_us=st.integers(0, 10**6),
    )
    def test_text_gives_the_same_shape_again(self, nodes: int, ranks_per_node: int, rate: int, delay_us: int) -> None:
        shape = LabShape(nodes, ranks_per_node, rate, delay_us)
        assert LabShape.parse(str(shape)) == shape
        assert shape.world == nodes * ranks_per_node

    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("nodes=4,ranks-per-node=2,rate=1gbit", "nodes=4,ranks-per-node=2,rate=1gbit"),
            (" rate=1000mbit , nodes=4,ranks-per-node=2", "nodes=4,ranks-per-node=2,rate=1gbit"),
            (
                "nodes=1,ranks-per-node=1,rate=2.5gbit,delay=1.5ms",
                "nodes=1,ranks-per-node=1,rate=2500mbit,delay=1500us",
            ),
            ("nodes=1,ranks-per-node=1,rate=1gbit,delay=0us", "nodes=1,ranks-per-node=1,rate=1gbit"),
        ],
    )
    def test_text_has_one_canonical_form(self, text: str, canonical: str) -> None:
        assert str(LabShape.parse(text)) == canonical

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("nodes=4,ranks=2,rate=1gbit", "unknown key 'ranks' .* known: nodes, ranks-per-node, rate, delay"),
            ("", "unknown key ''"),
            ("nodes=4,ranks-per-node=2", "lacks rate; write for example nodes="),
            ("rate=1gbit", "lacks nodes and ranks-per-node"),
            ("nodes=4,nodes=5,ranks-per-node=2,rate=1gbit", "nodes is given twice"),
            ("nodes,ranks-per-node=2,rate=1gbit", "nodes has no value"),
            ("nodes=two,ranks-per-node=2,rate=1gbit", "nodes in a lab takes a whole number, not 'two'"),
            ("nodes=-1,ranks-per-node=2,rate=1gbit", "takes a whole number, not '-1'"),
            ("nodes=0,ranks-per-node=2,rate=1gbit", "a lab has 1 to 1000 nodes, not 0"),
            ("nodes=2000,ranks-per-node=2,rate=1gbit", "a lab has 1 to 1000 nodes, not 2000"),
            ("nodes=2,ranks-per-node=0,rate=1gbit", "needs at least 1 rank"),
            ("nodes=2,ranks-per-node=1,rate=fast", "'fast' is not a link rate"),
            ("nodes=2,ranks-per-node=1,rate=1kbit", "from 1mbit to 1tbit, not 1kbit"),
            ("nodes=2,ranks-per-node=1,rate=1gbit,delay=100", "'100' is not a delay; write for example 100us"),
            ("nodes=2,ranks-per-node=1,rate=1gbit,delay=2s", "from 0us to 1s, not 2000000us"),
        ],
    )
    def test_nonsense_is_refused_in_one_line(self, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            LabShape.parse(text)
        assert "\n" not in str(caught.value)


class TestLife:
    pytestmark = needs_lab

    def test_the_host_keeps_its_network(self) -> None:
        before = _host_network()
        with Lab(SMALL):
            assert _host_network() == before
        assert _host_network() == before

    def test_every_node_has_its_address_and_a_link(self) -> None:
        with Lab(LabShape(nodes=3, ranks_per_node=1, rate_bits_per_s=10**9)) as lab:
            for node in range(3):
                said = _run(lab, node, ["ip", "-brief", "address"])
                assert f"{lab.node_address(node)}/16" in said
                assert lab.node_interface(node) in said
                assert len(said.splitlines()) == 2  # loopback and the link, nothing of the host

    def test_all_that_runs_in_it_ends_with_it(self) -> None:
        with Lab(SMALL) as lab:
            left = subprocess.Popen(lab.node_command(0, ["sleep", "1000"]), start_new_session=True)
            namespaces = {_namespace(lab, node) for node in range(2)}
            assert left.poll() is None
        assert left.wait(timeout=5) < 0
        assert processes_in(namespaces) == []

    def test_what_is_just_about_to_enter_ends_too(self) -> None:
        for _ in range(10):
            with Lab(SMALL) as lab:
                entering = [subprocess.Popen(lab.node_command(node, ["sleep", "1000"])) for node in (0, 1, 0, 1)]
            assert all(process.wait(timeout=5) != 0 for process in entering)

    def test_an_exception_removes_it_too(self) -> None:
        class ItWentWrongError(Exception):
            pass

        def fail() -> None:
            with Lab(SMALL) as lab:
                namespaces.add(_namespace(lab, 0))
                raise ItWentWrongError

        namespaces: set[int] = set()
        with pytest.raises(ItWentWrongError):
            fail()
        assert processes_in(namespaces) == []

    def test_it_can_be_closed_twice_and_gives_no_command_afterwards(self) -> None:
        with Lab(SMALL) as lab:
            lab.close()
            with pytest.raises(LaunchError, match="the lab is not running"):
                lab.node_command(0, ["true"])

    def test_a_dead_holder_is_reported(self) -> None:
        with Lab(SMALL) as lab:
            holder = _holder(lab)
            os.kill(holder, 9)
            _wait_until(lambda: _state(holder) == "Z")
            with pytest.raises(LaunchError, match=f"holder, process {holder}, has ended"):
                lab.node_command(0, ["true"])

    def test_two_at_once_do_not_meet(self) -> None:
        with Lab(SMALL) as one, Lab(SMALL) as other:
            assert _namespace(one, 0) != _namespace(other, 0)
            one.close()
            assert transfers(other, [(0, 1)], [1000])[0][0].seconds > 0

    def test_unknown_nodes_are_refused(self) -> None:
        with Lab(SMALL) as lab:
            for node in (-1, 2):
                with pytest.raises(ValueError, match=f"no node {node} in a lab of 2"):
                    lab.node_command(node, ["true"])

    def test_doctor_finds_nothing_missing(self) -> None:
        assert unavailable_reason() is None

    def test_delay_is_there_or_refused_by_name(self) -> None:
        delayed = LabShape(nodes=2, ranks_per_node=1, rate_bits_per_s=10**9, delay_us=20_000)
        try:
            with Lab(delayed) as lab:
                there_and_back = transfers(lab, [(0, 1)], [1, 1, 1])[0]
                assert min(transfer.seconds for transfer in there_and_back) >= 0.04
        except LaunchError as error:
            assert str(error) == (  # noqa: PT017
                "cannot build the lab: this kernel lacks sch_netem, which makes delays; drop delay= from --lab"
            )


class TestNodeCommand:
    pytestmark = needs_lab

    def test_the_process_keeps_what_its_caller_gave_it(self, tmp_path: Path) -> None:
        report = (
            "import os, sys; print(os.getpid(), os.getcwd(), os.environ['GIVEN'], sys.stdin.read(), sep='\\n');"
            "os.write(int(sys.argv[1]), b'through the pipe')"
        )
        reader, writer = os.pipe()
        with Lab(SMALL) as lab:
            process = subprocess.Popen(
                lab.node_command(1, [sys.executable, "-c", report, str(writer)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env={**os.environ, "GIVEN": "a value"},
                pass_fds=(writer,),
            )
            said = process.communicate("typed", timeout=30)[0]
        os.close(writer)
        with open(reader, "rb") as pipe:
            assert pipe.read() == b"through the pipe"
        assert said.splitlines() == [str(process.pid), str(tmp_path), "a value", "typed"]


class TestRefusal:
    def test_a_missing_tool_is_named_with_its_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for tool in ("ip", "nsenter", "env"):
            (tmp_path / tool).symlink_to("/bin/true")
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(lab_module, "ADMIN_PATHS", (str(tmp_path),))
        message = "a lab needs the program 'tc', which is not installed; run: apt install iproute2"
        assert unavailable_reason() == message
        with pytest.raises(LaunchError) as caught, Lab(SMALL):
            pass
        assert str(caught.value) == message

    @pytest.mark.lab
    @pytest.mark.usefixtures("lab_available")
    @pytest.mark.parametrize(
        ("limit", "surroundings", "message"),
        [
            ("max_net_namespaces", [], "cannot build the lab: the kernel refuses a network namespace: "),
            (
                "max_user_namespaces",
                ["setpriv", "--bounding-set=-all"],
                "cannot build the lab: the kernel refuses a user namespace: No space left on device;"
                " run as root, or first as root: sysctl -w user.max_user_namespaces=10000",
            ),
        ],
    )
    def test_the_kernel_says_no(self, limit: str, surroundings: list[str], message: str) -> None:
        """Inside a user namespace the limits can be set to zero for real, and harm nobody."""
        python = [sys.executable, "-c", "from bench.launch.lab import unavailable_reason; print(unavailable_reason())"]
        script = f'echo 0 > /proc/sys/user/{limit}; exec "$@"'
        said = subprocess.run(
            ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *surroundings, *python],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.stdout.startswith(message), said.stderr


@pytest.fixture
def as_nobody() -> Iterator[tuple[list[str], Path]]:
    """A command prefix that runs Python as an unprivileged user, and a folder with the harness that it can read."""
    if os.geteuid() != 0:
        pytest.skip("the whole of this module runs without root already")
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    fit = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        # Through a shell: setpriv itself still has root's way around permissions when it starts a program.
        tried = subprocess.run([*drop, "sh", "-c", f'{python} -c "{fit}"'], capture_output=True, check=False)
        if tried.returncode == 0:
            break
    else:
        pytest.skip("no Python that an unprivileged user may run")
    with tempfile.TemporaryDirectory(prefix="lab-as-nobody-") as folder:
        shutil.copytree(REPOSITORY / "bench", Path(folder) / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(__file__).with_name("lab_traffic.py"), folder)
        os.chmod(folder, 0o755)
        yield [*drop, "env", f"PYTHONPATH={folder}", python], Path(folder)


class TestWithoutRoot:
    pytestmark = needs_lab

    def test_a_user_namespace_serves(self, as_nobody: tuple[list[str], Path]) -> None:
        prefix, folder = as_nobody
        script = """
import os, subprocess
from bench.launch.lab import Lab, LabShape, remove_leftovers
from lab_traffic import transfers

with Lab(LabShape(nodes=2, ranks_per_node=2, rate_bits_per_s=10**8)) as lab:
    there, inside = transfers(lab, [(0, 1), (0, 0)], [1_000_000] * 3)
    assert min(transfer.seconds for transfer in there) > 0.07, there
    assert min(transfer.seconds for transfer in inside) < 0.07, inside
    assert remove_leftovers() == []
    left = subprocess.Popen(lab.node_command(1, ["sleep", "1000"]))
assert left.wait(timeout=5) != 0
print(os.geteuid())
"""
        said = subprocess.run([*prefix, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
        assert said.stdout == "65534\n", said.stderr


def _run(lab: Lab, node: int, argv: list[str]) -> str:
    return subprocess.run(lab.node_command(node, argv), capture_output=True, text=True, check=True).stdout


def _namespace(lab: Lab, node: int) -> int:
    return int(_run(lab, node, ["stat", "--dereference", "--format=%i", "/proc/self/ns/net"]))


def _holder(lab: Lab) -> int:
    path = next(part for part in lab.node_command(0, []) if part.startswith("--net="))
    return int(path.split("/")[2])


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def _host_network() -> str:
    listing = [["ip", "-oneline", "link"], ["ip", "-oneline", "address"], ["ip", "netns"]]
    return "".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in listing)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
