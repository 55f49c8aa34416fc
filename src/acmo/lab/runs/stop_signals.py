"""Ctrl-C and SIGTERM as a wish to stop after the step under way, so that a checkpoint can be written first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C, and what a batch system sends


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Give a function that returns whether a signal to stop has come; a second one raises `KeyboardInterrupt`.

    Signals can be caught in the main thread only; in another one the function returns False.
    """
    asked = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
