"""Where outputs go: bad places are refused first, and one that fails later takes no other with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.gate_output.files import refuse_unwritable, write_outputs
from tests.bench.gate_rows import regressed, result


def test_all_bad_places_are_named_at_once(tmp_path: Path) -> None:
    outputs = (("json", "-"), ("junit", str(tmp_path)), ("html", str(tmp_path / "no" / "a.html")), ("markdown", "\0"))
    with pytest.raises(UsageError) as caught:
        refuse_unwritable(outputs)
    told = str(caught.value)
    assert f"--junit {tmp_path}: it is a folder" in told
    assert f"--html {tmp_path}/no/a.html: there is no folder {tmp_path}/no" in told
    assert "--markdown" in told
    assert not (tmp_path / "no").exists()


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match="--junit : the name is empty"):
        refuse_unwritable((("junit", ""),))


def test_good_places_are_taken(tmp_path: Path) -> None:
    refuse_unwritable((("json", str(tmp_path / "a.json")), ("html", "/dev/null"), ("junit", "a.xml")))
    assert list(tmp_path.iterdir()) == []


def test_what_fails_later_leaves_the_others_written(tmp_path: Path) -> None:
    outputs = (("junit", str(tmp_path)), ("json", str(tmp_path / "a.json")), ("html", str(tmp_path / "a.html")))
    troubles = write_outputs(outputs, result(regressed()))
    assert len(troubles) == 1
    assert f"cannot write --junit to {tmp_path}" in troubles[0]
    assert json.loads((tmp_path / "a.json").read_text())["verdict"] == "regressed"
    assert (tmp_path / "a.html").exists()
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["a.html", "a.json"]
