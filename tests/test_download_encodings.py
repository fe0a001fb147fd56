"""The downloader where what is sent is compressed, unasked: lengths and ranges are then not those of the file."""

import functools
import gzip

import pytest
from file_server import (
    HALF,
    ONCE_MORE,
    ORDER,
    PUBLISHED,
    assert_complete,
    assert_nothing_final,
    compressed,
    fetch,
    flip,
    forever,
    once,
    serve,
    status,
)

from gpt2tf import download
from gpt2tf.download import DATA, INDEX, DownloadError


@pytest.mark.parametrize("coding", ["gzip", "deflate", "x-gzip", "GZIP", "deflate, gzip", "identity", "aws-chunked"])
@pytest.mark.parametrize("length", [0, None], ids=["length", "no length"])
def test_what_is_compressed_is_the_file(server, coding, length, caplog):
    for name in ORDER:
        server.script[name] = forever(functools.partial(compressed, coding=coding, length=length))
    fetch(server)
    assert_complete(server)
    assert server.names() == ORDER and "again" not in caplog.text and ONCE_MORE not in caplog.text


def cut_at(place):
    return functools.partial(compressed, cut=place)


@pytest.mark.parametrize("sizes", [True, False], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("rest", [serve, compressed], ids=["goes on", "goes on compressed"])
def test_a_compressed_answer_that_is_cut(server, name, sizes, rest, monkeypatch):
    """Also where the server has one ETag for both forms, and answers with a range of the compressed one."""
    if not sizes:
        monkeypatch.setitem(download.SIZES, "tiny-a", {})
    middle = len(gzip.compress(PUBLISHED[name])) // 2
    server.script[name] = once(*[functools.partial(a, etag='"1"') for a in (cut_at(middle), rest)])
    fetch(server)
    assert_complete(server)


@pytest.mark.parametrize("again", [serve, functools.partial(serve, etag='"gzip"')], ids=["another ETag", "the same"])
def test_a_compressed_answer_that_is_cut_is_taken_up_in_the_file(server, again):
    """The rest is asked for by its place in the file; a server with another version of it answers with all."""
    cut = len(gzip.compress(PUBLISHED[DATA])) // 2
    server.script[DATA] = once(cut_at(cut), again)
    fetch(server)
    assert_complete(server)
    (first, second) = server.spans(DATA)
    assert first is None and 0 < int(second.removeprefix("bytes=").removesuffix("-")) < len(PUBLISHED[DATA])


def test_a_file_that_is_cut_and_goes_on_compressed_starts_anew(server):
    server.script[DATA] = once(functools.partial(serve, cut=HALF), functools.partial(compressed, etag='"1"'))
    fetch(server)
    assert_complete(server)
    assert server.spans(DATA)[0] is None and server.spans(DATA)[1] and server.spans(DATA)[2] is None


def test_a_compressed_answer_with_a_wrong_length(server):
    server.script[DATA] = once(functools.partial(compressed, length=30), functools.partial(compressed, length=-30))
    fetch(server)
    assert_complete(server)


def test_what_is_compressed_and_is_not_the_file(server):
    server.script[DATA] = forever(lambda handler, content: compressed(handler, content + bytes(512)))
    with pytest.raises(DownloadError, match="sends more than the 543,936 bytes"):
        fetch(server)
    server.script[DATA] = forever(lambda handler, content: compressed(handler, flip(content, HALF)))
    with pytest.raises(DownloadError, match=f"{server.base}/tiny-a/{DATA}: "):
        fetch(server)
    server.script[DATA] = forever(lambda handler, _: compressed(handler, b"<!DOCTYPE html><html>please log in</html>"))
    with pytest.raises(DownloadError, match="the server answered with a web page"):
        fetch(server)
    assert_nothing_final(server, of=[DATA, INDEX])


def test_damage_in_what_is_compressed(server):
    def damaged(handler, content):
        handler.extra = {"Content-Encoding": "gzip"}
        serve(handler, flip(gzip.compress(content), 2000), etag='"gzip"')

    server.script[DATA] = once(damaged)
    fetch(server)
    assert_complete(server)
    (server.folder / "hparams.json").unlink()
    server.script["hparams.json"] = forever(status(200, b"no gzip", **{"Content-Encoding": "gzip"}))
    with pytest.raises(DownloadError, match="hparams.json: .*gzip"):
        fetch(server)


@pytest.mark.parametrize("coding, package", [("br", "brotli"), ("zstd", "zstandard"), ("gzip, br", "brotli")])
def test_what_is_not_undone_here_is_named(server, coding, package, monkeypatch):
    monkeypatch.setattr(download.HTTPResponse, "CONTENT_DECODERS", ["gzip", "deflate"])
    server.script[INDEX] = forever(functools.partial(compressed, coding=coding))
    name = coding.split(", ")[-1]
    with pytest.raises(DownloadError, match=f"{INDEX}: it comes as '{name}', which needs pip install {package}; "):
        fetch(server)
    assert server.names().count(INDEX) == 1
