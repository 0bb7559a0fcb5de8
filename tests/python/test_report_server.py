"""op-tools serve: the page of a run in progress, for a browser of this machine, and for nobody else."""

import http.client
import json
import signal
import subprocess
import threading
from html import escape

import pytest
from conftest import PYTHON, launched

from op_tools.__main__ import main
from op_tools._report import autocompare
from op_tools._report.scan import read_parts
from op_tools._report.server import LOOPBACK, PageServer

ROW = {"op": "torch.exp", "module": "Net.act", "verdict": "differs", "number": 2.0, "limit": 1.0, "step": 0}


def write_rows(folder, *rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / autocompare.FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def server(tmp_path):
    server = PageServer([tmp_path / "results"], every=7)
    (tmp_path / "results").mkdir()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def asked(server, path=None, method="GET", **headers):
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=20)
    try:
        connection.request(method, f"/{server.word}/" if path is None else path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_the_page_is_that_of_the_files_now(server, tmp_path):
    status, headers, text = asked(server)
    assert status == 200 and "no tool of op_tools wrote anything here" in text
    folder = tmp_path / "results" / "op_autocompare_result" / "0" / "now"
    write_rows(folder, ROW)
    status, headers, text = asked(server)
    assert status == 200 and "torch.<wbr>exp" in text and "there is no account of the run" in text
    assert headers["Refresh"] == "7" and headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
    with (folder / autocompare.FILE).open("a") as file:
        file.write(json.dumps({**ROW, "op": "torch.log"}) + '\n{"op": "half')
    text = asked(server)[2]
    assert "torch.<wbr>log" in text and "1 lines are damaged" in text
    assert asked(server)[2] == text
    status, headers, text = asked(server, method="HEAD")
    assert status == 200 and text == "" and int(headers["Content-Length"]) > 1000


def test_without_the_word_nothing_is_shown(server, tmp_path):
    write_rows(tmp_path / "results" / "0" / "now", ROW)
    word = server.word
    others = [
        "/",
        f"/{word}",
        f"/{word[:-1]}/",
        f"/{word}x/",
        "/x/",
        f"/{word}/autocompare.jsonl",
        f"/{word}/../../etc/passwd",
    ]
    for path in (*others, f"/{word}/?a", "/favicon.ico"):
        status, _, text = asked(server, path)
        assert (status, text) == (404, "not found\n"), path
    for host in ("evil.example", f"evil.example:{server.server_port}", f"{LOOPBACK}:1", ""):
        assert asked(server, Host=host)[0] == 404, host
    assert asked(server, Host=f"localhost:{server.server_port}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert asked(server, method=method)[0] == 501
    assert len(word) >= 32 and server.server_address[0] == LOOPBACK


def test_symbolic_links_are_not_followed(tmp_path):
    secret = tmp_path / "elsewhere"
    write_rows(secret / "0" / "now", {**ROW, "op": "secret.op"})
    results = tmp_path / "results"
    write_rows(results / "0" / "now", ROW)
    (results / "folder").symlink_to(secret)
    (results / "1" / "now").mkdir(parents=True)
    (results / "1" / "now" / autocompare.FILE).symlink_to(secret / "0" / "now" / autocompare.FILE)
    (results / "0" / "now" / "coverage.json").symlink_to("/dev/zero")
    (results / "endless.jsonl").symlink_to("/dev/zero")
    (part,) = read_parts([results])
    assert [finding.op for finding in part.findings] == ["torch.exp"]
    (tmp_path / "own").symlink_to(results)  # the user's
    assert len(read_parts([tmp_path / "own"])) == 1


def test_the_command_says_the_address_and_ends_by_ctrl_c(tmp_path):
    command = [PYTHON, "-m", "op_tools", "serve", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        place, _, word = address.removeprefix("http://").removesuffix("/").partition("/")
        connection = http.client.HTTPConnection(place, timeout=20)
        connection.request("GET", f"/{word}/")
        text = connection.getresponse().read().decode()
        connection.close()
        assert escape(str(tmp_path)) in text
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0 and "Traceback" not in errors and "ssh -L" in errors


def test_wrong_arguments_are_refused(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "missing")]) == 2
    with PageServer([tmp_path]) as server:
        assert main(["serve", str(tmp_path), "--port", str(server.server_port)]) == 2
    said = capsys.readouterr().err
    assert "missing: there is no such folder" in said and "--port" in said
    assert launched("-m", "op_tools", "serve", "x", "--port", "70000", check=False).returncode == 64
