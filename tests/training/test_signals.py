from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pycaffe_dist.config import Action
from pycaffe_dist.training.signals import SignalActions


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "number, action",
    [
        (signal.SIGINT, Action.STOP),
        (signal.SIGUSR1, Action.STOP),
        (signal.SIGHUP, Action.SNAPSHOT),
        (signal.SIGUSR2, Action.SNAPSHOT),
        (signal.SIGTERM, Action.SNAPSHOT_AND_STOP),
    ],
)
def test_a_signal_asks_for_its_action_once(number, action):
    with SignalActions(apart=0) as ask:
        assert ask() is Action.NONE
        send(number)
        assert ask() is action
        assert ask() is Action.NONE


def test_the_actions_can_be_chosen():
    with SignalActions(sigint=Action.SNAPSHOT, sighup=Action.NONE) as ask:
        send(signal.SIGINT)
        send(signal.SIGINT)  # does not end the process, for the first one did not stop it
        assert ask() is Action.SNAPSHOT
        send(signal.SIGHUP)
        assert ask() is Action.NONE


def test_sighup_goes_first():
    with SignalActions() as ask:
        send(signal.SIGINT)
        send(signal.SIGHUP)
        assert [ask(), ask(), ask()] == [Action.SNAPSHOT, Action.STOP, Action.NONE]


@pytest.mark.parametrize("numbers", [("SIGUSR1", "SIGUSR2"), ("SIGUSR2", "SIGUSR1", "SIGTERM")])
def test_both_user_signals_at_once_are_a_sigterm(numbers):
    with SignalActions(sigint=Action.NONE, sighup=Action.NONE) as ask:
        for number in numbers:
            send(getattr(signal, number))
        assert ask() is Action.SNAPSHOT_AND_STOP


def test_both_user_signals_may_come_one_after_the_other():
    with SignalActions(apart=60) as ask:
        send(signal.SIGUSR2)
        assert ask() is Action.NONE
        send(signal.SIGUSR1)
        assert [ask(), ask()] == [Action.SNAPSHOT_AND_STOP, Action.NONE]


def test_the_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)
    with SignalActions():
        send(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)) == before


def test_a_second_interrupt_ends_the_process_at_once():
    code = (
        "import os, signal; from pycaffe_dist.training.signals import SignalActions\n"
        "with SignalActions():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('too late')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT
    assert done.stdout == "still here\n"
