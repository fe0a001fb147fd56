"""The downloader against answers that are not the file."""

import itertools
import shutil

import pytest
from file_server import (
    FLIPPED_AT,
    ORDER,
    PAGE,
    XML,
    assert_complete,
    assert_nothing_final,
    fetch,
    flip,
    forever,
    once,
    serve,
    status,
    web_page,
    with_content,
)
from recorded import GOLDEN

from gpt2tf import download
from gpt2tf.download import DATA, INDEX, DownloadError

RELEASE = GOLDEN / "release"


@pytest.mark.parametrize("code", [401, 403, 404, 410, 204, 304])
@pytest.mark.parametrize("name", ["hparams.json", INDEX])
def test_refusals_are_final(server, code, name):
    server.script[name] = forever(status(code, b"" if code in (204, 304) else XML))
    with pytest.raises(DownloadError, match=f"{server.base}/tiny-a/{name}: HTTP {code} .*--base_url"):
        fetch(server)
    assert server.names().count(name) == 1
    assert server.names()[-1] == name  # so not the data
    assert_nothing_final(server, of=ORDER[ORDER.index(name) :])


@pytest.mark.parametrize("code", [500, 502, 503, 504, 520, 429, 408])
def test_passing_failures_are_repeated(server, code):
    server.script[DATA] = once(status(code), status(code))
    fetch(server)
    assert_complete(server)
    assert server.names() == [*ORDER, DATA, DATA]


@pytest.fixture
def pauses(monkeypatch):
    """The pauses before requests, which are not made."""
    pauses = []
    monkeypatch.setattr(download.time, "sleep", pauses.append)
    return pauses


def test_repeats_have_an_end_and_back_off(server, monkeypatch, pauses, caplog):
    monkeypatch.setattr(download, "RETRIES", 4)
    monkeypatch.setattr(download, "BACKOFF", 16)
    server.script["vocab.bpe"] = forever(status(500))
    failure = "HTTP 500 Internal Server Error"
    with pytest.raises(DownloadError, match=f"{server.base}/tiny-a/vocab.bpe: {failure}; try again"):
        fetch(server)
    assert pauses == [16, 32, 60, 60]
    assert server.names().count("vocab.bpe") == 5
    assert [record.message for record in caplog.records if record.name == "gpt2tf"] == [
        f"/gpt-2/models/tiny-a/vocab.bpe: {failure}; trying again in {pause} s" for pause in pauses
    ]


@pytest.mark.parametrize("code", [503, 429])
def test_the_server_may_say_how_long_to_wait(server, pauses, code):
    answers = [status(code, **{"Retry-After": seconds}) for seconds in ("7", "3600")]
    server.script[DATA] = once(*answers)
    fetch(server)
    assert_complete(server)
    assert pauses == [7, 60]


def test_a_connection_that_is_refused_is_tried_again(server, pauses, caplog):
    with pytest.raises(DownloadError, match="http://127.0.0.1:9/tiny-a/hparams.json: .*refused; try again"):
        fetch(server, base_url="http://127.0.0.1:9")
    assert pauses == [0.001, 0.002]
    assert caplog.text.count("/tiny-a/hparams.json: ") == caplog.text.count("refused; trying again in") == 2


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
    assert not server.part(name).exists()


def flipped(name):
    return with_content(lambda content: flip(content, FLIPPED_AT[name]))


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
    assert not server.part(name).exists()


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
