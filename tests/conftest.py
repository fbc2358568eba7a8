"""Settings and fixtures that tests of several folders share."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import host_shim
import hypothesis
import pytest
import torch

from edgeloss import _call, backends
from edgeloss._kernels import library

# No doctests in them; as test modules, conftest files of several folders would share one name, and two need Triton.
collect_ignore_glob = ["conftest.py", "*/conftest.py", "interpreted.py", "*/launches.py"]

# Workers share the cores: one thread each, and no deadline, which a busy machine would miss.
torch.set_num_threads(1)
# A fixture that chooses the backend may hold for all examples of a property.
SHARED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.function_scoped_fixture]}
hypothesis.settings.register_profile("default", max_examples=25, **SHARED)
hypothesis.settings.register_profile("ci", max_examples=200, derandomize=True, **SHARED)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


# A command that a shell runs in the background ignores SIGINT, and so do its children: the tests of signals must not
# depend on how pytest was started.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what only CI runs: slow tests, and those of benchmarks and in a browser. Begin with what takes longest."""
    longest = ("trainer", "loss", "viz", "cli")
    items.sort(key=lambda item: next((i for i, name in enumerate(longest) if name in item.path.parts), len(longest)))
    if os.environ.get("CI") != "true":
        for item in items:
            in_browser = "driver" in getattr(item, "fixturenames", ())
            if "slow" in item.keywords or in_browser or item.path.parent.name == "benchmarks":
                item.add_marker(pytest.mark.skip(reason="runs with CI=true: slow, in a browser, or of a benchmark"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["reference", "fused"])
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make ``backend="auto"`` on the CPU choose each backend in turn."""
    if request.param == "reference":
        monkeypatch.setattr(_call, "BACKENDS", _call.BACKENDS[-1:])
    elif (state := backends()["cpu"]) != "available":
        pytest.skip(f"fused kernels {state}")
    return str(request.param)


@pytest.fixture(scope="session")
def stepped() -> SimpleNamespace:
    """Return the operators, those with CUDA kernels by these, stepped on the host."""
    if library.MISSING:
        pytest.skip(str(library.MISSING))
    command = host_shim.compiler()
    if command is None:
        pytest.skip("no C++ compiler to build the CUDA kernels for the host")
    if os.environ.get("CI") != "true" and not host_shim.path(command).exists():  # tools/check_builds.py builds it too
        pytest.skip("slow: compiles the CUDA kernels for the host; runs with CI=true")
    host_shim.load(host_shim.build(command))
    names = {"edge_loss": torch.ops.edgeloss, "pair_terms": torch.ops.edgeloss_host}
    names["neighbor_nll"] = torch.ops.edgeloss_host
    return SimpleNamespace(
        **{operator: getattr(of, operator) for name, of in names.items() for operator in (name, f"{name}_backward")}
    )


@pytest.fixture(scope="session")
def camvid() -> Path:
    """Return the folder of CamVid next to the repository; skip the test where there is none."""
    root = Path(__file__).parents[2] / "shared" / "camvid"
    if not root.is_dir():
        pytest.skip(f"no CamVid at {root}")
    return root


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    """Start a headless browser."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.fail("no browser: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1500,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield started
    started.quit()


@pytest.fixture
def browse(driver: Any) -> Iterator[Callable[[Path], Any]]:
    """Open a page and wait until it is drawn; a warning or error of the browser fails the test."""
    from selenium.webdriver.support.ui import WebDriverWait

    def open_page(path: Path) -> Any:
        driver.get(path.as_uri())
        done = "return document.body.dataset.ready || document.querySelector('#failure')"
        WebDriverWait(driver, 60).until(lambda d: d.execute_script(done))
        return driver

    yield open_page
    assert [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.fixture
def sized(driver: Any) -> Iterator[Callable[[int, int, bool], None]]:
    """Set the size of the screen, and whether the system is dark."""

    def set_screen(width: int, height: int, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    yield set_screen
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the script of axe-core."""
    path = Path(__file__).parents[1] / "build" / "axe" / "axe.min.js"
    if not path.exists():
        pytest.skip("no axe-core, which checks accessibility: make axe")
    return path.read_text("utf-8")
