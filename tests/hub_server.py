"""A small Hub on this machine, in a thread: the part of its HTTP protocol that huggingface_hub speaks.

It holds everything in memory, and takes all files in the commit itself. `LocalHub.trouble` makes it refuse requests;
`silent_after` makes it fall silent after so many.
"""

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest


TOKEN = "hf_localtoken"
OWNER = "someone"  # whose token it is


@dataclass
class Repository:
    """Commits to main, each a whole tree by path; the latest is the last."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, tree: dict[str, bytes]) -> None:
        self.commits[hashlib.sha1(f"{len(self.commits)} {sorted(tree)}".encode()).hexdigest()] = tree

    @property
    def head(self) -> str:
        return [*self.commits][-1]


@dataclass
class Trouble:
    """Refusals of requests of a method whose path has a part."""

    method: str
    part: str
    status: int
    message: str


class LocalHub:
    """See the module's docstring. A context manager: the server runs inside."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.trouble: list[Trouble] = []
        self.silent_after: int | None = None  # requests, then every connection is dropped
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"local_hub": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "LocalHub":
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, name: str) -> dict[str, bytes]:
        """The content of a repository by path; nothing if there is none."""
        repository = self.repositories.get(name)
        return repository.commits[repository.head] if repository else {}

    def environment(self, home: object) -> dict[str, str]:
        """The variables of a process that knows this Hub, with an empty cache of its own and no token."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
        return kept | {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_DATASETS_OFFLINE": "1"}


@contextmanager
def reached(hub: LocalHub, home: object, token: str | None = TOKEN) -> Iterator[None]:
    """Inside, this very process knows the Hub as one that was started with `hub.environment` would."""
    constants = huggingface_hub.constants
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_CACHE", f"{home}/hub")
        patch.setattr(constants, "HF_TOKEN_PATH", f"{home}/token")
        patch.setattr(huggingface_hub.hf_api.api, "endpoint", hub.url)
        patch.setattr("transformers.utils.hub._hf_api", None, raising=False)  # made anew, with the endpoint
        patch.delenv("HF_TOKEN", raising=False)
        if token is not None:
            patch.setenv("HF_TOKEN", token)
        patch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between tries
        yield


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a client."""

    local_hub: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        pass

    def handle_request(self) -> None:
        hub = self.local_hub
        hub.requests.append(self.path)
        if hub.silent_after is not None and len(hub.requests) > hub.silent_after:
            self.close_connection = True
            return
        self.body = self.read_body()
        for trouble in hub.trouble:
            if trouble.method == self.command and trouble.part in self.path:
                self.answer(trouble.status, {"error": trouble.message})
                return
        self.route(unquote(urlsplit(self.path).path).strip("/"))

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, document: object = None, code: str | None = None) -> None:
        self.send(status, json.dumps(document).encode(), {"X-Error-Code": code} if code else {})

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def route(self, path: str) -> None:
        match path.split("/"):
            case ["api", "repos", "create"]:
                self.create()
            case ["api", "validate-yaml"]:
                self.answer(200, {"errors": [], "warnings": []})
            case ["api", "models", owner, name, *rest]:
                self.of_repository(f"{owner}/{name}", rest)
            case [owner, name, "resolve", revision, *rest]:
                self.of_repository(f"{owner}/{name}", ["resolve", revision, "/".join(rest)])
            case _:
                self.answer(404, {"error": f"no such page: {path}"})

    def create(self) -> None:
        wanted = json.loads(self.body)
        name = f"{wanted.get('organization') or OWNER}/{wanted['name']}"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" or not name.startswith(f"{OWNER}/"):
            self.answer(403, {"error": f"you have no right to create {name}"})
        elif name in self.local_hub.repositories:
            self.answer(409, {"url": f"{self.local_hub.url}/{name}", "error": "there already"})
        else:
            private = wanted.get("visibility") == "private" or wanted.get("private") is True
            self.local_hub.repositories[name] = Repository(private)
            self.local_hub.repositories[name].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
            self.answer(200, {"url": f"{self.local_hub.url}/{name}"})

    def of_repository(self, name: str, words: list[str]) -> None:
        repository = self.local_hub.repositories.get(name)
        match words:
            case _ if repository is None:
                self.answer(401, {"error": "Repository not found"}, "RepoNotFound")
            case [] | ["revision", _]:
                known = {"id": name, "sha": repository.head, "private": repository.private, "tags": []}
                self.answer(200, known | {"siblings": [{"rfilename": path} for path in self.local_hub.files(name)]})
            case ["tree", _]:
                files = self.local_hub.files(name).items()
                self.answer(
                    200, [{"type": "file", "path": path, "size": len(file), "oid": "0"} for path, file in files]
                )
            case ["preupload", _]:
                files = [file["path"] for file in json.loads(self.body)["files"]]
                upload = {"uploadMode": "regular", "shouldIgnore": False}
                self.answer(200, {"files": [{"path": path, **upload} for path in files]})
            case ["commit", "main"]:
                self.commit(name, repository)
            case ["resolve", revision, path]:
                file = repository.commits.get(revision, self.local_hub.files(name)).get(path)
                if file is None:
                    self.answer(404, {"error": f"no file {path}"}, "EntryNotFound")
                else:
                    commit = revision if revision in repository.commits else repository.head
                    self.send(200, file, {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(file).hexdigest()}"'})
            case _:
                self.answer(404, {"error": "no such page"}, "EntryNotFound")

    def commit(self, name: str, repository: Repository) -> None:
        """All of a commit, or nothing if another one came between."""
        header, *changes = map(json.loads, self.body.splitlines())
        if header["value"].get("parentCommit", repository.head) != repository.head:
            self.answer(412, {"error": "a commit has happened since; please refresh and try again"})
            return
        tree = dict(self.local_hub.files(name))
        for change in changes:
            value = change["value"]
            if change["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            else:
                del tree[value["path"]]
        repository.commit(tree)
        url = f"{self.local_hub.url}/{name}/commit/{repository.head}"
        self.answer(200, {"commitUrl": url, "commitOid": repository.head})
