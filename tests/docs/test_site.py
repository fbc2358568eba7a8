"""The documentation site: its pages work when they are opened as files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT


@pytest.mark.slow
def test_pages_work_as_files(driver: Any, tmp_path: Path) -> None:
    pytest.importorskip("material", reason="what builds the site is not installed: make docs")
    pytest.importorskip("mkdocstrings", reason="what builds the site is not installed: make docs")
    for name in ("katex/dist/katex.min.js", "iframe-worker/shim/index.js"):
        if not (ROOT / "build" / name).exists():
            pytest.skip(f"no build/{name}: make docs")
    from selenium.webdriver.support.ui import WebDriverWait

    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    command += ["--config-file", "tools/docsite/mkdocs.yml"]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    driver.get((tmp_path / "site" / "start.html").as_uri())
    wait = WebDriverWait(driver, 60)
    wait.until(lambda d: d.execute_script("return document.readyState") == "complete")
    links = driver.execute_script(
        "return [...document.querySelectorAll('a[href]')].map(({ href }) => href.split('#')[0])"
    )
    assert {link for link in links if not link.endswith(".html")} == set()  # a folder would be listed
    unsized = "return [...document.images].filter((image) => !image.getAttribute('width')).map(({ src }) => src)"
    assert driver.execute_script(unsized) == []
    driver.get((tmp_path / "site" / "settings.html").as_uri())
    copied = (
        "const code = document.querySelector('.gp').closest('code'); code.setAttribute('data-md-copying', '');"
        "const text = code.innerText; code.removeAttribute('data-md-copying'); return text"
    )
    assert driver.execute_script(copied).startswith("import torch\n")  # the button copies no prompts
    assert "<code>examples/train_minimal.py</code>" in (tmp_path / "site" / "training.html").read_text()  # no link
    loaded = (
        "return performance.getEntriesByType('resource').map(({ name }) => name).filter((one) => /^http/.test(one))"
    )
    assert driver.execute_script(loaded) == []
    driver.execute_script("document.querySelector('label[for=__search]').click()")
    box = driver.find_element("css selector", "input.md-search__input")
    wait.until(lambda d: box.is_displayed())
    box.send_keys("boundary")
    found = "return /^\\d+ matching/.test(document.querySelector('.md-search-result__meta').textContent.trim())"
    wait.until(lambda d: d.execute_script(found))
