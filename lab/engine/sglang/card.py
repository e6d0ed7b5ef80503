"""The GPU that this process may use, as nvidia-smi shows it."""

import os
import subprocess


class Card:
    """One GPU: `index` and `uuid` of nvidia-smi, `memory_mib` in all, `capability` as (major, minor)."""

    def __init__(self, index, uuid, memory_mib, capability):
        self.index = index
        self.uuid = uuid
        self.memory_mib = memory_mib
        self.capability = capability

    @property
    def blackwell(self):
        return self.capability[0] in (10, 11, 12)


def all_cards():
    """Every GPU of the machine; none where nvidia-smi is missing or fails."""
    program = os.environ.get("SGLANG_LAB_NVIDIA_SMI", "nvidia-smi")
    query = "--query-gpu=index,uuid,memory.total,compute_cap"
    try:
        answer = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return []
    cards = []
    for line in answer.stdout.decode().splitlines():
        index, uuid, memory, capability = (field.strip() for field in line.split(","))
        major, _, minor = capability.partition(".")
        cards.append(Card(int(index), uuid, int(memory), (int(major), int(minor or 0))))
    return cards


def visible_card(base_gpu_id=0):
    """The card that CUDA_VISIBLE_DEVICES gives to this process, by index or by (the start of) a UUID; None if none.

    CUDA ignores everything from the first unknown entry on, so a wrong name means no card at all.
    """
    cards = all_cards()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None:
        seen = []
        for name in (entry.strip() for entry in wanted.split(",")):
            match = [c for c in cards if name == str(c.index) or (name.startswith("GPU-") and c.uuid.startswith(name))]
            if len(match) != 1:
                break
            seen += match
        cards = seen
    return cards[base_gpu_id] if base_gpu_id < len(cards) else None
