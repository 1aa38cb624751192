"""Reading stores: rows come back exactly, in any state of the files, of this schema and older ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.errors import StoreError, UsageError
from bench.store.layout import runs_folder
from bench.store.merge import merge
from bench.store.reader import Store
from bench.store.row import ROW_FIELDS, STATUSES, Row
from bench.store.writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA_1 = Path(__file__).parents[2] / "data" / "store_schema_1"
OPEN_RUN = "20250102T000000-4e5f6a7b"

# Every value that a row can hold

ODD_TEXTS = ["'", '"', "\\", "\n", "a\r\nb", "\0", "\x85\u2028"]
ODD_NUMBERS = [-0.0, 5e-324, 1.7976931348623157e308, 1e22]
texts = st.text(st.characters(exclude_categories=())) | st.sampled_from(ODD_TEXTS)
finite = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(ODD_NUMBERS)
int64 = st.integers(-(2**63), 2**63 - 1)
values = st.booleans() | st.integers() | finite | texts


def optional(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | kind


@st.composite
def rows(draw: st.DrawFn) -> Row:
    status = draw(st.sampled_from(STATUSES))
    samples = draw(st.lists(finite, max_size=5))
    return Row(
        run_id="",
        row_id=0,
        suite=draw(texts),
        method_version=draw(int64),
        case=draw(texts),
        params=draw(st.dictionaries(texts, values, max_size=4)),
        metric=draw(texts),
        unit=draw(texts),
        better=draw(texts),
        definition=draw(texts),
        value=draw(finite if status == "ok" else optional(finite)),
        n=len(samples),
        samples=samples,
        rank_min=draw(optional(finite)),
        rank_median=draw(optional(finite)),
        rank_max=draw(optional(finite)),
        slowest_rank=draw(optional(int64)),
        entry_skew=draw(optional(finite)),
        warmup=draw(int64),
        stop_reason=draw(texts),
        wrong=draw(optional(int64)),
        status=status,
        reason=draw(texts) + ("" if status == "ok" else "."),
        seed=draw(int64),
        started_at=draw(texts),
    )


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(written=st.lists(rows(), max_size=8))
def test_any_row_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, runs: Any, written: list[Row]) -> None:
    store = tmp_path_factory.mktemp("store")
    with RunWriter(store, runs.record()) as writer:
        writer.append(written)
        as_lines = _lines(Store(store).rows())
        writer.seal()
    # As text, because 1 == 1.0 == True.
    assert as_lines == _lines(written)
    assert _lines(Store(store).rows()) == as_lines


def test_parameters_keep_their_types_in_queries(store: Path, runs: Any) -> None:
    (row,) = runs.rows(1)
    params = {"text": "a'b", "count": 2**40, "ratio": 0.5, "flag": True, "a b": "x", "12": "digits"}
    with RunWriter(store, runs.record()) as writer:
        writer.append([replace(row, params=params)])
        writer.seal()
    query = "select params->>'$.text', (params->>'$.count')::bigint, (params->>'$.ratio')::double, params->>'$.flag'"
    found = Store(store).query(query + ", params->>'$.\"a b\"', params->>'$.\"12\"', typeof(params) from rows")
    assert found.iloc[0].tolist() == ["a'b", 2**40, 0.5, "true", "x", "digits", "JSON"]


# Runs


def test_runs_are_listed_by_start_with_state_and_counts(store: Path, runs: Any) -> None:
    sealed = runs.write(store, n=200)
    orphan = runs.orphan(store, n=8, seed=1)
    foreign = runs.foreign(store, n=4, seed=2)
    with RunWriter(store, runs.record()) as writer:
        listed = {run.run_id: run for run in Store(store).runs()}
        assert {run_id: run.state for run_id, run in listed.items()} == {
            sealed: "sealed",
            orphan: "orphaned",
            foreign: "open",
            writer.record.run_id: "open",
        }
    assert list(listed) == [sealed, orphan, foreign, writer.record.run_id]
    assert listed[sealed].counts == {"ok": 198, "failed": 2, "timeout": 0, "invalid": 0, "skipped": 0}
    assert [listed[run_id].rows for run_id in (sealed, orphan, foreign)] == [200, 8, 4]
    assert json.loads(json.dumps(listed[sealed].to_dict()))["counts"]["failed"] == 2


def test_a_store_that_is_not_there_has_no_runs(store: Path) -> None:
    reader = Store(store)
    assert (reader.runs(), reader.rows(), reader.query("select * from rows").shape) == ([], [], (0, len(ROW_FIELDS)))
    with pytest.raises(UsageError, match="there is no run in"):
        reader.resolve("latest")


def test_rows_are_filtered(store: Path, runs: Any) -> None:
    first, second = runs.write(store, n=200), runs.orphan(store, n=8, seed=1)
    reader = Store(store)
    assert {row.run_id for row in reader.rows([second])} == {second}
    assert len(reader.rows([first], metric="latency", status="ok")) == 50
    assert len(reader.rows(status="failed")) == 2
    assert reader.rows(suite="attention") == []
    with pytest.raises(UsageError, match="unknown run 'nothing'"):
        reader.rows(["nothing"])


def test_a_run_is_found_by_prefix(store: Path, runs: Any) -> None:
    first, second = runs.write(store), runs.write(store)
    reader = Store(store)
    assert reader.resolve("latest") == second
    assert reader.resolve(first) == first
    assert reader.resolve(first[:-1]) == first
    with pytest.raises(UsageError, match="is the start of 2 runs"):
        reader.resolve(first[:4])
    for unknown in ("", "x", f"{first}0"):
        with pytest.raises(UsageError, match="unknown run"):
            reader.resolve(unknown)


# SQL


def test_sealed_and_open_runs_are_queried_together(store: Path, runs: Any) -> None:
    runs.write(store, n=8)
    runs.orphan(store, n=4, seed=1)
    found = Store(store).query("select count(*) as n, sum(len(samples)) as samples from rows where seed <= ?", [1])
    assert found.iloc[0].tolist() == [12, 240]
    states = Store(store).query('select state, "rows", ok, failed from runs order by state desc')
    assert states.to_dict("list") == {"state": ["sealed", "orphaned"], "rows": [8, 4], "ok": [8, 4], "failed": [0, 0]}


def test_the_view_of_runs_has_what_was_asked_for_and_where(store: Path, runs: Any) -> None:
    record = runs.record()
    record.fingerprint = {"identity": {"cpu": "it's"}}
    with RunWriter(store, record) as writer:
        writer.seal()
    found = Store(store).query("select command, suites, preset, fingerprint->>'$.identity.cpu' as cpu from runs")
    assert [list(value) if not isinstance(value, str) else value for value in found.iloc[0]] == [
        record.command,
        record.suites,
        record.preset,
        "it's",
    ]


def test_a_command_that_is_no_text_hides_no_run(store: Path, runs: Any) -> None:
    record = runs.record()
    record.command = ["run", b"caf\xe9".decode(errors="surrogateescape")]
    with RunWriter(store, record) as writer:
        writer.seal()
    assert Store(store).query("select command[2] as name from runs").name[0] == "caf?"


def test_a_wrong_statement_is_a_usage_error_in_one_line(store: Path) -> None:
    with pytest.raises(UsageError, match=r"the query failed: .*colour") as raised:
        Store(store).query("select colour from rows")
    assert "\n" not in str(raised.value)
    assert "LINE" not in str(raised.value)


@pytest.mark.parametrize("sql", ["install httpfs from '/nowhere'", "select * from '/nowhere.parquet'"])
def test_what_a_query_cannot_reach_is_no_fault_of_the_store(store: Path, runs: Any, sql: str) -> None:
    with pytest.raises(UsageError, match=r"the query failed: .*nowhere") as raised:
        Store(store).query(sql)
    assert str(store) not in str(raised.value)


def test_a_query_leaves_nothing_for_the_next(store: Path, runs: Any) -> None:
    runs.write(store, n=4)
    reader = Store(store)
    reader.query("create temp table kept as select 1")
    with pytest.raises(UsageError, match="kept"):
        reader.query("select * from kept")
    assert len(reader.query("select * from rows")) == 4


def test_odd_paths_are_read(tmp_path: Path, runs: Any) -> None:
    store = tmp_path / "it's *a* [st]ore" / "key=value"
    runs.write(store, n=4)
    runs.orphan(store, n=4, seed=1)
    assert len(Store(store).rows()) == 8
    assert "key" not in Store(store).query("select * from rows").columns


# Damaged and older files


@pytest.mark.parametrize("content", [b"", b"no Parquet at all", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_a_damaged_file_is_named(store: Path, runs: Any, content: bytes) -> None:
    runs.write(store)
    runs.write(store)
    path = next(runs_folder(store).iterdir())
    path.write_bytes(content)
    with pytest.raises(StoreError, match=f"^{path}: .*restore the file or move it out of the store"):
        Store(store).rows()


def test_damaged_pages_are_an_error_of_the_store(store: Path, tmp_path: Path, runs: Any) -> None:
    path = runs_folder(store) / f"{runs.write(store, n=200)}.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 3000 + data[3004:])
    for read in (Store(store).rows, Store(store).runs, lambda: merge(tmp_path / "copy", store)):
        with pytest.raises(StoreError, match=str(store)):
            read()


def test_a_file_of_another_program_is_named(store: Path) -> None:
    import duckdb

    runs_folder(store).mkdir(parents=True)
    path = runs_folder(store) / "other.parquet"
    duckdb.sql("select 1 as a").write_parquet(str(path))
    with pytest.raises(StoreError, match=f"^{path}: not written by bench"):
        Store(store).runs()


def test_files_of_schema_1_are_read(tmp_path: Path) -> None:
    """Written by the first release; they must be readable for ever."""
    written = (SCHEMA_1 / "rows.jsonl").read_text().splitlines()
    # Fields that came later have their default.
    expected = _lines(Row.from_dict(json.loads(line)) for line in written)
    reader = Store(SCHEMA_1)
    assert _lines(reader.rows()) == expected
    assert [line.split(":")[0] for line in reader.torn] == [str(runs_folder(SCHEMA_1) / f"{OPEN_RUN}.jsonl")]
    record = reader.record(OPEN_RUN)
    assert (record.schema_version, record.seed, record.fingerprint["identity"]) == (1, 7, {"cpu": "Example CPU"})
    copy = tmp_path / "copy"
    shutil.copytree(SCHEMA_1, copy)
    with RunWriter.reopen(copy, OPEN_RUN) as writer:
        writer.append(reader.rows([OPEN_RUN]))
        writer.seal()
    assert _lines(Store(copy).rows())[: len(expected)] == expected


def test_files_of_an_older_schema_are_read_with_defaults(store: Path, runs: Any) -> None:
    """What a schema 0 would be: a sealed file and an open one, without some of today's fields."""
    import duckdb

    lacking = ("warmup", "stop_reason", "entry_skew", "samples")
    sealed, opened = runs.write(store, n=4), runs.foreign(store, n=4, seed=1)
    runs.write(store, n=4, seed=2)
    _age_parquet(runs_folder(store) / f"{sealed}.parquet", lacking, duckdb)
    _age_jsonl(runs_folder(store) / f"{opened}.jsonl", lacking)

    older = Store(store).rows([sealed]) + Store(store).rows([opened])
    assert [(row.warmup, row.stop_reason, row.entry_skew, row.samples) for row in older] == [(0, "", None, [])] * 8
    assert [row.value for row in older] == [row.value for row in (*runs.rows(4), *runs.rows(4, seed=1))]
    assert len(Store(store).query("select * from rows where warmup = 3")) == 4


def _age_parquet(path: Path, lacking: Iterable[str], duckdb: Any) -> None:
    (metadata,) = duckdb.execute("select value from parquet_kv_metadata(?) where key = 'bench'", [str(path)]).fetchone()
    older = json.loads(metadata) | {"schema_version": 0}
    text = json.dumps(older).replace("'", "''")
    columns = ", ".join(lacking)
    duckdb.execute(
        f"copy (select * exclude ({columns}) from read_parquet('{path}')) to '{path}.new'"
        f" (format parquet, kv_metadata {{bench: '{text}'}})"
    )
    Path(f"{path}.new").rename(path)


def _age_jsonl(path: Path, lacking: Iterable[str]) -> None:
    header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    header["schema_version"] = 0
    for line in lines:
        for name in lacking:
            del line[name]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in (header, *lines)))


def _lines(found: Iterable[Row]) -> list[str]:
    return [row.to_json() for row in found]
