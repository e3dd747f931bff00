"""Lets a rank that has waited for long ask the others what they are doing.

Every rank's communication thread looks for questions now and then, even when it is idle.  So a rank
answers while its layers compute or its data is late; a rank that is stopped or stuck inside MPI
gives no answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

# How often a rank looks for questions, and how long an answer may take (seconds).
LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 3.0
_QUESTION, _ANSWER = 1, 2


class StallInspector:
    """Questions and answers over a ``communicator`` of their own.

    ``status`` says what this rank is doing; ``who`` names it.  All methods run in the thread that
    talks to MPI.
    """

    def __init__(self, mpi: Any, communicator: Any, status: Callable[[], str], who: str):
        self._mpi, self._communicator = mpi, communicator
        self._status, self._who = status, who
        self._next_look = 0.0
        self._deadline = 0.0
        self._asked: set[int] = set()
        self._answers: dict[int, str] = {}
        self._sent: list[Any] = []

    def ask(self, ranks: Sequence[int], now: float) -> None:
        """Ask ranks (none: all) what they are doing; standard error shows their answers."""
        if self._asked:
            return
        everybody = range(self._communicator.Get_size())
        self._asked = set(ranks or everybody) - {self._communicator.Get_rank()}
        self._answers.clear()
        self._deadline = now + PATIENCE_SECONDS
        for rank in self._asked:
            self._sent.append(self._communicator.Isend(b"?", rank, _QUESTION))

    def look(self, now: float) -> None:
        """Answer questions, and take answers."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        while (question := self._receive(_QUESTION)) is not None:
            doing = self._status().encode()
            self._sent.append(self._communicator.Isend(doing, question[0], _ANSWER))
        while (answer := self._receive(_ANSWER)) is not None:
            self._answers[answer[0]] = answer[1]
        self._sent = [request for request in self._sent if not request.Test()]
        if self._asked and (self._asked <= set(self._answers) or now > self._deadline):
            self._tell()

    def _receive(self, tag: int) -> tuple[int, str] | None:
        """Return a message that has arrived, and its sender."""
        mpi, status = self._mpi, self._mpi.Status()
        if not self._communicator.Iprobe(mpi.ANY_SOURCE, tag, status):
            return None
        text = bytearray(status.Get_count(mpi.BYTE))
        self._communicator.Recv(text, status.Get_source(), tag)
        return status.Get_source(), text.decode(errors="replace")

    def _tell(self) -> None:
        silent = "does not answer: it is stopped, or stuck in a call of MPI"
        found = [f"rank {rank} {self._answers.get(rank, silent)}" for rank in sorted(self._asked)]
        self._asked.clear()
        print(f"pcaffe: {self._who}: {'; '.join(found)}", file=sys.stderr, flush=True)
