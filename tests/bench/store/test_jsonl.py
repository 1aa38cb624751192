"""Parts that are JSON lines: what is whole, what is torn, what is broken and where."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from bench.errors import StoreError
from bench.store.columns import connect, create_table
from bench.store.jsonl import JsonlPart, read_part
from bench.store.layout import runs_folder
from bench.store.reader import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def path(store: Path, runs: Any) -> Path:
    """A part of six rows."""
    return runs_folder(store) / f"{runs.orphan(store, n=6)}.jsonl"


def _read(path: Path) -> JsonlPart:
    part = read_part(path)
    assert part is not None
    return part


def test_a_part_is_described(path: Path) -> None:
    part = _read(path)
    assert (part.number, part.first_row, part.rows, part.torn) == (1, 0, 6, False)
    assert part.size == path.stat().st_size
    assert part.key == (path.stem, 1)
    assert list(part.faults()) == []


def test_cut_off_anywhere_it_keeps_the_whole_lines(path: Path) -> None:
    data = path.read_bytes()
    ends = [position + 1 for position, byte in enumerate(data) if byte == ord("\n")]
    for size in range(0, len(data), 97):
        path.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        part = read_part(path)
        if whole == 0:
            assert part is None
        else:
            assert part is not None
            assert (part.rows, part.torn) == (whole - 1, size not in ends)
            assert len(list(part.lines())) == whole - 1


def _garble(lines: list[str]) -> None:
    lines[3] = lines[3][:50] + "\n"


def _nul(lines: list[str]) -> None:
    lines[3] = "\0" * 20 + "\n"


def _nan(lines: list[str]) -> None:
    lines[3] = re.sub('"rank_min":[^,]*', '"rank_min":NaN', lines[3])


def _missing_field(lines: list[str]) -> None:
    lines[3] = lines[3].replace('"suite":', '"sweet":')


def _unknown_status(lines: list[str]) -> None:
    lines[3] = lines[3].replace('"status":"ok"', '"status":"lost"')


def _lost_line(lines: list[str]) -> None:
    del lines[3]


def _line_twice(lines: list[str]) -> None:
    lines.insert(3, lines[2])


def _of_another_run(lines: list[str]) -> None:
    lines[3] = lines[3].replace('"run_id":"2', '"run_id":"3')


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (_garble, "broken line"),
        (_nul, "broken line"),
        (_nan, "NaN is not a number"),
        (_missing_field, "unexpected keyword argument 'sweet'"),
        (_unknown_status, "unknown status 'lost'"),
        (_lost_line, "row 3 of run .* where row 2"),
        (_line_twice, "row 1 of run .* where row 2"),
        (_of_another_run, "where row 2 of run"),
    ],
)
def test_damage_in_the_middle_is_an_error_with_file_and_line(
    store: Path, path: Path, damage: Callable[[list[str]], None], what: str
) -> None:
    lines = path.read_text().splitlines(keepends=True)
    damage(lines)
    path.write_text("".join(lines))
    with pytest.raises(StoreError, match=f"^{path}:4: .*{what}"):
        Store(store).rows()
    faults = list(_read(path).faults())
    assert faults[0].startswith(f"{path}:4: ")
    assert len(faults) <= 2


def test_bytes_that_are_no_text_are_an_error_with_file_and_line(store: Path, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"collectives", b"c\xffllectives", 1)
    path.write_bytes(b"".join(lines))
    with pytest.raises(StoreError, match=f"^{path}:4: broken line"):
        Store(store).rows()


@pytest.mark.parametrize("header", ["{}\n", "not JSON\n", '{"schema_version": 99, "run_id": "a"}\n'])
def test_a_header_that_is_none_is_an_error(store: Path, path: Path, header: str) -> None:
    path.write_text(header + "".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(StoreError, match=f"^{path}:1: "):
        Store(store).rows()


def test_deep_nesting_is_no_header_and_a_torn_last_line(store: Path, path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole + b"[" * 200_000 + b"\n")
    assert (_read(path).rows, _read(path).torn) == (6, True)
    path.write_bytes(b"[" * 200_000 + b"\n" + whole)
    with pytest.raises(StoreError, match=rf"{re.escape(str(path))}:1: it is nested too deeply"):
        Store(store).runs()


@pytest.mark.parametrize("params", ["null", '"x"', "[]"])
def test_params_that_are_no_object_are_named(store: Path, path: Path, params: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    lines[3] = re.sub(r'"params":\{[^}]*\}', f'"params":{params}', lines[3])
    path.write_text("".join(lines))
    with pytest.raises(StoreError, match=rf"{re.escape(str(path))}:4: .*params needs an object, not"):
        Store(store).rows()


def test_a_header_of_another_run_is_an_error(store: Path, path: Path) -> None:
    other = path.with_stem("20250101T000000-00000000")
    path.rename(other)
    with pytest.raises(StoreError, match=f"^{other}:1: the header is of run {path.stem}"):
        Store(store).rows()


def test_rows_are_loaded_with_their_digest(path: Path) -> None:
    part = _read(path)
    with connect() as con:
        create_table(con, "loaded")
        assert (
            part.load(con, "loaded")
            == hashlib.sha256(b"".join(path.read_bytes().splitlines(keepends=True)[1:])).hexdigest()
        )
        assert con.execute("SELECT part, row_id FROM loaded").fetchall() == [(1, row_id) for row_id in range(6)]
