"""Reads Proxmox VE's API with a token. The caller brings the HTTP client, Ansible's own ``open_url``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from . import pve_config, pve_node

TIMEOUT_S = 20


class ApiError(Exception):
    """The API did not answer as it should; the message says what it said and what to do."""


@dataclass(frozen=True)
class Api:
    """Where the API is (``https://pve1:8006``) and as whom it is asked (``user@realm!name`` and the secret)."""

    url: str
    token_id: str
    token_secret: str
    open_url: Callable[..., Any]
    ca_path: str | None = None

    def get(self, path: str) -> Any:
        """The ``data`` of an answer. Raises ApiError."""
        where = f"{self.url.rstrip('/')}/api2/json{path}"
        headers = {"Authorization": f"PVEAPIToken={self.token_id}={self.token_secret}"}
        try:
            with self.open_url(where, headers=headers, timeout=TIMEOUT_S, ca_path=self.ca_path) as answer:
                said = json.loads(answer.read())
        except ValueError as error:
            raise ApiError(
                f"{where} answered with no JSON ({error}); expected Proxmox VE's API, often on port 8006"
            ) from error
        except OSError as error:
            raise ApiError(f"{where}: {_words(error)}") from error
        if not isinstance(said, Mapping) or "data" not in said:
            raise ApiError(f"{where} answered without data; expected Proxmox VE's API, often on port 8006")
        return said["data"]


def _words(error: OSError) -> str:
    code = getattr(error, "code", None)
    if code == 401:
        return "the token is refused (401); expected its name as user@realm!name and its secret"
    if code == 403:
        return "the token may not read this (403); give it the role PVEAuditor on / (VM.Audit, Sys.Audit)"
    return f"{error}; look whether the node is up, and whether api_ca_path knows its certificate"


def read(api: Api, node: str, vmid: int) -> dict[str, Any]:
    """``{"node", "container"}`` of a facts document, as far as the API knows them. Raises ApiError and ConfigError."""
    base = f"/nodes/{node}/lxc/{vmid}"
    config = pve_config.parse_api(api.get(f"{base}/config"), api.get(f"{base}/snapshot"))
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
