"""Files: written whole or not at all, errors that name them, locked folders, text of bytes, standard streams."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import TextIO

DAMAGED = "it is damaged or not fully downloaded; get the file again"
LONGEST_NAME = 255  # bytes of the name of a file, on all common file systems
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1"  # how the note begins that Git LFS leaves for a file
ERRORS = {"stdin": "surrogateescape", "stdout": "replace", "stderr": "backslashreplace"}  # with which any text passes

log = logging.getLogger(__name__)


def refuse_pointer(path: str | os.PathLike) -> None:
    """Raises ValueError for a file in whose place Git LFS has left a note; passes over what is no file."""
    if os.path.isfile(path) and os.path.getsize(path) < 1024:  # as large as such a note can be
        with open(path, "rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                pointer = "is not the file itself but a pointer of Git LFS to it; get it with: git lfs pull"
                raise ValueError(f"{os.fspath(path)} {pointer}")


@functools.cache
def warn_once(log: logging.Logger, message: str) -> None:
    """A warning about a file that a command reads more than once."""
    log.warning("%s", message)


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
    part = _part(target)
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


def _part(target: str) -> str:
    """Where the content of a file is written before it takes its place."""
    folder, name = os.path.split(target)
    part = f"{name}.{os.getpid()}.part"
    if len(os.fsencode(name)) <= LONGEST_NAME < len(os.fsencode(part)):
        part = f"{os.getpid()}.part"
    return os.path.join(folder, part)


def _stream_at(path: str) -> int | None:
    """The descriptor of stdout or stderr if that is what `path` is: /dev/stdout, or the file it was sent to."""
    if os.path.exists(path):
        for stream in (1, 2):
            with contextlib.suppress(OSError):  # of a stream that is closed
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
    part = _part(target)
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
    """A path to write a new folder or file to, which becomes `target` when all is there, and disappears if that fails.

    So do the folders above it that are not there yet.
    """
    target = os.path.abspath(target)
    there = target
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    with contextlib.ExitStack() as stack:
        try:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix=".writing-", dir=there))
        except OSError as error:
            error.filename = target
            raise
        part = os.path.join(scratch, os.path.basename(target))
        with naming(target, part):
            yield part
            for folder, _, files in os.walk(scratch):
                for file in files:
                    with open(os.path.join(folder, file), "rb") as written:
                        os.fsync(written)  # or a power cut may leave empty files under the final name
            os.makedirs(os.path.dirname(target), exist_ok=True)
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
    """Raises FileExistsError where there is something at path, ValueError for one without a name."""
    if not os.fspath(path):
        raise ValueError("the path to write to has no name")
    if os.path.lexists(path):
        raise FileExistsError(f"{os.fspath(path)} is there already; remove it, or give a path where there is nothing")


def open_descriptors() -> None:
    """Opens those of the standard streams that are closed, or the next file would get their number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one


def prepare_streams(stack: contextlib.ExitStack) -> None:
    """Make stdin, stdout and stderr take any text, and stdout and stderr be there; stack undoes it.

    A closed stdout cannot be written to, so that no result is lost in silence. What a program has put in the place of a
    stream may be an object with nothing but `write`.
    """
    for name, errors in ERRORS.items():
        stream, instead = getattr(sys, name), None
        if stream is None or getattr(stream, "closed", False):
            instead = {"stdout": _Closed(), "stderr": io.StringIO()}.get(name)
        elif not isinstance(stream, io.TextIOWrapper):
            instead = _Stream(stream)
        else:
            stack.callback(_set_errors, stream, stream.errors)
            _set_errors(stream, errors)
        stack.callback(setattr, sys, name, stream)
        if instead is not None:
            setattr(sys, name, instead)


def _set_errors(stream: io.TextIOWrapper, errors: str) -> None:
    with contextlib.suppress(OSError):  # of a stdin of which text has been read; of what cannot be flushed
        stream.reconfigure(errors=errors)


class _Closed(io.TextIOBase):
    """In place of a stdout that is closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed", "stdout")


class _Stream(io.TextIOBase):
    """What a program that calls has in place of a stream, which may lack all but `write`, or `readline`."""

    def __init__(self, stream):
        self._stream = stream
        self.buffer = getattr(stream, "buffer", None) or io.BufferedReader(_Lines(stream))
        self.isatty = getattr(stream, "isatty", super().isatty)
        self.flush = getattr(stream, "flush", super().flush)

    def writable(self):
        return hasattr(self._stream, "write")

    def write(self, text: str) -> int:
        self._stream.write(text)
        return len(text)


class _Lines(io.RawIOBase):
    """The bytes of a stream of text, which come line by line."""

    def __init__(self, stream):
        self._stream, self._held = stream, b""

    def readable(self):
        return True

    def readinto(self, buffer):
        self._held = self._held or self._stream.readline().encode("utf-8", "surrogateescape")
        raw, self._held = self._held[: len(buffer)], self._held[len(buffer) :]
        buffer[: len(raw)] = raw
        return len(raw)
