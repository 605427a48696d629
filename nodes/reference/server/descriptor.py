"""The configuration descriptor of HA Joram (4.6.3): ``a3servers.xml``, in the document's format.

``config`` holds ``domain``, ``cluster`` and ``server`` elements. A ``server`` in a cluster is one replica of the HA
server that the cluster declares; one outside any cluster is a separate server. Both hold ``network`` and ``service``.
There are two additions to the document's format: ``property`` (``descriptor_options``) and, in ``config``,
``clustered``: a destination that is spread over several servers.
Every error names the file and the line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from nodes.reference.api import ConfigError
from nodes.reference.config import MAX_SERVER
from nodes.reference.server.descriptor_options import check_options, known, option_of
from nodes.reference.server.reaction import ARGUMENTS, REACTION, check_arguments
from nodes.reference.server.services import CONNECTION_MANAGER, DESTINATIONS, IMPORT_PATH, TCP_PROXY

MAX_BYTES = 1 << 20
MAX_PORT = 65535
MAX_DEPTH = 16

SERVICE_CLASSES: Mapping[str, str] = {
    CONNECTION_MANAGER: "args \"NAME PASSWORD\": the name and the password that clients give",
    TCP_PROXY: "args \"PORT\": the port where clients connect",
    DESTINATIONS: "args \"/queue/NAME ...\": destinations to make when the server is first started",
    REACTION: ARGUMENTS,
}
"""The classes that a ``service`` may name, and the meaning of their ``args``."""

LINK_OFFSET = 1000
"""The document leaves the ports of the group communication to JGroups: here they follow from the network's port."""

_CHILDREN = {
    "": ("config",), "config": ("domain", "property", "cluster", "server", "clustered"),
    "cluster": ("property", "server"), "server": ("property", "network", "service"),
    "domain": (), "network": (), "service": (), "property": (), "clustered": (),
}
_ATTRIBUTES = {
    "config": (), "domain": ("name",), "cluster": ("id", "name"), "server": ("id", "hostname"),
    "network": ("domain", "port"), "service": ("class",), "property": ("name", "value"),
    "clustered": ("name", "servers"),
}
_OPTIONAL = {"server": ("name",), "service": ("args",)}


@dataclass
class Element:
    """One XML element with the number of its first line."""

    name: str
    attributes: Mapping[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, name: str) -> list[Element]:
        """Return the children of that name, in order."""
        return [child for child in self.children if child.name == name]


@dataclass(frozen=True)
class DescribedService:
    """A service to be started on the master: its Java class, and the words of ``args``."""

    kind: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class DescribedMachine:
    """One replica of a replicated server, or a whole server that is not replicated.

    ``networks`` maps a domain to the port where other servers connect.
    """

    id: int
    host: str
    networks: Mapping[str, int]
    services: tuple[DescribedService, ...]
    line: int

    def args_of(self, kind: str) -> tuple[str, ...]:
        """Return the arguments of its service of that class, which must exist."""
        return next(service.args for service in self.services if service.kind == kind)

    @property
    def client_port(self) -> int:
        """The port where clients connect."""
        return int(self.args_of(TCP_PROXY)[0])


@dataclass(frozen=True)
class DescribedServer:
    """A server as the others see it: replicated (``cluster``) or not. ``machines`` are its replicas in order,
    ``options`` the values set by its properties and those of the whole configuration."""

    id: int
    name: str
    replicated: bool
    machines: tuple[DescribedMachine, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Descriptor:
    """All servers by id, in the order of the file; ``clustered`` maps a destination to the servers that have it."""

    path: str
    servers: Mapping[int, DescribedServer]
    clustered: Mapping[str, tuple[int, ...]]


def read_descriptor(path: str | Path) -> Descriptor:
    """Read the descriptor in a file.

    Raises:
        ConfigError: it can't be read, is not XML, or describes no usable configuration; ``FILE:LINE: what is wrong``.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror or error})") from error
    return parse_descriptor(content, str(path))


def parse_descriptor(content: bytes, path: str) -> Descriptor:
    """Parse the descriptor in an XML text; ``path`` names it in errors (ConfigError, as of ``read_descriptor``)."""
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: has {len(content)} bytes; a descriptor has at most {MAX_BYTES}")
    return _Reader(path).descriptor(_parse(content, path))


def _parse(content: bytes, path: str) -> Element:
    """Parse the tree of elements. Nothing outside the text is ever read, and no entity is ever expanded."""
    parser = expat.ParserCreate()
    top = Element("", {}, 0)
    stack = [top]

    def fail(what: str) -> NoReturn:
        raise ConfigError(f"{path}:{parser.CurrentLineNumber}: {what}")

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(stack) > MAX_DEPTH:
            fail(f"<{name}> is nested deeper than {MAX_DEPTH}")
        element = Element(name, attributes, parser.CurrentLineNumber)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def text(data: str) -> None:
        if data.strip():
            fail(f"text between the elements: {data.strip()[:40]!r}")

    def doctype(_name: str, _system: str | None, _public: str | None, internal: int) -> None:
        if internal:
            fail("the DOCTYPE has declarations of its own; remove them")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise ConfigError(f"{path}:{error.lineno}: not XML: {expat.ErrorString(error.code)}") from error
    _check(top, path)
    return top.children[0]


def _check(element: Element, path: str) -> None:
    """Check that every element and attribute is known, and allowed at its place."""
    allowed = _CHILDREN[element.name]
    for child in element.children:
        if child.name not in allowed:
            inside = f"inside <{element.name}>" if element.name else "at the top"
            known = ", ".join(f"<{name}>" for name in allowed) or "nothing"
            raise ConfigError(f"{path}:{child.line}: <{child.name}> {inside}; possible: {known}")
        needed, optional = _ATTRIBUTES[child.name], _OPTIONAL.get(child.name, ())
        for name in child.attributes:
            if name not in needed + optional:
                known = ", ".join(needed + optional) or "none"
                raise ConfigError(f"{path}:{child.line}: <{child.name}> has no attribute {name!r} (there are: {known})")
        for name in needed:
            if not child.attributes.get(name):
                raise ConfigError(f"{path}:{child.line}: <{child.name}> without {name}")
        _check(child, path)


class _Reader:
    """Converts elements to servers."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._domains: list[str] = []
        self._common: list[Element] = []

    def descriptor(self, config: Element) -> Descriptor:
        self._common = config.all("property")
        self._unique(self._common, lambda each: each.attributes["name"], "property")
        self._domains = [domain.attributes["name"] for domain in config.all("domain")]
        self._unique(config.all("domain"), lambda domain: domain.attributes["name"], "domain")
        clusters, alone = config.all("cluster"), config.all("server")
        ordered = [child for child in config.children if child in clusters or child in alone]
        if not ordered:
            self._fail(config, "there is no server")
        self._unique(ordered, lambda each: str(self._number(each, "id", MAX_SERVER)), "server id")
        self._unique(ordered, lambda each: each.attributes.get("name", ""), "server name")
        servers = [self._cluster(each) if each.name == "cluster" else self._alone(each) for each in ordered]
        self._addresses(config)
        return Descriptor(self._path, {server.id: server for server in servers},
                          self._clustered(config, {server.id for server in servers}))

    def _cluster(self, element: Element) -> DescribedServer:
        replicas = element.all("server")
        if not replicas:
            self._fail(element, "a cluster without a server")
        self._unique(replicas, lambda each: str(self._number(each, "id", MAX_SERVER)), "replica id")
        for replica in replicas:
            if "name" in replica.attributes:
                self._fail(replica, "a replica has no name: its cluster has")
            for own in replica.all("property"):
                self._fail(own, "a replica has no properties: its cluster has")
        machines = tuple(self._machine(replica) for replica in replicas)
        first = machines[0]
        for machine in machines[1:]:
            where = f"as replica {first.id} (line {first.line}) does; they must be the same for all replicas"
            if set(machine.networks) != set(first.networks):
                self._fail(machine, f"replica {machine.id} does not declare the same networks {where}")
            if [service.kind for service in machine.services] != [service.kind for service in first.services]:
                self._fail(machine, f"replica {machine.id} does not declare the same services {where}")
            if machine.args_of(CONNECTION_MANAGER) != first.args_of(CONNECTION_MANAGER):
                self._fail(machine, f"replica {machine.id} does not have the same name and password {where}")
        options = self._options(element, [str(machine.id) for machine in machines])
        return DescribedServer(int(element.attributes["id"]), element.attributes["name"], True, machines, options)

    def _alone(self, element: Element) -> DescribedServer:
        if not element.attributes.get("name"):
            self._fail(element, "a server outside a cluster needs a name")
        machine = self._machine(element)
        return DescribedServer(int(element.attributes["id"]), element.attributes["name"], False, (machine,),
                      self._options(element, ()))

    def _options(self, element: Element, replicas: Sequence[str]) -> dict[str, Any]:
        """Return the options that a server's properties set; they override those of the whole configuration."""
        own, options, where = element.all("property"), dict[str, Any](), dict[str, Element]()
        self._unique(own, lambda each: each.attributes["name"], "property")
        for each in (*self._common, *own):
            try:  # A property of the whole configuration applies to the servers that have such an option.
                for_any = bool(replicas) or each not in own
                name, value = option_of(each.attributes["name"], each.attributes["value"], for_any)
            except ConfigError as error:
                self._fail(each, str(error))
            if name in known(bool(replicas)):
                options[name], where[name] = value, each
        try:
            check_options(options, replicas)
        except ConfigError as error:
            text = str(error).removeprefix("options.")
            self._fail(where.get(text.partition(":")[0], element), f"property {text}")
        return options

    def _clustered(self, config: Element, servers: Collection[int]) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        self._unique(config.all("clustered"), lambda each: each.attributes["name"], "clustered destination")
        for each in config.all("clustered"):
            name, words = each.attributes["name"], each.attributes["servers"].split()
            if not name.startswith(("/queue/", "/topic/")) or name != "".join(name.split()):
                self._fail(each, f"<clustered> name={name!r} is neither /queue/NAME nor /topic/NAME")
            unknown = [word for word in words if not _is_number(word) or int(word) not in servers]
            if unknown or len(set(words)) < max(2, len(words)):
                there = ", ".join(map(str, servers))
                self._fail(each, f"<clustered> servers={each.attributes['servers']!r}: name two servers at least, each "
                           f"once, with blanks between them (there are: {there})")
            found[name] = tuple(map(int, words))
        return found

    def _machine(self, element: Element) -> DescribedMachine:
        networks: dict[str, int] = {}
        for network in element.all("network"):
            domain = network.attributes["domain"]
            if domain not in self._domains:
                self._fail(network, f"there is no domain {domain!r} (there are: {', '.join(self._domains) or 'none'})")
            if domain in networks:
                self._fail(network, f"domain {domain!r} has a network here already")
            networks[domain] = self._number(network, "port", MAX_PORT, least=1)
        services = tuple(self._service(service) for service in element.all("service"))
        for needed in (CONNECTION_MANAGER, TCP_PROXY):
            if sum(service.kind == needed for service in services) != 1:
                self._fail(element, f"a server needs one service {needed} ({SERVICE_CLASSES[needed]})")
        number, host = self._number(element, "id", MAX_SERVER), element.attributes["hostname"]
        if host != "".join(host.split()):
            self._fail(element, f"hostname {host!r} holds white space")
        return DescribedMachine(number, host, networks, services, element.line)

    def _service(self, element: Element) -> DescribedService:
        kind, args = element.attributes["class"], tuple(element.attributes.get("args", "").split())
        if IMPORT_PATH.fullmatch(kind):
            return DescribedService(kind, args)  # its class checks the arguments
        if kind not in SERVICE_CLASSES:
            self._fail(element, f"there is no service {kind!r} (there are: {', '.join(SERVICE_CLASSES)}; or one of "
                       "your own: package.module:Class)")
        wrong = f"{kind} takes {SERVICE_CLASSES[kind]}"
        if kind == CONNECTION_MANAGER and len(args) != 2:
            self._fail(element, wrong)
        if kind == TCP_PROXY and not (len(args) == 1 and _is_number(args[0]) and 0 < int(args[0]) <= MAX_PORT):
            self._fail(element, wrong)
        if kind == DESTINATIONS and not (args and all(arg.startswith("/queue/") for arg in args)):
            self._fail(element, wrong)
        if kind == REACTION and check_arguments(args) is not None:
            self._fail(element, wrong)
        return DescribedService(kind, args)

    def _addresses(self, config: Element) -> None:
        """Check that no two machines on one host listen on the same port."""
        used: dict[tuple[str, int], str] = {}
        replicas = [each for cluster in config.all("cluster") for each in cluster.all("server")]
        for machine in sorted([*config.all("server"), *replicas], key=lambda each: each.line):
            networks = machine.all("network")
            ports = [(int(network.attributes["port"]), network.line, "") for network in networks]
            if machine in replicas:
                links = f", for the links of that replica: its network's port + {LINK_OFFSET}"
                ports += [(int(network.attributes["port"]) + LINK_OFFSET, network.line, links)
                          for network in networks[:1]]
            ports += [(int(service.attributes["args"]), service.line, "") for service in machine.all("service")
                      if service.attributes["class"] == TCP_PROXY]
            for port, line, what in ports:
                address = machine.attributes["hostname"], port
                if address in used:
                    wanted = f" (wanted here{what})" if what else ""
                    raise ConfigError(f"{self._path}:{line}: port {port} of {address[0]} is taken on line "
                                      f"{used[address]}{wanted}")
                used[address] = f"{line}{what}"

    def _unique(self, elements: Sequence[Element], key: Callable[[Element], str], what: str) -> None:
        seen: dict[str, int] = {}
        for element in elements:
            value = key(element)
            if value in seen:
                self._fail(element, f"{what} {value} is declared twice, first on line {seen[value]}")
            seen[value] = element.line

    def _number(self, element: Element, name: str, most: int, least: int = 0) -> int:
        text = element.attributes[name]
        if not (_is_number(text) and least <= int(text) <= most):
            self._fail(element, f"<{element.name}> {name}={text!r} is not a number from {least} to {most}")
        return int(text)

    def _fail(self, where: Element | DescribedMachine, what: str) -> NoReturn:
        raise ConfigError(f"{self._path}:{where.line}: {what}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 7


def config_of(descriptor: Descriptor, server: int, storage: str, replica: int | None,
              expected: int | None, join: bool = False) -> dict[str, Any]:
    """Build the input of ``nodes.reference.config.parse_config`` for one machine: the starting parameters of 4.7.2.

    Args:
        server: id of the server.
        storage: folder for its data.
        replica: id of the replica inside its cluster; None for a server that is not replicated.
        expected: number of replicas that must have joined before anything starts; None for all.
        join: whether the replica is added to a cluster that runs already.

    Raises:
        ConfigError: there is no such server or replica.
    """
    found = descriptor.servers.get(server)
    if found is None:
        known = ", ".join(map(str, descriptor.servers))
        raise ConfigError(f"{descriptor.path}: unknown server {server} (known: {known})")
    ids = ", ".join(str(machine.id) for machine in found.machines)
    if not found.replicated and (replica is not None or expected is not None or join):
        raise ConfigError(f"{descriptor.path}: server {server} is not a cluster: it takes no replica id, no "
                          "nbClusterExpected, and nothing joins it")
    if found.replicated and replica not in [machine.id for machine in found.machines]:
        raise ConfigError(f"{descriptor.path}: name one of the replicas of server {server}: {ids}")
    if expected is not None and not 1 <= expected <= len(found.machines):
        raise ConfigError(f"nbClusterExpected: {expected}, but server {server} of {descriptor.path} has "
                          f"{len(found.machines)} replicas")
    me = next((machine for machine in found.machines if machine.id == replica), found.machines[0])
    login, passcode = me.args_of(CONNECTION_MANAGER)
    config: dict[str, Any] = {
        "node": node_name(found, me),
        "design": "joram" if found.replicated else "standalone",
        "data": storage,
        "host": me.host,
        "port": me.client_port,
        "login": login,
        "passcode": passcode,
        "client_addresses": {node_name(found, each): f"{each.host}:{each.client_port}" for each in found.machines},
        "server": found.id,
        "networks": [[[each.host, each.networks[domain]] for each in found.machines] for domain in me.networks],
        "servers": {str(other.id): addresses for other in descriptor.servers.values()
                    if other is not found and (addresses := _reachable(me, other))},
        "services": [[service.kind, *service.args] for service in me.services],
        "options": dict(found.options),
    }
    reached = {found.id, *map(int, config["servers"])}
    config["clustered"] = {name: list(servers) for name, servers in descriptor.clustered.items() if found.id in servers}
    for name, servers in config["clustered"].items():
        if missing := [str(server) for server in servers if server not in reached]:
            raise ConfigError(f"{descriptor.path}: {name} is on the servers {found.id} and {missing[0]}, which have no "
                              "domain in common")
    if found.replicated:
        config["peers"] = {node_name(found, each): [each.host, _link_port(descriptor, each)]
                           for each in found.machines}
        config["options"] |= {"cluster": f"{found.name}#{found.id}", "join": join}
        if expected is not None:
            config["options"]["nb_cluster_expected"] = expected
    return config


def node_name(server: DescribedServer, machine: DescribedMachine) -> str:
    """Return ``s0.1`` for replica 1 of the cluster s0; the server's name if it is not replicated."""
    return f"{server.name}.{machine.id}" if server.replicated else server.name


def _link_port(descriptor: Descriptor, machine: DescribedMachine) -> int:
    if not machine.networks:
        raise ConfigError(f"{descriptor.path}:{machine.line}: a replica needs a network: its port + {LINK_OFFSET} "
                          "is that of the links between the replicas")
    port = next(iter(machine.networks.values())) + LINK_OFFSET
    if port > MAX_PORT:
        raise ConfigError(f"{descriptor.path}:{machine.line}: the network's port + {LINK_OFFSET}, for the links "
                          f"between the replicas, is beyond {MAX_PORT}")
    return port


def _reachable(me: DescribedMachine, other: DescribedServer) -> list[list[Any]]:
    """Return the addresses of another server's replicas, in the first domain that both share."""
    for domain in me.networks:
        if domain in other.machines[0].networks:
            return [[machine.host, machine.networks[domain]] for machine in other.machines]
    return []
