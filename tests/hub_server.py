"""A model hub on the loopback interface, for the unmodified client: folders as repositories, and faults on demand.

Large files are redirected to a second port, as the real hub does to its storage servers. The client reads HF_ENDPOINT
when it is imported, so it runs in a process of its own (`Client`), which answers line by line to spare its start-up.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

LARGE = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".parquet")
WORKFLOW = Path(__file__).parents[1] / "workflow"


@dataclass
class Repo:
    """A repository: its files by commit, and what its branches and tags point to.

    `gated` shows the list of files to anyone and the files to those with the hub's token only; `private` shows nothing.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False


@dataclass
class Fault:
    """What goes wrong with the requests that match.

    Args:
        match: pattern searched in "hub GET /path" or "storage GET /path".
        times: how often it still happens.
        status: answer with this status and `headers`, and `body` if any.
        keep: send so many bytes of the body, then close the connection.
        cut: leave out the body's last bytes, with a Content-Length that fits.
        flip: index of a byte to change.
        stall: seconds to wait before answering.
        ignore_range: send the whole file although a range is asked for.
        stated: headers that replace those of the right answer.
    """

    match: str
    times: int = 10**9
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep: int | None = None
    cut: int = 0
    flip: int | None = None
    stall: float = 0.0
    ignore_range: bool = False
    stated: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """One line of the log: `side` is "hub" or "storage", `headers` are As-Here, `sent` is the bytes of the body."""

    side: str
    method: str
    path: str
    headers: Mapping[str, str]
    status: int
    sent: int


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, address: object) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the client is gone, or was killed
            super().handle_error(request, address)


class Hub:
    """The two servers, what they hold, and what was asked of them.

    Attributes:
        signature: in the addresses that the hub gives out; the storage server refuses others, so a new one expires them.
        rate: bytes per second of each answer, or None for as fast as it goes.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.log: list[Request] = []
        self.token = "hf_" + "x" * 30
        self.signature = "signed"
        self.rate: float | None = None
        self.servers = {side: _Server(("127.0.0.1", 0), _handler(self, side)) for side in ("hub", "storage")}
        for server in self.servers.values():
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def url(self, side: str = "hub") -> str:
        return f"http://127.0.0.1:{self.servers[side].server_port}"

    def add(self, repo: str, files: Mapping[str, bytes] | Path, revision: str = "main", **flags: bool) -> str:
        """Makes a commit of a folder's files, or of files by name, and points `revision` to it; gives the commit.

        A data set's name begins with `datasets/`.
        """
        if isinstance(files, Path):
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in files.rglob("*") if path.is_file()}
        known = self.repos.setdefault(repo, Repo())
        commit = hashlib.sha1(json.dumps([(name, digest_of(name, files[name])) for name in sorted(files)]).encode()).hexdigest()
        known.commits[commit], known.refs[revision] = dict(files), commit
        for flag, value in flags.items():
            setattr(known, flag, value)
        return commit

    def fail(self, match: str, times: int = 10**9, **what: object) -> None:
        """Adds a fault; see `Fault`."""
        self.faults.append(Fault(match, times, **what))

    def asked(self, pattern: str) -> list[Request]:
        """The requests in the log that match, as `Fault.match` does."""
        return [each for each in self.log if re.search(pattern, f"{each.side} {each.method} {each.path}")]

    def ranges(self) -> list[tuple[str, int, int]]:
        """What was asked of the storage server: path, first byte, one past the last; in the order of the bytes."""
        asked = [(each.path, re.fullmatch(r"bytes=(\d+)-(\d+)", each.headers["Range"])) for each in self.asked("storage GET")]
        return sorted((urlsplit(path).path, int(match[1]), int(match[2]) + 1) for path, match in asked)

    def reset(self) -> None:
        """Forgets faults, the log and the rate."""
        self.faults.clear()
        self.log.clear()
        self.rate = None

    def close(self) -> None:
        for server in self.servers.values():
            server.shutdown()
            server.server_close()


@cache
def digest_of(name: str, content: bytes) -> str:
    """What the hub states for a file: sha256 for a large one, git's object id otherwise."""
    if name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: Hub
    side: str

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        payload = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        request = f"{self.side} {self.command} {self.path}"
        fault = next((each for each in self.hub.faults if each.times > 0 and re.search(each.match, request)), Fault(""))
        fault.times -= 1
        time.sleep(fault.stall)
        if fault.status is not None:
            self._send(fault.status, fault.headers, fault.body, Fault(""))
        else:
            answer = self._storage() if self.side == "storage" else self._hub(payload)
            self._send(*answer, fault)

    do_HEAD = do_POST = do_GET

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, fault: Fault) -> None:
        total, wanted = len(body), self.headers.get("Range")
        headers = dict(headers)
        if status == 200 and wanted and "Accept-Ranges" in headers and not fault.ignore_range:
            first, last = _range(wanted, total)
            if first >= total:
                status, body, headers["Content-Range"] = 416, b"", f"bytes */{total}"
            else:
                status, body, headers["Content-Range"] = 206, body[first : last + 1], f"bytes {first}-{last}/{total}"
        if fault.flip is not None and len(body) > fault.flip:
            changed = bytearray(body)
            changed[fault.flip] ^= 1
            body = bytes(changed)
        body = body[: len(body) - fault.cut]
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), **fault.stated}.items():
            self.send_header(name, value)
        sent = b"" if self.command == "HEAD" else body[: fault.keep]
        # Logged before the first byte is out (an answer without a body ends with its headers): who has read the answer
        # finds it in the log.
        headers = {name.title(): value for name, value in self.headers.items()}
        self.hub.log.append(Request(self.side, self.command, self.path, headers, status, len(sent)))
        self.end_headers()
        self._write(sent)
        if fault.keep is not None and self.command != "HEAD":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _write(self, body: bytes) -> None:
        if (rate := self.hub.rate) is None:
            self.wfile.write(body)
            return
        started, step = time.monotonic(), max(2**12, int(rate / 100))
        for first in range(0, len(body), step):
            self.wfile.write(body[first : first + step])
            time.sleep(max(0.0, started + min(first + step, len(body)) / rate - time.monotonic()))

    def _storage(self) -> tuple[int, dict[str, str], bytes]:
        address = urlsplit(self.path)
        wanted = address.path.strip("/")
        if address.query != f"X-Amz-Signature={self.hub.signature}":
            return 403, {}, b"AccessDenied: Request has expired"
        for repo in self.hub.repos.values():
            for files in repo.commits.values():
                for name, content in files.items():
                    if digest_of(name, content) == wanted:
                        return 200, {"Accept-Ranges": "bytes", "ETag": f'"{wanted}"'}, content
        return 403, {}, b"AccessDenied"

    def _hub(self, payload: str) -> tuple[int, dict[str, str], bytes]:
        path = urlsplit(self.path).path
        if path == "/api/whoami-v2":
            known = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
            return _json({"name": "someone"}) if known else (401, {"X-Error-Message": "Invalid credentials"}, b"")
        path = re.sub("^/api/models/|^/api/(?=datasets/)", "/info/", path)
        if match := re.fullmatch(r"/info/((?:datasets/)?[^/]+(?:/[^/]+)?)", path):
            return self._in_repo(match[1], "main", "info")
        if match := re.fullmatch(r"/info/(.+?)/(revision|tree|paths-info)/([^/]+)(?:/(.*))?", path):
            detail = unquote(match[4] or "") if match[2] == "tree" else payload
            return self._in_repo(match[1], unquote(match[3]), match[2], detail)
        if match := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            return self._in_repo(match[1], unquote(match[2]), "resolve", unquote(match[3]))
        return 404, {}, b"Not Found"

    def _in_repo(self, name: str, revision: str, what: str, detail: str = "") -> tuple[int, dict[str, str], bytes]:
        repo, known = self.hub.repos.get(name), self.headers.get("Authorization")
        allowed = known == f"Bearer {self.hub.token}"
        if repo is None or (repo.private and not allowed):
            if known:
                return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
            return 401, {"X-Error-Message": "Invalid username or password."}, b""
        commit = repo.refs.get(revision, revision)
        if commit not in repo.commits:
            return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"}, b""
        files = repo.commits[commit]
        if what == "resolve":
            if repo.gated and not allowed:
                return 403 if known else 401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b""
            return self._resolve(commit, detail, files)
        if what in ("info", "revision"):
            siblings = [_entry(path, content, "rfilename") for path, content in files.items()]
            plain = name.removeprefix("datasets/")
            gated = "manual" if repo.gated else False
            return _json({"id": plain, "modelId": plain, "sha": commit, "gated": gated, "siblings": siblings})
        if what == "tree" and detail and not any(path.startswith(f"{detail}/") for path in files):
            return 404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": f"{detail} does not exist"}, b""
        if what == "tree":
            return _json(_tree(files, detail, "recursive=true" in self.path.lower()))
        chosen = parse_qs(detail).get("paths", [])
        return _json([_entry(path, files[path], "path") for path in chosen if path in files])

    def _resolve(self, commit: str, name: str, files: Mapping[str, bytes]) -> tuple[int, dict[str, str], bytes]:
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if name not in files:
            return 404, {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b""
        digest, size = digest_of(name, files[name]), len(files[name])
        if not name.endswith(LARGE):
            return 200, {**headers, "ETag": f'"{digest}"'}, files[name]
        linked = {"X-Linked-Size": str(size), "X-Linked-Etag": f'"{digest}"'}
        return (
            302,
            {**headers, **linked, "Location": f"{self.hub.url('storage')}/{digest}?X-Amz-Signature={self.hub.signature}"},
            b"",
        )


def _handler(hub: Hub, side: str) -> type[_Handler]:
    return type("Handler", (_Handler,), {"hub": hub, "side": side})


def _range(header: str, total: int) -> tuple[int, int]:
    """First and last byte of `bytes=a-b`, `bytes=a-` or `bytes=-n`."""
    first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", header).groups()
    if not first:
        return max(0, total - int(last)), total - 1
    return int(first), min(int(last), total - 1) if last else total - 1


def _entry(path: str, content: bytes, key: str) -> dict[str, object]:
    large, digest = path.endswith(LARGE), digest_of(path, content)
    oid = hashlib.sha1(digest.encode()).hexdigest() if large else digest
    entry = {key: path, "size": len(content), "blobId": oid, "oid": oid, "type": "file"}
    if large:
        entry["lfs"] = {"sha256": digest, "oid": digest, "size": len(content), "pointerSize": 134}
    return entry


def _tree(files: Mapping[str, bytes], folder: str, recursive: bool) -> list[dict[str, object]]:
    """What is in a folder, or anywhere below it."""
    inside = [path for path in files if path.startswith(f"{folder}/" if folder else "")]
    depth = folder.count("/") + 1 if folder else 0
    parents = {"/".join(path.split("/")[:end]) for path in inside for end in range(depth + 1, path.count("/") + 1)}
    folders = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(parents)]
    entries = folders + [_entry(path, files[path], "path") for path in inside]
    return [entry for entry in entries if recursive or entry["path"].count("/") == depth]


def _json(value: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


# Back-off is asked for as ever, but the waiting is cut short; what was asked for is in the answer.
_WORKER = """
import json, os, sys, time
sleep, waits = time.sleep, []
def cut_short(seconds):
    waits.append(seconds)
    sleep(min(seconds, 0.01))
time.sleep = cut_short
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from qkgeom.byte_files import LocalFile
from qkgeom.errors import QkgeomError
from qkgeom.sources import SCHEMES, split_uri
def fetch(uri, pinned):
    scheme, address = split_uri(uri)
    with import_module(f"qkgeom.sources.{SCHEMES[scheme]}").fetch(address, pinned) as got:
        files = [LocalFile(file) if isinstance(file, Path) else file for file in got.weights]
        opened = got.moved()
        weights = {file.name: sha256(file.read(0, file.size)).hexdigest() for file in files}
        answer = {"weights": weights, "origin": dict(got.origin), "opened": opened, "moved": got.moved()}
        return answer | {"config": got.config and str(got.config), "index": got.index and str(got.index)}
def use_table(module, path):
    import_module(module).TABLE = Path(path)
    return {}

def keep(repo, commit, *names):
    from huggingface_hub import hf_hub_download
    return {"paths": [hf_hub_download(repo, name, revision=commit) for name in names]}
def start(*arguments):
    pid = os.fork()  # a process of its own, without the time that imports take
    if not pid:
        verb(*arguments)
        os._exit(0)
    return {"pid": pid}
def wait(pid):
    return {"status": os.waitpid(pid, 0)[1]}
def verb(*arguments):
    import_module("qkgeom.cli").app(arguments, standalone_mode=False)
    return {}
for line in sys.stdin:
    function, arguments = json.loads(line)
    waits.clear()
    try:
        answer = globals()[function](*arguments)
    except QkgeomError as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    loaded = {"waits": waits, "torch": "torch" in sys.modules, "libraries": sorted({"timm", "whisper"} & set(sys.modules))}
    print(json.dumps(answer | loaded), flush=True)
"""


class Client:
    """A process that fetches, with an environment of its own; its stderr goes to `errors`.

    Args:
        home: HF_HOME, made if needed.
        prefix: command that runs the process, e.g. `small_disk`.
        env: environment variables; those of the hub and of pip are unset otherwise.
    """

    def __init__(self, home: Path, prefix: Sequence[str] = (), **env: str) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.errors = home, home / "stderr.txt"
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "PIP_"))
        }
        self.env = clean | {
            "HF_HOME": str(home),
            "QKGEOM_CACHE": str(home / "qkgeom"),
            "PYTHONPATH": str(WORKFLOW),
            "NO_PROXY": "*",
            "no_proxy": "*",
            **env,
        }
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-c", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.env,
            )

    def fetch(self, uri: str, sha256: str | None = None) -> dict:
        """Opens and reads all weights; gives their sha256 by name as `weights`, `config`, `index`, `origin`, the bytes moved
        for opening them (`opened`) and in all (`moved`), or `error` and `text`; and `waits`, the seconds asked for.
        """
        return self._ask("fetch", uri, sha256)

    def use_table(self, source: str, path: Path) -> None:
        """Puts another table of names in the place of `sources/<source>.tsv`."""
        self._ask("use_table", f"qkgeom.sources.{source}", str(path))

    def keep(self, repo: str, commit: str, *names: str) -> list[Path]:
        """Has the hub's client put whole files into its cache, as any other program may have done."""
        return [Path(path) for path in self._ask("keep", repo, commit, *names)["paths"]]

    def verb(self, *arguments: object) -> dict:
        """Runs a verb of the command line; gives `waits`, and if it fails `error` and `text`."""
        return self._ask("verb", *map(str, arguments))

    def start(self, *arguments: object) -> int:
        """Runs a verb in a process of its own, beside this one; gives its id, for `wait`."""
        return self._ask("start", *map(str, arguments))["pid"]

    def wait(self, pid: int) -> int:
        """Waits for a process; gives its status as the system tells it."""
        return self._ask("wait", pid)["status"]

    def _ask(self, function: str, *arguments: str | int | None) -> dict:
        self.process.stdin.write(json.dumps([function, arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the client died: {self.errors.read_text()}"
        return json.loads(line)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `python -m qkgeom` in the same environment; what the hub asks to wait is waited."""
        return subprocess.run(
            [sys.executable, "-m", "qkgeom", *arguments], capture_output=True, text=True, env=self.env, check=False
        )

    def snapshot(self, repo: str, commit: str) -> Path:
        """Folder of a commit's files in the hub's cache."""
        return self.home / "hub" / ("models--" + repo.replace("/", "--")) / "snapshots" / commit

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def client(home: Path, hub: Hub | None = None, prefix: Sequence[str] = (), **env: str) -> Iterator[Client]:
    """A client of `hub`; see `Client`."""
    it = Client(home, prefix, **({"HF_ENDPOINT": hub.url()} if hub else {}), **env)
    try:
        yield it
    finally:
        it.close()


@pytest.fixture(scope="module")
def served_hub() -> Iterator[Hub]:
    """The hub of a test module; use `hub`."""
    hub = Hub()
    yield hub
    hub.close()


@pytest.fixture
def hub(served_hub: Hub) -> Hub:
    """The module's hub without faults and with an empty log; its repositories stay, so each test names its own."""
    served_hub.reset()
    return served_hub


@pytest.fixture(scope="module")
def hub_client(served_hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of the module's hub, without a token."""
    with client(tmp_path_factory.mktemp("hf home"), served_hub) as it:
        yield it


def closed_port() -> int:
    """A port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def small_disk(folder: Path, kilobytes: int) -> list[str]:
    """A command prefix that makes `folder` a disk of its own, as small as that, for the command that follows."""
    mount = f'mount -t tmpfs -o size={kilobytes}k none "$1" && shift && exec "$@"'
    prefix = ["unshare", "-rm", "sh", "-c", mount, "sh", str(folder)]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk (unshare -rm)")
    return prefix
