"""Downloads files: resumes interrupted downloads, and checks size and checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pycaffe_dist
from pycaffe_dist.errors import DataError
from pycaffe_dist.log import logger, status

_CHUNK = 1 << 20
_MB = 1e6
# Seconds between two texts of how far a download has come.
_INTERVAL = 0.5
_TIMEOUT_SECONDS = 30
_PARTIAL, _RANGE_NOT_SATISFIABLE = 206, 416


@dataclass(frozen=True)
class Published:
    """A file on a server: its address, its size in bytes (0 if unknown), and checksums by kind."""

    url: str
    size: int = 0
    checksum: str = ""
    kind: str = "sha1"

    def fault(self, path: Path) -> str:
        """Return what is wrong with the file at ``path``; empty for the published one."""
        size = path.stat().st_size
        if self.size and size != self.size:
            return f"has {size} bytes, but {self.size} are published"
        if not self.checksum:
            return ""
        digest = hashlib.new(self.kind)
        with open(path, "rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
        found = digest.hexdigest()
        return (
            ""
            if found == self.checksum.lower()
            else (f"has the {self.kind} {found}, but {self.checksum} is published")
        )


def download(published: Published, target: Path) -> None:
    """Download a file to ``target``; raises DataError.

    What an interrupted download left in ``target`` with the ending .part is continued.  A file that
    is there already is kept if it is the published one.
    """
    if target.exists():
        fault = published.fault(target)
        if fault:
            raise DataError(f"'{target}' exists already and {fault}; remove it to download it")
        logger.info("%s is there already", target)
        return
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _transfer(published, part)
        fault = published.fault(part)
        if fault:
            part.unlink()
            raise DataError(f"{published.url}: what was downloaded {fault}; it was removed")
        os.replace(part, target)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(_explained(published, target, part, error)) from error


def _transfer(published: Published, part: Path) -> None:
    """Append what is missing of the file to ``part``."""
    done = part.stat().st_size if part.exists() else 0
    if published.size and done == published.size:
        return
    if done:
        logger.info("Resuming after %d bytes of %s", done, part)
    with _open(published.url, done) as response:
        resumes = response.status == _PARTIAL
        begin = done if resumes else 0
        length = int(response.headers.get("Content-Length") or 0)
        total = begin + length if length else published.size
        with open(part, "ab" if resumes else "wb") as file:
            got = begin + _copy(response, file, begin, total)
    if got < total:
        raise ConnectionError(f"the connection ended after {got} of {total} bytes")


def _open(url: str, done: int) -> http.client.HTTPResponse:
    """Request a file's bytes from ``done`` on; all if the server cannot give these."""
    agent = {"User-Agent": f"pcaffe/{pycaffe_dist.__version__}"}
    resumed = {"Range": f"bytes={done}-"} if done else {}
    request = urllib.request.Request(url, headers=agent | resumed)
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if not done or error.code != _RANGE_NOT_SATISFIABLE:
            raise
    return _open(url, 0)


def _copy(response: http.client.HTTPResponse, file: BinaryIO, begin: int, total: int) -> int:
    count, due = 0, time.monotonic()
    try:
        while data := response.read(_CHUNK):
            file.write(data)
            count += len(data)
            if time.monotonic() >= due:
                due = time.monotonic() + _INTERVAL
                status(f"{(begin + count) / _MB:.0f}/{total / _MB:.0f} MB")
    finally:
        status("")
    return count


def _explained(published: Published, target: Path, part: Path, error: Exception) -> str:
    """Return the message for a download that failed."""
    if isinstance(error, urllib.error.HTTPError):
        reason = f"the server answers {error.code} {error.reason}"
    elif isinstance(error, urllib.error.URLError):
        reason = f"no connection: {getattr(error.reason, 'strerror', '') or error.reason}"
    else:
        reason = getattr(error, "strerror", None) or str(error)
    done = part.stat().st_size if part.exists() else 0
    after = f"; the same command continues after {done} bytes" if done else ""
    return (
        f"cannot download {published.url}: {reason}{after}; or get the file elsewhere and put it "
        f"to '{target}'"
    )
