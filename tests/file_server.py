"""A real HTTP server on loopback that publishes golden/tiny-a and misbehaves in each way servers do.

While a download runs, a thread and every request look at the final names: whatever lies there must be the published
file, byte for byte.
"""

import contextlib
import functools
import gzip
import hashlib
import itertools
import re
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from recorded import GOLDEN

from gpt2tf import download, hparams
from gpt2tf.download import DATA, INDEX, META, download_model

ORDER = ["hparams.json", "checkpoint", "vocab.bpe", "encoder.json", META, INDEX, DATA]
PUBLISHED = {name: (GOLDEN / "tiny-a" / name).read_bytes() for name in ORDER}
HALF = len(PUBLISHED[DATA]) // 2
REST = f"bytes={4 * download.CHUNK}-"  # what a request lacks after half of the data came, in whole chunks
# A byte of each file whose damage is seen. In hparams.json it is a digit. Of the graph only what breaks it
# or changes its length is seen, and nobody reads it.
FLIPPED_AT = {"hparams.json": 12, "checkpoint": 25, "vocab.bpe": 99, "encoder.json": 99, META: 0, INDEX: 99, DATA: HALF}
PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"
XML = b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?><Error><Code>BlobNotFound</Code></Error>'
ONCE_MORE = "downloading it once more"  # said where a whole file came, and was damaged


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    extra = {}  # headers of the answer, beside those that `send` is given

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        self.server.asked.append((name, self.headers.get("Range")))
        self.server.paths.append(self.path)
        self.server.look()
        script = self.server.script.get(name)
        answer = next(script, serve) if script else serve
        answer(self, PUBLISHED[name])
        self.server.look()

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    """`script[name]` is an iterator of answers for a file, a well-behaved one after its end."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.script, self.asked, self.paths = folder, {}, [], []
        self.damaged, self.seen = set(), set()
        self.stalled, self.closing, self.lock = threading.Event(), threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.serve_forever, args=(0.01,)), threading.Thread(target=self.watch)]
        self.base = f"http://127.0.0.1:{self.server_port}/gpt-2/models"

    def look(self):
        for name, content in PUBLISHED.items():
            path = self.folder / name
            with contextlib.suppress(FileNotFoundError):
                now = path.stat()
                state = name, now.st_ino, now.st_mtime_ns, now.st_size
                if state not in self.seen and path.read_bytes() != content:
                    self.damaged.add(name)
                self.seen.add(state)

    def watch(self):
        """From the first request on, that is when what lay there before has been looked at."""
        while not self.closing.wait(0.002):
            with self.lock:
                if self.asked:
                    self.look()

    def forget(self):
        """Start anew: tests may put damaged files in place after this."""
        with self.lock:
            self.asked.clear()

    def names(self):
        """The files that were asked for."""
        return [name for name, _ in self.asked]

    def spans(self, name):
        """The ranges of a file that were asked for, None for all of it."""
        return [span for asked, span in self.asked if asked == name]

    def part(self, name=DATA):
        """Where a file grows."""
        return self.folder / ".download" / name

    def handle_error(self, request, client_address):
        pass  # clients that hang up are what is tested

    def close(self):
        self.closing.set()
        self.shutdown()
        self.server_close()
        for thread in self.threads:
            thread.join()


@contextlib.contextmanager
def serving(folder, monkeypatch):
    """A server for downloads into `folder`, quick to give up.

    tiny-a is one more published model, with all the facts that are known of 124M. No proxy from outside counts.
    """
    monkeypatch.setitem(hparams.PUBLISHED, "tiny-a", hparams.read_hparams(GOLDEN / "tiny-a" / "hparams.json"))
    facts = {n: (len(PUBLISHED[n]), hashlib.sha256(PUBLISHED[n]).hexdigest()) for n in ("encoder.json", "vocab.bpe")}
    monkeypatch.setattr(download, "VOCABULARY", facts)
    monkeypatch.setitem(download.SIZES, "tiny-a", {n: len(PUBLISHED[n]) for n in ("checkpoint", INDEX, META)})
    for variable in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "requests_ca_bundle", "curl_ca_bundle"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    for constant, value in {"TIMEOUT": 10, "RETRIES": 2, "BACKOFF": 0.001}.items():
        monkeypatch.setattr(download, constant, value)
    server = Server(folder)
    for thread in server.threads:
        thread.start()
    try:
        yield server
    finally:
        server.close()
    server.look()
    assert not server.damaged, "a damaged file lay under its final name"


# Answers


def serve(handler, content, ranges=True, etag='"1"', length=0, cut=None, stall=False):
    """Answer with the file. length: added to the Content-Length, None for no such header; cut: bytes after
    which the connection ends, or (stall) does not go on."""
    start = 0
    span = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or "")
    if ranges and span and handler.headers.get("If-Range") in (None, etag):
        start = int(span[1])
    headers = {"ETag": etag} if etag else {}
    if start >= len(content):
        return send(handler, 416, b"", headers | {"Content-Range": f"bytes */{len(content)}"})
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    if length is not None:
        headers["Content-Length"] = str(len(content) - start + length)
    send(handler, 206 if start else 200, content[start:cut], headers)
    if stall:
        handler.wfile.flush()
        handler.server.stalled.set()
        handler.server.closing.wait(20)


def send(handler, status, body, headers):
    handler.send_response(status)
    for key, value in (headers | handler.extra).items():
        handler.send_header(key, value)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = True


def status(code, body=b"no such file", **headers):
    return lambda handler, content: send(handler, code, body, {"Content-Length": str(len(body))} | headers)


def with_content(change, **how):
    """The file, changed."""
    return lambda handler, content: serve(handler, change(content), **how)


def compressed(handler, content, coding="gzip", etag='"gzip"', **how):
    """The file as a server or proxy sends it that compresses whatever is asked for: lengths and ranges are of that."""
    body = content
    for name in coding.lower().split(", "):
        body = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}.get(name, bytes)(body)
    handler.extra = {"Content-Encoding": coding}
    serve(handler, body, etag=etag, **how)


def silence(handler, content):
    handler.server.closing.wait(20)
    handler.close_connection = True


def flip(content, at):
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def once(*answers):
    return iter(answers)


forever = itertools.repeat
cut = functools.partial(serve, cut=HALF)
web_page = status(200, PAGE, **{"Content-Type": "text/html"})


# Downloads


def fetch(server, base_url=None, **options):
    """Download the tiny model from the server."""
    return download_model("tiny-a", server.folder.parent, base_url or server.base, **{"progress": False} | options)


def assert_complete(server):
    """All seven files are there, and nothing else."""
    found = {str(path.relative_to(server.folder)): path for path in server.folder.rglob("*")}
    assert {name: path.read_bytes() for name, path in found.items() if path.is_file()} == PUBLISHED
    assert ".download" not in found


def assert_nothing_final(server, of=ORDER):
    assert not [name for name in of if (server.folder / name).exists()]
