"""A headless Chromium, driven over a pipe by the DevTools protocol; nothing beside the standard library."""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PLAYWRIGHT = Path.home() / ".cache" / "ms-playwright"
OPTIONS = "--headless --remote-debugging-pipe --no-first-run --no-sandbox --disable-gpu --disable-dev-shm-usage "
OPTIONS += "--disable-quic --disable-background-networking --disable-component-update --disable-sync"
# Becomes Chromium, which reads from 3 and writes to 4:
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 120  # seconds until an answer or an event


def find() -> str | None:
    """Path of a Chromium; None where there is none."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    installed = sorted(PLAYWRIGHT.glob("chromium*/chrome-*/*"))
    names = ("chrome", "headless_shell", "chrome-headless-shell")
    return next((str(path) for path in installed if path.name in names and path.is_file()), None)


def high(descriptor: int) -> int:
    """The same pipe by a number above those that Chromium reads and writes."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Page:
    """One page of a Chromium of its own; `events` has what the browser told, in its order."""

    def __init__(self, program: str, folder: Path, width: int = 1280, height: int = 900) -> None:
        theirs_in, ours_out = map(high, os.pipe())
        ours_in, theirs_out = map(high, os.pipe())

        command = [program, *OPTIONS.split(), f"--user-data-dir={folder}", f"--window-size={width},{height}"]
        handed = [sys.executable, "-c", HAND_OVER, str(theirs_in), str(theirs_out), *command]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(handed, pass_fds=(theirs_in, theirs_out), **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self.incoming = ours_in
        self.outgoing = ours_out
        self.pending = b""
        self.numbers = itertools.count(1)
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.incoming)
        os.close(self.outgoing)

    def read(self, until: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError after a point in time, EOFError where Chromium has ended."""
        while b"\0" not in self.pending:
            ready, _, _ = select.select([self.incoming], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self.incoming, 1 << 16)
            if not part:
                raise EOFError("Chromium has ended")
            self.pending += part
        message, self.pending = self.pending.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of a command. Raises RuntimeError where the browser refuses it."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.outgoing, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.read(until)
            if answer.get("id") != number:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def told(self, method: str) -> list[dict[str, Any]]:
        """What the events of a kind say."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def open(self, address: str) -> None:
        """Goes to an address and waits until the page has loaded."""
        self.call("Page.navigate", url=address)
        page = json.dumps(address.partition("#")[0])
        self.wait_for(f"location.href.startsWith({page}) && document.readyState === 'complete'")

    def ask(self, script: str) -> Any:
        """The value of an expression in the page. Raises RuntimeError where it throws."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of an expression once it holds; between two pages it may throw. Raises TimeoutError."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(RuntimeError):
                value = self.ask(script)
                if value:
                    return value
            time.sleep(0.05)
        raise TimeoutError(script)

    def choose(self, control: str, value: str) -> None:
        """Chooses an option of a <select>, as a user does."""
        element = f"document.getElementById({json.dumps(control)})"
        event = "new Event('change', {bubbles: true})"
        self.ask(f"{element}.value = {json.dumps(value)}; {element}.dispatchEvent({event})")

    def point_at(self, selector: str) -> None:
        """Moves the mouse to the middle of the first element that a selector finds, scrolled into view."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.ask(f"{element}.scrollIntoView({{block: 'center'}})")
        box = self.ask(f"(({{x, y, width, height}}) => ({{x, y, width, height}}))({element}.getBoundingClientRect())")
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for shift in (3, 0):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place["x"] + shift, y=place["y"])

    def screenshot(self, path: Path, whole: bool = False) -> bytes:
        """PNG of what is seen, or of the whole page; written, too."""
        content = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        path.write_bytes(content)
        return content

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, of the browser, and exceptions."""
        said = [str(each["entry"]["text"]) for each in self.told("Log.entryAdded")]
        said += [str(each["args"]) for each in self.told("Runtime.consoleAPICalled")]
        return said + [str(each["exceptionDetails"]) for each in self.told("Runtime.exceptionThrown")]

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        return [each["request"]["url"] for each in self.told("Network.requestWillBeSent")]
