"""A hub on this machine that serves one repository to the installed ``hf`` program.

Not here: anything of fleetcraft. It speaks the few calls of a download: the commit of a branch, the
tree of a commit, and files with the headers from which the library names their blobs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.caches.hub_caches import COMMIT, blob_name


class Served:
    """What was asked of the hub.

    Attributes:
        endpoint: Its address.
        files: What it serves; a test may change it.
        fetched: Paths of files whose content was sent.
    """

    def __init__(self, endpoint: str, files: dict[str, bytes]) -> None:
        self.endpoint = endpoint
        self.files = files
        self.fetched: list[str] = []


@contextlib.contextmanager
def serving(files: Mapping[str, bytes], repo: str = "org/tiny") -> Iterator[Served]:
    """Serves files as one commit of a model."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            begin = f"/{repo}/resolve/{COMMIT}/"
            if path == f"/api/models/{repo}/revision/main":
                self.send(json.dumps({"id": repo, "sha": COMMIT, "siblings": []}).encode(), body)
            elif path == f"/api/models/{repo}/tree/{COMMIT}":
                self.send(json.dumps([entry(*item) for item in files.items()]).encode(), body)
            elif path.startswith(begin) and (name := path.removeprefix(begin)) in served.files:
                self.send(served.files[name], body, name)
            else:
                self.send_error(404)

        def send(self, data: bytes, body: bool, name: str = "") -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            if name:
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{blob_name(name, files[name])}"')
            else:
                self.send_header("Content-Type", "application/json")
            self.end_headers()
            if body:
                if name:
                    served.fetched.append(name)
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Served(f"http://127.0.0.1:{server.server_address[1]}", dict(files))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def entry(path: str, data: bytes) -> dict[str, object]:
    """A file of a tree, as the hub lists it."""
    name = blob_name(path, data)
    found: dict[str, object] = {
        "type": "file", "path": path, "size": len(data), "oid": name,
    }  # fmt: skip
    if len(name) == 64:
        found["oid"] = hashlib.sha1(name.encode()).hexdigest()
        found["lfs"] = {"oid": name, "size": len(data), "pointerSize": 100}
    return found
