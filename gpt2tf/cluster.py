"""The workers of several machines: the environment variable TF_CONFIG, read before TensorFlow is imported.

The variable is TensorFlow's own. With a wrong one TensorFlow waits without end, so all of it is checked here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time

EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
JOBS = ("chief", "worker")  # in the order in which TensorFlow counts the workers
JOIN_SECONDS = 600  # for all workers to come up; each may have a corpus to encode first
PROBE_SECONDS = 2
PAUSE_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers that compute together. number: of this one; the chief, which writes files and prints, is 0."""

    addresses: tuple[str, ...]  # host:port of each
    number: int

    @property
    def chief(self) -> bool:
        return self.number == 0

    def wait(self) -> None:
        """Wait until all workers are there, listening at their addresses, as TensorFlow does after this.

        Raises ConnectionError for an address that is taken, and for workers that are not there after JOIN_SECONDS.
        """
        end = time.monotonic() + JOIN_SECONDS
        missing = [address for number, address in enumerate(self.addresses) if number != self.number]
        own = self.addresses[self.number]
        try:
            dual = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if dual else socket.AF_INET
            backlog = len(missing) + 1
            server = socket.create_server(("", _split(own)[1]), family=family, dualstack_ipv6=dual, backlog=backlog)
        except OSError as error:
            raise ConnectionError(f"cannot listen at {own}, the address of this worker: {error.strerror}") from None
        with server:
            while missing := [address for address in missing if not _listens(address)]:
                if time.monotonic() > end:
                    raise ConnectionError(
                        f"{', '.join(missing)} did not come up within {JOIN_SECONDS} seconds; start all workers again, "
                        "each with its own TF_CONFIG"
                    )
                time.sleep(PAUSE_SECONDS)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _listens(address: str) -> bool:
    try:
        socket.create_connection(_split(address), PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def read_cluster() -> Cluster:
    """The cluster of TF_CONFIG. Raises ValueError with what is wrong with it."""
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        raise ValueError(f"multiworker needs the environment variable TF_CONFIG, such as {EXAMPLE}")
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"TF_CONFIG is not JSON ({error}); it looks like {EXAMPLE}") from None
    try:
        jobs, task = config["cluster"], config["task"]
        kind, index = task["type"], int(task["index"])
        addresses = [(job, place, address) for job in JOBS for place, address in enumerate(jobs.get(job, []))]
        others = set(jobs) - set(JOBS)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"TF_CONFIG lacks cluster, task, type or index; it looks like {EXAMPLE}") from None
    if others:
        raise ValueError(f"TF_CONFIG has {', '.join(sorted(others))}; here there are only chief and worker")
    for _, _, address in addresses:
        if not isinstance(address, str) or not address.rpartition(":")[0] or not address.rpartition(":")[2].isdigit():
            raise ValueError(f"TF_CONFIG has the address {address!r}; it must be host:port")
    if len({address for *_, address in addresses}) < len(addresses):
        raise ValueError("TF_CONFIG has an address twice; each worker needs its own")
    tasks = [(job, place) for job, place, _ in addresses]
    if (kind, index) not in tasks:
        raise ValueError(f"TF_CONFIG says that this is {kind} {index}, which its cluster does not have")
    return Cluster(tuple(address for *_, address in addresses), tasks.index((kind, index)))
