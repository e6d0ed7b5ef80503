"""Reads Proxmox VE's API with a token. The caller brings the client, proxmoxer's ``ProxmoxAPI``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from . import pve_config, pve_node

TIMEOUT_S, PORT = 20, 8006


class ApiError(Exception):
    """The API did not answer as it should; the message says what it said and what to do."""


@dataclass(frozen=True)
class Api:
    """A cluster's API at ``url``, asked through ``client`` (of proxmoxer)."""

    url: str
    client: Any

    def get(self, path: str, **query: Any) -> Any:
        """The ``data`` of an answer. Raises ApiError."""
        where = f"{self.url}/api2/json{path}"
        try:
            said = self.client(path.lstrip("/")).get(**query)
        except (KeyError, TypeError) as error:
            raise ApiError(f"{where} answered without data; expected Proxmox VE's API, often on port 8006") from error
        except Exception as error:  # proxmoxer's own, and those of the HTTP library below it.
            raise ApiError(f"{where}: {_words(error)}") from error
        # proxmoxer's word for what is no JSON.
        if isinstance(said, dict) and set(said) == {"errors"}:
            raise ApiError(f"{where} answered with no JSON; expected Proxmox VE's API, often on port 8006")
        return said


def connect(make: Callable[..., Any], url: str, token_id: str, token_secret: str, ca_path: str | None = None) -> Api:
    """An Api of ``make`` (proxmoxer.ProxmoxAPI). Raises ApiError for what cannot be an address or a token's name."""
    host, port = _address(url)
    user, _, name = token_id.partition("!")
    if not name or "@" not in user:
        raise ApiError(f"{token_id!r} is no token's name; expected one such as sglang@pve!read")
    client = make(
        host,
        port=port,
        user=user,
        token_name=name,
        token_value=token_secret,
        verify_ssl=ca_path or True,
        timeout=TIMEOUT_S,
    )
    return Api(url.rstrip("/"), client)


def _address(url: str) -> tuple[str, int]:
    """Host and port of ``https://HOST[:PORT]``. Raises ApiError for anything else, as the rest would be dropped."""
    with contextlib.suppress(ValueError):  # of a port, or of brackets
        at = urlsplit(url)
        rest = ("@" in at.netloc, at.path.strip("/"), at.query, at.fragment)
        if at.scheme == "https" and at.hostname and not any(rest):
            return at.hostname, at.port or PORT
    # What stands before an @ may be a password.
    seen = url.rpartition("@")[2]
    raise ApiError(f"{seen} is no address of the API; expected nothing but https, host and port: https://pve1:8006")


def _words(error: Exception) -> str:
    code = getattr(error, "status_code", None)
    if code == 401:
        return "the token is refused (401); expected its name as user@realm!name and its secret"
    if code == 403:
        return "the token may not read this (403); give it the role PVEAuditor on / (VM.Audit, Sys.Audit)"
    return f"{error}; look whether the node is up, and whether api_ca_path knows its certificate"


def read(api: Api, node: str, vmid: int) -> dict[str, Any]:
    """``{"node", "container"}`` of a facts document, as far as the API knows them. Raises ApiError and ConfigError."""
    base = f"/nodes/{node}/lxc/{vmid}"
    config = pve_config.parse_api(api.get(f"{base}/config", **pve_config.CURRENT), api.get(f"{base}/snapshot"))
    # A value that differs or a delete is a change that waits for a restart.
    waits = any("pending" in item or "delete" in item for item in api.get(f"{base}/pending"))
    state = api.get(f"{base}/status/current")["status"]
    return {
        "node": {"name": node, **pve_node.status(api.get(f"/nodes/{node}/status"))},
        "container": {
            "vmid": vmid,
            "status": state,
            **({"running_config_pending": True} if waits else {}),
            "config": pve_config.facts(config),
        },
    }
