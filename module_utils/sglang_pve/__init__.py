"""The logic of sglang-pve: pure standard-library Python, one file per word of docs/architecture.md."""
