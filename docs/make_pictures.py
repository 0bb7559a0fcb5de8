"""Makes the pictures of docs/report.md, docs/images/report*.png, from real runs.

    ./dev pictures [NAME ...]      (needs Debian's chromium and its driver)

A small network trains on the simulated device, with planted faults. op-tools report makes the pages of its results, and a headless
Chromium takes the pictures.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1000, 820  # pixels of the browser
WAIT = 20  # seconds, for the page
SCRIPT = """\
import torch
import torch.nn.functional as F

import op_tools.sim_device


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.conv2(F.relu(self.norm(self.conv1(x)))))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


torch.manual_seed(0)
model = Net().to("sim")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    images, labels = torch.randn(4, 3, 8, 8).to("sim"), torch.randint(10, (4,)).to("sim")
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

NAN = """\
import torch
import op_tools.sim_device
x = torch.linspace(-1, 1, 64).to("sim").requires_grad_()
optimizer = torch.optim.SGD([x], lr=0.3)
for _ in range(6):
    loss = (torch.log(x.abs() - 0.2) * torch.softmax(x, 0)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


LEAK = """\
import torch
import op_tools.sim_device

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)).to("sim")
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(24):
    result = model(torch.randn(16, 64).to("sim"))
    losses.append(result.square().mean(0) * 2)
    optimizer.zero_grad()
    losses[-1].sum().backward(retain_graph=True)
    optimizer.step()
"""


@dataclass(frozen=True)
class Picture:
    """A report of real runs, and the part of it that is shown."""

    commands: tuple[str, ...]
    """Of op-tools, in a new folder with train.py; words FAULTS=... and ROUNDING=1 in front are for the simulated device."""
    shown: str = ""
    """XPath of an element; the top of the page without it."""
    script: str = "train.py"
    title: str = "A network with two planted faults"
    before: str = ""
    """JavaScript that runs first."""


_TWO = "scale:ops=convolution_backward,call=10-12,scale=1.01;scale:ops=native_layer_norm,scale=1.02"
_MANY = f"{_TWO};scale:ops=addmm,call=9-20,scale=1.2;nan:ops=native_batch_norm,call=8-9"
_OPEN = "document.getElementById('table-1').open = true;"
_ZOOM = "const c = document.querySelector('.timeline canvas'); for (let i = 0; i < 22; ++i) c.dispatchEvent(new KeyboardEvent('keydown', {key: '+'}));"


def _block(title: str) -> str:
    """A picture with its title."""
    return f"//h3[.={title!r}]/.."


PICTURES = {
    "report": Picture((f"FAULTS={_TWO} run --autocompare --time --time-with-modules --time-with-stack train.py",)),
    "report_losses": Picture(
        (
            "run --record a --level aten train.py",
            f"FAULTS={_TWO} run --record b --level aten train.py",
            "compare a b --json compared.jsonl",
        ),
        _block("Losses of both runs"),
    ),
    "report_steps": Picture((f"FAULTS={_MANY} run --autocompare train.py",), _block("Wrong rows over the steps")),
    "report_timeline": Picture(
        ("run --time --time-with-modules train.py",), "//div[@class='timeline']", before=_OPEN + _ZOOM
    ),
    "report_modules": Picture(("run --time --time-with-modules train.py",), _block("Time by module")),
    "report_dtypes": Picture(
        (
            "FAULTS=scale:ops=exp,scale=1.01;scale:ops=native_layer_norm,scale=1.02 conformance run --device sim --import op_tools.sim_device "
            "--fname torch.(exp|log|mm|sum|sigmoid|nn.functional.(layer_norm|gelu|softmax)) -o conformance",
        ),
        _block("Operators and dtypes"),
    ),
    "report_nan": Picture(("run --overflow train.py",), "//section[@id='findings']", NAN, "A NaN"),
    "report_memory": Picture(
        ("run --memory train.py",), _block("Memory over the steps, and who holds it"), LEAK, "A list that keeps graphs"
    ),
    "report_ulp": Picture(
        (f"ROUNDING=1 FAULTS={_TWO} run --autocompare train.py",), _block("Errors in units of the last place, float32")
    ),
    "report_bits": Picture(("FAULTS=every_second:ops=addmm run --invariance train.py",), "//section[@id='findings']"),
}


def _make_page(folder: Path, picture: Picture) -> Path:
    """Runs the commands, and makes the report."""
    script = SCRIPT if picture.script == "train.py" else picture.script
    (folder / "train.py").write_text(script)
    for command in picture.commands:
        words = shlex.split(command)
        environment = {**os.environ, "OP_TOOLS_SIM_FAULTS": "", "OP_TOOLS_LOG_LEVEL": "error"}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[f"OP_TOOLS_SIM_{name}"] = value
        done = subprocess.run([sys.executable, "-m", "op_tools", *words], cwd=folder, env=environment, check=False)
        if done.returncode not in (0, 1, 2):
            raise SystemExit(f"{command}: status {done.returncode}")
    report = ["report", ".", "-o", "report.html", "--title", picture.title]
    subprocess.run([sys.executable, "-m", "op_tools", *report], cwd=folder, check=True)
    page = folder / "report.html"
    # Lines of the program, without the name of the folder, which may be broken at its strokes.
    page.write_text(re.sub(re.escape(f"{folder}/").replace("/", "/(?:<wbr>)?"), "", page.read_text()))
    return page


def _browser() -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={WIDTH},{HEIGHT}",
    ):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def _take(browser: Any, page: Path, picture: Picture, image: Path) -> None:
    browser.get(page.as_uri())
    browser.implicitly_wait(WAIT)
    browser.find_element(By.CSS_SELECTOR, "html[data-ready]")
    if picture.before:
        browser.execute_script(picture.before)
        browser.find_element(By.CSS_SELECTOR, "canvas[data-until]")
        browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
    if picture.shown:
        place = browser.find_element(By.XPATH, picture.shown).rect
        clip |= {"y": max(0, place["y"] - 8), "height": min(place["height"] + 16, HEIGHT)}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    image.write_bytes(base64.b64decode(taken["data"]))


def main() -> None:
    """Writes the pictures that are named, else all."""
    browser = _browser()
    try:
        for name in sys.argv[1:] or PICTURES:
            with tempfile.TemporaryDirectory() as folder:
                _take(browser, _make_page(Path(folder), PICTURES[name]), PICTURES[name], IMAGES / f"{name}.png")
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
