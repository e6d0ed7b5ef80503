#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download a checkpoint from the hub."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_download
short_description: Download a checkpoint from the Hugging Face hub, going on where an earlier download stopped
description:
  - Brings one revision of a model repository into a directory with huggingface_hub, several files at once. Files that
    are there already are not loaded again, and a file that was cut short goes on where it was.
  - The revision is resolved to its commit first, so that all files are of one. A directory that holds another
    repository's or commit's files gets the new ones in their place; no file is removed.
  - Disk space is looked at before anything is written. M(checkpoint_info) and M(checkpoint_verify) say afterwards
    whether it is whole and as published; huggingface_hub leaves the published digests beside the files.
  - In a play it shows how far it is.
requirements: [huggingface_hub]
options:
  repo:
    description: The repository, such as C(Qwen/Qwen3.6-27B).
    type: str
    required: true
  revision:
    description: A commit, tag or branch.
    type: str
    required: true
  path:
    description: The directory that gets the files; it is made.
    type: path
    required: true
  ignore:
    description: Patterns of files that are left out. Weights in another format than safetensors are of no use here.
    type: list
    elements: str
    default: ['*.bin', '*.pt', '*.pth', '*.gguf', '*.onnx', '*.h5', '*.msgpack', 'original/*']
  token:
    description: The hub's token, for repositories that need one.
    type: str
  workers:
    description: Files at once.
    type: int
    default: 4
  seconds:
    description: Begin no further file after so many seconds; 0 for no limit.
    type: float
    default: 0
attributes:
  check_mode: {support: full, description: Says what would be loaded.}
  diff_mode: {support: none, description: Files are named in the answer.}
author: [sglang-pve]
"""

EXAMPLES = r"""
- name: Download the checkpoint
  checkpoint_download:
    repo: Qwen/Qwen3.6-27B
    revision: main
    path: /srv/models/Qwen3.6-27B
"""

RETURN = r"""
commit:
  description: The commit that the revision is.
  returned: always
  type: str
loaded:
  description: Files that were loaded, or in check mode would be.
  returned: always
  type: list
  elements: str
left:
  description: Files that were not begun for want of time.
  returned: always
  type: list
  elements: str
bytes_done:
  description: Bytes of the files that are there.
  returned: always
  type: int
bytes_total:
  description: Bytes of all files.
  returned: always
  type: int
"""

import fnmatch
import os
import shutil
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

try:
    import huggingface_hub
    from huggingface_hub import errors as hub_errors

    MISSING = None
except ImportError:
    MISSING = traceback.format_exc()

# What must stay free on the disk beside the download.
SPARE_BYTES = 1 << 30


class DownloadError(Exception):
    """A download that cannot be begun or finished; the message says what was seen and what to do."""


def files_of(api, repo, revision, ignore):
    """The commit, and {name: bytes} of the files wanted of it. Raises what huggingface_hub raises."""
    info = api.repo_info(repo, revision=revision, files_metadata=True)
    wanted = {
        item.rfilename: item.size or 0
        for item in info.siblings
        if not any(fnmatch.fnmatch(item.rfilename, pattern) for pattern in ignore)
    }
    if not any(name.endswith(".safetensors") for name in wanted):
        raise DownloadError(
            f"{repo} at {revision} has no *.safetensors file; name a repository in that format"
            f" (it has {len(info.siblings)} files: {', '.join(item.rfilename for item in info.siblings[:5])} ...)"
        )
    return info.sha, wanted


def is_there(path, name, size, commit):
    """Whether a finished download of this commit left the file, as its metadata says; its bytes are not read."""
    note = path / ".cache/huggingface/download" / f"{name}.metadata"
    try:
        return (path / name).stat().st_size == size and note.read_text(encoding="utf-8").split("\n")[0] == commit
    except OSError:
        return False


def check_disk(path, missing_bytes):
    """Raises DownloadError unless what is missing fits with SPARE_BYTES to spare."""
    place = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < missing_bytes + SPARE_BYTES:
        raise DownloadError(
            f"{free / 2**30:.1f} GiB are free at {place}; expected {(missing_bytes + SPARE_BYTES) / 2**30:.1f}: "
            f"{missing_bytes / 2**30:.1f} still to load and 1 to spare. Free space, or name another directory"
        )


def load(repo, commit, names, path, token, workers, seconds):
    """Load files until ``seconds`` have passed; the names of those that were not begun."""
    end = time.monotonic() + seconds if seconds else float("inf")

    def one(name):
        if time.monotonic() > end:
            return name
        huggingface_hub.hf_hub_download(repo, name, revision=commit, local_dir=path, token=token or None)
        return None

    with ThreadPoolExecutor(workers) as pool:
        tasks = [pool.submit(one, name) for name in names]
        try:
            return [name for name in (task.result() for task in tasks) if name]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def sentence(error, wanted):
    """What went wrong, for a person."""
    where = f"{wanted['repo']} at {wanted['revision']}"
    if isinstance(error, hub_errors.GatedRepoError):
        return f"{where} is gated: accept its terms on the hub, then give a token of that account (HF_TOKEN)"
    if isinstance(error, hub_errors.RevisionNotFoundError):
        return f"{wanted['repo']} has no revision {wanted['revision']}; name a commit, tag or branch that it has"
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        cure = "correct its name, or give a token that may see it (HF_TOKEN)"
        return f"the hub shows no repository {wanted['repo']}; {cure}"
    return f"{where}: {' '.join(str(error).split())[:500]}. What was loaded stays; the same command goes on"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repo": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "ignore": {
                "type": "list",
                "elements": "str",
                "default": ["*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*"],
            },
            "token": {"type": "str", "no_log": True},
            "workers": {"type": "int", "default": 4},
            "seconds": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    if MISSING:
        module.fail_json(msg=missing_required_lib("huggingface_hub"), exception=MISSING)
    wanted, path = module.params, Path(module.params["path"])
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    api = huggingface_hub.HfApi(token=wanted["token"] or None)
    left = []
    try:
        commit, files = files_of(api, wanted["repo"], wanted["revision"], wanted["ignore"])
        missing = [name for name, size in files.items() if not is_there(path, name, size, commit)]
        check_disk(path, sum(files[name] for name in missing))
        if not module.check_mode and missing:
            # The largest first, so that none of them is left to load alone.
            ordered = sorted(missing, key=lambda name: -files[name])
            left = load(wanted["repo"], commit, ordered, path, wanted["token"], wanted["workers"], wanted["seconds"])
    except DownloadError as error:
        module.fail_json(msg=f"{error}. Nothing was loaded")
    except Exception as error:  # huggingface_hub passes on what its HTTP library raises.
        module.fail_json(msg=sentence(error, wanted), exception=traceback.format_exc())
    loaded = [name for name in missing if name not in left]
    done = sum(size for name, size in files.items() if name not in left and (name in loaded or name not in missing))
    module.exit_json(
        changed=bool(loaded),
        commit=commit,
        loaded=sorted(loaded),
        left=left,
        bytes_done=0 if module.check_mode and not path.exists() else done,
        bytes_total=sum(files.values()),
    )


if __name__ == "__main__":
    main()
