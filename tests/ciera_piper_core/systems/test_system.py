"""Tests of what all systems share: how they are written on the command line, their options, and how they are found."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from ciera_piper_core import systems
from ciera_piper_core.systems import load_system, system_names
from ciera_piper_core.systems.plain import Plain
from ciera_piper_core.systems.system import Option, parse_options, parse_system


class Optioned(Plain):
    """A system with an option of each kind."""

    name = "optioned"
    options = {
        "pp": Option(1, "stages", choices=(1, 2, 4)),
        "factor": Option(1.0, "of capacity", minimum=0),
        "overlap": Option(True, "of what"),
        "schedule": Option("1f1b", "of stages"),
    }


def test_a_system_and_its_options_are_one_word() -> None:
    assert parse_system("piper:pp=2:ep=4") == ("piper", {"pp": "2", "ep": "4"})
    assert parse_system("fsdp") == ("fsdp", {})
    for text, message in {"a:b": "options are written name=value, not 'b'", "a:b=1:b=2": "b is there twice"}.items():
        with pytest.raises(ValueError, match=message):
            parse_system(text)


def test_options_have_their_defaults_type() -> None:
    defaults = {"pp": 1, "factor": 1.0, "overlap": True, "schedule": "1f1b"}
    assert parse_options(Optioned, {}) == defaults
    given = {"pp": "4", "factor": "0.5", "overlap": "false", "schedule": "zbv"}
    assert parse_options(Optioned, given) == {"pp": 4, "factor": 0.5, "overlap": False, "schedule": "zbv"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tp": "2"}, "system 'optioned' has no option 'tp'; it has: pp, factor, overlap, schedule"),
        ({"pp": "3"}, "optioned: pp is one of 1, 2, 4, not '3'"),
        ({"pp": "two"}, "optioned: pp is a whole number, not 'two'"),
        ({"factor": "much"}, "optioned: factor is a number, not 'much'"),
        ({"factor": "-0.1"}, "optioned: factor is 0 or more, not -0.1"),
        ({"factor": "nan"}, "optioned: factor is 0 or more, not nan"),
        ({"overlap": "1"}, "optioned: overlap is true or false, not '1'"),
    ],
)
def test_options_that_are_none_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_options(Optioned, given)


def test_systems_are_found_by_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("plain", "ciera_piper_core.systems.plain:Plain", systems.ENTRY_POINTS),
        EntryPoint("odd", "ciera_piper_core.systems.system:Layout", systems.ENTRY_POINTS),
    ]
    monkeypatch.setattr(systems, "entry_points", lambda group: points)
    assert system_names() == ("odd", "plain")
    assert load_system("plain") is Plain
    with pytest.raises(ValueError, match="unknown system 'other'; known: odd, plain"):
        load_system("other")
    with pytest.raises(
        ValueError, match=r"system 'odd': ciera_piper_core\.systems\.system:Layout is no TrainingSystem"
    ):
        load_system("odd")
