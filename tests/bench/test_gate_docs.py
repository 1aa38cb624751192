"""docs/gate.md says what the code does: every reason code, verdict, exit code and policy key, and no other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

from bench import errors
from bench.gate_result import GATE_REASONS, VERDICTS
from bench.policy import parse_policy
from bench.stats.judgement import ReasonCode

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "gate.md").read_text()
NEVER_HERE = {"no_candidate", "not_measured"}
"""Reasons of the statistics that the gate has words of its own for."""


def test_every_reason_code_is_explained() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \| [a-z, ]+ \|", TEXT, re.MULTILINE))
    assert explained == {*get_args(ReasonCode), *GATE_REASONS} - NEVER_HERE


def test_the_gates_reasons_are_those_in_its_code() -> None:
    sources = "".join((ROOT / "bench" / name).read_text() for name in ("gate.py", "gate_matching.py"))
    code = {*re.findall(r'"([a-z_]+)"', sources)}
    built = {"candidate_failed", "candidate_timeout", "candidate_invalid"}
    built |= {"other_method_version", "other_definition", "other_unit"}
    assert set(GATE_REASONS) - built <= code


def test_verdicts_and_exit_codes_are_all_there() -> None:
    tree = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)[0]
    assert [verdict for verdict in VERDICTS if verdict not in tree] == []
    codes = {int(code) for code in re.findall(r"^\| (\d) \|", TEXT, re.MULTILINE)} | {errors.EXIT_USAGE}
    assert codes == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def test_the_policy_shown_is_one() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    policy = parse_policy(shown, "docs/gate.md")
    assert (len(policy.rules), len(policy.required), len(policy.waivers)) == (1, 1, 1)
    keys = set(tomllib.loads(shown))
    assert keys == set(tomllib.loads(policy.to_toml())), "every key of the top is shown"
