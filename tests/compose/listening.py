"""Eyes and hands in a container's network: who sends frames there, and whether anybody answers from some addresses."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from harness.backends.compose.places import CLONE_NEWNET
from harness.backends.compose.ports import probe_addresses

ALL_PROTOCOLS = 3
PACKET_OUTGOING = 4


class InNetwork(threading.Thread):
    """A thread in the network of a process, until ``end``."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.over, self.trouble = pid, threading.Event(), ""

    def run(self) -> None:
        handle = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        assert ctypes.CDLL(None).setns(handle, CLONE_NEWNET) == 0
        os.close(handle)
        try:
            self.work()
        except Exception as error:
            self.trouble = repr(error)

    def work(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.over.set()
        self.join(20)
        assert not self.is_alive() and not self.trouble, self.trouble


class Listener(InNetwork):
    """Counts the frames that arrive from each MAC address."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.frames: Counter[str] = Counter()

    def work(self) -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as tap:
            tap.settimeout(0.1)
            while not self.over.is_set():
                try:
                    frame, (_, _, kind, *_) = tap.recvfrom(2048)
                except TimeoutError:
                    continue
                if kind != PACKET_OUTGOING:
                    self.frames[frame[6:12].hex(":")] += 1


class Hammer(InNetwork):
    """Asks some addresses again and again, and counts the rounds in which any of them answered."""

    def __init__(self, pid: int, targets: Callable[[], Sequence[str]]) -> None:
        super().__init__(pid)
        self.targets, self.rounds, self.answered = targets, 0, 0

    def work(self) -> None:
        while not self.over.is_set():
            if targets := self.targets():
                self.rounds += 1
                self.answered += probe_addresses(targets, 0.05) == "open"
            time.sleep(0.005)
