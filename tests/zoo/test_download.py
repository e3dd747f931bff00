"""Downloads from a server on this machine: resumed, checked, and what is said when they fail."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pycaffe_dist.cli import main as cli
from pycaffe_dist.errors import FAILURE, WRONG_INPUT, DataError
from pycaffe_dist.zoo.download import Published, download

DATA = bytes(range(256)) * 400
SHA1 = hashlib.sha1(DATA).hexdigest()


class Server:
    """A server of files: the ranges asked for, and how it misbehaves."""

    def __init__(self) -> None:
        self.files = {"/weights": DATA}
        self.ranges: list[str | None] = []
        self.resumes = True
        self.most = len(DATA) * 2  # bytes of an answer before the connection ends
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data, wanted = server.files.get(self.path), self.headers["Range"]
                server.ranges.append(wanted)
                if data is None:
                    return self.send_error(404, "Not Found")
                begin = int(wanted[6:-1]) if wanted and server.resumes else 0
                if begin >= len(data):
                    return self.send_error(416)
                self.send_response(206 if begin else 200)
                self.send_header("Content-Length", str(len(data) - begin))
                self.end_headers()
                self.wfile.write(data[begin : begin + server.most])
                return None

            def log_message(self, *args) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def test_a_download_is_checked_and_kept(server, tmp_path):
    target = tmp_path / "new" / "weights"
    published = Published(f"{server.url}/weights", len(DATA), SHA1)
    download(published, target)
    assert target.read_bytes() == DATA
    download(published, target)
    assert len(server.ranges) == 1
    target.write_bytes(DATA[:-1])
    with pytest.raises(DataError, match=f"exists already and has {len(DATA) - 1} bytes, but"):
        download(published, target)


@pytest.mark.parametrize("resumes", [True, False])
def test_an_interrupted_download_is_resumed(server, tmp_path, resumes):
    target, url = tmp_path / "weights", f"{server.url}/weights"
    server.most = 5000
    with pytest.raises(DataError, match="ended after 5000 of 102400 bytes; the same command cont"):
        download(Published(url, 0, SHA1), target)
    assert not target.exists() and (tmp_path / "weights.part").stat().st_size == 5000
    server.most, server.resumes = len(DATA), resumes
    download(Published(url, 0, SHA1), target)
    assert server.ranges == [None, "bytes=5000-"]
    assert target.read_bytes() == DATA and not (tmp_path / "weights.part").exists()


def test_a_complete_part_is_only_checked(server, tmp_path):
    (tmp_path / "a.part").write_bytes(DATA)
    download(Published(f"{server.url}/weights", len(DATA), SHA1), tmp_path / "a")
    assert server.ranges == []
    (tmp_path / "b.part").write_bytes(DATA)  # of unknown size: the server has no more
    download(Published(f"{server.url}/weights", 0, SHA1), tmp_path / "b")
    assert server.ranges == [f"bytes={len(DATA)}-", None]


@pytest.mark.parametrize(
    ("size", "kind", "checksum", "words"),
    [
        (0, "sha1", "0" * 40, f"has the sha1 {SHA1}, but {'0' * 40} is published; it was removed"),
        (0, "sha256", "1" * 64, "has the sha256"),
        (7, "sha1", SHA1, "has 102400 bytes, but 7 are published"),
    ],
)
def test_another_file_than_the_published_one_is_removed(
    server, tmp_path, size, kind, checksum, words
):
    published = Published(f"{server.url}/weights", size, checksum, kind)
    with pytest.raises(DataError, match=re.escape(words)):
        download(published, tmp_path / "weights")
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_said(server, tmp_path):
    target = tmp_path / "weights"
    for url, words in (
        (f"{server.url}/none", "the server answers 404 Not Found; or get the file elsewhere"),
        ("http://127.0.0.1:9/weights", "no connection: Connection refused"),
        ("http://no-such-host.invalid/weights", "no connection: "),
        ("weights", "unknown url type"),
    ):
        with pytest.raises(DataError, match=words) as error:
            download(Published(url), target)
        assert str(target) in str(error.value) and url in str(error.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"File exists|Not a directory"):
        download(Published(f"{server.url}/weights"), tmp_path / "file" / "weights")


def write_readme(server: Server, **more: str) -> None:
    """Put a model into models/ of the current folder whose weights the server has."""
    facts = {
        "name": "A small one",
        "caffemodel": "small.caffemodel",
        "caffemodel_url": f"{server.url}/weights",
        "sha1": SHA1,
        "size": str(len(DATA)),
        **more,
    }
    lines = "".join(f"{key}: {value}\n" for key, value in facts.items())
    folder = Path("models/small")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "readme.md").write_text(f"---\n{lines}---\n\nText: more.\n")
    (folder / "deploy.prototxt").write_text("name: 'small'\n")


def test_fetch_gets_weights_and_labels(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        info = tarfile.TarInfo("./words.txt")
        info.size = 8
        tar.addfile(info, io.BytesIO(b"cat\ndog\n"))
    server.files["/aux.tar.gz"] = archive.getvalue()
    write_readme(server, labels_url=f"{server.url}/aux.tar.gz", labels="words.txt")
    assert cli.main(["models", "fetch", "small"]) == 0
    assert capsys.readouterr().out == "models/small/small.caffemodel\n"
    assert Path("models/small/small.caffemodel").read_bytes() == DATA
    assert Path("models/small/labels.txt").read_text() == "cat\ndog\n"
    assert sorted(path.suffix for path in Path("models/small").iterdir()) == [
        *(".caffemodel", ".md", ".prototxt", ".txt")
    ]
    assert cli.main(["models"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"(?m)^small +here +0 MB +A small one$", shown)
    assert re.search(r"(?m)^vgg16 +- +553 MB +VGG-16$", shown)


@pytest.mark.parametrize("args", [["--to=elsewhere"], ["--url=x"], ["copy", "lenet", "--json"]])
def test_flags_of_another_action_are_refused(args, capsys):
    assert cli.main(["models", *args]) == WRONG_INPUT
    assert "is for models " in capsys.readouterr().err


def test_a_wrong_size_in_a_readme_is_named(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_readme(server, size="553 MB")
    assert cli.main(["models", "fetch", "small"]) == WRONG_INPUT
    assert "small/readme.md: size is the weights' bytes, not '553 MB'" in capsys.readouterr().err


def test_weights_without_labels_are_still_of_use(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_readme(server, labels_url=f"{server.url}/none.tar.gz", labels="words.txt")
    assert cli.main(["models", "fetch", "small"]) == 0
    assert "No names of classes, only their numbers: cannot download" in capsys.readouterr().err
    server.files["/none.tar.gz"] = b"no archive"
    assert cli.main(["models", "fetch", "small"]) == 0
    assert "not an archive" in capsys.readouterr().err
    assert not Path("models/small/labels.txt").exists()


def test_fetch_brings_the_model_along_from_another_address(server, tmp_path, capsys):
    url = f"--url={server.url}/weights"
    args = ["models", "fetch", "squeezenet_v1.1", f"--to={tmp_path}", url]
    assert cli.main(args) == FAILURE
    assert "has 102400 bytes, but 4950080 are published" in capsys.readouterr().err
    assert (tmp_path / "models/squeezenet_v1.1/train_val.prototxt").exists()
    assert not list(tmp_path.rglob("*.caffemodel*"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["fetch", "lenet"], "model 'lenet' has no published weights"),
        (["fetch", "lennet"], "no model or folder 'lennet'; did you mean 'lenet'?"),
        (["copy", "lennet"], "no model 'lennet' came with pcaffe; did you mean 'lenet'?"),
        (["fetch"], "models fetch needs the name of a model"),
        (["list", "lenet"], "models list takes no name"),
        (["fecth", "lenet"], "unknown action 'fecth'; did you mean 'fetch'?"),
    ],
)
def test_bad_use_of_models(tmp_path, monkeypatch, capsys, args, words):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["models", *args]) == WRONG_INPUT
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
