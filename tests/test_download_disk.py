"""The downloader and the disk: what lies there already, a full disk, and locks."""

import fcntl
import logging
import shutil
import threading
import time

import pytest
from file_server import FLIPPED_AT, ORDER, PUBLISHED, XML, assert_complete, fetch, flip, forever, serve
from recorded import GOLDEN

from gpt2tf import checkpoint, download
from gpt2tf.download import DATA, INDEX, META, DownloadError

RELEASE = GOLDEN / "release"

# What lies there already


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("damage", ["flipped", "half", "page"])
def test_a_damaged_file_is_downloaded_again(server, name, damage, caplog):
    fetch(server)
    server.forget()
    content = PUBLISHED[name]
    damaged = {"flipped": flip(content, FLIPPED_AT[name]), "half": content[: len(content) // 2], "page": XML}
    (server.folder / name).write_bytes(damaged[damage])
    fetch(server)
    assert_complete(server)
    with_its_index = [(INDEX, None)] if (name, damage) == (DATA, "flipped") else []  # either of the two may be wrong
    assert server.asked == [*with_its_index, (name, None)]  # and nothing of unknown origin is gone on from
    assert str(server.folder / name) in caplog.text and "downloading it again" in caplog.text


def test_a_graph_of_another_length_is_downloaded_again(server):
    fetch(server)
    server.forget()
    (server.folder / META).write_bytes(PUBLISHED[META] * 2)  # two messages in a row are a message
    fetch(server)
    assert_complete(server)


def test_another_models_files_are_replaced(server):
    server.folder.mkdir(parents=True)
    for name in ("hparams.json", "checkpoint", INDEX):
        shutil.copy(RELEASE / name, server.folder)
    fetch(server)
    assert_complete(server)


@pytest.mark.parametrize("name", ORDER)
def test_a_missing_file_is_fetched_alone(server, name):
    fetch(server)
    server.forget()
    (server.folder / name).unlink()
    fetch(server)
    assert_complete(server)
    assert server.names() == [name]


def test_killed_between_the_two_renames(server):
    fetch(server)
    server.forget()
    server.part().parent.mkdir()
    (server.folder / INDEX).rename(server.part(INDEX))
    fetch(server)
    assert_complete(server)
    assert not server.asked


def test_a_fine_tuned_checkpoint_is_left_alone(server):
    """Any checkpoint with the model's variables and right checksums is whole."""
    shutil.copytree(GOLDEN / "tiny-a", server.folder)
    model = checkpoint.load_model(server.folder)
    model.variables[0].assign(model.variables[0] * 2)
    checkpoint.save_checkpoint(model, server.folder)
    tuned = (server.folder / DATA).read_bytes()
    assert tuned != PUBLISHED[DATA]
    fetch(server)
    assert (server.folder / DATA).read_bytes() == tuned
    assert not server.asked
    shutil.rmtree(server.folder)  # before the server looks for what it published


# The disk


def test_too_little_room_is_said_before_the_transfer(server, monkeypatch):
    usage = shutil.disk_usage(server.folder.parent.parent)._replace(free=500_000)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match="needs 543,936 more bytes, but .* has 500,000 free"):
        fetch(server)
    assert server.part().stat().st_size == 0
    server.part().write_bytes(PUBLISHED[DATA][:100_000])
    fetch(server)  # 443,936 do fit
    assert_complete(server)


def test_a_full_disk_keeps_what_was_fetched(server, monkeypatch):
    class Full:
        """A file on a disk with room for two chunks."""

        def __init__(self, file):
            self.file, self.tell = file, file.tell

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, chunk):
            if self.tell() > 100_000:
                raise OSError(28, "No space left on device")
            self.file.write(chunk)

        def close(self):
            self.file.close()

    def on_full_disk(path, mode="r", **options):
        file = open(path, mode, **options)
        return Full(file) if mode == "ab" else file

    with monkeypatch.context() as patch:
        patch.setattr(download, "open", on_full_disk, raising=False)
        with pytest.raises(DownloadError, match=f"the disk is full: .*{META} is kept"):
            fetch(server)
    fetch(server)
    assert_complete(server)
    assert server.spans(META) == [None, "bytes=131072-"]


# Locks


def test_two_at_once(server, caplog):
    server.script[DATA] = forever(lambda *answer: (time.sleep(0.3), serve(*answer)))
    threads = [threading.Thread(target=fetch, args=(server,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_complete(server)
    assert server.names() == ORDER
    assert "another process is downloading" in caplog.text


def test_a_file_system_without_locks(server, monkeypatch, caplog):
    def refuse(*arguments):
        raise OSError(9, "Bad file descriptor")

    caplog.set_level(logging.INFO, "gpt2tf")
    monkeypatch.setattr(fcntl, "flock", refuse)
    fetch(server)
    assert_complete(server)
    assert "cannot be locked" in caplog.text
