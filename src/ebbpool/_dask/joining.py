"""The client that an executor works with: made for an address, or checked."""

from __future__ import annotations

from typing import Any, Final

from distributed import Client

COMPARED: Final = ("python", "distributed", "ebbpool")
"""What has to be of the same version everywhere; of Python, the first two numbers."""


def connected(client_or_address: Client | str, timeout: float) -> Client:
    """Return a client that works.

    Raises:
        TypeError: It is neither a client nor an address.
        ValueError: The client is closed or asynchronous.
        TimeoutError: No scheduler answered at the address.
        RuntimeError: Versions differ.
    """
    if isinstance(client_or_address, str):
        try:
            client = Client(client_or_address, timeout=timeout, set_as_default=False)
        except OSError as error:
            raise TimeoutError(
                f"no scheduler answered at client_or_address={client_or_address!r} within timeout={timeout:g} s"
            ) from error
    elif isinstance(client_or_address, Client):
        client = client_or_address
        if client.status != "running":
            raise ValueError(f"client_or_address must be a client that is connected, not {client!r}: {client.status}")
        if client.asynchronous:
            raise ValueError(f"client_or_address must be a client that is not asynchronous, not {client!r}")
    else:
        raise TypeError(f"client_or_address must be a distributed.Client or an address, not {client_or_address!r}")
    try:
        compare(client.get_versions(packages=["ebbpool"]))
    except BaseException:
        if client is not client_or_address:
            client.close()
        raise
    return client


def compare(versions: dict[str, Any]) -> None:
    """Raise `RuntimeError` if versions, as `Client.get_versions` returns them, are not those of the client."""
    here = _of(versions["client"])
    nodes = {"the scheduler": versions["scheduler"]}
    nodes.update({f"the worker {address}": found for address, found in versions["workers"].items()})
    differing = [
        f"{node} has {name} {found} and not {here[name]}"
        for node, described in nodes.items()
        for name, found in _of(described).items()
        if found != here[name]
    ]
    if differing:
        raise RuntimeError("the cluster does not match this process: " + "; ".join(differing))


def _of(described: dict[str, Any]) -> dict[str, str | None]:
    packages = {name: described["packages"].get(name) for name in COMPARED}
    packages["python"] = ".".join(str(packages["python"]).split(".")[:2])
    return packages
