"""Attention beyond one stream and one process: over MPI ranks, over GPUs, over streams.

Existing engines move the data (MPI, NCCL through torch.distributed, CUDA's copy engines); this package partitions the
work, orders the transfers of blocks, and merges partial results. docs/beyond.md explains it.
"""
