"""A local server with the part of the Hub's HTTP API that downloads need; it records its requests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin")
"""Endings of files in large storage, to which the Hub redirects."""


@dataclasses.dataclass
class Hub:
    """Repositories as files by commit, and branches.

    refused: status and X-Error-Code of every answer about a repository.
    """

    repos: dict[str, dict[str, dict[str, bytes]]] = dataclasses.field(default_factory=dict)
    branches: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
    requests: list[str] = dataclasses.field(default_factory=list)
    url: str = ""

    def publish(self, repo: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Makes a commit of these files the head of a branch."""
        digest = hashlib.sha1(b"".join(name.encode() + content for name, content in sorted(files.items())))
        commit = digest.hexdigest()
        self.repos.setdefault(repo, {})[commit] = files
        self.branches[repo, branch] = commit
        return commit

    def downloaded(self) -> set[str]:
        """Returns the names of the files whose content was sent, and forgets all requests."""
        paths = [request.removeprefix("GET ") for request in self.requests if request.startswith("GET ")]
        self.requests.clear()
        return {match[1] for path in paths if (match := re.fullmatch(r".*/(?:resolve|storage/[^/]+)/[^/]+/(.+)", path))}


def folder_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Answers(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if path.startswith("/storage/"):
            _, _, repo, commit, name = path.split("/", 4)
            self.send(200, self.hub.repos[repo.replace("--", "/")][commit][name])
        elif path.startswith("/api/models/"):
            repo, _, rest = path.removeprefix("/api/models/").partition("/revision/")
            if not rest:
                repo, _, rest = repo.partition("/tree/")
            self.about(repo, rest, "/tree/" in path)
        else:
            repo, _, rest = path[1:].partition("/resolve/")
            revision, _, name = rest.partition("/")
            self.file(repo, revision, name)

    def find(self, repo: str, revision: str) -> str | None:
        """Returns the commit of a revision; answers with the Hub's error if there is none."""
        if repo in self.hub.refused:
            status, code = self.hub.refused[repo]
            text = f"{code} for {self.headers.get('Authorization')}".encode()
            self.send(status, text, {"X-Error-Code": code, "X-Error-Message": text.decode()})
        elif repo not in self.hub.repos:
            self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif (commit := self.hub.branches.get((repo, revision), revision)) in self.hub.repos[repo]:
            return commit
        else:
            self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        return None

    def about(self, repo: str, revision: str, tree: bool) -> None:
        commit = self.find(repo, revision or "main")
        if commit is None:
            return
        files = self.hub.repos[repo][commit]
        listed = [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            | ({"lfs": {"oid": sha256(content), "size": len(content), "pointerSize": 130}} if is_large(name) else {})
            for name, content in files.items()
        ]
        facts = {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files], "tags": []}
        self.send(200, json.dumps(listed if tree else facts).encode(), {"Content-Type": "application/json"})

    def file(self, repo: str, revision: str, name: str) -> None:
        commit = self.find(repo, revision)
        if commit is None:
            return
        content = self.hub.repos[repo][commit].get(name)
        if content is None:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        elif is_large(name):
            linked = {"X-Linked-ETag": f'"{sha256(content)}"', "X-Linked-Size": str(len(content))}
            where = (
                f"{self.hub.url.replace('127.0.0.1', 'localhost')}/storage/{repo.replace('/', '--')}/{commit}/{name}"
            )
            self.send(302, b"", {"X-Repo-Commit": commit, "Location": where, **linked})
        else:
            self.send(200, content, {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'})

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def is_large(name: str) -> bool:
    return name.endswith(LARGE)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def start(hub: Hub) -> ThreadingHTTPServer:
    """Serves a hub on a free port of this machine, in threads; `shutdown()` ends it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubAnswers", (Answers,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    return server
