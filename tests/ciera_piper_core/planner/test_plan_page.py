"""What docs/plan.md lists is what the planner has."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

from ciera_piper_core.models.catalogue import names
from ciera_piper_core.models.hf import fields, read, supported_families
from ciera_piper_core.planner.candidates import CONSTRAINTS
from ciera_piper_core.planner.command import plan
from ciera_piper_core.planner.export import DEEPSPEED_VERSION, FORMATS, TORCHTITAN_VERSION
from ciera_piper_core.planner.strategy import MOST_SEQUENCES, MOST_TOKENS

PAGE = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
MODELS = PAGE.partition("## Models\n")[2].partition("\n## ")[0]


def quoted(paragraph: str) -> list[str]:
    return re.findall(r"`([^`]+)`", paragraph)


def test_the_catalogue_is_listed() -> None:
    assert quoted(MODELS.split("\n\n")[1]) == names()


def test_the_families_are_listed() -> None:
    assert quoted(MODELS.split("\n\n")[3]) == supported_families()


def test_the_bounds_are_said() -> None:
    said = " ".join(MODELS.split())
    assert f"{fields.MOST_LAYERS:,} layers, {fields.MOST_EXPERTS:,} experts" in said
    assert (fields.MOST_SIZE, read.MOST_PARAMETERS) == (2**24, 10**15)
    assert MOST_SEQUENCES == MOST_TOKENS == 2**24
    assert PAGE.count("2^24 at most") == 2


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("platform", "`{}`, the default"),
        ("gpus", "{} by default"),
        ("sequence", "{} by default"),
        ("optimizer", "`{}` (default)"),
        ("precision", "`{}` (default)"),
        ("convention", "`{}` (default)"),
    ],
)
def test_defaults_are_said(option: str, text: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `--") and f"--{option}" in line)
    assert text.format(signature(plan).parameters[option].default) in row


def test_constraints_and_formats_are_listed() -> None:
    assert all(f"`{name}`" in PAGE for name in (*CONSTRAINTS, *FORMATS))
    assert f"DeepSpeed {DEEPSPEED_VERSION}" in PAGE
    assert f"torchtitan {TORCHTITAN_VERSION}" in PAGE
