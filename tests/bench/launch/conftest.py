"""Says where no lab can be built, so that tests that need one are skipped there and fail elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

TOOLS_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


@pytest.fixture(scope="session")
def lab_available() -> None:
    """Skips unless iproute2 is there and the kernel lets this user have a network namespace.

    It asks ``unshare``, not the code under test, so that a lab that fails to come up is a failure.
    """
    missing = [tool for tool in ("ip", "tc", "nsenter", "unshare") if not shutil.which(tool, path=TOOLS_PATH)]
    if missing:
        pytest.skip(f"a lab needs {' and '.join(missing)}")
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    refused = subprocess.run(["unshare", *own, "--net", "true"], capture_output=True, text=True, check=False)
    if refused.returncode:
        pytest.skip(f"no network namespaces here: {refused.stderr.strip()}")
