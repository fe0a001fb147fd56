"""The downloader where a connection breaks: lengths, resumption, and what an earlier run left in .download."""

import functools
import shutil
import signal
import subprocess
import sys
import time

import pytest
from file_server import (
    HALF,
    ONCE_MORE,
    ORDER,
    PUBLISHED,
    REST,
    assert_complete,
    assert_nothing_final,
    cut,
    fetch,
    forever,
    once,
    send,
    serve,
    silence,
    status,
)
from recorded import GOLDEN, ROOT

from gpt2tf import download
from gpt2tf.download import DATA, INDEX, META, DownloadError


@pytest.fixture(params=[True, False], ids=["sizes known", "sizes unknown"])
def known(request, server, monkeypatch):
    """The files whose lengths are known before they are asked for: as of 124M, or as of the larger models."""
    if not request.param:
        monkeypatch.setitem(download.SIZES, "tiny-a", {})
        return {"vocab.bpe", "encoder.json", DATA}
    return set(ORDER) - {"hparams.json"}


@pytest.mark.parametrize("name", ORDER)
def test_no_content_length(server, known, name):
    server.script[name] = forever(functools.partial(serve, length=None))
    fetch(server)
    assert_complete(server)


@pytest.mark.parametrize("name", ORDER)
def test_no_content_length_and_half_of_the_file(server, known, name, caplog):
    half = len(PUBLISHED[name]) // 2
    server.script[name] = once(functools.partial(serve, length=None, cut=half))
    fetch(server)
    assert_complete(server)
    assert server.spans(name) == [None, f"bytes={half}-" if name in known else None]
    assert (ONCE_MORE in caplog.text) == (name not in known)


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("wrong", [-30, 30])
def test_a_wrong_content_length(server, known, name, wrong):
    server.script[name] = once(functools.partial(serve, length=wrong))
    fetch(server)
    assert_complete(server)
    kept = len(PUBLISHED[name]) // download.CHUNK * download.CHUNK  # where the length is believed, as none is known
    assert server.spans(name) == [None, f"bytes={kept}-" if kept and wrong > 0 and name not in known else None]


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
    assert server.asked[-2:] == [(DATA, None), (DATA, REST)]  # whole chunks


def test_progress_resets_the_count_of_failures(server, monkeypatch):
    monkeypatch.setattr(download, "RETRIES", 1)
    cuts = [functools.partial(serve, cut=end) for end in range(70_000, 500_000, 70_000)]
    server.script[DATA] = once(*cuts)
    fetch(server)
    assert_complete(server)
    assert server.names().count(DATA) == len(cuts) + 1 == 8


def test_a_server_without_ranges(server):
    server.script[DATA] = once(cut, functools.partial(serve, ranges=False))
    fetch(server)
    assert_complete(server)
    assert server.spans(DATA) == [None, REST]


def test_a_server_without_ranges_that_always_cuts(server):
    server.script[DATA] = forever(functools.partial(serve, ranges=False, cut=HALF))
    with pytest.raises(DownloadError, match=DATA):
        fetch(server)
    assert server.spans(DATA) == [None, REST, REST]  # two in a row that got no further
    assert_nothing_final(server, of=[INDEX, DATA])


def test_a_server_without_validators(server):
    server.script[DATA] = once(functools.partial(cut, etag=None), functools.partial(serve, etag=None))
    fetch(server)
    assert_complete(server)
    assert server.spans(DATA) == [None, REST]


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
    assert said == [["identity", None, None], ["identity", REST, condition]]


def test_a_range_that_was_not_asked_for(server, caplog):
    wrong = status(206, b"x" * 9, **{"Content-Range": "bytes 5-13/543936"})
    server.script[DATA] = once(cut, wrong)
    fetch(server)
    assert_complete(server)
    assert server.spans(DATA) == [None, REST, None]
    assert ONCE_MORE not in caplog.text


@pytest.mark.parametrize("name", ["hparams.json", DATA])
def test_a_server_that_accepts_and_never_answers(server, name, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 1)
    server.script[name] = once(silence)
    fetch(server)
    assert_complete(server)
    assert server.names().count(name) == 2
    shutil.rmtree(server.folder)
    server.forget()
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    monkeypatch.setattr(download, "RETRIES", 1)
    server.script[name] = forever(silence)
    with pytest.raises(DownloadError, match=f"{name}: .*timed out"):
        fetch(server)
    assert server.names().count(name) == 2
    assert_nothing_final(server, of=[name])


def test_a_server_that_stops_half_way(server, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 1)
    server.script[DATA] = once(functools.partial(cut, stall=True))
    fetch(server)
    assert_complete(server)
    assert server.spans(DATA) == [None, REST]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "ftp://127.0.0.1/models", "http://"])
def test_addresses_that_lead_nowhere(server, url):
    with pytest.raises(DownloadError, match=f"{url[:5]}.*hparams.json: "):
        fetch(server, base_url=url)
    assert_nothing_final(server)


# What an earlier run left in .download


def leave_part(server, content, version='"1"', name=DATA):
    server.part().parent.mkdir(parents=True)
    server.part(name).write_bytes(content)
    if version is not None:
        server.part(name + ".version").write_text(version)


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
def test_a_part_as_long_as_the_file_or_longer(server, known, name, version, grown, caplog):
    leave_part(server, PUBLISHED[name] + b"\0" * grown, version, name)
    fetch(server)
    assert_complete(server)
    if name in known:
        assert server.spans(name) == [None] * grown
    elif version is None:
        assert server.spans(name) == [None]
    else:
        assert server.spans(name) == [f"bytes={len(PUBLISHED[name]) + grown}-", None]
    assert ONCE_MORE not in caplog.text


def test_a_damaged_part_costs_one_repeat(server):
    leave_part(server, b"\0" * 1000)
    fetch(server)
    assert_complete(server)
    assert server.spans(DATA) == ["bytes=1000-", None]


CHILD = """
import sys
from gpt2tf import cli, download, hparams
from gpt2tf.cli import download as command
hparams.PUBLISHED["tiny-a"] = hparams.read_hparams(sys.argv.pop(1))
command.silence_tensorflow = lambda: None
download._check = lambda *arguments: None  # it would import TensorFlow, for seconds
download.VOCABULARY = {}
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_killed_in_the_middle(server, number):
    server.script[DATA] = once(functools.partial(cut, stall=True))
    command = [
        sys.executable,
        "-c",
        CHILD,
        str(GOLDEN / "tiny-a" / "hparams.json"),
        *f"download tiny-a --models_dir {server.folder.parent} --base_url {server.base}".split(),
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as child:
        assert server.stalled.wait(20), child.stderr.read()
        until = time.monotonic() + 20
        while not server.part().exists() or server.part().stat().st_size < download.CHUNK:
            assert time.monotonic() < until
            time.sleep(0.01)
        child.send_signal(number)
        err = child.stderr.read()
    assert (child.returncode, err) == (-number if number == signal.SIGKILL else 128 + number, "")
    assert_nothing_final(server, of=[INDEX, DATA])
    fetched = server.part().stat().st_size
    server.forget()
    fetch(server)
    assert_complete(server)
    assert server.asked == [(DATA, f"bytes={fetched}-")]
