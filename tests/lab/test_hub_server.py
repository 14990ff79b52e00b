"""The hub that tests download from answers as the hub's API says, and its faults are real."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub_server import Faults, HubServer

CONTENT = bytes(range(256)) * 700
FILE = "/org/repo/resolve/main/deep/a.gguf"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    folder = tmp_path / "hub" / "org" / "repo"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.gguf").write_bytes(CONTENT)
    (folder / "README.md").write_text("words")
    (tmp_path / "hub" / "secret").write_text("outside every repository")
    with HubServer(tmp_path / "hub").running() as server:
        yield server


def ask(
    hub: HubServer, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    host = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=10)
    try:
        host.request(method, path, headers=headers)
        answer = host.getresponse()
        return answer, answer.read()
    finally:
        host.close()


def listing(hub: HubServer, path: str = "/api/models/org/repo?blobs=true") -> Any:
    answer, body = ask(hub, path)
    assert answer.status == 200
    return json.loads(body)


def bytes_path(hub: HubServer) -> str:
    answer, _ = ask(hub, FILE, "HEAD")
    return str(answer.headers["Location"]).removeprefix(hub.url)


def test_a_listing_names_files_sizes_and_sums(hub: HubServer) -> None:
    found = listing(hub)
    readme, model = found["siblings"]
    assert (readme["rfilename"], model["rfilename"]) == ("README.md", "deep/a.gguf")
    assert model["size"] == model["lfs"]["size"] == len(CONTENT)
    assert model["lfs"]["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert listing(hub, f"/api/models/org/repo/revision/{found['sha']}?blobs=1") == found
    assert listing(hub, "/api/models/org/repo")["siblings"][1] == {"rfilename": "deep/a.gguf"}


def test_a_commit_is_what_a_repository_holds(hub: HubServer) -> None:
    before = listing(hub)["sha"]
    assert len(before) == 40 and listing(hub)["sha"] == before
    (hub.folder / "org" / "repo" / "README.md").write_text("other words")
    assert listing(hub)["sha"] != before


def test_a_file_is_resolved_to_its_bytes(hub: HubServer) -> None:
    answer, body = ask(hub, FILE, "HEAD")
    assert (answer.status, body) == (302, b"")
    assert answer.headers["X-Linked-Etag"] == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
    assert answer.headers["X-Linked-Size"] == str(len(CONTENT))
    assert answer.headers["X-Repo-Commit"] == listing(hub)["sha"]
    answer, body = ask(hub, bytes_path(hub))
    assert (answer.status, body) == (200, CONTENT)


@pytest.mark.parametrize(
    ("range", "expected"),
    [
        ("bytes=0-", CONTENT),
        ("bytes=70000-", CONTENT[70000:]),
        ("bytes=70000-70009", CONTENT[70000:70010]),
        ("bytes=179199-999999", CONTENT[-1:]),
    ],
)
def test_a_range_is_those_bytes(hub: HubServer, range: str, expected: bytes) -> None:
    answer, body = ask(hub, bytes_path(hub), Range=range)
    assert (answer.status, body) == (206, expected)
    begin = len(CONTENT) - len(CONTENT[int(range[6:].split("-")[0]) :])
    end = begin + len(expected) - 1
    assert answer.headers["Content-Range"] == f"bytes {begin}-{end}/{len(CONTENT)}"


def test_a_range_beyond_the_end_is_refused(hub: HubServer) -> None:
    answer, _ = ask(hub, bytes_path(hub), Range=f"bytes={len(CONTENT)}-")
    assert answer.status == 416


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/models/org/other", "RepoNotFound"),
        ("/api/models/org/repo/revision/v2", "RevisionNotFound"),
        ("/org/repo/resolve/main/b.gguf", "EntryNotFound"),
        ("/org/repo/resolve/main/../../secret", "EntryNotFound"),
        ("/api/models/org/..", "RepoNotFound"),
        ("/bytes/org/repo/../../secret", None),
        ("/elsewhere", None),
    ],
)
def test_what_is_not_there_is_refused(hub: HubServer, path: str, code: str | None) -> None:
    answer, body = ask(hub, path)
    assert (answer.status, answer.headers["X-Error-Code"]) == (404, code)
    assert b"outside" not in body


def test_a_gated_model_wants_the_token(hub: HubServer) -> None:
    hub.token = "open"
    answer, _ = ask(hub, FILE)
    assert (answer.status, answer.headers["X-Error-Code"]) == (401, "GatedRepo")
    answer, _ = ask(hub, FILE, Authorization="Bearer open")
    assert answer.status == 302


def test_cut_answers_end_early_and_then_no_more(hub: HubServer) -> None:
    path = bytes_path(hub)
    hub.faults.cuts = 4
    for _ in range(4):
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            ask(hub, path)
    assert ask(hub, path)[1] == CONTENT


def test_a_damaged_file_has_one_wrong_byte_in_every_answer(tmp_path: Path) -> None:
    folder = tmp_path / "org" / "repo" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.gguf").write_bytes(CONTENT)
    with HubServer(tmp_path, faults=Faults(damaged="a.gguf")).running() as hub:
        _, whole = ask(hub, bytes_path(hub))
        _, half = ask(hub, bytes_path(hub), Range="bytes=80000-")
        sums = listing(hub)["siblings"][0]["lfs"]["sha256"]
    assert [at for at, byte in enumerate(whole) if byte != CONTENT[at]] == [len(CONTENT) // 2]
    assert half == whole[80000:]
    assert sums == hashlib.sha256(CONTENT).hexdigest()
