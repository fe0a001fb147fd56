"""Fetch a published model into a folder: resumed where it was cut, checked, and only then under its name.

Mirrors openai/gpt-2 download_model.py: the same addresses, the same seven files, the same folders, one
progress bar a file. Differences: the original saved whatever came, an error page or half a file included.
Here a file grows in `models/<name>/.download/` and is renamed when it has been verified (`model.ckpt.index`
and its data together), and what lies complete under its final name is not fetched again.
"""

import contextlib
import dataclasses
import errno
import hashlib
import logging
import os
import re
import shutil
import sys
import time

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError, ContentDecodingError
from tqdm import tqdm
from urllib3 import Retry
from urllib3.exceptions import MaxRetryError
from urllib3.response import HTTPResponse

from gpt2tf import names
from gpt2tf.files import locked
from gpt2tf.hparams import PUBLISHED, check_name, read_hparams, size_name
from gpt2tf.locate import PREFIX

BASE_URL = "https://openaipublic.blob.core.windows.net/gpt-2/models"  # openai/gpt-2 download_model.py
CHECKPOINT, HPARAMS = "checkpoint", "hparams.json"
INDEX, DATA, META = "model.ckpt.index", "model.ckpt.data-00000-of-00001", "model.ckpt.meta"

# Verified and renamed together; small files first, so that a wrong address shows at once. The last file of
# a group vouches for all of it: the checksums of the data are in the index.
GROUPS = ((HPARAMS,), (CHECKPOINT,), ("vocab.bpe",), ("encoder.json",), (META,), (INDEX, DATA))

# Bytes and SHA-256 of the vocabulary, one for all models; the hashes are those that tiktoken pins.
VOCABULARY = {
    "encoder.json": (1042301, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
    "vocab.bpe": (456318, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
}
LAMBADA = "lambada_test.jsonl"  # its hash is the one that lm-evaluation-harness pins
DATA_SETS = {LAMBADA: (1819752, "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226")}
# Bytes of the other files, where known. hparams.json is judged by what it says.
SIZES = {"124M": {CHECKPOINT: 77, INDEX: 5215, META: 471155}}

CHUNK = 1 << 16  # bytes; at most this much is lost when a connection breaks
TIMEOUT = 30  # seconds to wait for a connection, and for the next byte
RETRIES = 5  # how often in a row a request is repeated that brings no new byte
BACKOFF, LONGEST_PAUSE = 1, 60  # seconds before the first of them, doubled each time, and before any
PASSING = {408, 429, *range(500, 600)}  # HTTP statuses with which the same request may succeed in a while
COMPRESSIONS = {"br": "brotli", "zstd": "zstandard"}  # Content-Encodings that requests undoes only with a package
WEB_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|body|\?xml|error)\b", re.IGNORECASE)
TRY_AGAIN = "try again, or name a mirror with --base_url"

log = logging.getLogger("gpt2tf")


class DownloadError(OSError):
    """A model could not be fetched; the message says from where, why, and what to do."""


class _Retry(Retry):
    """urllib3's retries, each announced, with pauses of at most LONGEST_PAUSE; none for certificates."""

    def increment(self, method=None, url=None, response=None, error=None, _pool=None, _stacktrace=None):
        if "CERTIFICATE_VERIFY_FAILED" in str(error):  # the next one will not be trusted either
            raise error
        return super().increment(method, url, response, error, _pool, _stacktrace)

    def sleep(self, response=None):
        failed = self.history[-1]
        pause = BACKOFF * 2 ** (len(self.history) - 1)
        if response:
            pause = self.get_retry_after(response) or pause
        pause = min(pause, LONGEST_PAUSE)
        cause = _explain(failed.error) if failed.error else f"HTTP {response.status} {response.reason}"
        log.warning("%s: %s; trying again in %g s", failed.url, cause, pause)
        time.sleep(pause)


@dataclasses.dataclass(frozen=True)
class _Job:
    model_name: str
    folder: str
    base_url: str
    progress: bool
    remedy: str = TRY_AGAIN
    session: requests.Session = dataclasses.field(default_factory=requests.Session)
    retry: _Retry = dataclasses.field(
        default_factory=lambda: _Retry(RETRIES, status_forcelist=PASSING, raise_on_status=False)
    )

    def url(self, name: str) -> str:
        return f"{self.base_url.rstrip('/')}/{self.model_name}/{name}"

    def part(self, name: str) -> str:
        return os.path.join(self.folder, ".download", name)


def known_size(model_name: str, name: str) -> int | None:
    """Bytes of a published file, or None where that is not known."""
    if name == DATA:
        return 4 * names.parameter_count(PUBLISHED[model_name])  # float32, and nothing but the parameters
    pinned = VOCABULARY | DATA_SETS
    return pinned[name][0] if name in pinned else SIZES.get(model_name, {}).get(name)


def download_model(
    model_name: str,
    models_dir: str | os.PathLike = "models",
    base_url: str = BASE_URL,
    *,
    progress: bool = True,
) -> str:
    """Make `models_dir/model_name` a complete, verified copy of a published model; return that path.

    base_url: where `<model_name>/<file>` is found. progress: a bar for each file, if stderr is a terminal.
    HTTPS_PROXY, NO_PROXY and REQUESTS_CA_BUNDLE count. Files that are there and whole are left alone, others
    are replaced. What an interrupted call fetched stays in `.download`, and the next one goes on from it.
    A call waits for another one on the same folder, except on Windows: do not run two there.

    Raises ValueError for an unknown name; DownloadError (an OSError) where the server, the connection or
    the room on the disk fails; other OSErrors of the disk.
    """
    check_name(model_name)
    if sys.maxsize < 2**32 and known_size(model_name, DATA) >= 2**31:
        raise DownloadError(f"{model_name} has a file of more than 2 GiB, too large for a 32-bit Python")
    folder = os.path.join(models_dir, model_name)
    _complete(_Job(model_name, folder, base_url, progress), GROUPS)
    return folder


def download_lambada(folder: str | os.PathLike, base_url: str = BASE_URL.removesuffix("/models")) -> str:
    """Make `folder/lambada_test.jsonl` OpenAI's file, as `download_model` does a model's; return that path."""
    remedy = f"try again, or put {LAMBADA} into {os.fspath(folder)} yourself"
    _complete(_Job("data", os.fspath(folder), base_url, progress=True, remedy=remedy), ((LAMBADA,),))
    return os.path.join(folder, LAMBADA)


def _complete(job: _Job, groups: tuple[tuple[str, ...], ...]) -> None:
    """Fetch the groups of files that do not lie whole in the job's folder."""
    os.makedirs(job.folder, exist_ok=True)

    def busy():
        log.warning("another process is downloading into %s; waiting for it", job.folder)

    with locked(job.folder, busy), job.session as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=job.retry))
        for group in [group for group in groups if not _is_complete(job, group)]:
            _obtain(job, group)
        shutil.rmtree(job.part(""), ignore_errors=True)


def _is_complete(job: _Job, group: tuple[str, ...]) -> bool:
    """Whether a group lies whole under its final names. If not, what there is of it becomes temporary files."""
    present = [name for name in group if os.path.exists(os.path.join(job.folder, name))]
    try:
        if len(present) == len(group):
            _check(job, job.folder, group[-1])
            log.info("%s: %s complete", job.folder, " and ".join(group))
            return True
    except ValueError as error:
        log.warning("%s; downloading it again", error)
    os.makedirs(job.part(""), exist_ok=True)
    for name in present:
        os.replace(os.path.join(job.folder, name), job.part(name))
    return False


def _obtain(job: _Job, group: tuple[str, ...]) -> None:
    """Fetch the files of a group, verify them and rename them; if they are damaged, once more from zero."""
    for last in (False, True):
        try:
            for name in group:
                _fetch(job, name)
                _check(job, job.part(""), name)
            break
        except ValueError as error:
            for damaged in group[: group.index(name) + 1]:  # the file and what it was checked with
                with contextlib.suppress(FileNotFoundError):
                    os.remove(job.part(damaged))
            if last:
                raise DownloadError(f"{job.url(name)}: {error}; {job.remedy}") from error
            log.warning("%s: %s; downloading it once more", job.url(name), error)
    for name in reversed(group):  # the data first, so that an index never lies without it
        with open(job.part(name), "rb+") as file:
            os.fsync(file.fileno())  # or a power cut may leave an empty file under the final name
        os.replace(job.part(name), os.path.join(job.folder, name))


def _check(job: _Job, folder: str, name: str) -> None:
    """Raise ValueError unless folder/name is that file of the model; the data is checked with its index."""
    path, hparams = os.path.join(folder, name), PUBLISHED.get(job.model_name)
    if name in (INDEX, DATA):
        from gpt2tf import checkpoint  # not at the top: it imports TensorFlow, which takes seconds

        verify = checkpoint.verify_index if name == INDEX else checkpoint.verify
        verify(os.path.join(folder, PREFIX), hparams)
    elif name == HPARAMS:
        found = read_hparams(path)
        if found != hparams:
            raise ValueError(f"{path} is of {size_name(found) or found}, not of {job.model_name}")
    else:
        with open(path, "rb") as file:
            content = file.read()
        size = known_size(job.model_name, name) or len(content)
        if len(content) != size or not _is_genuine(name, content):
            raise ValueError(f"{path} is damaged, its {len(content):,} bytes are not the published {name}")


def _is_genuine(name: str, content: bytes) -> bool:
    if pinned := (VOCABULARY | DATA_SETS).get(name):
        return hashlib.sha256(content).hexdigest() == pinned[1]
    if name == CHECKPOINT:
        return bool(re.fullmatch(rb'model_checkpoint_path: "model\.ckpt"\s+(\w+: "\S+"\s*)*', content))
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

    try:  # model.ckpt.meta, the original's graph, which nothing here reads
        return bool(MetaGraphDef.FromString(content).graph_def.node)
    except DecodeError:
        return False


def _fetch(job: _Job, name: str) -> None:
    """Bring a temporary file to its full length, in as many requests as that takes. Raises ValueError where
    the server's file is not the published one; DownloadError as `download_model`.
    """
    part, url, retry = job.part(name), job.url(name), job.retry
    open(part, "ab").close()
    furthest = os.path.getsize(part)
    try:
        with tqdm(desc=f"Fetching {name}", unit="B", unit_scale=True, disable=None if job.progress else True) as bar:
            while broken := _request(job, name, bar):
                if os.path.getsize(part) > furthest:
                    furthest, retry = os.path.getsize(part), job.retry
                retry = retry.increment("GET", url, error=broken)
                retry.sleep()
    except MaxRetryError as error:
        raise DownloadError(f"{url}: {_explain(error.reason)}; {job.remedy}") from error
    except requests.RequestException as error:
        refused = error.response is not None and error.response.status_code < 500
        remedy = "check the address that --base_url names" if refused and job.remedy == TRY_AGAIN else job.remedy
        raise DownloadError(f"{url}: {_explain(error)}; {remedy}") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DownloadError(f"the disk is full: make room and try again ({part} is kept)") from error


def _request(job: _Job, name: str, bar: tqdm) -> Exception | None:
    """Ask for what a temporary file lacks, and write the answer. Returns what broke it off, if anything did."""
    part, size = job.part(name), known_size(job.model_name, name)
    have, version = os.path.getsize(part), None
    if have == size:
        return None
    with contextlib.suppress(FileNotFoundError), open(f"{part}.version", encoding="latin-1") as file:
        version = file.read()
    if version is None or have > (size or have):
        have = 0  # too long, or not fetched by this program: the original saved error pages as well
    headers = {"Accept-Encoding": "identity"}  # a compressed body has other lengths and ranges than the file
    if have:
        headers |= {"Range": f"bytes={have}-"} | ({"If-Range": version} if version else {})
    with job.session.get(job.url(name), headers=headers, stream=True, timeout=TIMEOUT) as response:
        start, total, served = _extent(response)
        if start and (start != have or version and served not in ("", version)):
            os.truncate(part, 0)  # it is no beginning of the server's file
            return _request(job, name, bar)
        if not start:
            os.truncate(part, 0)
            with open(f"{part}.version", "w", encoding="latin-1") as file:
                file.write(served)
        try:
            _save(job, name, response, start, total, bar)
        except (requests.ConnectionError, ChunkedEncodingError, ContentDecodingError) as broken:
            return broken
    return None


def _extent(response: requests.Response) -> tuple[int, int | None, str]:
    """Where in the file an answer starts (-1: nowhere), how long the whole file is (None: it does not say),
    and its version, the validator for If-Range: a strong ETag, else a date, else "". Raises HTTPError.

    Lengths and ranges of an answer that comes compressed unasked are not the file's: requests compares and undoes them.
    """
    codings = set(re.findall(r"[^\s,]+", response.headers.get("Content-Encoding", "").lower()))
    undone = codings.intersection(HTTPResponse.CONTENT_DECODERS)
    lacking = [coding for coding in COMPRESSIONS if coding in codings - undone]
    if lacking and response.ok:
        raise requests.RequestException(
            f"it comes as {lacking[0]!r}, which needs pip install {COMPRESSIONS[lacking[0]]}"
        )
    span = re.match(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if response.status_code == 206 and span and not undone:
        start, total = span.groups()
    elif response.status_code == 200:
        start, total = 0, "" if undone else response.headers.get("Content-Length", "")
    elif response.status_code in (206, 416) and "Range" in response.request.headers:
        start, total = -1, ""
    else:
        raise requests.HTTPError(f"HTTP {response.status_code} {response.reason}", response=response)
    etag = response.headers.get("ETag", "W/")
    version = response.headers.get("Last-Modified", "") if etag.startswith("W/") else etag
    return int(start), int(total) if total.isdecimal() else None, version


def _save(job: _Job, name: str, response: requests.Response, start: int, total: int | None, bar: tqdm) -> None:
    """Write an answer's body to the temporary file, from `start` up to the end of the file."""
    part, size = job.part(name), known_size(job.model_name, name)
    chunks = response.iter_content(CHUNK)
    chunk = next(chunks, b"")
    if not start and WEB_PAGE.match(chunk):
        raise ValueError("the server answered with a web page; check the address, or the proxy (HTTPS_PROXY)")
    if None not in (total, size) and total != size:
        raise ValueError(f"the server announces {total:,} bytes, the published file has {size:,}")
    total = total or size
    free = shutil.disk_usage(job.folder).free
    if free < (total or 0) - start:
        raise DownloadError(f"{name} needs {total - start:,} more bytes, but {job.folder} has {free:,} free; make room")
    bar.total = total
    bar.initial = bar.n = bar.last_print_n = start  # there already, and no part of the speed
    with open(part, "ab") as file:
        while chunk and file.tell() <= (total or file.tell()):
            file.write(chunk)
            bar.update(len(chunk))
            chunk = next(chunks, b"")
    have = os.path.getsize(part)
    if have > (total or have):
        raise ValueError(f"the server sends more than the {total:,} bytes of the file")
    if have < (total or 0):
        raise requests.ConnectionError(f"the connection ended after {have:,} of {total:,} bytes")


def _explain(error: requests.RequestException) -> str:
    """The cause of an error, and the environment variable to check where there is one."""
    cause = error.args[0] if error.args else error
    cause = getattr(cause, "reason", cause)  # what urllib3 wraps into "Max retries exceeded with url"
    cause = cause.args[0] if len(getattr(cause, "args", ())) > 1 else cause  # (its words, another exception)
    if isinstance(error, requests.exceptions.ProxyError) or "HTTP 407" in str(cause):
        return f"the proxy fails ({cause}); check HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    if isinstance(error, requests.exceptions.SSLError):
        return f"no trust in the certificate ({cause}); name your authority's file in REQUESTS_CA_BUNDLE"
    return str(cause)
