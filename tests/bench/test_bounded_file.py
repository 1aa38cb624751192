"""Files are read whole up to a limit; a device without an end is refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bench.bounded_file import read_bounded, read_bounded_stream
from bench.errors import StoreError, UsageError
from bench.gate_sources import read_rows_file
from bench.importers.into_store import read_bytes
from bench.policy import read_policy

ENDLESS = Path("/dev/zero")


def test_a_file_up_to_the_limit_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345678")
    assert read_bounded(path, 8) == b"12345678"
    assert read_bounded_stream(io.BytesIO(b"1234"), 4) == b"1234"
    with pytest.raises(OSError, match="no end, or more than 0 MiB"):
        read_bounded(path, 7)


@pytest.mark.skipif(not ENDLESS.exists(), reason="no such device")
def test_what_has_no_end_is_one_line_in_gate_import_and_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.bounded_file.read_bounded.__defaults__", (1 << 20,))
    for read, error in (
        (lambda: read_rows_file(ENDLESS), StoreError),
        (lambda: read_bytes(str(ENDLESS)), UsageError),
        (lambda: read_policy(ENDLESS), UsageError),
    ):
        with pytest.raises(error, match=r"cannot read .*/dev/zero: it has no end, or more than 1 MiB"):
            read()
