"""A pseudo-terminal: what a user types, and everything that was shown."""

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import time

PATIENCE = 60  # seconds; only a failing test waits so long


def until(condition):
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < PATIENCE
        time.sleep(0.02)


class PseudoTerminal:
    """A pseudo-terminal: what a user types, and everything that was shown."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))  # a bar needs some room
        self.shown = b""

    def type(self, keys):
        """Type, or paste, keys; what is shown meanwhile is read, so that neither side waits for the other."""
        for first in range(0, len(keys), 256):
            os.write(self.master, keys[first : first + 256])
            self._read(0)

    def read_until(self, text):
        def is_shown():
            self._read(0.05)
            return text in self.shown

        until(is_shown)

    def _read(self, seconds):
        with contextlib.suppress(OSError):  # the other side is gone
            while select.select([self.master], [], [], seconds)[0]:
                self.shown += os.read(self.master, 4096)

    def close(self):
        os.close(self.master)
        os.close(self.slave)
