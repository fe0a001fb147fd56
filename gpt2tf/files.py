"""Files: written whole or not at all, errors that name them, locked folders, and text of bytes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from typing import TextIO

log = logging.getLogger(__name__)


def clean(raw: bytes | str) -> str:
    """Text of bytes, or of what Python made of bytes; what is not UTF-8 in them becomes U+FFFD."""
    if isinstance(raw, str):
        raw = re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", raw).encode("utf-8", "surrogateescape")
    text = raw.decode("utf-8", "replace")
    if text.encode() != raw:
        log.info("note: bytes that are not UTF-8 were replaced by U+FFFD")
    return text


@contextlib.contextmanager
def opened(path: str | None, stdout: TextIO):
    """The file to print to: stdout (None or "-"), or `path`, which gets its new content whole, at the end or by Ctrl-C.

    Raises OSError that names the file; for a closed stdout as well.
    """
    if path in (None, "-"):
        if not stdout.writable():
            raise OSError("stdout is closed; name a file with --output")
        with naming("stdout"):
            yield stdout
        return
    stream = _stream_at(path)
    if stream is not None or (os.path.exists(path) and not os.path.isfile(path)):  # a pipe or a device, say
        target = path if stream is None else stream
        with naming(path), open(target, "w", encoding="utf-8", newline="\n", closefd=stream is None) as file:
            yield file
        return
    target = os.path.realpath(path)  # of a link, the file is replaced and not the link
    part = f"{target}.{os.getpid()}.part"
    with naming(path, part):
        if os.path.exists(target):
            open(target, "ab").close()  # raises for a file that is not to be written
        try:
            with open(part, "w", encoding="utf-8", newline="\n") as file:
                if os.path.exists(target):
                    shutil.copymode(target, part)
                try:
                    yield file
                except KeyboardInterrupt:
                    if file.tell():
                        file.close()
                        os.replace(part, target)
                    raise
            os.replace(part, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(part)


def _stream_at(path: str) -> int | None:
    """The descriptor of stdout or stderr if that is what `path` is: /dev/stdout, or the file it was sent to."""
    if os.path.exists(path):
        for stream in (1, 2):
            if os.path.samestat(os.stat(path), os.fstat(stream)):
                return stream
    return None


@contextlib.contextmanager
def naming(name: str, part: str | None = None):
    """Puts `name` on an OSError that names no file, as those of reading and writing do, or that names `part`."""
    try:
        yield
    except OSError as error:
        if error.strerror and error.filename in (None, part):
            error.filename = name
        raise


@contextlib.contextmanager
def replacing(target: str):
    """A binary file that becomes `target` when all is written, and disappears if that fails."""
    part = f"{target}.{os.getpid()}.part"
    with naming(target, part):
        try:
            with open(part, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # or a power cut may leave an empty file under the final name
            os.replace(part, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(part)


@contextlib.contextmanager
def appearing(target: str):
    """A path to write a folder or file to, which becomes `target` when all is written, and disappears if that fails.

    The folders above it are made.
    """
    target = os.path.abspath(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=os.path.dirname(target)) as scratch:
        part = os.path.join(scratch, os.path.basename(target))
        with naming(target, part):
            yield part
            for folder, _, files in os.walk(scratch):
                for file in files:
                    with open(os.path.join(folder, file), "rb") as written:
                        os.fsync(written)  # or a power cut may leave empty files under the final name
            os.rename(part, target)


@contextlib.contextmanager
def locked(folder: str | os.PathLike, busy: Callable[[], object]):
    """Locks a folder against other processes that lock it, until the block or the process ends.

    busy: called where another process holds the lock; raises, or returns to wait for it. Does nothing on Windows and
    on file systems without locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    held = os.open(folder, os.O_RDONLY)  # the lock leaves no file behind
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(held, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            log.info("%s cannot be locked (%s); let no second process write to it", folder, error)
        yield
    finally:
        os.close(held)


def refuse_taken(path: str | os.PathLike) -> None:
    """Raises FileExistsError where there is something at path."""
    if os.path.lexists(path):
        raise FileExistsError(f"{os.fspath(path)} is there already; remove it, or give a path where there is nothing")
