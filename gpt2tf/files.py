"""Files: written whole or not at all, errors that name them, locked folders, and text of bytes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable

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
def opened(path: str | None):
    """The file to print to: stdout, or `path`, which gets its new content whole, at the end or by Ctrl-C."""
    if path in (None, "-"):
        if not sys.stdout.writable():
            raise OSError("stdout is closed; name a file with --output")
        with naming("stdout"):
            yield sys.stdout
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
    """Puts a name on an error of the system that names no file, as those of reading and writing, or names `part`."""
    try:
        yield
    except OSError as error:
        if error.strerror and error.filename in (None, part):
            error.filename = name
        raise


@contextlib.contextmanager
def replacing(target: str):
    """A binary file that becomes `target` when all is written, and else disappears."""
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
def locked(folder: str | os.PathLike, busy: Callable[[], object]):
    """Keeps other processes that ask for this folder out of it, until this one ends, however it does.

    busy: called where another one has it; when it returns, and raises nothing, the lock is waited for. Without effect
    where the system or the file system has no such locks.
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
