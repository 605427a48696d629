"""The virtual address of a cluster at one node: present while this node's broker is certainly the only primary.

It guides clients and proves nothing: confirmations rest on the broker's lease alone. It is removed when the lease ends,
when the broker's process is gone (before other managers learn of that), and when the manager starts or ends. A manager
that is dead or suspended removes nothing; then the address's lifetime ends. It was last renewed when a majority had
backed the primary, for the rest of the lease, rounded up to whole seconds as the kernel counts them.
"""

from __future__ import annotations

import math

from nodes.reference.api import Runtime
from nodes.reference.designs.qpid.manager.addresses import AddressError, Addresses
from nodes.reference.designs.qpid.manager.membership import NEVER

ANNOUNCEMENTS_PER_LEASE = 2
"""Announcements per lease: a neighbour that was cut off, or heard of an earlier holder later, learns the location."""


class VirtualAddress:
    """Adds, announces and removes the address."""

    def __init__(self, runtime: Runtime, addresses: Addresses, address: str, lease: float) -> None:
        self._runtime, self._addresses, self._address, self._lease = runtime, addresses, address, lease
        self.held = False
        self.renewed_for = self.announced_at = NEVER
        self._trouble = ""

    def clean(self) -> None:
        """Remove an address left by a manager that ended without cleaning up."""
        self.held = True
        self.release("left by an earlier manager", quiet=True)

    def keep(self, until: float) -> None:
        """Keep the address here until that time of this program's clock; remove it if the time is over."""
        now = self._runtime.now()
        if until <= now:
            self.release("its broker is not primary" if until == NEVER else "its broker's lease is over")
            return
        try:
            if until > self.renewed_for:
                self._addresses.hold(math.ceil(until - now))
                self.renewed_for = until
            if not self.held:
                self.held = True
                self._runtime.log("virtual address added", address=self._address)
            if now >= self.announced_at + self._lease / ANNOUNCEMENTS_PER_LEASE:
                self.announced_at = now
                self._addresses.announce()
        except AddressError as error:
            self._complain(error)
        else:
            self._trouble = ""

    def release(self, why: str, quiet: bool = False) -> None:
        """Remove the address from here."""
        if not self.held:
            return
        self.held, self.renewed_for, self.announced_at = False, NEVER, NEVER
        try:
            self._addresses.drop()
        except AddressError as error:
            self._complain(error)
        if not quiet:
            self._runtime.log("virtual address removed", address=self._address, why=why)

    def _complain(self, error: AddressError) -> None:
        """Log an error once per distinct text; the action is retried."""
        if str(error) != self._trouble:
            self._trouble = str(error)
            self._runtime.log("virtual address in trouble", level="error", address=self._address, error=str(error))
