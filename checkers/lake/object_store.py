"""A store in an object store: ``s3://bucket/prefix`` holds the same runs and the same lake as a folder does.

Credentials are read from the usual places (``AWS_ACCESS_KEY_ID`` and the like, ``~/.aws``, the role of the machine) and
are neither kept nor sent by this program: each worker of a cluster has its own. The endpoint (``AWS_ENDPOINT_URL_S3``
or ``AWS_ENDPOINT_URL``) and the region are not secret, and travel with the store's name.

An object appears whole or not at all, and a list shows all earlier writes (S3 promises both): so this module needs no
lock.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stormproof.errors import HistoryError, StormproofError, UsageError
from stormproof.history.read_limits import max_history
from stormproof.run_folder import DEEPEST, HARNESS_LOG, JOURNAL, PLUGIN_COPIES, REPORT, RUN_FILE, RUN_ID
from stormproof.text import size

SCHEME = "s3://"
_ADDRESS = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(/[A-Za-z0-9!_.*'()=-]+)*)/?")
_ENDPOINT = re.compile(r"(?:(https?)://)?([A-Za-z0-9.\[\]:-]+)/?")
_ATTEMPTS = 4
_CONNECT_SECONDS, _REQUEST_SECONDS = 10, 120
MAX_REQUESTS = 16
"""Requests at the same time: an answer takes long, but little of this machine's work."""
_CHUNK_BYTES = 1 << 20
"""Bytes of an object that a copy holds in memory."""
_NOT_JUDGED_BY = frozenset({REPORT, HARNESS_LOG, JOURNAL})
"""Files of a run that no check reads."""
_REMOVED = ("RESOURCE_NOT_FOUND", "NO_SUCH_KEY")
_NOISE = re.compile(r"\s*\(Request ID: [^)]*\)")


@dataclass(frozen=True)
class StoredObject:
    """One object: its size in bytes, and when it was written, in nanoseconds since 1970."""

    size: int
    written: int


@dataclass(frozen=True)
class ObjectStore:
    """A store's address, and the service's endpoint and region; ``object_store`` creates one."""

    url: str
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        return self.url

    @property
    def root(self) -> str:
        """Bucket and prefix, as the file system takes them."""
        return self.url.removeprefix(SCHEME)

    @property
    def fs(self) -> Any:
        """The file system; a process has one for each service."""
        return _file_system(self.endpoint, self.region)

    def items(self, below: str = "") -> dict[str, StoredObject]:
        """Return all objects below a name (``lake``, a run; all if it is empty), by their names relative to it.

        Raises:
            StormproofError: the service refuses.
        """
        from pyarrow.fs import FileSelector, FileType

        where = f"{self.root}/{below}" if below else self.root
        with self.told(f"{self.url}/{below}".rstrip("/")):
            found = self.fs.get_file_info(FileSelector(where, recursive=True, allow_not_found=True))
        return {info.path.removeprefix(f"{where}/"): StoredObject(info.size, info.mtime_ns)
                for info in found if info.type == FileType.File}  # fmt: skip

    def names(self) -> set[str]:
        """Return the names of the store's direct entries; raises as ``items``."""
        from pyarrow.fs import FileSelector

        with self.told(self.url):
            return {info.base_name for info in self.fs.get_file_info(FileSelector(self.root, allow_not_found=True))}

    def item(self, name: str) -> StoredObject | None:
        """Return one object, or None if there is none; raises as ``items``."""
        from pyarrow.fs import FileType

        with self.told(f"{self.url}/{name}"):
            info = self.fs.get_file_info(f"{self.root}/{name}")
        return StoredObject(info.size, info.mtime_ns) if info.type == FileType.File else None

    def demand_bucket(self) -> None:
        """Verify that the bucket exists. Raises StormproofError: it does not, or the service refuses."""
        from pyarrow.fs import FileType

        with self.told(self.url):
            if self.fs.get_file_info(self.root.partition("/")[0]).type == FileType.NotFound:
                raise StormproofError(f"{self.url}: no such bucket")

    def runs(self) -> dict[str, dict[str, StoredObject]]:
        """Return the files of each complete run, by the runs' names; raises as ``items``."""
        return runs_among(self.items())

    def read(self, name: str) -> bytes:
        """Return an object's content.

        Raises:
            FileNotFoundError: there is none. StormproofError: the service refuses, or it is far too large.
        """
        with self.told(f"{self.url}/{name}"), self.fs.open_input_file(f"{self.root}/{name}") as stream:
            if stream.size() > max_history():
                raise HistoryError(f"{self.url}/{name} has {size(stream.size())}, more than {size(max_history())}: "
                                   "--max-history lets it be read")
            return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        """Create or replace an object. Raises StormproofError when the service refuses."""
        with self.told(f"{self.url}/{name}"), self.fs.open_output_stream(f"{self.root}/{name}") as stream:
            stream.write(content)

    def remove(self, name: str) -> None:
        """Remove an object, if it exists. Raises StormproofError when the service refuses."""
        with self.told(f"{self.url}/{name}"), contextlib.suppress(FileNotFoundError):
            self.fs.delete_file(f"{self.root}/{name}")

    def fetch(self, run: str, folder: Path, files: Mapping[str, StoredObject] | None = None, *,
              all_files: bool = False) -> None:  # fmt: skip
        """Create a run's folder here, with the files that checks read, or ``all_files``; their times are those in the
        store.

        ``files`` are the run's files, if they are known.

        Raises:
            HistoryError: it has a file that is larger than a history may be. StormproofError: the service refuses.
            OSError: the folder can't be filled.
        """
        found = self.items(run) if files is None else files
        wanted = {name: item for name, item in found.items() if _is_place(name)
                  and (all_files or name not in _NOT_JUDGED_BY)}  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        _each(functools.partial(self._fetch, run, folder), wanted.items())

    def _fetch(self, run: str, folder: Path, file: tuple[str, StoredObject]) -> None:
        name, item = file
        if item.size > max_history():
            raise HistoryError(f"{self.url}/{run}/{name} has {size(item.size)}, more than {size(max_history())}: "
                               "--max-history lets it be read")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.told(f"{self.url}/{run}/{name}"):
            stream = self.fs.open_input_stream(f"{self.root}/{run}/{name}")
        with stream, path.open("wb") as file_here:
            while True:
                with self.told(f"{self.url}/{run}/{name}"):
                    piece = stream.read(_CHUNK_BYTES)
                if not piece:
                    break
                file_here.write(piece)
        os.utime(path, ns=(item.written, item.written))

    def put(self, run: str, files: Iterable[tuple[str, Path]]) -> None:
        """Upload a run's files, its description last: without that, the run does not exist.

        Raises:
            StormproofError: the service refuses. OSError: a file can't be read.
        """
        named = dict(files)
        last = named.pop(RUN_FILE, None)
        _each(functools.partial(self._put, run), named.items())
        if last is not None:
            self._put(run, (RUN_FILE, last))

    def _put(self, run: str, file: tuple[str, Path]) -> None:
        name, path = file
        with path.open("rb") as file_here, self.told(f"{self.url}/{run}/{name}"):
            stream = self.fs.open_output_stream(f"{self.root}/{run}/{name}")
            with stream:
                while piece := file_here.read(_CHUNK_BYTES):
                    stream.write(piece)

    @contextlib.contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Turn any error of the service into an error of one line; FileNotFoundError is kept."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            reason = " ".join(_NOISE.sub("", str(error)).split())
            if any(sign in reason for sign in _REMOVED):  # removed between opening and reading
                raise FileNotFoundError(errno.ENOENT, "it was removed", what) from error
            raise StormproofError(f"{what}: {_advised(reason)}") from error


def object_store(text: str) -> ObjectStore:
    """Return the store at an address ``s3://bucket/prefix``; endpoint and region are those of the environment.

    Raises:
        UsageError: the text is not such an address, or it contains credentials.
    """
    if "@" in text or "?" in text:
        raise UsageError("s3://...: neither credentials nor options belong into an address; they come from the "
                         "environment (docs/spark.md)")
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise UsageError(f"{text}: write it as s3://bucket/prefix")
    environment = os.environ
    return ObjectStore(
        f"{SCHEME}{found['bucket']}{found['prefix']}",
        environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None,
        environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or None,
    )


def runs_among(items: Mapping[str, StoredObject]) -> dict[str, dict[str, StoredObject]]:
    """Return the files of each complete run, among all objects of a store."""
    found: dict[str, dict[str, StoredObject]] = {}
    for name, item in items.items():
        run, _, file = name.partition("/")
        if file and RUN_ID.fullmatch(run):
            found.setdefault(run, {})[file] = item
    return {run: found[run] for run in sorted(found) if RUN_FILE in found[run]}


def is_address(text: object) -> bool:
    """Return whether a store's name is an address in an object store, also after it was converted to a path."""
    return str(text).lower().startswith(("s3:/", "s3a:/", "gs:/"))


@functools.cache
def _file_system(endpoint: str | None, region: str | None) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    options: dict[str, Any] = {
        "retry_strategy": AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        "connect_timeout": _CONNECT_SECONDS, "request_timeout": _REQUEST_SECONDS, "background_writes": False,
    }  # fmt: skip
    if region:
        options["region"] = region
    if endpoint:
        found = _ENDPOINT.fullmatch(endpoint)
        if found is None:
            raise UsageError(f"AWS_ENDPOINT_URL {endpoint}: write it as https://HOST:PORT")
        options |= {"endpoint_override": found[2], "scheme": found[1] or "https"}
    return S3FileSystem(**options)


def _advised(reason: str) -> str:
    """Return the service's error, preceded by advice on it."""
    for sign, advice in (
        ("NO_SUCH_BUCKET", "no such bucket"),
        ("NETWORK_CONNECTION", "the service does not answer; is AWS_ENDPOINT_URL right?"),
        ("ACCESS_DENIED", "access is denied: whoever asks needs rights to list, read and write there"),
        ("INVALID_ACCESS_KEY_ID", "the service does not know the access key"),
        ("SIGNATURE_DOES_NOT_MATCH", "the secret key is wrong"),
    ):
        if sign in reason:
            return f"{advice} ({reason})"
    return reason


def _is_place(name: str) -> bool:
    """Return whether a file of a run may have this name: directly in the run or one folder deeper, and nothing outside.

    Copies of plug-ins may lie deeper.
    """
    parts = name.split("/")
    deepest = DEEPEST if parts[0] == PLUGIN_COPIES else 2
    return len(parts) <= deepest and all(part not in ("", ".", "..") and "\0" not in part for part in parts)


def _each(call: Any, items: Iterable[Any]) -> None:
    """Process several items at once: a request spends most of its time waiting for the other end."""
    given = list(items)
    if not given:
        return
    with ThreadPoolExecutor(min(MAX_REQUESTS, len(given)), thread_name_prefix="objects") as pool:
        for _ in pool.map(call, given):
            pass
