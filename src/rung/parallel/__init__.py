"""Attention beyond one stream and one process: over MPI ranks, over GPUs, over streams.

Existing engines move the bytes (MPI, NCCL through torch.distributed, CUDA's copy engines); what stands here is
how the work is cut, in which order blocks travel, and how partial results are merged. docs/beyond.md tells it whole.
"""
