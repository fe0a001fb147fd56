"""The downloader: names and facts, a good server, proxies and certificates."""

import hashlib
import io
import os
import pathlib
import shutil
import ssl
import subprocess
import sys

import pytest
from file_server import ORDER, PUBLISHED, REST, assert_complete, cut, fetch, forever, once, status
from recorded import GOLDEN, ROOT

from gpt2tf import checkpoint, download, hparams
from gpt2tf.download import DATA, INDEX, META, DownloadError, download_model

RELEASE = GOLDEN / "release"


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


def test_facts_are_those_of_the_real_files():
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
    assert server.asked[-1] == (DATA, REST)


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


# Proxies and certificates


def test_the_proxy_variable_is_honoured(server, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    fetch(server, base_url="http://models.invalid/mirror")
    assert_complete(server)
    assert server.paths[0] == "http://models.invalid/mirror/tiny-a/hparams.json"


def test_errors_of_a_proxy_name_its_variable(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="proxy.* HTTPS_PROXY"):
        fetch(server)
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
