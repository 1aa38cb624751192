"""What a shell completes for models, machines and training systems."""

from __future__ import annotations

from ciera_piper_core.completion import complete_model, complete_platform, complete_systems


def test_names_of_the_catalogue_and_of_machines_are_completed() -> None:
    assert "mixtral-8x7b" in complete_model("mixt")
    assert all(name.startswith("mixt") for name in complete_model("mixt"))
    assert complete_platform("front") == ["frontier"]


def test_the_last_of_a_list_of_systems_is_completed() -> None:
    assert complete_systems("fsd") == ["fsdp"]
    assert "fsdp,ciera" in complete_systems("fsdp,ci")
    assert complete_systems("fsdp,fsd") == []
