"""The policy file: what it says, what it refuses, and that it survives being written out."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.policy import Match, Policy, Required, Rule, Settings, Waiver, parse_policy, read_policy

HEAD = "schema_version = 1\n"
HUGE = "0x" + "f" * 5000
ROOT = Path(__file__).resolve().parents[2]


def test_the_shipped_policy_is_well_formed() -> None:
    policy = read_policy(ROOT / "ci" / "policy.toml")
    assert policy.settings("collectives", "busbw", {}).judge is False
    assert policy.settings("collectives", "latency", {"bytes": 4096}).minimum_effect == 0.2
    assert (
        policy.settings("collectives", "latency", {"bytes": 1 << 20}).minimum_effect == policy.defaults.minimum_effect
    )


def test_the_shipped_policy_says_the_built_in_defaults_but_requires_confirmation() -> None:
    shipped, plain = read_policy(ROOT / "ci" / "policy.toml"), Policy()
    assert (shipped.confirmation, plain.confirmation) == ("required", "when_possible")
    names = ("defaults", "significance", "inconclusive", "maximum_noise")
    assert {name: getattr(shipped, name) for name in names} == {name: getattr(plain, name) for name in names}


def test_of_two_rules_the_later_wins_and_what_it_leaves_out_stays() -> None:
    text = """
        [defaults]
        minimum_effect = 0.03
        [[rule]]
        suite = "mem*"
        minimum_effect = 0.1
        better = "higher"
        [[rule]]
        metric = "bandwidth"
        where = { threads = 2 }
        minimum_effect = 0.2
    """
    policy = parse_policy(HEAD + text, "here")
    assert policy.settings("memory", "bandwidth", {"threads": 1}) == Settings(0.1, "higher")
    assert policy.settings("memory", "bandwidth", {"threads": 2}) == Settings(0.2, "higher")
    assert policy.settings("self", "bandwidth", {"threads": 2}) == Settings(0.2)
    assert policy.settings("self", "latency", {}) == Settings(0.03)


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("1MiB", 1 << 20, True),
        ("1048576", 1 << 20, True),
        ("?KiB", 1024, True),
        ("?KiB", 16384, False),
        ("*KiB", 16384, True),
        ("true", True, True),
        ("True", True, False),
        ("1", True, False),
        ("0.5", 0.5, True),
    ],
)
def test_a_pattern_meets_values_as_rows_and_as_tables_have_them(pattern: str, value: Any, fits: bool) -> None:
    assert Match(where={"bytes": pattern}).covers("any", "any", {"bytes": value}) is fits


def test_a_case_without_the_parameter_does_not_match() -> None:
    assert not Match(where={"bytes": "*"}).covers("any", "any", {"op": "x"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("signifcance = 0.1", "unknown key 'signifcance'; did you mean 'significance'?"),
        ("[defaults]\nminimum_efect = 0.1", "unknown key 'minimum_efect' in defaults; did you mean 'minimum_effect'?"),
        ("[[rule]]\nsuite = 'a'\nzzz = 1", "unknown key 'zzz' in rule 1; known: suite, metric, where"),
        ("[[waiver]]\nsuite = 'a'\nexpire = 2027-01-01", "unknown key 'expire' in waiver 1; did you mean 'expires'?"),
        ("significance = 0.9", "significance needs a number from 1e-06 to 0.2, not 0.9"),
        ("significance = true", "significance needs a number"),
        ("significance = nan", "significance needs a number"),
        ("maximum_noise = 0", "maximum_noise needs a number from 0.001 to 10, not 0"),
        ("confirmation = 'never'", "confirmation needs 'when_possible' or 'required', not 'never'"),
        ("inconclusive = 'error'", "inconclusive needs 'skipped' or 'failure'"),
        ("[defaults]\nminimum_effect = -0.1", "minimum_effect in defaults needs a number from 0 to 10, not -0.1"),
        ("[defaults]\nbetter = 'up'", "better in defaults needs 'lower' or 'higher', not 'up'"),
        ("[defaults]\njudge = 1", "judge in defaults needs true or false, not 1"),
        ("[rule]\nsuite = 'a'", "rule needs tables; write [[rule]]"),
        ("rule = [1]", "rule 1 must be a table"),
        ("[[rule]]\nminimum_effect = 0.1", "rule 1 matches everything"),
        ("[[rule]]\nsuite = 'a'", "what the rule says in rule 1 is missing"),
        ("[[rule]]\nsuite = 3\njudge = true", "suite in rule 1 needs a text, not 3"),
        ("[[rule]]\nwhere = 3\njudge = true", "where must be a table"),
        ("[[rule]]\nwhere = { op = [1] }\njudge = true", "op in where needs a pattern or a value"),
        ("[[required]]\nsuite = 'a'\nminimum_effect = 1", "unknown key 'minimum_effect' in required 1"),
        ("[[waiver]]\nsuite = 'a'\nreason = 'x'", "expires in waiver 1 is missing"),
        ("[[waiver]]\nsuite = 'a'\nexpires = 2027-01-01", "reason in waiver 1 is missing"),
        ("[[waiver]]\nsuite = 'a'\nexpires = 2027-01-01\nreason = ' '", "reason in waiver 1 is missing"),
        ("[[waiver]]\nsuite = 'a'\nexpires = '2027-01-01'\nreason = 'x'", "expires in waiver 1 needs a day"),
        ("[[waiver]]\nsuite = 'a'\nexpires = 2027-01-01T10:00:00\nreason = 'x'", "expires in waiver 1 needs a day"),
        (
            "[[waiver]]\nsuite = 'a'\nexpires = 2027-01-01\nreason = 'x'\nverdicts = ['missing']",
            "verdicts in waiver 1 needs some of regressed, inconclusive, not ['missing']",
        ),
        ("=", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy(HEAD + text, "ci/policy.toml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("ci/policy.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"significance = {'9' * 6000}", "a whole number has thousands of digits"),
        (f"significance = {HUGE}", "significance needs a number from 1e-06 to 0.2, not a number of thousands"),
        (f"confirmation = {HUGE}", "confirmation needs 'when_possible' or 'required', not a number of thousands"),
        (f"rule = [{HUGE}]", "rule 1 must be a table, not a number of thousands"),
        (f"[[required]]\nwhere = {{ a = {'9' * 400} }}", "a in where needs a pattern or a value, not 9999"),
        (f"[[required]]\nwhere = {{ a = {HUGE} }}", "a in where needs a pattern or a value, not a number of thousands"),
        (f'significance = "{"x" * 10_000}"', "significance needs a number"),
        (f'"{"k" * 10_000}" = 1', "unknown key 'kkk"),
    ],
    ids=range(8),
)
def test_what_is_huge_is_refused_in_one_short_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_policy(f"{HEAD}{text}\n", "here")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_a_huge_version_is_not_known() -> None:
    with pytest.raises(UsageError, match="schema_version a number of thousands of digits is not known"):
        parse_policy(f"schema_version = {HUGE}", "here")


def test_the_version_must_be_there_and_known() -> None:
    with pytest.raises(UsageError, match="schema_version is missing"):
        parse_policy("", "here")
    with pytest.raises(UsageError, match="schema_version 2 is not known; this program reads 1"):
        parse_policy("schema_version = 2", "here")
    with pytest.raises(UsageError, match="needs a whole number"):
        parse_policy("schema_version = true", "here")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the policy .*nowhere.toml: No such file"):
        read_policy(tmp_path / "nowhere.toml")
    (tmp_path / "latin").write_bytes(b"# \xff\n")
    with pytest.raises(UsageError, match="cannot read the policy"):
        read_policy(tmp_path / "latin")


def test_a_waiver_holds_on_its_last_day_and_no_longer() -> None:
    waiver = Waiver(Match(), date(2027, 1, 31), "why")
    assert not waiver.expired(date(2027, 1, 31))
    assert waiver.expired(date(2027, 2, 1))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
MATCHES = st.builds(Match, TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3))
EFFECTS = st.floats(0, 10)
RULES = st.builds(Rule, MATCHES, EFFECTS, st.none() | st.sampled_from(["lower", "higher"]), st.none() | st.booleans())
WAIVERS = st.builds(
    Waiver, MATCHES, st.dates(), TEXTS.filter(lambda text: text == text.strip() != ""), st.just(("regressed",))
)


@given(
    policy=st.builds(
        Policy,
        source=st.just("here"),
        defaults=st.builds(Settings, EFFECTS, st.none() | st.sampled_from(["lower", "higher"]), st.booleans()),
        significance=st.floats(1e-6, 0.2),
        confirmation=st.sampled_from(["when_possible", "required"]),
        inconclusive=st.sampled_from(["skipped", "failure"]),
        maximum_noise=st.floats(0.001, 10),
        rules=st.lists(RULES, max_size=3).map(tuple),
        required=st.lists(st.builds(Required, MATCHES), max_size=2).map(tuple),
        waivers=st.lists(WAIVERS, max_size=2).map(tuple),
    )
)
def test_a_dumped_policy_reads_back_as_the_same(policy: Policy) -> None:
    assert parse_policy(policy.to_toml(), "here") == policy


@given(st.text(max_size=200))
def test_no_text_ends_in_anything_but_one_clear_line(text: str) -> None:
    message = "here: "
    try:
        parse_policy(text, "here")
    except UsageError as error:
        message = str(error)
    assert message.startswith("here: ")
