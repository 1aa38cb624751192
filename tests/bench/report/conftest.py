"""Headless Chromium for the tests that open a report as its readers do."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,1000",
)


class Browser:
    """A page in Chromium, and what it logged and asked the network for."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver

    def open(self, path: Path, width: int = 1280, height: int = 1000, dark: bool = False) -> None:
        """Load a file in a window of that size; what was logged before is forgotten."""
        self._driver.get("about:blank")
        for kind in ("browser", "performance"):
            self._driver.get_log(kind)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer("dark" if dark else "light")
        self._driver.get(path.as_uri())

    def prefer(self, scheme: str) -> None:
        """Light or dark, as the reader's system asks for."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._driver.execute_script(script, *arguments)

    def wait_for(self, script: str) -> Any:
        """What a script returns once that is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self._driver, 30, 0.05).until(lambda driver: driver.execute_script(f"return {script}"))

    def press(self, selector: str, keys: str) -> None:
        """Type into an element as a keyboard would."""
        self._driver.find_element("css selector", selector).send_keys(keys)

    def errors(self) -> list[str]:
        """Errors and warnings of the console since ``open``, refused scripts and dialogs among them."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def foreign_requests(self) -> list[str]:
        """Addresses that the page asked for since ``open``, beside its own file and data inside it."""
        messages = [json.loads(entry["message"])["message"] for entry in self._driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("file:", "data:", "blob:"))]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for a worker's tests; each opens its own page in it."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (the extra `test` has it)")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    chrome.set_page_load_timeout(90)
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()
