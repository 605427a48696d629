"""A cluster of qpid brokers, with a manager next to each, or with an administrator who promotes by hand."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nodes.reference.config import parse_config
from nodes.reference.designs.qpid.manager.config import ManagerConfig, parse_manager_config
from nodes.reference.designs.qpid.manager.programs import BROKER
from nodes.reference.designs.qpid.options import BUILTIN, BY_HAND, COLD, LM6A, read_limitations
from nodes.reference.designs.qpid.states import PRIMARY, READY
from nodes.reference.designs.qpid.store_status import CLEAN, first_start
from nodes.reference.manager import ManagerProcess
from nodes.reference.server.process import BrokerProcess
from nodes.reference.server.runtime import LoopRuntime
from nodes.stomp import ProtocolError
from nodes.systems.reference.cluster import CLIENT_PORT, LINK_PORT, ReferenceCluster
from nodes.systems.reference.code import module_command
from nodes.systems.reference.layout import ReplicaGroup
from nodes.systems.reference.qpid.addresses import BOTH, BROKERS, VIRTUAL, LaunchedAddresses, address_of
from nodes.systems.reference.qpid.copying import COPIES, copy_store, source_of_copy
from nodes.systems.reference.qpid.programs import MANAGER, STORE, LaunchedPrograms, disaster_nodes, program_roles
from nodes.systems.reference.qpid.runtime_config import Pushed
from nodes.systems.reference.qpid.stores import Found, best_store
from stormproof.contracts.backend import Shells
from stormproof.contracts.cluster import MAIN, POLL, Deployment, NodeStatus
from stormproof.contracts.launch import Launcher
from stormproof.contracts.topology import endpoint
from stormproof.errors import BackendError, UsageError

MANAGER_PORT = 61616
"""The port of the links between managers."""
LESSOR_PORT = 61617
"""The port at which a broker asks its manager for permission to continue."""
MANAGER_OPTIONS = ("manager_lease", "standby", "bug")
"""The options of a test that managers get, too."""
PATIENCE = 5.0
"""Seconds for which the administrator waits for a manager to find a primary."""
LOOK = 0.5
"""Seconds between two status checks of the administrator on call."""
_TROUBLE = (OSError, TimeoutError, EOFError, ProtocolError, ValueError)
_STOP_SECONDS = 8.0
"""Time limit for a manager to end its broker and itself."""


class QpidCluster(ReferenceCluster):
    """Brokers that their managers start, restart and promote; without managers the harness starts them."""

    reliable_connections = False
    exchanges = True

    def __init__(self, groups: tuple[ReplicaGroup, ...], deployment: Deployment) -> None:
        super().__init__(groups, deployment)
        self._done_by_hand: list[str] = []
        self._documented = read_limitations(self.test.options["as_documented"])
        self._guesses = self.test.rng("which store is the best")
        self._persons = 0
        """The number of simulated administrators active while faults wait for recovery."""
        self._addresses = Pushed(self)

    @property
    def managed(self) -> bool:
        """Tell whether each broker has a built-in manager."""
        return bool(self.test.options["manager"] == BUILTIN)

    @property
    def disaster(self) -> tuple[str, ...]:
        """The nodes at another site, which only an administrator promotes, after the loss of all others."""
        return disaster_nodes(self.test)

    @property
    def _members(self) -> list[str]:
        """The nodes that have a manager, if managers are used."""
        return [node for node in self.test.node_names if node not in self.disaster]

    @property
    def by_hand(self) -> bool:
        """Tell whether an administrator promotes."""
        return bool(self.test.options["manager"] == BY_HAND)

    @property
    def cold(self) -> bool:
        """Tell whether only the primary's broker runs, on a store that all nodes can access."""
        return bool(self.test.options["standby"] == COLD)

    @property
    def virtual_address(self) -> str:
        """The address that moves with the primary; empty for none."""
        return address_of(str(self.test.options["virtual_address"]), self.backend)

    def link_address(self, node: str) -> str:
        """Return the host of a broker's links: on the brokers' network, if they have one."""
        return self.backend.address(endpoint(node, BROKERS) if BROKERS in self.topology.networks else node)

    def client_address(self, place: int) -> tuple[str, int] | None:
        """Return the virtual address for clients that must find the primary there; None for others."""
        way = self.test.options["clients_find"]
        at_it = way == VIRTUAL or (way == BOTH and place % 2 == 1)
        return (self.virtual_address, CLIENT_PORT) if at_it else None

    def programs(self, machine: str) -> tuple[str, ...]:
        """Return the broker, and its manager if it has one."""
        return (MAIN, MANAGER) if self.managed and machine not in self.disaster else (MAIN,)

    def program_roles(self) -> Mapping[str, str]:
        """Return the managers' roles, if there are any."""
        return program_roles(self.test.options)

    def restarted(self, machine: str, program: str) -> bool:
        """Tell whether the program is restarted automatically: brokers are, by their managers; only the harness starts
        managers.
        """
        return self.managed and program == MAIN and machine not in self.disaster

    async def install(self) -> None:
        """Upload code and configurations to all nodes."""
        await super().install()
        if self.test.options["dr_latency"] and not isinstance(self.backend, Launcher):
            raise UsageError("--set dr_latency: this backend's network is a real one, which --nemesis packets "
                             "--set packets_kind=delay makes slow")
        if self.managed and isinstance(self.backend, Shells):
            await asyncio.gather(*(self._configure_manager(node) for node in self._members))

    async def start_program(self, machine: str, program: str) -> None:
        """Start a broker, or a manager."""
        if program != MANAGER:
            await super().start_program(machine, program)
            return
        backend, log = self.backend, self.log_path(machine, program)
        if isinstance(backend, Launcher):
            config = parse_manager_config(self._manager_config(machine))
            await backend.launch(machine, program, self._manager_launcher(machine, config), log)
            return
        assert isinstance(backend, Shells)
        path = f"{backend.node_dir(machine)}/{MANAGER}.json"
        await backend.start(machine, program, module_command(backend, machine, "nodes.reference.manager", path), log)

    async def stop(self) -> None:
        """Stop the managers first, which end their brokers; otherwise they would restart them."""
        if self.managed:
            await asyncio.gather(*(self.backend.stop(node, MANAGER, _STOP_SECONDS) for node in self._members))
        await super().stop()

    def healthy(self, statuses: Sequence[NodeStatus]) -> bool:
        """Tell whether there is one primary, all other brokers are ready backups (a cold cluster has none), and
        completions wait for no others."""
        if self.cold:
            return sum(status.serving for status in statuses) == 1
        if not all(status.reachable for status in statuses):
            return False
        serving = [status for status in statuses if status.serving]
        if len(serving) != 1:
            return False
        found = serving[0].detail or {}
        states: Mapping[str, str] = found.get("backups", {})
        ready = all(states.get(status.node) == READY for status in statuses if status is not serving[0])
        return ready and found.get("held_for", 0.0) <= self.test.options["catchup_timeout"]

    def joined(self, statuses: Sequence[NodeStatus]) -> tuple[str, ...] | None:
        """Return the backups that are ready; None for a cold cluster, which has none."""
        return None if self.cold else super().joined(statuses)

    async def await_healthy(self, timeout: float) -> bool:
        """Wait until the cluster is healthy, with an administrator on call; return False when ``timeout`` passes."""
        return await self._look_after(timeout, self.healthy)

    async def recover(self, timeout: float) -> str:
        """Wait until a broker serves, with an administrator on call; return the administrator's actions."""
        await self._look_after(timeout, lambda statuses: any(status.serving for status in statuses))
        return await self.repair()

    async def shut_down(self, timeout: float) -> Mapping[str, Any]:
        """Request ``qpid-ha``'s orderly shutdown from the primary [Clean shutdown]."""
        node = await self.primary()
        if node is None:
            return {"error": "nobody is primary"}
        try:
            answer = await self._admins[node].design({"op": "shutdown"}, timeout)
        except _TROUBLE as error:
            return {"error": f"{node} does not answer: {error or type(error).__name__}"}
        return {each: answer[each] for each in ("clean", "error") if each in answer}

    async def _look_after(self, timeout: float, over: Callable[[Sequence[NodeStatus]], bool]) -> bool:
        """Wait until a condition holds; return False when ``timeout`` passes.

        A simulated administrator acts where managers do not: after the loss of all brokers, the administrator chooses
        the best store [LM6]; without managers, the administrator names the primary.
        """
        loop = asyncio.get_running_loop()
        deadline, waits_since = loop.time() + timeout, loop.time()
        self._persons += 1
        try:
            while True:
                statuses = await self.statuses()
                await self._addresses.tell(statuses)
                if over(statuses):
                    return True
                now = loop.time()
                patience = self._patience(statuses)
                if patience is None:
                    waits_since = now
                elif now >= waits_since + patience:
                    await self._act_as_person(statuses)
                    waits_since = now
                if now >= deadline:
                    return False
                await asyncio.sleep(POLL)
        finally:
            self._persons -= 1

    async def attend(self, note: Callable[[str], None]) -> None:
        """Act as the administrator on call during faults, in the same way as after the last heal. Without managers,
        consider a primary that has lost its backups gone."""
        loop = asyncio.get_running_loop()
        waits_since = loop.time()
        while True:
            await asyncio.sleep(LOOK)
            statuses = await self.statuses()
            await self._addresses.tell(statuses)
            if self._done_by_hand and not self._persons and (done := await self.repair()):
                note(done)
            now = loop.time()
            patience = None if self._persons else self._patience(statuses, on_call=True)
            if patience is None:
                waits_since = now
            elif now >= waits_since + patience:
                await self._act_as_person(statuses)
                waits_since = now
                if done := await self.repair():
                    note(done)

    async def members(self) -> tuple[str, ...]:
        """Return the brokers in the primary's broker URL; empty when no broker serves."""
        primary = await self.primary()
        status = await self.status(primary) if primary else None
        return tuple((status.detail or {}).get("brokers", ())) if status else ()

    async def add_member(self, node: str) -> str | None:
        """Tell all brokers that a broker is a member again; None if the primary knows, otherwise the reason why not."""
        return await self._addresses.change(node, gone=False)

    async def remove_member(self, node: str) -> str | None:
        """Tell all others that a broker is gone for good; None if the primary knows, otherwise the reason why not."""
        return await self._addresses.change(node, gone=True)

    async def ask(self, node: str, **request: Any) -> Mapping[str, Any]:
        """Return a broker's answer to an administrator's request, once it has reported its status; raises as ``design``
        does.
        """
        return dict(await self._admins[node].design(request, self._status_timeout))

    async def repair(self) -> str:
        """Return the administrator's actions while the cluster became healthy."""
        done, self._done_by_hand = "; ".join(self._done_by_hand), []
        self.helped_since = None
        return done

    def note_by_hand(self, done: str) -> None:
        """Note an administrator's action, which ``repair`` reports."""
        if self.helped_since is None:
            self.helped_since = asyncio.get_running_loop().time()
        self._done_by_hand.append(done)

    def _patience(self, statuses: Sequence[NodeStatus], on_call: bool = False) -> float | None:
        """Return how long all brokers must be present without a primary before the administrator acts; None while one
        is missing.

        Managers that have a candidate get longer. Their only candidates may be brokers without which the last primary
        had noted it would continue, although it lost its role before it could. Without managers, the administrator on
        call acts on seeing eligible backups, and no primary with backups.
        """
        found = [status.detail or {} for status in statuses]
        if on_call and self.by_hand:
            there = [status.detail or {} for status in statuses if status.reachable and status.node in self._members
                     and status.node not in self._addresses.gone]
            served = any(each["state"] == PRIMARY and each["backups"] for each in there)
            if not served and any(each["eligible"] for each in there):
                return PATIENCE
        if not all(status.reachable for status in statuses) or any(each["state"] == PRIMARY for each in found):
            return None
        fresh = first_start(each["store"] for each in found)
        able = not self.by_hand and (fresh or any(each["eligible"] for each in found))
        if not able:
            return PATIENCE
        return max(2 * PATIENCE, 10 * float(self.test.options["manager_lease"])) if self.managed else 4 * PATIENCE

    async def _act_as_person(self, statuses: Sequence[NodeStatus]) -> None:
        # Disaster-recovery nodes are left out: as long as members are present, none of those has to be promoted.
        found = {status.node: status.detail or {} for status in statuses
                 if status.reachable and status.node in self._members}  # fmt: skip
        latest = max((int(each["generation"]) for each in found.values()), default=0)
        known = {node: each for node, each in found.items() if node not in self._addresses.gone}
        if any(int(each["generation"]) == latest for each in known.values()):
            found = known  # otherwise a removed broker has been primary since, and has the data confirmed then
        chosen = best_store(found) or max(found, key=lambda node: int(found[node]["generation"]))
        done = f"accepted the store of {chosen} as the best"
        if LM6A in self._documented:  # the best store cannot be determined
            chosen = self._guesses.choice(sorted(found))
            done = f"accepted the store of {chosen}, picked at random"
        request: dict[str, Any] = {"op": "accept-store"}
        latest = max(int(each["generation"]) for each in found.values())
        clean = [node for node in sorted(found)
                 if found[node]["store"]["state"] == CLEAN and int(found[node]["generation"]) == latest]
        told = not self.by_hand and LM6A not in self._documented
        if clean and told:  # not all were stopped in order; those that were have all confirmed data
            chosen = clean[0]
            done, request = f"vouched for the clean store of {chosen}", {"op": "promote", "force": True}
        elif found[chosen]["eligible"]:  # managers skip it because the last primary continued without it
            done, request = f"vouched for the data of {chosen}", {"op": "promote", "force": True}
        fresh = self.by_hand and first_start(each["store"] for each in found.values())
        if self.by_hand:
            eligible = [node for node in found if found[node]["eligible"]]
            newest = max(eligible, key=lambda node: int(found[node]["generation"]), default=chosen)
            chosen = next(iter(found)) if fresh else newest
            done = f"promoted {chosen}"
            request = {"op": "promote", "bootstrap": fresh, "force": not (fresh or eligible)}
        if found[chosen]["store"]["state"] == CLEAN:
            await self._erase_other_shutdowns(found, found[chosen]["store"]["uuid"])
        if request["op"] == "accept-store" and self.managed and self.test.options["person"] == COPIES:
            self.note_by_hand(await self._copy(found, chosen))
            return
        try:
            answer = await self.ask(chosen, **request)
        except _TROUBLE as error:
            answer = {"error": str(error) or type(error).__name__}
        if not answer.get("ok"):
            done = f"tried in vain: {chosen} says {answer.get('error')}"
        elif fresh:
            return  # not a repair: every first start is like that
        self.note_by_hand(done)

    async def _erase_other_shutdowns(self, found: Mapping[str, Mapping[str, Any]], uuid: str) -> None:
        """Erase stores that are clean from another shutdown than the future primary's, which would refuse them."""
        for node in found:
            store = found[node]["store"]
            if store["state"] == CLEAN and store["uuid"] != uuid:
                try:
                    await self._asked(node, op="erase-store")
                except (UsageError, BackendError):
                    continue  # no retry: the primary keeps refusing it
                self.note_by_hand(f"erased the store of {node}")

    async def _copy(self, found: Found, chosen: str) -> str:
        """Copy one broker's store to all others; return the outcome."""
        try:
            source = source_of_copy(found, chosen)
            targets = [node for node in found if node != source]
            await copy_store(self._asked, source, targets, lambda size: self._guesses.randbytes(size).hex())
        except (UsageError, BackendError) as error:
            return f"tried in vain to copy the store of {chosen}: {error}"
        return f"copied the store of {source} to all"

    async def _asked(self, node: str, /, **request: Any) -> Mapping[str, Any]:
        try:
            answer = await self.ask(node, **request)
        except _TROUBLE as error:
            raise BackendError(f"{node} does not answer: {error or type(error).__name__}") from None
        if not answer.get("ok"):
            raise UsageError(f"{node}: {answer.get('error', 'refused')}")
        return answer

    def _manager_launcher(self, machine: str, config: ManagerConfig) -> Callable[[LoopRuntime], ManagerProcess]:
        broker = partial(BrokerProcess, parse_config(self._config(machine)))
        programs = LaunchedPrograms(self.backend, machine, {BROKER: (broker, self.log_path(machine, MAIN))},
                                    STORE if self.cold else "")  # fmt: skip
        addresses = LaunchedAddresses(self.backend, machine, self.virtual_address) if self.virtual_address else None
        return lambda runtime: ManagerProcess(config, runtime, programs, addresses)

    def _config(self, node: str) -> dict[str, Any]:
        config = super()._config(node)
        if self.cold:
            config["data"] = self.backend.shared_dir(STORE)
        config["options"]["dr"] = ",".join(self.disaster)
        if self.managed and node in self._members:
            config["options"]["manager_address"] = [self.backend.address(node), LESSOR_PORT]
        config["options"]["virtual_address"] = self.virtual_address
        config["peers"] = {name: [self.link_address(name), LINK_PORT] for name in config["peers"]}
        return config

    async def _configure_manager(self, node: str) -> None:
        assert isinstance(self.backend, Shells)
        path = f"{self.backend.node_dir(node)}/{MANAGER}.json"
        await self.backend.upload(node, json.dumps(self._manager_config(node)).encode(), path)
        await self.backend.exec(node, f"chmod 600 {shlex.quote(path)}")  # it contains passcode and secret

    def _manager_config(self, node: str) -> dict[str, Any]:
        """Build a manager's configuration: managers use their nodes' addresses, and the broker's command is the
        harness's.
        """
        backend, base = self.backend, self.backend.node_dir(node)
        config = {
            "node": node,
            "data": f"{base}/data",
            "members": {name: [backend.address(name), MANAGER_PORT] for name in self._members},
            "listen": [backend.address(node), LESSOR_PORT],
            "broker": [backend.address(node), CLIENT_PORT],
            "login": self.login,
            "passcode": self.passcode,
            "secret": self._secret,
            "options": {name: self.test.options[name] for name in MANAGER_OPTIONS},
            "virtual_address": self.virtual_address,
        }
        if isinstance(backend, Shells):
            config["command"] = module_command(backend, node, "nodes.reference", f"{base}/config.json")
            config["pid_file"], config["log"] = f"{base}/{MAIN}.pid", self.log_path(node, MAIN)
        return config
