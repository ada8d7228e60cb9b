"""A headless Chromium of the machine, driven by selenium, that keeps its console and what it asked the network for."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium import webdriver

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_selenium = pytest.mark.skipif(importlib.util.find_spec("selenium") is None, reason="needs selenium")
needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
)
LOADED = "return document.readyState === 'complete'"


class Browser:
    """A page in a browser."""

    def __init__(self, driver: webdriver.Chrome):
        self.driver = driver

    def open(self, path: Path, width: int, scheme: str) -> None:
        """Shows a file at this width, a phone's below 600, in `light` or `dark`."""
        phone = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        media = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        self.driver.get(path.resolve().as_uri())
        self.wait(LOADED)

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Until a script gives a true value."""
        deadline = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
            time.sleep(0.1)

    def console(self) -> list[str]:
        """What the console said since it was last asked."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since it was last asked, but those in the page itself."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]


@contextmanager
def chromium() -> Iterator[Browser]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM
    for switch in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--disable-background-networking",
    ):
        options.add_argument(switch)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # which Chromium does not have for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
