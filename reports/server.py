"""A small web server over a store: the index, the reports, and the runs' files."""

from __future__ import annotations

import ipaddress
import shutil
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from reports.feeds import FEEDS, BadQuery, feed
from reports.folder import read_folder
from reports.index_page import PAGES, PARTS, is_part, part_script, write_index
from reports.page import write_page
from reports.run_page import run_report
from reports.summaries import IndexRow, index_rows, run_stamps
from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.run_folder import (
    COSTS,
    HISTORY,
    LEADERS,
    LEDGER,
    LOG_EVENTS,
    MESSAGE_TRACE,
    REPORT,
    RUN_FILE,
    TWIN,
    VERDICT_FILE,
    is_picture,
)

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".jsonl": "text/plain; charset=utf-8",
    ".log": "text/plain; charset=utf-8",
    ".parquet": "application/vnd.apache.parquet",
    ".bin": "application/octet-stream",
    ".xml": "application/xml",
}
"""The file types that are served; a file of any other type is not found."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_CLOSED = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_OWN_BLOCKS = "script-src 'unsafe-inline'; style-src 'unsafe-inline'"
"""Inline blocks of the page run; our reports and the index restrict that to two blocks, by hash."""
RAW_POLICY = f"{_CLOSED}; sandbox"
INDEX_POLICY = f"{_CLOSED}; script-src 'unsafe-inline' 'self'; style-src 'unsafe-inline'"
"""Pages over the whole store are written here, just before they are sent; the index loads its parts, which are the only
files served as scripts."""
RUN_POLICY = f"{_CLOSED}; {_OWN_BLOCKS}; sandbox allow-scripts allow-downloads"
"""A run's folder may come from an untrusted source, with its pages: they get a separate origin, which can read nothing
of this server and can send no requests."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

MAX_NAME = 255
MAX_PATH = 4000
"""The limits of Linux for a name (bytes) and, approximately, for a path."""

Prepare = Callable[[Path], None]
StorePages = Callable[[Path], object]
"""Writes all pages over a store except the index."""

REPORT_SOURCES = (RUN_FILE, VERDICT_FILE, HISTORY, LEDGER, LOG_EVENTS, MESSAGE_TRACE, LEADERS, COSTS)


class Pages:
    """Pages of one store, rewritten when their sources have changed. ``prepare`` is called with a run's folder before
    its report is written; ``others`` writes the pages over the store other than the index."""

    def __init__(self, store: Path, prepare: Prepare, others: StorePages | None = None) -> None:
        self.store = store
        self._prepare = prepare
        self._others = others
        self._lock = threading.Lock()
        self._stamps: dict[str, list[int]] | None = None
        self._others_stamps: dict[str, list[int]] | None = None
        self._row_stamps: dict[str, list[int]] | None = None
        self._rows: list[IndexRow] = []

    def refresh_index(self) -> None:
        """Write the index unless no run has changed since it was last written here."""
        with self._lock:
            if self._others is not None and not all((self.store / name).exists() for name in PAGES):
                self._refresh_others()
            stamps = run_stamps(self.store)
            if stamps != self._stamps or not (self.store / "index.html").exists():
                write_index(self.store)
                self._stamps = stamps

    def refresh_others(self) -> bool:
        """Write the other pages over the store, unless nothing has changed since they were last written here; return
        whether this server writes them."""
        with self._lock:
            self._refresh_others()
        return self._others is not None

    def _refresh_others(self) -> None:
        if self._others is None:
            return
        stamps = run_stamps(self.store)
        stamps.update((str(path), [path.stat().st_mtime_ns, path.stat().st_size])
                      for path in sorted(self.store.glob("nights/*/*.json*")))
        if stamps != self._others_stamps or not all((self.store / name).exists() for name in PAGES):
            self._others(self.store)
            self._others_stamps = stamps

    def feed(self, path: str, query: str) -> tuple[str, bytes]:
        """Return the content type and content of a feed for programs."""
        with self._lock:
            stamps = run_stamps(self.store)
            if stamps != self._row_stamps:
                self._rows, self._row_stamps = index_rows(self.store), stamps
            return feed(self._rows, path, query)

    def refresh_report(self, run_dir: Path) -> None:
        """Write a run's report if there is none or it is older than the run's files."""
        with self._lock:
            self._prepare(run_dir)
            report = run_dir / REPORT
            written = report.stat().st_mtime_ns if report.exists() else -1
            changed = [(run_dir / name).stat().st_mtime_ns for name in REPORT_SOURCES if (run_dir / name).exists()]
            if changed and max(changed) > written:
                write_page(report, run_report(read_folder(run_dir)))


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of the files below a store; all other requests are refused."""

    server_version = "stormproof"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def __init__(self, pages: Pages, hosts: frozenset[str] | None, *args: object) -> None:
        self.pages = pages
        self.hosts = hosts
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send a file."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Send a file's headers."""
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the command's own output names the address."""

    def _answer(self, body: bool) -> None:
        if self.hosts is not None and _host(self.headers.get("Host", "")) not in self.hosts:
            # A foreign name that resolves to this address (DNS rebinding) must not read the store.
            self._say(HTTPStatus.FORBIDDEN, "This server answers to its own address only.", body)
            return
        asked = urlsplit(self.path)
        if asked.path in FEEDS:
            self._feed(asked.path, asked.query, body)
            return
        try:
            path = self._file()
        except StormproofError as error:
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), body)
            return
        if path is None:
            self._say(HTTPStatus.NOT_FOUND, "There is no such file in this store.", body)
        else:
            self._send(path, body)

    def _feed(self, path: str, query: str, body: bool) -> None:
        try:
            kind, content = self.pages.feed(path, query)
        except (BadQuery, ValueError) as error:
            self._say(HTTPStatus.BAD_REQUEST, str(error), body)
            return
        except StormproofError as error:
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), body)
            return
        self._start(HTTPStatus.OK, kind, len(content))
        if body:
            self.wfile.write(content)

    def _file(self) -> Path | None:
        parts = [part for part in unquote(urlsplit(self.path).path, errors="replace").split("/") if part]
        if not parts:
            parts = ["index.html"]
        if parts == ["index.html"]:
            self.pages.refresh_index()
        elif len(parts) == 1 and parts[0] in PAGES and not self.pages.refresh_others():
            return None
        path = inside(self.pages.store, parts)
        if path is not None and len(parts) == 2 and parts[1] == REPORT and path.parent.is_dir():
            self.pages.refresh_report(path.parent)
        return path if path is not None and path.is_file() else None

    def _send(self, path: Path, body: bool) -> None:
        if path.suffix == ".js":
            self._send_part(path, body)
            return
        try:
            file = path.open("rb")
        except OSError:
            self._say(HTTPStatus.NOT_FOUND, "There is no such file in this store.", body)
            return
        with file:
            size = file.seek(0, 2)
            file.seek(0)
            page = INDEX_POLICY if path.parent == self.pages.store else RUN_POLICY
            policy = page if path.suffix == ".html" else RAW_POLICY
            self._start(HTTPStatus.OK, CONTENT_TYPES[path.suffix], size, policy)
            if body:
                try:
                    shutil.copyfileobj(file, self.wfile)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

    def _send_part(self, path: Path, body: bool) -> None:
        content = part_script(path)
        if content is None:
            self._say(HTTPStatus.NOT_FOUND, "There is no such file in this store.", body)
            return
        self._start(HTTPStatus.OK, CONTENT_TYPES[path.suffix], len(content))
        if body:
            self.wfile.write(content)

    def _say(self, status: HTTPStatus, text: str, body: bool) -> None:
        raw = f"{text}\n".encode("utf-8", "replace")
        self._start(status, "text/plain; charset=utf-8", len(raw))
        if body:
            self.wfile.write(raw)

    def _start(self, status: HTTPStatus, kind: str, size: int, policy: str = RAW_POLICY) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.send_header("Content-Security-Policy", policy)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if "sandbox" not in policy:
            # Browsers refuse a page with both headers.
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.end_headers()


def inside(store: Path, parts: list[str]) -> Path | None:
    """Return the file below the store that path segments name; None for anything else.

    Segments that climb, hide (a leading dot) or contain a separator or NUL name no file. Neither do symbolic links that
    lead out of the store, nor files of a type that is not served.
    """
    if any(part.startswith(".") or not part.isprintable() or set(part) & set("/\\\0:") for part in parts):
        return None
    if parts[-1].endswith(".html") and not _is_page(parts):
        return None  # only pages that this project writes run in a browser under this address
    if parts[-1].endswith(".js") and not (len(parts) == 2 and parts[0] == PARTS and is_part(parts[1])):
        return None
    path = store.joinpath(*parts)
    if len(str(path)) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in parts):
        return None
    try:
        real = path.resolve()
    except (OSError, RuntimeError):
        return None
    if path.suffix not in CONTENT_TYPES or not real.is_relative_to(store.resolve()):
        return None
    return path


def _is_page(parts: list[str]) -> bool:
    if len(parts) == 1:
        return parts[0] == "index.html" or parts[0] in PAGES
    return len(parts) == 2 and (parts[1] in (REPORT, TWIN) or is_picture(parts[1]))


def make_server(store: Path, host: str, port: int, prepare: Prepare = lambda _: None,
                others: StorePages | None = None) -> ThreadingHTTPServer:
    """Return a server that is bound but does not serve yet; port 0 chooses a free one.

    Raises:
        HistoryError: there is no such store.
        UsageError: the address can't be used.
    """
    if not store.is_dir():
        raise HistoryError(f"{store}: no such store of runs; name one with --store DIR")
    hosts = LOOPBACK | {host.lower()} if _is_loopback(host) else None
    handler = partial(Handler, Pages(store, prepare, others), hosts)
    try:
        server = ThreadingHTTPServer((host, port), handler)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"can't serve on {host}:{port} ({reason}): choose another with --port or --host") from error
    except OverflowError as error:
        raise UsageError(f"{port} is not a port: choose one from 0 to 65535 with --port") from error
    server.daemon_threads = True
    return server


def serve(
    store: Path, host: str = "127.0.0.1", port: int = 8642, prepare: Prepare = lambda _: None,
    others: StorePages | None = None,
) -> None:
    """Serve a store until interrupted (Ctrl-C); pages are rewritten when runs change.

    Raises:
        HistoryError: there is no such store.
        UsageError: the address can't be used.
    """
    with make_server(store, host, port, prepare, others) as server:
        shown = f"[{host}]" if ":" in host else host
        try:
            print(f"Serving {store} on http://{shown}:{server.server_address[1]}/ (Ctrl-C ends)", flush=True)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK


def _host(header: str) -> str:
    name = header.strip().lower()
    if name.startswith("["):
        return name[1 : name.find("]")]
    return name.rsplit(":", 1)[0] if ":" in name else name
