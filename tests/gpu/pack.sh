#!/usr/bin/env bash
# Pack an installed stack (a site-packages folder of Python 3.12) for a machine that has its PyTorch already, in parts.
# Left out: PyTorch's own, and what flashinfer attention on SM 9.0 does not need. An SM 12.0 card needs sgl_kernel/sm100.
# usage: pack.sh SITE_PACKAGES OUTDIR [PART_SIZE]
set -euo pipefail
site=$1 out=$2 size=${3:-58M}
mkdir -p "$out"
skip=()
set -f
for path in torch torch-* torchgen functorch triton triton-* nvidia uv uv-* deep_gemm flashinfer_cubin/cubins/* \
  sgl_kernel/flash_ops.abi3.so sgl_kernel/flashmla_ops.abi3.so sgl_kernel/sm100; do
  skip+=("--exclude=./$path")
done
tar -C "$site" "${skip[@]}" --exclude=__pycache__ -cf - . | xz -T0 -3 | split -b "$size" -d - "$out/stack."
ls -l "$out"
