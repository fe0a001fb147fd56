"""A headless Chromium, driven by the DevTools protocol over a pair of pipes."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LONGEST_WAIT = 60  # seconds


class Tab:
    """A page of the browser. `messages` are those of its console, errors of the policy for content among them."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._count, self._session, self._held = 0, None, b""
        self.messages, self.requests, self.loaded = [], [], False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """The result of a command of the protocol."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": params}
        command |= {"sessionId": self._session} if self._session else {}
        self._writer.write(json.dumps(command).encode() + b"\0")
        self._writer.flush()
        while (message := self._next()).get("id") != self._count:
            pass
        assert "error" not in message, message
        return message["result"]

    def _next(self):
        while b"\0" not in self._held:
            ready, *_ = select.select([self._reader], [], [], LONGEST_WAIT)
            assert ready, "the browser does not answer"
            some = self._reader.read(2**20)
            assert some, "the browser is gone"
            self._held += some
        raw, self._held = self._held.split(b"\0", 1)
        message = json.loads(raw)
        found = message.get("params", {})
        if message.get("method") == "Page.loadEventFired":
            self.loaded = True
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        if message.get("method") == "Log.entryAdded":
            self.messages.append(found["entry"]["text"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.messages.append(found["exceptionDetails"]["exception"]["description"])
        return message

    def open(self, path):
        self.loaded = False
        self.send("Page.navigate", url=path.as_uri())
        while not self.loaded:
            self._next()

    def run(self, expression):
        """The value of an expression of JavaScript, or of its promise."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def settled(self):
        """Waits for what the page does when something comes into sight."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))")

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def press(self, key):
        codes = {"Tab": 9, "Escape": 27, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def middle(self, selector):
        """(x, y) of the first element of a selector."""
        return self.run(
            f"(r => [r.left + r.width / 2, r.top + r.height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getClientRects()[0])"
        )

    def point(self, selector, click=False):
        """Moves the pointer onto the first element of a selector."""
        x, y = self.middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def touch(self, *places):
        """Moves a finger along places (x, y)."""
        for kind, points in zip(["touchStart", *["touchMove"] * (len(places) - 1)], places, strict=True):
            self.send("Input.dispatchTouchEvent", type=kind, touchPoints=[dict(zip("xy", points, strict=True))])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


@contextlib.contextmanager
def browsing():
    """A tab of a browser of its own."""
    to_browser, writer = os.pipe()
    reader, from_browser = os.pipe()

    def hand_over():  # the protocol is spoken on descriptors 3 and 4, which the pipes may have in the other order
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-background-networking"]
        process = subprocess.Popen(
            [CHROMIUM, *flags],
            preexec_fn=hand_over,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            with open(reader, "rb", buffering=0) as read, open(writer, "wb") as write:
                yield Tab(read, write)
        finally:
            process.terminate()
            process.wait()
