"""The downloader against a real HTTP server on loopback that misbehaves in each way servers do.

What is published here is `golden/tiny-a`. While a download runs, a thread and every request look at the
final names: whatever lies there must be the published file, byte for byte.
"""

import contextlib
import fcntl
import functools
import hashlib
import io
import itertools
import logging
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpt2tf import checkpoint, download, hparams
from gpt2tf.download import DATA, INDEX, META, DownloadError, download_model

ROOT = pathlib.Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden" / "tiny-a"
RELEASE = ROOT / "tests" / "golden" / "release"
ORDER = ["hparams.json", "checkpoint", "vocab.bpe", "encoder.json", META, INDEX, DATA]
PUBLISHED = {name: (GOLDEN / name).read_bytes() for name in ORDER}
HALF = len(PUBLISHED[DATA]) // 2
# A byte of each file whose damage is seen. In hparams.json it is a digit. Of the graph only what breaks it
# or changes its length is seen, and nobody reads it.
FLIPPED_AT = {"hparams.json": 12, "checkpoint": 25, "vocab.bpe": 99, "encoder.json": 99, META: 0, INDEX: 99, DATA: HALF}
PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"
XML = b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?><Error><Code>BlobNotFound</Code></Error>'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

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
        return [name for name, _ in self.asked]

    def handle_error(self, request, client_address):
        pass  # clients that hang up are what is tested

    def close(self):
        self.closing.set()
        self.shutdown()
        self.server_close()
        for thread in self.threads:
            thread.join()


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
    for key, value in headers.items():
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


def silence(handler, content):
    handler.server.closing.wait(20)
    handler.close_connection = True


def flip(content, at):
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def flipped(name):
    return with_content(lambda content: flip(content, FLIPPED_AT[name]))


def once(*answers):
    return iter(answers)


ONCE_MORE = "downloading it once more"
forever = itertools.repeat
cut = functools.partial(serve, cut=HALF)
web_page = status(200, PAGE, **{"Content-Type": "text/html"})


@pytest.fixture(autouse=True)
def tiny_is_published(monkeypatch):
    """`tiny-a` as one more published model, with all the facts that are known of 124M; no proxy from outside."""
    monkeypatch.setitem(hparams.PUBLISHED, "tiny-a", hparams.read_hparams(GOLDEN / "hparams.json"))
    facts = {n: (len(PUBLISHED[n]), hashlib.sha256(PUBLISHED[n]).hexdigest()) for n in ("encoder.json", "vocab.bpe")}
    monkeypatch.setattr(download, "VOCABULARY", facts)
    monkeypatch.setitem(download.SIZES, "tiny-a", {n: len(PUBLISHED[n]) for n in ("checkpoint", INDEX, META)})
    for variable in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "requests_ca_bundle", "curl_ca_bundle"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models" / "tiny-a"


@pytest.fixture
def server(folder):
    server = Server(folder)
    for thread in server.threads:
        thread.start()
    yield server
    server.close()
    server.look()
    assert not server.damaged, "a damaged file lay under its final name"


def fetch(server, **options):
    """Download the tiny model from the server; quick to give up."""
    options = {"timeout": 10, "retries": 2, "backoff": 0.001, "progress": False} | options
    return download_model("tiny-a", server.folder.parent, options.pop("base_url", server.base), **options)


def held(folder):
    """{name: bytes} of all files in a folder, subfolders included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def part(server, name=DATA):
    return server.folder / ".download" / name


def assert_complete(server):
    assert held(server.folder) == PUBLISHED
    assert not (server.folder / ".download").exists()


def assert_nothing_final(server, of=ORDER):
    assert not [name for name in of if (server.folder / name).exists()]


# Names and facts


@pytest.mark.parametrize("name", ["124M", "355M", "774M", "1558M"])
def test_published_names_are_known(name):
    assert download.check_name(name) == name


@pytest.mark.parametrize(
    "name, message",
    [
        ("117M", "now called 124M"),
        ("345M", "now called 355M"),
        ("762M", "now called 774M"),
        ("1542M", "now called 1558M"),
        ("335M", "did you mean 355M"),
        ("1.5B", "did you mean 1558M"),
        ("gpt2", "did you mean 124M"),
        ("gpt2-xl", "did you mean 1558M"),
        ("../x", "the models are 124M, 355M, 774M, 1558M"),
        ("", "the models are 124M, 355M, 774M, 1558M"),
    ],
)
def test_other_names_are_refused_before_anything_is_made(name, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        download_model(name, tmp_path / "models", "http://127.0.0.1:9")
    assert not any(tmp_path.iterdir())


def test_lower_case_is_not_a_name_but_is_understood():
    with pytest.raises(ValueError, match="did you mean 1558M"):
        download.check_name("1.5b")


def test_facts_are_those_of_the_real_files(monkeypatch):
    monkeypatch.undo()
    for name in ("checkpoint", INDEX):
        assert download.known_size("124M", name) == (RELEASE / name).stat().st_size
    for name, fact in download.VOCABULARY.items():
        content = (ROOT / "encoder" / name).read_bytes()
        assert fact == (len(content), hashlib.sha256(content).hexdigest())
    data = [download.known_size(name, DATA) for name in ("124M", "355M", "774M", "1558M")]
    assert data == [497_759_232, 1_419_292_672, 3_096_120_320, 6_230_444_800]
    assert download.known_size("124M", META) == 471_155 and download.known_size("355M", META) is None
    assert download.BASE_URL == "https://openaipublic.blob.core.windows.net/gpt-2/models"


def test_the_released_index_and_hparams_are_accepted():
    checkpoint.verify_index(str(RELEASE / "model.ckpt"), hparams.PUBLISHED["124M"])
    assert hparams.read_hparams(RELEASE / "hparams.json") == hparams.PUBLISHED["124M"]


def test_importing_the_downloader_does_not_import_tensorflow():
    code = "import sys, gpt2tf.download; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_32_bit_python_is_told_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    with pytest.raises(DownloadError, match="32-bit"):
        download_model("1558M", tmp_path, "http://127.0.0.1:9")
    assert not any(tmp_path.iterdir())


# A good server


def test_fetches_the_seven_files(server):
    assert fetch(server) == str(server.folder)
    assert_complete(server)
    assert server.paths == [f"/gpt-2/models/tiny-a/{name}" for name in ORDER]  # small files first


def test_base_url_may_end_in_a_slash(server):
    fetch(server, base_url=server.base + "/")
    assert server.paths[0] == "/gpt-2/models/tiny-a/hparams.json"


def test_a_second_run_asks_for_nothing(server):
    fetch(server)
    written = server.folder.stat().st_mtime_ns
    server.forget()
    fetch(server)
    assert not server.asked
    assert server.folder.stat().st_mtime_ns == written  # so a folder that one may only read will do


def test_the_data_is_renamed_before_its_index(server, monkeypatch):
    renamed, replace = [], os.replace

    def recorded(source, target):
        renamed.append(pathlib.Path(target).name)
        replace(source, target)

    monkeypatch.setattr(download.os, "replace", recorded)
    fetch(server)
    assert renamed == [*ORDER[:-2], DATA, INDEX]


def test_redirects_are_followed(server):
    place = {"Location": f"{server.base}/tiny-a/elsewhere/{DATA}"}
    server.script[DATA] = once(status(302, b"", **place), cut, status(302, b"", **place))
    fetch(server)
    assert_complete(server)
    assert server.asked[-1] == (DATA, f"bytes={4 * download.CHUNK}-")


def test_one_bar_per_file(server, monkeypatch):
    bars = []

    class Bar(download.tqdm):
        def __init__(self, **options):
            super().__init__(**options | {"disable": False, "file": io.StringIO()})
            bars.append(self)

    monkeypatch.setattr(download, "tqdm", Bar)
    server.script[DATA] = once(cut)
    fetch(server, progress=True)
    assert [bar.desc for bar in bars] == [f"Fetching {name}" for name in ORDER]
    assert [bar.n for bar in bars] == [bar.total for bar in bars] == [len(PUBLISHED[name]) for name in ORDER]


@pytest.mark.parametrize("progress", [True, False])
def test_nothing_is_printed_where_there_is_no_terminal(server, capfd, progress):
    fetch(server, progress=progress)
    out, err = capfd.readouterr()
    assert out == "" and "Fetching" not in err


# Answers that are not the file


@pytest.mark.parametrize("code", [401, 403, 404, 410, 204, 304])
@pytest.mark.parametrize("name", ["hparams.json", INDEX])
def test_refusals_are_final(server, code, name):
    server.script[name] = forever(status(code, b"" if code in (204, 304) else XML))
    with pytest.raises(DownloadError, match=f"{server.base}/tiny-a/{name}: HTTP {code} .*--base_url"):
        fetch(server)
    assert server.names().count(name) == 1
    assert server.names()[-1] == name  # so not the data
    assert_nothing_final(server, of=ORDER[ORDER.index(name) :])


@pytest.mark.parametrize("code", [500, 502, 503, 429, 408])
def test_passing_failures_are_repeated(server, code):
    server.script[DATA] = once(status(code), status(code))
    fetch(server)
    assert_complete(server)


def test_repeats_have_an_end_and_back_off(server, monkeypatch):
    pauses = []
    monkeypatch.setattr(download.time, "sleep", pauses.append)
    server.script["vocab.bpe"] = forever(status(500))
    with pytest.raises(DownloadError, match="vocab.bpe: HTTP 500 Internal Server Error"):
        fetch(server, retries=4, backoff=16)
    assert pauses == [16, 32, 60, 60]
    assert server.names().count("vocab.bpe") == 5


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("page", [web_page, status(200, XML), with_content(lambda _: PAGE, length=None)])
def test_a_web_page_is_not_a_file(server, name, page):
    server.script[name] = once(page)
    fetch(server)
    assert_complete(server)
    shutil.rmtree(server.folder)
    server.forget()
    server.script[name] = forever(page)
    with pytest.raises(DownloadError, match=f"{name}: the server answered with a web page; check the address"):
        fetch(server)
    assert server.names().count(name) == 2
    assert_nothing_final(server, of=ORDER[ORDER.index(name) :])
    assert not part(server, name).exists()


@pytest.mark.parametrize("name", ORDER)
def test_a_flipped_bit(server, name):
    server.script[name] = once(flipped(name))
    fetch(server)
    assert_complete(server)
    shutil.rmtree(server.folder)
    server.script[name] = forever(flipped(name))
    with pytest.raises(DownloadError, match=f"{server.base}/tiny-a/{name}: .*; try again"):
        fetch(server)
    assert_nothing_final(server, of=[INDEX, DATA] if name == DATA else [name])
    assert not part(server, name).exists()


def test_a_flipped_bit_in_the_index_is_seen_before_the_data_is_fetched(server):
    server.script[INDEX] = forever(flipped(INDEX))
    with pytest.raises(DownloadError, match=INDEX):
        fetch(server)
    assert DATA not in server.names()


@pytest.mark.parametrize("name, source", [("hparams.json", "124M"), (INDEX, "124M's")])
def test_files_of_another_size_of_model(server, name, source, monkeypatch):
    monkeypatch.setitem(download.SIZES, "tiny-a", {})
    server.script[name] = forever(with_content(lambda _: (RELEASE / name).read_bytes()))
    with pytest.raises(DownloadError, match=source):
        fetch(server)
    assert DATA not in server.names()
    assert_nothing_final(server, of=[name])


def test_bytes_appended_to_the_data(server):
    server.script[DATA] = forever(with_content(lambda content: content + b"\0" * 512))
    with pytest.raises(DownloadError, match="announces 544,448 bytes, the published file has 543,936"):
        fetch(server)
    server.script[DATA] = forever(with_content(lambda content: content * 2, length=None))
    with pytest.raises(DownloadError, match="sends more than the 543,936 bytes"):
        fetch(server)
    assert_nothing_final(server, of=[INDEX, DATA])


def test_an_endless_answer(server):
    sent = itertools.count()

    def endless(handler, content):
        serve(handler, content, length=None)
        for _ in zip(range(4000), sent, strict=False):
            handler.wfile.write(bytes(1 << 16))

    server.script["vocab.bpe"] = forever(endless)
    with pytest.raises(DownloadError, match="sends more than"):
        fetch(server)
    assert next(sent) < 1000  # 64 MB, of which most wait in the buffers of the two sockets


# Lengths and cut connections


@pytest.fixture(params=[True, False], ids=["sizes known", "sizes unknown"])
def sizes(request, monkeypatch):
    if not request.param:
        monkeypatch.setitem(download.SIZES, "tiny-a", {})
    return request.param


@pytest.mark.parametrize("name", ORDER)
def test_no_content_length(server, sizes, name):
    server.script[name] = forever(functools.partial(serve, length=None))
    fetch(server)
    assert_complete(server)


@pytest.mark.parametrize("name", ORDER)
def test_no_content_length_and_half_of_the_file(server, sizes, name, caplog):
    half = len(PUBLISHED[name]) // 2
    server.script[name] = once(functools.partial(serve, length=None, cut=half))
    fetch(server)
    assert_complete(server)
    if download.known_size("tiny-a", name):
        assert (name, f"bytes={half}-") in server.asked and ONCE_MORE not in caplog.text


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("wrong", [-30, 30])
def test_a_wrong_content_length(server, sizes, name, wrong):
    server.script[name] = once(functools.partial(serve, length=wrong))
    fetch(server)
    assert_complete(server)


@pytest.mark.parametrize("wrong", [-30, 30])
def test_always_a_wrong_content_length(server, wrong):
    server.script[DATA] = forever(functools.partial(serve, length=wrong))
    with pytest.raises(DownloadError, match="announces"):
        fetch(server)
    assert_nothing_final(server, of=[INDEX, DATA])


def test_a_cut_connection_is_taken_up_where_it_broke(server):
    server.script[DATA] = once(cut)
    fetch(server)
    assert_complete(server)
    assert server.asked[-2:] == [(DATA, None), (DATA, f"bytes={4 * download.CHUNK}-")]  # whole chunks


def test_progress_resets_the_count_of_failures(server):
    cuts = [functools.partial(serve, cut=end) for end in range(70_000, 500_000, 70_000)]
    server.script[DATA] = once(*cuts)
    fetch(server, retries=1)
    assert_complete(server)
    assert server.names().count(DATA) == len(cuts) + 1


def test_a_server_without_ranges(server):
    server.script[DATA] = once(cut, functools.partial(serve, ranges=False))
    fetch(server)
    assert_complete(server)


def test_a_server_without_ranges_that_always_cuts(server):
    server.script[DATA] = forever(functools.partial(serve, ranges=False, cut=HALF))
    with pytest.raises(DownloadError, match=DATA):
        fetch(server, retries=2)
    assert server.names().count(DATA) == 4  # the first of them did get further
    assert_nothing_final(server, of=[INDEX, DATA])


def test_a_server_without_validators(server):
    server.script[DATA] = once(functools.partial(cut, etag=None), functools.partial(serve, etag=None))
    fetch(server)
    assert_complete(server)
    assert server.asked[-1][1] is not None


@pytest.mark.parametrize("etag, condition", [('"1"', '"1"'), ('W/"1"', "Wed, 30 Oct 2019 00:00:00 GMT")])
def test_what_a_request_says(server, etag, condition):
    """A weak ETag must not stand in If-Range (RFC 9110, 13.1.5)."""
    said = []

    def answer(handler, content):
        said.append([handler.headers[key] for key in ("Accept-Encoding", "Range", "If-Range")])
        date = {"ETag": etag, "Last-Modified": "Wed, 30 Oct 2019 00:00:00 GMT", "Content-Length": str(len(content))}
        send(handler, 200, content[: HALF if len(said) == 1 else None], date)

    server.script[DATA] = forever(answer)
    fetch(server)
    assert said == [["identity", None, None], ["identity", f"bytes={4 * download.CHUNK}-", condition]]


def test_a_range_that_was_not_asked_for(server, caplog):
    wrong = status(206, b"x" * 9, **{"Content-Range": "bytes 5-13/543936"})
    server.script[DATA] = once(cut, wrong)
    fetch(server)
    assert_complete(server)
    assert ONCE_MORE not in caplog.text


@pytest.mark.parametrize("name", ["hparams.json", DATA])
def test_a_server_that_accepts_and_never_answers(server, name):
    server.script[name] = once(silence)
    fetch(server, timeout=0.3, retries=5)
    assert_complete(server)
    shutil.rmtree(server.folder)
    server.forget()
    server.script[name] = forever(silence)
    with pytest.raises(DownloadError, match=f"{name}: .*timed out"):
        fetch(server, timeout=0.2, retries=1)
    assert server.names().count(name) == 2
    assert_nothing_final(server, of=[name])


def test_a_server_that_stops_half_way(server):
    server.script[DATA] = once(functools.partial(cut, stall=True))
    fetch(server, timeout=0.3, retries=5)
    assert_complete(server)
    assert (DATA, f"bytes={4 * download.CHUNK}-") in server.asked


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "ftp://127.0.0.1/models", "http://"])
def test_addresses_that_lead_nowhere(server, url):
    with pytest.raises(DownloadError, match=f"{url[:5]}.*hparams.json: "):
        fetch(server, base_url=url, retries=1)
    assert_nothing_final(server)


# What lies there already


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("damage", [lambda c, at: flip(c, at), lambda c, at: c[: len(c) // 2], lambda c, at: XML])
def test_a_damaged_file_is_downloaded_again(server, name, damage, caplog):
    fetch(server)
    server.forget()
    (server.folder / name).write_bytes(damage(PUBLISHED[name], FLIPPED_AT[name]))
    fetch(server)
    assert_complete(server)
    assert not any(span for _, span in server.asked)  # nothing of unknown origin is gone on from
    assert set(server.names()) - {name} == ({INDEX} if name == DATA and len(server.asked) > 1 else set())
    assert f"{server.folder / name}" in caplog.text and "downloading it again" in caplog.text


def test_a_graph_of_another_length_is_downloaded_again(server):
    fetch(server)
    server.forget()
    (server.folder / META).write_bytes(PUBLISHED[META] * 2)  # two messages in a row are a message
    fetch(server)
    assert_complete(server)


def test_another_models_files_are_replaced(server):
    server.folder.mkdir(parents=True)
    for name in ("hparams.json", "checkpoint", INDEX):
        shutil.copy(RELEASE / name, server.folder)
    fetch(server)
    assert_complete(server)


@pytest.mark.parametrize("name", ORDER)
def test_a_missing_file_is_fetched_alone(server, name):
    fetch(server)
    server.forget()
    (server.folder / name).unlink()
    fetch(server)
    assert_complete(server)
    assert server.names() == [name]


def test_killed_between_the_two_renames(server):
    fetch(server)
    server.forget()
    part(server).parent.mkdir()
    (server.folder / INDEX).rename(part(server, INDEX))
    fetch(server)
    assert_complete(server)
    assert not server.asked


def test_a_fine_tuned_checkpoint_is_left_alone(server):
    """Any checkpoint with the model's variables and right checksums is whole."""
    from gpt2tf import checkpoint

    shutil.copytree(GOLDEN, server.folder)
    model = checkpoint.load_model(server.folder)
    model.variables[0].assign(model.variables[0] * 2)
    checkpoint.save_checkpoint(model, server.folder)
    tuned = (server.folder / DATA).read_bytes()
    assert tuned != PUBLISHED[DATA]
    fetch(server)
    assert (server.folder / DATA).read_bytes() == tuned
    assert not server.asked
    shutil.rmtree(server.folder)  # before the server looks for what it published


# What an earlier run left in .download


def leave_part(server, content, version='"1"', name=DATA):
    part(server).parent.mkdir(parents=True)
    part(server, name).write_bytes(content)
    if version is not None:
        part(server, name + ".version").write_text(version)


def test_an_earlier_run_is_taken_up(server):
    leave_part(server, PUBLISHED[DATA][:1000])
    fetch(server)
    assert_complete(server)
    assert server.asked[-1] == (DATA, "bytes=1000-")


def without_if_range(handler, content):
    del handler.headers["If-Range"]
    serve(handler, content)


@pytest.mark.parametrize("answer, requests", [(serve, 1), (without_if_range, 2)])
def test_a_part_of_another_version_is_dropped(server, answer, requests, caplog):
    leave_part(server, b"\0" * 1000, version='"0"')
    server.script[DATA] = once(answer)
    fetch(server)
    assert_complete(server)
    assert server.names().count(DATA) == requests
    assert ONCE_MORE not in caplog.text


@pytest.mark.parametrize("version", ['"1"', "", None])
@pytest.mark.parametrize("name", ["hparams.json", META, DATA])
@pytest.mark.parametrize("grown", [0, 1])
def test_a_part_as_long_as_the_file_or_longer(server, sizes, name, version, grown, caplog):
    leave_part(server, PUBLISHED[name] + b"\0" * grown, version, name)
    fetch(server)
    assert_complete(server)
    if grown and download.known_size("tiny-a", name):
        assert [span for asked, span in server.asked if asked == name] == [None]
    assert ONCE_MORE not in caplog.text


def test_a_damaged_part_costs_one_repeat(server):
    leave_part(server, b"\0" * 1000)
    fetch(server)
    assert_complete(server)
    assert [span for name, span in server.asked if name == DATA] == ["bytes=1000-", None]


CHILD = """
import sys
from gpt2tf import checkpoint, download, hparams
hparams.PUBLISHED["tiny-a"] = hparams.read_hparams(sys.argv[1])
download._check = lambda *arguments: None  # it would import TensorFlow, for seconds
download.VOCABULARY = {}
download.download_model("tiny-a", sys.argv[2], sys.argv[3], progress=False)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_in_the_middle(server, number):
    server.script[DATA] = once(functools.partial(cut, stall=True))
    command = [sys.executable, "-c", CHILD, str(GOLDEN / "hparams.json"), str(server.folder.parent), server.base]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as child:
        assert server.stalled.wait(20), child.stderr.read()
        until = time.monotonic() + 20
        while not part(server).exists() or part(server).stat().st_size < download.CHUNK:
            assert time.monotonic() < until
            time.sleep(0.01)
        child.send_signal(number)
        err = child.stderr.read()
    assert child.returncode != 0
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    assert_nothing_final(server, of=[INDEX, DATA])
    fetched = part(server).stat().st_size
    server.forget()
    fetch(server)
    assert_complete(server)
    assert server.asked == [(DATA, f"bytes={fetched}-")]


def test_two_at_once(server, caplog):
    server.script[DATA] = forever(lambda *answer: (time.sleep(0.3), serve(*answer)))
    threads = [threading.Thread(target=fetch, args=(server,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_complete(server)
    assert server.names() == ORDER
    assert "another process is downloading" in caplog.text


def test_a_file_system_without_locks(server, monkeypatch, caplog):
    def refuse(*arguments):
        raise OSError(9, "Bad file descriptor")

    caplog.set_level(logging.INFO, "gpt2tf")
    monkeypatch.setattr(fcntl, "flock", refuse)
    fetch(server)
    assert_complete(server)
    assert "cannot be locked" in caplog.text


# The disk


def test_too_little_room_is_said_before_the_transfer(server, monkeypatch):
    usage = shutil.disk_usage(server.folder.parent.parent)._replace(free=500_000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match="needs 543,936 more bytes, but .* has 500,000 free"):
        fetch(server)
    assert part(server).stat().st_size == 0
    leave_size = 100_000
    part(server).write_bytes(PUBLISHED[DATA][:leave_size])
    fetch(server)  # 443,936 do fit
    assert_complete(server)


def test_a_full_disk_keeps_what_was_fetched(server, monkeypatch):
    class Full:
        """A file on a disk with room for two chunks."""

        def __init__(self, file):
            self.file, self.tell = file, file.tell

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, chunk):
            if self.tell() > 100_000:
                raise OSError(28, "No space left on device")
            self.file.write(chunk)

        def close(self):
            self.file.close()

    def on_full_disk(path, mode="r", **options):
        file = open(path, mode, **options)
        return Full(file) if mode == "ab" else file

    with monkeypatch.context() as patch:
        patch.setattr(download, "open", on_full_disk, raising=False)
        with pytest.raises(DownloadError, match=f"the disk is full: .*{META} is kept"):
            fetch(server)
    fetch(server)
    assert_complete(server)
    assert (META, "bytes=131072-") in server.asked


# Proxies and certificates


def test_the_proxy_variable_is_honoured(server, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    fetch(server, base_url="http://models.invalid/mirror")
    assert_complete(server)
    assert server.paths[0] == "http://models.invalid/mirror/tiny-a/hparams.json"


def test_errors_of_a_proxy_name_its_variable(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="proxy.* HTTPS_PROXY"):
        fetch(server, retries=1)
    monkeypatch.delenv("http_proxy")
    server.script["hparams.json"] = forever(status(407))
    with pytest.raises(DownloadError, match="HTTP 407.* HTTPS_PROXY"):
        fetch(server)


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the openssl command to make a certificate")
def test_a_private_authority(server, monkeypatch, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=mirror -addext subjectAltName=IP:127.0.0.1"
    usage = ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    subprocess.run([*request.split(), *usage, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    secure = server.base.replace("http:", "https:")
    with monkeypatch.context() as patch, pytest.raises(DownloadError, match="certificate.* REQUESTS_CA_BUNDLE"):
        patch.setattr(download.time, "sleep", lambda pause: pytest.fail("waiting does not help"))
        fetch(server, base_url=secure)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    fetch(server, base_url=secure)
    assert_complete(server)
