"""Interrupts that are deferred or allowed."""

from __future__ import annotations

import signal
import threading

import pytest

from ipygpumem.core import interrupts
from ipygpumem.core.interrupts import DeferredInterrupts, ImmediateInterrupts

pytestmark = pytest.mark.usefixtures("default_handler")


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_interrupt_is_raised_at_the_end():
    steps = []
    with pytest.raises(KeyboardInterrupt), DeferredInterrupts():
        interrupt()
        with DeferredInterrupts():
            interrupt()
        steps.append("nested")
    assert steps == ["nested"]
    with DeferredInterrupts():
        pass


def test_interrupt_is_raised_in_an_operation_that_allows_it():
    steps = []
    with pytest.raises(KeyboardInterrupt), DeferredInterrupts():
        steps.append("deferred")
        with ImmediateInterrupts():
            interrupt()
            steps.append("continued")
    with pytest.raises(KeyboardInterrupt), DeferredInterrupts():
        interrupt()
        with ImmediateInterrupts():
            steps.append("started")
    with pytest.raises(KeyboardInterrupt), DeferredInterrupts():
        with ImmediateInterrupts():
            pass
        interrupt()
        steps.append("deferred again")
    assert steps == ["deferred", "deferred again"]


@pytest.mark.parametrize("moment", ["before the operation", "in the operation"])
def test_second_interrupt_does_not_prevent_the_cleanup(moment):
    steps = []
    with pytest.raises(KeyboardInterrupt), DeferredInterrupts():
        try:
            if moment == "before the operation":
                interrupt()
            with ImmediateInterrupts():
                interrupt()
        finally:
            interrupt()
            steps.append("cleanup")
    assert steps == ["cleanup"]


def test_interrupt_while_the_operation_ends_does_not_prevent_the_cleanup(monkeypatch):
    steps = []

    class Signals:
        """The signal module, with an interrupt after the next call of ``getsignal``."""

        signal = staticmethod(signal.signal)
        armed = False

        def getsignal(self, number):
            handler = signal.getsignal(number)
            if self.armed:
                self.armed = False
                interrupt()
            return handler

    signals = Signals()
    monkeypatch.setattr(interrupts, "_signal", signals)
    with pytest.raises(KeyboardInterrupt), DeferredInterrupts():
        try:
            with ImmediateInterrupts():
                signals.armed = True
        finally:
            interrupt()
            steps.append("cleanup")
    assert steps == ["cleanup"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handler_of_the_program():
    calls = []

    def program_handler(number, frame):
        calls.append((number, frame is not None))

    signal.signal(signal.SIGINT, program_handler)
    with DeferredInterrupts():
        interrupt()
        assert calls == []
    assert calls == [(signal.SIGINT, True)]
    assert signal.signal(signal.SIGINT, signal.SIG_IGN) is program_handler
    with DeferredInterrupts():
        interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with DeferredInterrupts(), ImmediateInterrupts():
        signal.signal(signal.SIGINT, program_handler)  # the measured code installs its own handler
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is program_handler


def test_other_threads_defer_nothing():
    def defer():
        with DeferredInterrupts(), ImmediateInterrupts():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    thread = threading.Thread(target=defer)
    thread.start()
    thread.join()
