"""Takes the pictures of the README from real runs: python docs/generate_pictures.py [terminal|page]

The terminal is a command in a pseudo-terminal, drawn by rich; the page is Chromium's own picture of
`edgespec serve` (needs playwright, and a system with Chromium). Both differ from run to run in
their speeds, so no test compares them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent / "pictures"
ROOT = Path(__file__).parents[1]
COLUMNS, LINES = 84, 40
PROMPT = "Write two Python functions that reverse a text."
COMMANDS = (f"edgespec run --seed 0 '{PROMPT}'",)
RUNS = 7
"""Of each command; the one of the middle speed is shown."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def terminal() -> Path:
    """What these commands write to a terminal, as an SVG without anything from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for command in COMMANDS:
        _written(shlex.split(command))  # the first start compiles, and measures
        runs = sorted((_written(shlex.split(command)) for _ in range(RUNS)), key=_rate)
        console.print(Text.assemble(("$ ", "bold green"), command))
        console.print(Text.from_ansi(runs[RUNS // 2]))
    picture = console.export_svg(title="EdgeSpec")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "ui-monospace, Menlo, Consolas")
    path = FOLDER / "terminal.svg"
    path.write_text(picture, encoding="utf-8")
    return path


def _rate(written: str) -> float:
    found = re.search(r"([\d.]+) tokens/s", written)
    return float(found[1]) if found else 0.0


def _written(command: list[str]) -> str:
    """What a command writes to a pseudo-terminal, without what it took back."""
    import pty

    main, other = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm"}
    with subprocess.Popen(
        [sys.executable, "-m", *command], stdin=subprocess.DEVNULL, stdout=other, stderr=other,
        cwd=ROOT, env=environment,
    ):  # fmt: skip
        os.close(other)
        parts = []
        try:
            while part := os.read(main, 65536):
                parts.append(part)
        except OSError:
            pass  # the other end is closed
    os.close(main)
    return _left_standing(b"".join(parts).decode())


def _left_standing(text: str) -> str:
    """What a terminal shows in the end: lines that were drawn anew stand there once."""
    lines, row = [""], 0
    marks = r"\x1b\[\d*A|\x1b\[\d*K|\x1b\[\?\d+[hl]|\r|\n|[^\r\n\x1b]+|\x1b\[[\d;]*m"
    for part in re.findall(marks, text):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part[0] == "\x1b" and part.endswith("A"):
            row -= int(part[2:-1] or 1)
        elif part[0] == "\x1b" and part.endswith("K"):
            lines[row] = ""
        elif part != "\r" and not part.startswith("\x1b[?"):
            lines[row] += part
    return "\n".join(lines).strip()


def page() -> Path:
    """A conversation on the page of the server."""
    from playwright.sync_api import expect, sync_playwright

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "edgespec", "serve", "--port", str(port), "--memory", "1GiB"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet) as server:
        try:
            _wait_for(f"{url}/health")
            with sync_playwright() as driver:
                path = next(filter(None, map(shutil.which, BROWSERS)))
                browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
                shown = browser.new_page(viewport={"width": 1000, "height": 640})
                shown.goto(url)
                articles = 0
                settings = shown.locator("summary", has_text="Settings")
                settings.click()
                shown.fill("#temperature", "0")
                shown.fill("#most", "51")
                settings.click()
                for message in (
                    "Hello! Who are you?",
                    PROMPT,
                ):
                    shown.fill("#message", message)
                    shown.press("#message", "Enter")
                    articles += 2
                    expect(shown.locator("article")).to_have_count(articles)
                    expect(shown.locator("#stop")).to_be_disabled(timeout=60_000)
                picture = shown.screenshot(type="png")
                browser.close()
        finally:
            server.terminate()
    return _small(picture)


def _small(picture: bytes) -> Path:
    """The picture with as many colours as a palette has."""
    from io import BytesIO

    from PIL import Image

    path = FOLDER / "page.png"
    Image.open(BytesIO(picture)).convert("RGB").quantize(256).save(path, optimize=True)
    return path


def _wait_for(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url).close()
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"nothing answers at {url}")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ["terminal", "page"]:
        made = {"terminal": terminal, "page": page}[name]()
        print(f"{made}: {made.stat().st_size:,} bytes")
