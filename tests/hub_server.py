"""A small Hub on this machine, in a thread: the part of its HTTP protocol that huggingface_hub speaks.

It holds everything in memory. `LocalHub.trouble` makes it refuse requests or lose an answer; `silent_after` makes it
fall silent after so many requests.
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
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import huggingface_hub
import pytest
import yaml


TOKEN = "hf_localtoken"  # of the account `someone`
START = "main"


class Stored(NamedTuple):
    """A file of a repository."""

    content: bytes
    is_lfs: bool

    @property
    def blob(self) -> str:
        """Git's hash; of a large file git has a pointer to it alone."""
        kept = self.content
        if self.is_lfs:
            lines = "version https://git-lfs.github.com/spec/v1", f"oid sha256:{self.sha256}", f"size {len(kept)}", ""
            kept = "\n".join(lines).encode()
        return hashlib.sha1(b"blob %d\0" % len(kept) + kept).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self) -> str:
        """What tells a client whether a file has changed."""
        return self.sha256 if self.is_lfs else self.blob


@dataclass
class Repository:
    """Commits, each a whole tree by path, and branches that name them."""

    private: bool = False
    commits: dict[str, dict[str, Stored]] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, tree: dict[str, Stored], message: str) -> str:
        """Adds a commit and moves the branch to it."""
        sha = hashlib.sha1(f"{len(self.commits)} {message} {sorted(tree)}".encode()).hexdigest()
        self.commits[sha] = tree
        self.messages[sha] = message
        self.branches[branch] = sha
        return sha

    def sha(self, revision: str) -> str | None:
        if revision in self.commits:
            return revision
        return self.branches.get(revision)


@dataclass
class Trouble:
    """What goes wrong with requests of a method whose path has a part.

    Args:
        times: how often.
        is_late: the request is carried out; only the answer is lost.
    """

    method: str
    part: str
    status: int = 500
    message: str = "refused"
    times: int = 1_000_000
    is_late: bool = False


class LocalHub:
    """See the module's docstring. A context manager: the server runs inside."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.accounts = {TOKEN: "someone"}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.trouble: list[Trouble] = []
        self.silent_after: int | None = None  # requests, then every connection is dropped
        hub = self

        class BoundHandler(Handler):
            local_hub = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), BoundHandler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "LocalHub":
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, name: str, revision: str = START) -> dict[str, bytes]:
        """The content of a repository by path; nothing where there is none."""
        repository = self.repositories.get(name)
        if repository is None:
            return {}
        tree = repository.commits[repository.sha(revision)]
        return {path: stored.content for path, stored in tree.items()}

    def environment(self, home: object, token: str | None = TOKEN) -> dict[str, str]:
        """The variables of a process that knows this Hub, with an empty cache of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        kept |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        if token is not None:
            kept["HF_TOKEN"] = token
        return kept


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


class Dropped(Exception):
    """The connection ends here."""


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a client."""

    local_hub: LocalHub
    protocol_version = "HTTP/1.1"
    is_lost = False  # the answer

    def log_message(self, *words: object) -> None:
        pass

    def handle_request(self) -> None:
        """Any method: troubles first, then the part of the protocol that the path names."""
        hub = self.local_hub
        hub.requests.append((self.command, self.path, dict(self.headers)))
        try:
            if hub.silent_after is not None and len(hub.requests) > hub.silent_after:
                raise Dropped
            trouble = self.trouble()
            self.body = self.read_body()
            if trouble is None or trouble.is_late:
                self.is_lost = trouble is not None
                self.route()
            else:
                self.answer(trouble.status, {"error": trouble.message})
        except (Dropped, ConnectionError):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request

    def trouble(self) -> Trouble | None:
        for trouble in self.local_hub.trouble:
            if trouble.method == self.command and trouble.part in self.path and trouble.times > 0:
                trouble.times -= 1
                return trouble
        return None

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, document: object = None, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(document).encode()
        self.send_content(status, content, {"Content-Type": "application/json", **(headers or {})})

    def send_content(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.is_lost:
            raise Dropped
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message})

    @property
    def account(self) -> str | None:
        """Whose token came with the request."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return self.local_hub.accounts.get(token)

    def route(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        parts = path.split("/")
        match parts:
            case ["api", "repos", "create"]:
                self.create()
            case ["api", "whoami-v2"] if self.account is not None:
                self.answer(200, {"name": self.account, "type": "user"})
            case ["api", "validate-yaml"]:
                self.validate()
            case ["lfs", oid]:
                self.local_hub.objects[oid] = self.body
                self.answer(200)
            case ["lfs", "verify", oid]:
                self.answer(200 if oid in self.local_hub.objects else 404)
            case [owner, name, "info", "lfs", "objects", "batch"]:
                self.with_repository(f"{owner}/{name.removesuffix('.git')}", self.lfs_batch)
            case ["api", "models", owner, name, *rest]:
                self.with_repository(f"{owner}/{name}", self.of_repository, rest)
            case [owner, name, "resolve", revision, *rest]:
                self.with_repository(f"{owner}/{name}", self.resolve, revision, "/".join(rest))
            case _:
                self.answer(404, {"error": f"no such page: {path}"})

    def with_repository(self, name: str, action: object, *arguments: object) -> None:
        """Calls the action for those who may see the repository; others are told that there is none."""
        repository = self.local_hub.repositories.get(name)
        is_owner = self.account == name.split("/")[0]
        if repository is None or (repository.private and not is_owner):
            self.refuse(401, "RepoNotFound", "Repository not found")
        elif self.command not in ("GET", "HEAD") and not is_owner:
            self.refuse(403, "Forbidden", "you have no right to write to this repository")
        else:
            action(name, repository, *arguments)

    def create(self) -> None:
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or self.account
        name = f"{owner}/{wanted['name']}"
        if self.account is None:
            self.refuse(401, "Unauthorized", "Invalid username or password.")
        elif owner != self.account:
            self.refuse(403, "Forbidden", f"you have no right to create a repository of {owner}")
        elif name in self.local_hub.repositories:
            self.answer(409, {"url": f"{self.local_hub.url}/{name}", "error": "there already"})
        else:
            private = wanted.get("visibility") == "private" or wanted.get("private") is True
            repository = self.local_hub.repositories[name] = Repository(private)
            attributes = Stored(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", False)
            repository.commit(START, {".gitattributes": attributes}, "initial commit")
            self.answer(200, {"url": f"{self.local_hub.url}/{name}"})

    def validate(self) -> None:
        text = json.loads(self.body)["content"]
        errors = []
        try:
            yaml.safe_load(text.split("---")[1])
        except (IndexError, yaml.YAMLError) as error:
            errors = [{"message": str(error)}]
        self.answer(400 if errors else 200, {"errors": errors, "warnings": []})

    def lfs_batch(self, name: str, repository: Repository) -> None:
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            if wanted["oid"] not in self.local_hub.objects:
                upload = {"href": f"{self.local_hub.url}/lfs/{wanted['oid']}"}
                verify = {"href": f"{self.local_hub.url}/lfs/verify/{wanted['oid']}"}
                wanted["actions"] = {"upload": upload, "verify": verify}
            objects.append(wanted)
        self.answer(200, {"transfer": "basic", "objects": objects})

    def of_repository(self, name: str, repository: Repository, rest: list[str]) -> None:
        match rest:
            case []:
                self.info(name, repository, START)
            case ["revision", revision]:
                self.info(name, repository, revision)
            case ["branch", branch] if branch in repository.branches:
                self.answer(409, {"error": "there already"})
            case ["branch", branch]:
                start = json.loads(self.body or b"{}").get("startingPoint", START)
                repository.branches[branch] = repository.sha(start)
                self.answer(200, {})
            case ["tree", revision, *folder]:
                self.tree(repository, revision, "/".join(folder))
            case ["preupload", revision]:
                self.preupload(repository, revision)
            case ["commit", branch]:
                self.commit(name, repository, branch)
            case _:
                self.answer(404, {"error": "no such page"})

    def info(self, name: str, repository: Repository, revision: str) -> None:
        sha = repository.sha(revision)
        if sha is None:
            self.refuse(404, "RevisionNotFound", f"no revision {revision}")
            return
        siblings = []
        for path, stored in sorted(repository.commits[sha].items()):
            sibling = {"rfilename": path}
            if "blobs=" in urlsplit(self.path).query:
                size = len(stored.content)
                sibling |= {"size": size, "blobId": stored.blob}
                if stored.is_lfs:
                    sibling["lfs"] = {"sha256": stored.sha256, "size": size, "pointerSize": 130}
            siblings.append(sibling)
        self.answer(
            200,
            {"id": name, "modelId": name, "sha": sha, "private": repository.private, "siblings": siblings, "tags": []},
        )

    def tree(self, repository: Repository, revision: str, folder: str) -> None:
        sha = repository.sha(revision)
        if sha is None:
            self.refuse(404, "RevisionNotFound", f"no revision {revision}")
            return
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() in ("true", "1")
        entries = []
        for path, stored in sorted(repository.commits[sha].items()):
            inside = path.removeprefix(f"{folder}/") if folder else path
            if (folder and not path.startswith(f"{folder}/")) or ("/" in inside and not recursive):
                continue
            entry = {"type": "file", "path": path, "size": len(stored.content), "oid": stored.blob}
            if stored.is_lfs:
                entry["lfs"] = {"oid": stored.sha256, "size": len(stored.content), "pointerSize": 130}
            entries.append(entry)
        if folder and not entries:
            self.refuse(404, "EntryNotFound", f"no folder {folder}")
        else:
            self.answer(200, entries)

    def preupload(self, repository: Repository, revision: str) -> None:
        tree = repository.commits.get(repository.sha(revision), {})
        asked = json.loads(self.body)
        files = []
        for wanted in asked["files"]:
            is_lfs = b"\0" in base64.b64decode(wanted["sample"])
            there = tree.get(wanted["path"])
            oid = None if there is None else there.oid
            mode = "lfs" if is_lfs else "regular"
            files.append({"path": wanted["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.answer(200, {"files": files})

    def commit(self, name: str, repository: Repository, branch: str) -> None:
        """All of a commit, or, where a part of it is missing, nothing."""
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        parent = repository.sha(branch)
        if header.get("parentCommit", parent) != parent:
            self.answer(412, {"error": "a commit has happened since; please refresh and try again"})
            return
        tree = dict(repository.commits[parent])
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "file":
                    tree[value["path"]] = Stored(base64.b64decode(value["content"]), False)
                case "lfsFile":
                    if value["oid"] not in self.local_hub.objects:
                        self.answer(400, {"error": f"{value['path']}: its content was not uploaded"})
                        return
                    tree[value["path"]] = Stored(self.local_hub.objects[value["oid"]], True)
                case "deletedFile":
                    del tree[value["path"]]
        sha = repository.commit(branch, tree, header["summary"])
        self.answer(200, {"commitUrl": f"{self.local_hub.url}/{name}/commit/{sha}", "commitOid": sha})

    def resolve(self, name: str, repository: Repository, revision: str, path: str) -> None:
        """A file."""
        sha = repository.sha(revision)
        if sha is None:
            self.refuse(404, "RevisionNotFound", f"no revision {revision}")
            return
        stored = repository.commits[sha].get(path)
        headers = {"X-Repo-Commit": sha}
        if stored is None:
            code = {"X-Error-Code": "EntryNotFound", "X-Error-Message": f"no file {path}"}
            self.answer(404, {"error": f"no file {path}"}, {**headers, **code})
            return
        headers["ETag"] = f'"{stored.oid}"'
        if stored.is_lfs:
            headers |= {"X-Linked-Size": str(len(stored.content)), "X-Linked-Etag": f'"{stored.sha256}"'}
        self.send_content(200, stored.content, headers)
