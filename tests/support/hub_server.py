"""A model hub on this machine: the part of the Hugging Face hub's API that downloads use.

    python -m tests.support.hub_server FOLDER [--port 8123] [--cuts 3] [--damage NAME]

FOLDER holds `ORGANISATION/REPOSITORY/FILES`. Served are the listing (`/api/models/ORG/REPO`, with
`/revision/REV` and `?blobs=true`), and files (`/ORG/REPO/resolve/REV/FILE`): a redirect that names
the commit, the size and the SHA-256, as the hub answers for large files, to the bytes, in ranges
where asked. Every repository has one commit, under the branch `main`. `HF_ENDPOINT` set to
`HubServer.url` sends clients here. `Faults` are what networks and mirrors do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_MODEL = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_BYTES = "/bytes/"
"""Where a file's bytes are, by repository and name; the real hub has them on another host."""
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_CHUNK = 1 << 16
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Faults:
    """What goes wrong."""

    cuts: int = 0
    """So many answers with bytes end early, at a place of chance; some with a reset."""
    damaged: str = ""
    """Files whose name holds this are served with one wrong byte, and listed with the right sum."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and what was sent for it."""

    method: str
    path: str
    range: str
    status: int


@dataclass(slots=True)
class HubServer:
    """The folder that is served, and the requests so far."""

    folder: Path
    token: str = ""
    """Without it in `Authorization: Bearer`, every request is refused, as for gated models."""
    faults: Faults = field(default_factory=Faults)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    @contextmanager
    def running(self, port: int = 0) -> Iterator[HubServer]:
        """Serve on this machine only, at `url`, meanwhile."""
        handler = type("_Bound", (_Handler,), {"hub": self, "rng": random.Random(self.faults.seed)})
        with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()

    def environment(self) -> dict[str, str]:
        """What a client's process needs to come here."""
        here = {"HF_ENDPOINT": self.url, "NO_PROXY": "127.0.0.1"}
        return here | {"HF_TOKEN": self.token, "HF_HUB_OFFLINE": "0"}


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    rng: random.Random
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Requests are in `HubServer.asked`."""

    def _answer(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        token = self.hub.token
        if path.startswith(_BYTES):
            # A signed address there needs no token, and clients send none to another host.
            self._bytes(path.removeprefix(_BYTES))
        elif token and self.headers.get("Authorization") != f"Bearer {token}":
            self._refuse(HTTPStatus.UNAUTHORIZED, "GatedRepo", "this model is gated")
        elif found := _MODEL.fullmatch(path):
            self._list(found[1], found[2] or "main", "blobs" in parse_qs(url.query))
        elif found := _RESOLVE.fullmatch(path):
            self._resolve(found[1], found[2], found[3])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "", "no such page")

    def _list(self, repo: str, revision: str, blobs: bool) -> None:
        if not self._known(repo, revision):
            return
        names = _names(self.hub.folder / repo)
        siblings = [self._sibling(repo, name) if blobs else {"rfilename": name} for name in names]
        listing = {"id": repo, "modelId": repo, "sha": _commit(self.hub.folder / repo)}
        listing |= {"private": False, "gated": False, "tags": ["gguf"], "siblings": siblings}
        self._send(HTTPStatus.OK, json.dumps(listing).encode(), "application/json")

    def _sibling(self, repo: str, name: str) -> dict[str, Any]:
        path = self.hub.folder / repo / name
        size, digest = path.stat().st_size, _sha256(path, path.stat().st_mtime_ns)
        lfs = {"sha256": digest, "size": size, "pointerSize": 135}
        return {"rfilename": name, "size": size, "blobId": digest[:40], "lfs": lfs}

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        if not self._known(repo, revision):
            return
        if name not in _names(self.hub.folder / repo):
            self._refuse(HTTPStatus.NOT_FOUND, "EntryNotFound", "no such file")
            return
        found = self._sibling(repo, name)
        self._head(
            HTTPStatus.FOUND,
            {
                "Location": f"{self.hub.url}{_BYTES}{repo}/{name}",
                "X-Repo-Commit": _commit(self.hub.folder / repo),
                "X-Linked-Etag": f'"{found["lfs"]["sha256"]}"',
                "X-Linked-Size": str(found["size"]),
                "Content-Length": "0",
            },
        )

    def _bytes(self, place: str) -> None:
        path = self.hub.folder / place
        repo = "/".join(place.split("/")[:2])
        if place.removeprefix(f"{repo}/") not in _names(self.hub.folder / repo):
            self._refuse(HTTPStatus.NOT_FOUND, "", "no such file")
            return
        size = path.stat().st_size
        begin, end, status = 0, size, HTTPStatus.OK
        if found := _RANGE.fullmatch(self.headers.get("Range", "")):
            begin, end = int(found[1]), min(int(found[2]) + 1 if found[2] else size, size)
            status = HTTPStatus.PARTIAL_CONTENT
        if begin >= max(end, 1):
            self._head(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                {"Content-Range": f"bytes */{size}", "Content-Length": "0"},
            )
            return
        headers = {"Content-Length": str(end - begin), "Accept-Ranges": "bytes"}
        headers["ETag"] = f'"{_sha256(path, path.stat().st_mtime_ns)}"'
        if status == HTTPStatus.PARTIAL_CONTENT:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        self._head(status, headers)
        if self.command == "GET":
            self._send_part(path, begin, end)

    def _send_part(self, path: Path, begin: int, end: int) -> None:
        faults, cut = self.hub.faults, False
        wrong = path.stat().st_size // 2 if faults.damaged and faults.damaged in path.name else -1
        if faults.cuts:
            faults.cuts -= 1
            cut, end = True, begin + int((end - begin) * self.rng.random())
        with path.open("rb") as file, suppress(ConnectionError):
            file.seek(begin)
            for place in range(begin, end, _CHUNK):
                data = bytearray(file.read(min(_CHUNK, end - place)))
                if place <= wrong < place + len(data):
                    data[wrong - place] ^= 1
                self.wfile.write(data)
        if cut:
            if self.rng.random() < 0.5:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.close_connection = True

    def _known(self, repo: str, revision: str) -> bool:
        folder = self.hub.folder / repo
        if ".." in repo.split("/") or not folder.is_dir():
            self._refuse(HTTPStatus.NOT_FOUND, "RepoNotFound", "no such repository")
        elif revision not in ("main", _commit(folder)):
            self._refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound", "no such revision")
        else:
            return True
        return False

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self._send(status, body, "application/json", code)

    def _send(self, status: HTTPStatus, body: bytes, kind: str, code: str = "") -> None:
        headers = {"Content-Type": kind, "Content-Length": str(len(body))}
        self._head(status, headers | ({"X-Error-Code": code} if code else {}))
        if self.command == "GET":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        asked = Asked(self.command, self.path, self.headers.get("Range", ""), status.value)
        self.hub.asked.append(asked)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _names(repo: Path) -> list[str]:
    files = (path for path in repo.rglob("*") if path.is_file())
    return sorted(path.relative_to(repo).as_posix() for path in files)


def _commit(repo: Path) -> str:
    """Of what the repository holds: 40 hex digits."""
    digest = hashlib.sha1(usedforsecurity=False)
    for name in _names(repo):
        path = repo / name
        digest.update(f"{name} {_sha256(path, path.stat().st_mtime_ns)}\n".encode())
    return digest.hexdigest()


@cache
def _sha256(path: Path, changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--cuts", type=int, default=0)
    parser.add_argument("--damage", default="")
    asked = parser.parse_args()
    faults = Faults(asked.cuts, asked.damage)
    with HubServer(asked.folder, faults=faults).running(asked.port) as hub:
        print(f"HF_ENDPOINT={hub.url}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
