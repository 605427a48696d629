"""Keep the fixed addresses of a project's services free for them: client places and other services get other ones.

Docker's engine hands out the lowest free address of a network's range, and keeps no address for a container that is
down. The range is therefore narrowed to a block without fixed addresses (``ip_range``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from stormproof.errors import UsageError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
MOST_BITS = 16
"""The size of the greatest range: Docker's engine refuses ranges in the upper half of IPv6's subnets of 64 bits."""
_KEYS = ("ipv4_address", "ipv6_address")


def fixed_addresses(services: Mapping[str, Mapping[str, Any]], network: str) -> dict[Address, str]:
    """Return the addresses that services have fixed on a network, each with its service.

    Raises:
        UsageError: one is not an address.
    """
    found: dict[Address, str] = {}
    for name, service in services.items():
        joined = service.get("networks")
        given = joined.get(network) if isinstance(joined, dict) else None
        for key in _KEYS:
            if text := (given or {}).get(key):
                try:
                    found[ipaddress.ip_address(str(text))] = name
                except ValueError:
                    raise UsageError(f"--compose: service {name}: {key}: {text!r} is no address") from None
    return found


def with_ranges(name: str, ipam: Mapping[str, Any], fixed: Collection[Address], others: int) -> dict[str, Any]:
    """Return a network's ``ipam`` with ranges that contain no fixed address, where it has fixed ones, and room for
    ``others``: the client places, and services without a fixed address.

    Raises:
        UsageError: a subnet is wrong, or has no such range.
    """
    pools = []
    for pool in ipam.get("config") or ():
        try:
            subnet = ipaddress.ip_network(str(pool["subnet"]), strict=False)
            whole = ipaddress.ip_network(str(pool.get("ip_range") or subnet), strict=False)
            gateway = ipaddress.ip_address(str(pool.get("gateway") or subnet[1]))
        except (KeyError, ValueError, IndexError) as error:
            raise UsageError(f"--compose: network {name}: its subnet can't be read: {error}") from None
        taken = [address for address in fixed if address in subnet]
        if not taken:
            pools.append(dict(pool))
            continue
        reserved = [*taken, gateway, *(ipaddress.ip_address(str(each))
                                       for each in (pool.get("aux_addresses") or {}).values())]  # fmt: skip
        if (found := next(_blocks(whole, reserved), None)) is None or found.num_addresses < others + 1:
            raise UsageError(f"--compose: network {name}: subnet {subnet} has no room for {others} addresses besides "
                             "the fixed ones; widen it, or leave out ipv4_address and ipv6_address")
        pools.append({**pool, "ip_range": str(found), "gateway": str(gateway)})
    return {**ipam, "config": pools}


def _blocks(whole: Network, reserved: Collection[Address]) -> Iterator[Network]:
    """Yield the blocks of a network without reserved addresses, the largest first, the lowest of each size first."""
    for prefix in range(max(whole.prefixlen, whole.max_prefixlen - MOST_BITS), whole.max_prefixlen + 1):
        step = 1 << (whole.max_prefixlen - prefix)
        for number in range(min(len(reserved) + 1, 1 << (prefix - whole.prefixlen))):  # one of these has none of them
            block = type(whole)((int(whole.network_address) + number * step, prefix))
            if not any(address in block for address in reserved):
                yield block
