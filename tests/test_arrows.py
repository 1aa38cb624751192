"""Holds the shape of the code: who may import whom, what may load at import time, how long a file may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bench", "ciera_piper_core", "suites")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SOURCES = [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))]
MOST_LINES = 500
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUITES = list(PROJECT["entry-points"]["bench.suites"].values())

SUITE_CONTRACT = {"bench.suite", "bench.definitions", "bench.errors"}
SUITE_TEST_CONTRACT = SUITE_CONTRACT | {"bench.registry", "bench.measure", "bench.launch.site"}
HEAVY = {"torch", "pandas", "duckdb", "plotly", "scipy"}
EXTRAS = ("gpu", "deepspeed", "compare", "test")
IMPORT_NAMES = {
    "triton": "triton",
    "nvidia-nvcomp-cu13": "nvidia",
    "nvidia-ml-py": "pynvml",
    "deepspeed": "deepspeed",
    "zipnn": "zipnn",
    "zstandard": "zstandard",
    "blosc2": "blosc2",
    "asv": "asv",
    "pyyaml": "yaml",
    "markdown-it-py": "markdown_it",
    "pytest": "pytest",
    "pytest-benchmark": "pytest_benchmark",
    "pytest-timeout": "pytest_timeout",
    "pytest-xdist": "xdist",
    "hypothesis": "hypothesis",
    "selenium": "selenium",
    "transformers": "transformers",
    "setuptools": "setuptools",
}
"""By distribution of an extra, the name that it is imported by."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(node: ast.AST) -> list[str]:
    """Absolute names of the modules that a statement imports; none if it is no import.

    ``from a import b`` gives both ``a`` and ``a.b``, since ``b`` may be a module.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: a relative import hides the arrow"
        return [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that importing the module runs: not those in functions, nor under TYPE_CHECKING."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            blocks[0] = []
        handlers = [handler.body for handler in getattr(statement, "handlers", [])]
        for block in (*blocks, *handlers):
            yield from run_at_import(block)


def within(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def may_import(path: Path, module: str) -> bool:
    """Whether the file may import the module, as far as the three packages go."""
    package = path.relative_to(ROOT).parts[0]
    if package != "suites":
        return not within(module, set(PACKAGES) - {package})
    if path == ROOT / "suites" / "compare_command.py":
        return True  # the verb that joins the harness's comparison with what a training is
    contract = SUITE_TEST_CONTRACT if path.name.startswith("test_") else SUITE_CONTRACT
    return not within(module, {"bench"}) or module == "bench" or within(module, contract)


def test_imports_follow_the_arrows() -> None:
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        for module in imported(node)
        if not may_import(path, module)
    ]
    assert wrong == []


def test_extras_are_not_imported_at_module_level() -> None:
    extras = set(IMPORT_NAMES.values())
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in MODULES
        if not path.name.startswith("test_")
        for node in run_at_import(ast.parse(path.read_text()).body)
        for module in imported(node)
        if within(module, extras)
    ]
    assert wrong == []


def test_every_extra_is_covered() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = {re.split(r"[<>=!;\[ ]", requirement)[0] for extra in EXTRAS for requirement in extras[extra]}
    assert declared == set(IMPORT_NAMES)
    assert set(extras) == {*EXTRAS, "lint"}


@pytest.mark.parametrize(
    "statement",
    [
        "import bench.cli",
        f"from bench.registry import load_suite\nfor name in {SUITES}: load_suite(name)",
    ],
    ids=["cli", "suites"],
)
def test_heavy_packages_load_only_when_needed(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], f"{done.stdout.split()} loaded by: {statement}"


def test_each_file_says_its_job_and_is_short() -> None:
    wrong = []
    for path in SOURCES:
        text = path.read_text()
        first_line = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        if not first_line.endswith("."):
            wrong.append(f"{name_of(path)}: the first line of its docstring is no sentence: {first_line!r}")
        if len(text.splitlines()) > MOST_LINES:
            wrong.append(f"{name_of(path)}: {len(text.splitlines())} lines; more than one job?")
    assert wrong == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", ["torch"]),
        ("if True:\n    import torch", ["torch"]),
        ("try:\n    import torch\nexcept ImportError:\n    import numpy", ["torch", "numpy"]),
        ("class A:\n    import torch", ["torch"]),
        ("def f():\n    import torch", []),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import numpy", ["numpy"]),
        ("from torch import nn", ["torch", "torch.nn"]),
    ],
)
def test_the_checker_sees_what_runs_at_import(source: str, expected: list[str]) -> None:
    assert [module for node in run_at_import(ast.parse(source).body) for module in imported(node)] == expected


@pytest.mark.parametrize(
    ("path", "module", "allowed"),
    [
        ("bench/cli.py", "bench.store.row", True),
        ("suites/compare_command.py", "bench.comparison.session", True),
        ("suites/end_to_end.py", "bench.comparison.session", False),
        ("bench/cli.py", "ciera_piper_core.models", False),
        ("bench/cli.py", "suites.memory", False),
        ("ciera_piper_core/ranges.py", "bench.suite", False),
        ("ciera_piper_core/ranges.py", "benchmarks", True),
        ("suites/memory.py", "bench.suite", True),
        ("suites/memory.py", "bench.suite.Suite", True),
        ("suites/memory.py", "bench.measure.sampling", False),
        ("suites/memory.py", "ciera_piper_core.models", True),
        ("suites/test_suites.py", "bench.measure.sampling", True),
        ("suites/test_suites.py", "bench.store", False),
    ],
)
def test_the_checker_knows_the_arrows(path: str, module: str, allowed: bool) -> None:
    assert may_import(ROOT / path, module) is allowed
