"""Results at URLs: the commands say of an S3 store and of a web server what they say of the local files, and load the bytes that they read."""

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import pytest
import torch

import op_tools
from op_tools.__main__ import main
from op_tools._base import remote_files
from op_tools._base.core import read_recording

RUN = "results of a run"


def work():
    torch.manual_seed(0)
    weight = torch.randn(300, 300, requires_grad=True)
    for _ in range(6):
        torch.nn.functional.linear(torch.randn(200, 300), weight).relu().sum().backward()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A container, two recordings, a black box, and rows of two tools; the container has calls of 0.5 MB each."""
    folder = tmp_path_factory.mktemp("remote") / "run"
    for name, tool in (
        ("cap", functools.partial(op_tools.OpCapture, format="container")),
        ("a", op_tools.OpRecord),
        ("b", op_tools.OpRecord),
        ("box", op_tools.OpBlackBox),
        ("time", op_tools.OpTimeMeasure),
        ("observe", op_tools.OpObserve),
    ):
        with tool(output_dir=str(folder / name)):
            work()
    return folder


class _NoRanges(http.server.SimpleHTTPRequestHandler):
    """Python's own: it lists folders, and sends whole files."""

    def log_message(self, *_):
        pass


class _Ranges(_NoRanges):
    """Also sends a range of a file; counts the bytes sent."""

    sent = 0

    def do_GET(self):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted:
            return super().do_GET()
        begin, last = int(wanted[1]), int(wanted[2])
        with Path(self.translate_path(self.path)).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(begin)
            content = file.read(last + 1 - begin)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{begin + len(content) - 1}/{size}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        type(self).sent += len(content)
        return None


@pytest.fixture
def served(results):
    """Starts a web server of the results; its URL."""
    servers = []

    def start(handler):
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(handler, directory=str(results.parent))
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/run"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def bucket(results):
    """The results in a bucket of an S3 server; its URL."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ENDPOINT_URL", f"http://{host}:{port}"), ("KEY", "key"), ("SECRET", "secret")):
            patch.setitem(fsspec.config.conf.setdefault("s3", {}), name.lower(), value)
        store = fsspec.filesystem("s3")
        store.mkdir("runs")
        store.put(str(results), "runs/run", recursive=True)
        yield "s3://runs/run"
    server.stop()


@pytest.fixture(params=["bucket", "ranges", "no_ranges"])
def url(request):
    """Of each kind of store."""
    if request.param == "bucket":
        return request.getfixturevalue("bucket")
    return request.getfixturevalue("served")(_Ranges if request.param == "ranges" else _NoRanges)


def _without_places(text, run):
    """Tables cut the middle out of a long path, and are as wide as their paths."""
    text = re.sub(r"\S+\.\.\.\S+", "CUT", text.replace(run, RUN))
    return [" ".join(line.split()) for line in text.splitlines()]


def megabytes(text):
    """(of all files, loaded), of the line at a command's end."""
    line = re.search(r"remote files of ([\d.]+) MB: ([\d.]+) MB were loaded", text)
    return float(line[1]), float(line[2])


@pytest.mark.parametrize(
    "words",
    [
        ["show", "RUN/cap"],
        ["show", "RUN/a"],
        ["show", "RUN/time"],
        ["compare", "RUN/a", "RUN/b"],
        ["blackbox", "RUN/box"],
        ["report", "--text", "RUN"],
    ],
    ids=lambda words: "-".join(words).replace("RUN/", ""),
)
def test_says_of_a_url_what_it_says_of_the_files(words, url, results, capsys):
    status = main([word.replace("RUN", str(results)) for word in words])
    local = capsys.readouterr()
    assert main([word.replace("RUN", url) for word in words]) == status
    remote = capsys.readouterr()
    assert url in remote.out or str(results) not in local.out
    assert _without_places(remote.out, url) == _without_places(local.out, str(results))
    whole, loaded = megabytes(remote.err)
    assert loaded <= whole + 0.1
    assert "op_tools_remote" not in remote.out + remote.err


def test_loads_ranges(served, capsys):
    url = served(_Ranges)
    assert main(["show", f"{url}/cap"]) == 0
    whole, loaded = megabytes(capsys.readouterr().err)
    assert whole > 10 and loaded < whole / 4
    assert main(["blackbox", f"{url}/box"]) == 0
    whole, loaded = megabytes(capsys.readouterr().err)
    assert loaded <= whole < 1
    assert _Ranges.sent < 8_000_000


def test_a_call_in_a_container(bucket, results, tmp_path, capsys):
    container = next(results.glob("cap/*/*/*/calls.zip")).relative_to(results)
    assert main(["show", f"{bucket}/{container}!torch.Tensor.relu/0"]) == 2
    error = capsys.readouterr().err
    assert f"{bucket}/{container}!torch.Tensor.relu/0" in error and "no such call" in error
    call = re.search(r"torch.Tensor.relu/\d+", (results / container).read_bytes().decode("latin-1"))[0]
    assert main(["export", f"{bucket}/{container}!{call}", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").rglob("input.pth"))) == 1


def test_the_page_has_urls(bucket, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report", bucket]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "op_tools_remote" not in page
    capsys.readouterr()


def test_replay(served, results, replay):
    url = served(_Ranges)
    done = replay(f"{url}/cap", "--acc_check", python=["-m", "op_tools.run_op_from_data"])
    local = replay(results / "cap", "--acc_check")
    assert done.status == local.status == 0
    assert len(done.calls) == len(local.calls) > 20
    assert done.summary["agrees"] == len(done.calls)
    assert f"{url}/cap is read through " in done.err


def test_the_program_without_python_names_the_command_that_reads_urls(replay):
    done = replay("s3://runs/run/cap", "--acc_check")
    assert done.status == 2
    assert "s3://runs/run/cap: is a URL" in done.out
    assert "python -m op_tools.run_op_from_data s3://runs/run/cap" in done.out


def test_the_local_files_are_removed(served, results):
    program = f"""
import sys
from op_tools.__main__ import main
from op_tools._base import remote_files
place = remote_files.local_path("{served(_Ranges)}/a")
sys.stdout.write(place)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "op_tools_remote" in done.stdout
    assert not Path(done.stdout).parent.parent.exists()


@pytest.fixture
def memory_store(results):
    """fsspec's store in memory, with a recording; its URL."""
    store = fsspec.filesystem("memory")
    store.put(str(results / "a"), "/box/a", recursive=True)
    yield "memory://box/a"
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    remote_files.forget_remote_files()


def test_a_store_that_fails_is_an_error_with_the_url(memory_store, monkeypatch, capsys):
    def lost(*_, **__):
        raise OSError("the connection was reset")

    place = remote_files.local_path(memory_store)
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", lost)
    recording = next(Path(place).glob("*.oprec"))
    with pytest.raises(op_tools.Error, match=r"memory://box/a/rank0-\d+.oprec: bytes 0 to .*connection was reset"):
        read_recording(str(recording))
    remote_files.forget_remote_files()
    assert main(["show", memory_store]) == 2
    error = capsys.readouterr().err
    assert "memory://box/a" in error and "connection was reset" in error


def test_a_file_that_became_shorter(memory_store, monkeypatch):
    kind = type(fsspec.filesystem("memory"))
    whole = kind.cat_file
    monkeypatch.setattr(kind, "cat_file", lambda *args, **kwargs: whole(*args, **kwargs)[:-1])
    place = remote_files.local_path(memory_store)
    with pytest.raises(op_tools.Error, match="the file changes, or the server lacks ranges"):
        read_recording(str(next(Path(place).glob("*.oprec"))))


@pytest.mark.parametrize("name", ["/box/a/../../../evil", "/box/a//evil", "/box/a/./evil"])
def test_a_name_that_leads_out_is_refused(name, memory_store, monkeypatch, tmp_path):
    kind = type(fsspec.filesystem("memory"))
    monkeypatch.setattr(kind, "find", lambda *_, **__: {name: {"size": 3}})
    with pytest.raises(op_tools.Error, match="leads out of its folder"):
        remote_files.local_path(memory_store)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("memory://nothing", "cannot be read"),
        ("nosuch://store/run", "cannot be read: Protocol not known"),
        ("http://127.0.0.1:9/run", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_read(url, problem, capsys):
    assert main(["show", url]) == 2
    error = capsys.readouterr().err
    assert url in error and problem in error and "Traceback" not in error


def test_without_fsspec(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert main(["show", "s3://runs/run"]) == 2
    assert "pip install fsspec" in capsys.readouterr().err


def test_reads_again_what_was_written_meanwhile(results, tmp_path, capsys):
    shutil.copytree(results / "time", tmp_path / "time")
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path / "time"), "/again", recursive=True)
    assert main(["show", "memory://again"]) == 0
    first = capsys.readouterr().out
    store.rm("/again", recursive=True)
    store.put(str(results / "a"), "/again", recursive=True)
    assert main(["show", "memory://again"]) == 0
    assert capsys.readouterr().out != first
    store.rm("/again", recursive=True)
