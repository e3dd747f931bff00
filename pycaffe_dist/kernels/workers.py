"""Worker processes that compile kernels, because LLVM's code generator may end its process.

A worker gets functions and arguments through a pipe, and answers with results.  It ends when its
pipe is closed, or after some time without work.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

from pycaffe_dist.kernels.caching import collector_paused

# A worker ends after so many seconds without work.
IDLE_SECONDS = 10.0
_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from pycaffe_dist.kernels.workers import serve
serve()
"""


class WorkerDied(Exception):
    """A worker ended while it ran a task; the text is the last line that it wrote."""


class Worker:
    """One process that runs tasks; started at the first one, and again after its end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(*args)``, run in the worker.

        ``function`` is importable; ``args`` and the result are picklable.  Raises what the function
        raises, and WorkerDied.  If no process can be started, the function runs in this one.
        """
        with self._lock:
            while True:
                before = self._process
                try:
                    process = self._started()
                except OSError:
                    return function(*args)
                try:
                    assert process.stdin is not None and process.stdout is not None
                    pickle.dump((function, args), process.stdin)
                    process.stdin.flush()
                    succeeded, result = pickle.load(process.stdout)
                    break
                except (EOFError, OSError, pickle.UnpicklingError):
                    # A worker that had no work may end in the moment that it gets some.
                    if process is not before or process.wait() != 0:
                        raise WorkerDied(self._last_line()) from None
        if not succeeded:
            raise result
        return result

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and os.getpid() == self._pid:
            for pipe in (process.stdin, process.stdout, self._errors):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        """Return the process; raises OSError when the system refuses it."""
        if os.getpid() != self._pid:  # a fork has its parent's pipes
            self._process, self._pid = None, os.getpid()
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            # -I and the given path: so nothing is imported from the current folder by accident.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the process that waits
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": ""},
            )
        return self._process

    def _last_line(self) -> str:
        assert self._process is not None and self._errors is not None
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return written[-1] if written else f"it ended with status {status}"


Task = Callable[[Worker], Any]
shared = Worker()
atexit.register(shared.close)


def run_all(
    groups: Sequence[Sequence[Task]],
    finished: Callable[[Exception | None], None],
    processes: int = 0,
) -> None:
    """Run the tasks of all ``groups``, each group's one after the other; wait for them.

    A task is called with the worker that it may use.  There are as many workers as cores, or
    ``processes``.  ``finished`` is called after each task, by one thread at a time, with the
    exception that the task raised, or None.
    """
    waiting: queue.SimpleQueue[Sequence[Task]] = queue.SimpleQueue()
    for group in groups:
        waiting.put(group)
    telling = threading.Lock()

    def work() -> None:
        worker = Worker()
        try:
            while True:
                for task in waiting.get_nowait():
                    error: Exception | None = None
                    try:
                        task(worker)
                    except Exception as raised:  # passed to the caller
                        error = raised
                    with telling:
                        finished(error)
        except queue.Empty:
            pass
        finally:
            worker.close()

    count = min(processes or host_cores(), len(groups))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def host_cores() -> int:
    """Return how many cores a worker may use: all of the host, whatever this process is bound to.

    Some may belong to other ranks of the host, but those wait for the same kernels.
    """
    found = []
    thread = threading.Thread(target=lambda: found.append(_unbind()))
    thread.start()
    thread.join()
    return found[0]


def _unbind() -> int:
    """Let the calling thread run on all cores that it is allowed to use; return their number."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return len(os.sched_getaffinity(0))


def serve() -> None:
    """Be a worker: run what standard input brings, write the results to standard output."""
    _unbind()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's output must not mix with the answers
    while select.select([requests], [], [], IDLE_SECONDS)[0]:
        try:
            function, args = pickle.load(requests)
        except EOFError:
            return
        try:
            with collector_paused():
                answer = True, function(*args)
        except Exception as error:  # passed to the process that asked
            answer = False, error
        pickle.dump(answer, answers)
        answers.flush()
